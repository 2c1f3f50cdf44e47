import math

import pytest
import torch
from torch.nn import functional

from pyro_fmvae.nn import RandomWarp

STRENGTHS = (0.5, 1.0)


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def fixed(maps, **kwargs):
    """The module with given maps in place of random ones, and without bends."""
    module = RandomWarp(**kwargs)
    module._maps = lambda count, like: torch.as_tensor(maps, dtype=like.dtype).expand(count, 2, 3)
    module._bends = lambda count, like: like.new_zeros(count, 2, 25)
    return module


def undistorted(count, like):
    """Maps that leave all pixels where they are."""
    return torch.zeros(count, 2, 3, dtype=like.dtype)


@pytest.mark.parametrize("shape", [(7, 6, 6), (2, 3, 6, 6), (6, 6), (4, 5, 8)])
def test_weakest_distortion_is_none(shape):
    x = images(*shape)
    torch.testing.assert_close(RandomWarp(1e-9)(x), x)


def test_quarter_turn():
    x = images(3, 6, 6)
    turned = fixed([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])(x)
    torch.testing.assert_close(turned, torch.rot90(x, 1, (-2, -1)))


def test_shift_continues_the_edge():
    x = images(3, 6, 6) - 1
    moved = fixed([[1.0, 0.0, 2 * 1 / 6], [0.0, 1.0, 0.0]])(x)  # a pixel to the left
    torch.testing.assert_close(moved[..., :-1], x[..., 1:])
    torch.testing.assert_close(moved[..., -1], x[..., -1])


@pytest.mark.parametrize("interpolate", [True, False])
@pytest.mark.parametrize("ground", [-1.0, 0.0, 0.7, 1.0])
def test_ground_of_any_brightness_stays_plain(ground, interpolate):
    torch.manual_seed(0)
    x = torch.full((20, 9, 12, 3), ground)
    x[:, 3:6, 4:8] = 0.3
    warped = RandomWarp(2.0, colours=True, interpolate=interpolate)(x)
    assert warped.min() >= min(ground, 0.3) - 1e-6 and warped.max() <= max(ground, 0.3) + 1e-6


def test_colours_move_together():
    x = images(4, 7, 7, 3)
    torch.manual_seed(1)
    coloured = RandomWarp(1.0, colours=True)(x)
    for channel in range(3):
        torch.manual_seed(1)
        torch.testing.assert_close(coloured[..., channel], RandomWarp(1.0)(x[..., channel]))


@pytest.mark.parametrize("strength", STRENGTHS)
def test_maps_fill_their_intervals_and_no_more(strength):
    torch.manual_seed(0)
    maps = RandomWarp(strength)._maps(20_000, torch.zeros(1, 1, dtype=torch.float64))
    linear, shift = maps[..., :2], maps[..., 2]
    scale = linear[:, :, 0].norm(dim=-1)
    angle = torch.atan2(linear[:, 1, 0], linear[:, 0, 0])
    inverse_turn = torch.stack([angle.cos(), angle.sin()], -1)
    shear = (linear[:, :, 1] * inverse_turn).sum(-1) / scale
    for value, reach in ((angle, math.radians(25)), (scale.log(), 0.2), (shear, 0.4), (shift, 2 * 3 / 28)):
        assert 0.99 * strength * reach < value.max() <= strength * reach * (1 + 1e-9)
        assert -0.99 * strength * reach > value.min() >= -strength * reach * (1 + 1e-9)
        assert abs(value.mean()) < 0.02 * strength * reach


@pytest.mark.parametrize("strength", STRENGTHS)
def test_bends_are_smooth_and_fill_their_interval(strength):
    torch.manual_seed(0)
    module = RandomWarp(strength)
    module._maps = undistorted
    bends = module._places(torch.zeros(4000, 1, 29, 29, dtype=torch.float64))
    assert bends.shape == (4000, 29, 29, 2)
    reach = 2 * strength * 2.5 / 28
    knots = bends[:, ::7, ::7]  # as many as were drawn: bicubic interpolation goes through them
    assert 0.99 * reach < knots.max() <= reach * (1 + 1e-9)
    assert -0.99 * reach > knots.min() >= -reach * (1 + 1e-9)
    assert knots.std() == pytest.approx(reach / math.sqrt(3), rel=0.01)
    assert abs(torch.corrcoef(knots[:, :2, 0, 0].T)[0, 1]) < 0.08
    assert bends.diff(dim=1).abs().max() < 0.5 * reach


def test_bent_image_is_read_where_the_displacement_points():
    module = fixed([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    x = images(3, 6, 6)
    right = torch.tensor([2 * 1 / 6, 0.0], dtype=x.dtype)  # by a pixel
    module._bends = lambda count, like: right[:, None].expand(count, 2, 25)
    torch.testing.assert_close(module(x)[..., :-1], x[..., 1:])


def affine(count, like):
    """Maps of squares by the formula in the documentation."""
    angle, scale, shear, right, down = 2 * torch.rand(5, count, dtype=like.dtype) - 1
    angle, scale, shear = math.radians(25) * angle, (0.2 * scale).exp(), 0.4 * shear
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(-1, 2, 2)
    slant = torch.eye(2, dtype=like.dtype).repeat(count, 1, 1)
    slant[:, 0, 1] = shear
    shift = 2 * 3 / 28 * torch.stack([right, down], -1)
    return torch.cat([scale[:, None, None] * turn @ slant, shift[..., None]], -1)


@pytest.mark.parametrize(("height", "width"), [(12, 12), (9, 14), (14, 9)])
def test_images_are_taken_from_where_an_affine_grid_in_pixels_has_them(height, width):
    x = images(6, height, width).double()
    module = RandomWarp()
    module._bends = lambda count, like: like.new_zeros(count, 2, 25)
    torch.manual_seed(3)
    warped = module(x)
    torch.manual_seed(3)
    maps = affine(6, x)
    pixels = torch.tensor([width, height], dtype=x.dtype)  # of places from -1 to 1 along x and y
    maps[..., :2] = maps[..., :2] * pixels / pixels[:, None]
    grid = functional.affine_grid(maps, [6, 1, height, width], align_corners=False)
    expected = functional.grid_sample(x[:, None], grid, padding_mode="border", align_corners=False)[:, 0]
    torch.testing.assert_close(warped, expected)


@pytest.mark.parametrize(("colours", "shape"), [(False, (20, 5, 9)), (True, (20, 9, 5, 3))])
def test_images_that_are_not_square_keep_shape_and_range(colours, shape):
    torch.manual_seed(0)
    x = 2 * images(*shape) - 1
    warped = RandomWarp(colours=colours)(x)
    assert warped.shape == x.shape and not torch.allclose(warped, x, atol=0.1)
    assert warped.min() >= x.min() - 1e-6 and warped.max() <= x.max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(28, 28), (20, 36)])
def test_pixels_come_from_where_torch_would_have_them(size, dtype):
    """The affine grid and the bicubic interpolation that torch has functions for, added."""
    like = torch.zeros(5, 1, *size, dtype=dtype)
    module = RandomWarp()
    torch.manual_seed(3)
    places = module._places(like)
    torch.manual_seed(3)
    maps, knots = module._maps(5, like), module._bends(5, like).unflatten(-1, (5, 5))
    bends = functional.interpolate(knots, list(size), mode="bicubic", align_corners=True)
    expected = functional.affine_grid(maps, list(like.shape), align_corners=False) + bends.movedim(1, -1)
    torch.testing.assert_close(places, expected)


def test_nearest_pixels_keep_images_binary():
    torch.manual_seed(0)
    x = (images(5, 9, 9) < 0.5).double()
    assert set(RandomWarp(interpolate=False)(x).unique().tolist()) == {0.0, 1.0}
    assert len(RandomWarp()(x).unique()) > 2


def test_autocast_does_not_reach_it():
    x = images(4, 28, 28).float()
    torch.manual_seed(0)
    expected = RandomWarp()(x)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(RandomWarp()(x), expected)


def test_each_image_has_a_map_of_its_own():
    torch.manual_seed(0)
    x = images(1, 6, 6).expand(5, 6, 6)
    assert len(RandomWarp()(x).flatten(1).unique(dim=0)) == 5


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_numbers(bad):
    with pytest.raises(ValueError, match=r"strength: expected a number > 0"):
        RandomWarp(bad)


@pytest.mark.parametrize(("colours", "shape"), [(False, (6,)), (True, (6, 6))])
def test_too_few_dimensions(colours, shape):
    with pytest.raises(ValueError, match=r"x: expected images \[\.\.\., H, W"):
        RandomWarp(colours=colours)(torch.zeros(shape))
