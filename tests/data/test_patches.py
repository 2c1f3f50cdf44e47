import pytest
import torch

from pyro_fmvae.data import assemble_patches, extract_patches


def image(height=9, width=11, dtype=torch.float64):
    return torch.randn(height, width, dtype=dtype)


def test_patches_lie_row_by_row_and_reach_the_edges():
    x = image(7, 8)
    tops, lefts = (0, 3, 4), (0, 3, 5)
    expected = [x[top : top + 3, left : left + 3] for top in tops for left in lefts]
    torch.testing.assert_close(extract_patches(x, 3, 3), torch.stack(expected), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (4, 1), (4, 2), (4, 3), (4, 4), (9, 1), (9, 9)])
def test_assembling_is_the_inverse(size, stride, dtype):
    x = image(dtype=dtype)
    patches = extract_patches(x, size, stride)
    assert patches.shape[1:] == (size, size) and patches.dtype == dtype
    torch.testing.assert_close(assemble_patches(patches, x.shape, stride), x)


def test_overlaps_are_averaged():
    x = image(4, 5)
    patches = torch.randn(extract_patches(x, 3, 2).shape)
    total, count = torch.zeros(4, 5), torch.zeros(4, 5)
    for patch, (top, left) in zip(patches, [(0, 0), (0, 2), (1, 0), (1, 2)], strict=True):
        total[top : top + 3, left : left + 3] += patch
        count[top : top + 3, left : left + 3] += 1
    assert count.min() >= 1 and count.max() == 4
    torch.testing.assert_close(assemble_patches(patches, (4, 5), 2), total / count)


def test_missing_pixels_do_not_count():
    x = image(6, 6)
    patches = extract_patches(x, 3, 1)
    patches[0, 2, 2] = torch.nan  # others know that pixel
    torch.testing.assert_close(assemble_patches(patches, (6, 6), 1), x)
    x[3, 3] = torch.nan
    torch.testing.assert_close(
        assemble_patches(extract_patches(x, 3, 1), (6, 6), 1), x, equal_nan=True, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4), 2, 1), r"image: expected \[H, W\], got \[4\]"),
        ((torch.zeros(3, 4), 4, 1), "size: expected 1 to 3, the image's smaller side, got 4"),
        ((torch.zeros(3, 4), 0, 1), "size: expected 1 to 3, the image's smaller side, got 0"),
        ((torch.zeros(3, 4), 2, 0), "stride: expected 1 to 2, the patches' size, got 0"),
        ((torch.zeros(3, 4), 2, 3), "stride: expected 1 to 2, the patches' size, got 3"),
    ],
)
def test_images_that_cannot_be_cut(arguments, message):
    with pytest.raises(ValueError, match=message):
        extract_patches(*arguments)


@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (torch.zeros(4, 2, 3), r"patches: expected \[n, P, P\], got \[4, 2, 3\]"),
        (torch.zeros(3, 2, 2), "patches: expected 4 of them for an image 4 x 4, got 3"),
    ],
)
def test_patches_that_are_none_of_that_image(patches, message):
    with pytest.raises(ValueError, match=message):
        assemble_patches(patches, (4, 4), 2)
