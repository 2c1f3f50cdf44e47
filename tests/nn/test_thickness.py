"""Random thickness of strokes."""

import pytest
import torch
from torch.nn import functional

from pyro_fmvae.nn import RandomThickness
from pyro_fmvae.nn.distortion import MOST


def strokes(size=200):
    x = torch.zeros(size, 9, 9)
    x[:, 2:7, 3:5] = 1
    return x


def test_strokes_become_thicker_or_thinner_by_a_share():
    torch.manual_seed(0)
    x = strokes()
    changed = RandomThickness(0.5)(x)
    thicker = functional.max_pool2d(x[:, None], 3, 1, 1)[:, 0]
    thinner = -functional.max_pool2d(-x[:, None], 3, 1, 1)[:, 0]
    grown = (changed - x).sum((-2, -1)) > 0
    assert 70 < grown.sum() < 130
    target = torch.where(grown[:, None, None], thicker, thinner)
    share = ((changed - x) / (target - x))[(target != x)]
    assert share.min() >= 0 and 0.49 * MOST < share.max() <= 0.5 * MOST
    assert torch.equal(changed[target == x], x[target == x])


def test_binary_images_stay_binary_and_have_the_same_mean():
    x = strokes(4000)
    torch.manual_seed(0)
    smooth = RandomThickness()(x)
    binary = RandomThickness(interpolate=False)(x)
    assert set(binary.unique().tolist()) == {0.0, 1.0}
    error = binary.mean(0).sub(smooth.mean(0)).abs()
    assert (error <= 4.5 * (0.5 / 4000**0.5) * 2**0.5).all()


@pytest.mark.parametrize("shape", [(9, 9), (2, 3, 9, 7)])
def test_leading_dimensions(shape):
    assert RandomThickness()(torch.rand(shape)).shape == shape


def test_bad_input():
    for strength in (0.0, 1.5):
        with pytest.raises(ValueError, match=rf"^strength: expected a number in \(0, 1\], got {strength}$"):
            RandomThickness(strength)
    with pytest.raises(ValueError, match=r"^x: expected images \[\.\.\., H, W\], got"):
        RandomThickness()(torch.rand(3))
