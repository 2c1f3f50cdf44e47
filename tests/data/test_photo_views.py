"""Random crops, mirror images and colours."""

import pytest
import torch

from pyro_fmvae.data import RandomPhoto


def test_each_image_is_changed_by_itself():
    torch.manual_seed(0)
    x = torch.rand(1, 8, 8, 3).expand(20, -1, -1, -1)
    changed = RandomPhoto(1.0, 8, 8)(x)
    assert changed.shape == x.shape and changed.min() >= 0 and changed.max() <= 1
    assert len(changed.flatten(1).unique(dim=0)) == 20


def test_weakest_changes_are_mirror_images_alone():
    torch.manual_seed(0)
    x = torch.rand(30, 8, 6, 3)
    changed = RandomPhoto(1e-6, 8, 6)(x)
    mirrored = [torch.allclose(one, other.flip(1), atol=1e-4) for one, other in zip(changed, x, strict=True)]
    same = [torch.allclose(one, other, atol=1e-4) for one, other in zip(changed, x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 5 < sum(mirrored) < 25


def test_signed_pixels_are_changed_as_others_are():
    x = torch.rand(4, 8, 8, 3)
    torch.manual_seed(1)
    unit = RandomPhoto(0.5, 8, 8)(x)
    torch.manual_seed(1)
    signed = RandomPhoto(0.5, 8, 8, signed=True)(2 * x - 1)
    torch.testing.assert_close(signed, 2 * unit - 1)


@pytest.mark.parametrize("strength", [0.0, 1.5])
def test_bad_strength(strength):
    with pytest.raises(ValueError, match=rf"^strength: expected a number in \(0, 1\], got {strength}$"):
        RandomPhoto(strength, 8, 8)
