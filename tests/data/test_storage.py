import numpy as np
import pytest
import torch

from pyro_fmvae.data.storage import as_float, luminance, sample_binary, to_stored, to_uint8


@pytest.mark.parametrize(
    "stored",
    [torch.tensor([False, True]), torch.tensor([0, 255], dtype=torch.uint8), torch.tensor([0.0, 1.0])],
)
def test_the_dtype_says_the_scale(stored):
    assert as_float(stored).dtype == torch.float32
    assert as_float(stored).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (torch.tensor([False, True]), [-1, 1]),
        (torch.tensor([0, 51, 255], dtype=torch.uint8), [-1, -0.6, 1]),
        (torch.tensor([0.0, 0.25, 1.0], dtype=torch.float32), [-1, -0.5, 1]),
    ],
)
def test_signed_pixels_lie_around_zero(stored, expected):
    x = as_float(stored, signed=True)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float32))


def test_frequencies_are_the_grey_levels():
    n = 40_000
    grey = torch.tensor([0, 51, 128, 255], dtype=torch.uint8)
    drawn = sample_binary(grey.expand(n, 4), torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.bool
    frequency = drawn.float().mean(dim=0)
    assert frequency[0] == 0 and frequency[3] == 1
    torch.testing.assert_close(frequency, as_float(grey), atol=5 * 0.5 / n**0.5, rtol=0)


def test_missing_numbers_stay_missing():
    stored = torch.tensor([torch.nan, 0.25], dtype=torch.float32)
    for signed in (False, True):
        assert as_float(stored, signed).isnan().tolist() == [True, False]


def test_greys_of_colours():
    image = torch.eye(3, dtype=torch.float32).reshape(1, 3, 3)
    torch.testing.assert_close(luminance(image), torch.tensor([[0.299, 0.587, 0.114]], dtype=torch.float32))
    assert torch.equal(luminance(image[0]), image[0])


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_pixels_out_of_range(value):
    with pytest.raises(ValueError, match=r"here: expected uint8 or values in \[0, 1\], got float64 in"):
        to_stored(np.array([0.5, value]), "here")


def test_pixels_are_rounded_to_bytes():
    found = to_uint8(torch.tensor([[-0.5, 0.0, 0.5 / 255 + 1e-6], [127.4 / 255, 1.0, 1.5]]))
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 0, 1], [127, 255, 255]]
