"""The parts of examples/restoration.py, against loops."""

import math
from pathlib import Path

import pytest
import torch

from tests.scripts import imported

with imported(Path(__file__).parents[1] / "examples", ["restoration"]) as scripts:
    psnr, restore = scripts.restoration.psnr, scripts.restoration.restore

NAN = math.nan


def image(height=7, width=9, missing=0.4):
    pixels = torch.rand(height, width)
    return torch.where(torch.rand(height, width) < missing, NAN, pixels)


def by_loops(reconstruct, image, size, stride, scale):
    """Patch by patch: at every place that is a multiple of the stride, and at the edges."""
    height, width = image.shape
    total, count = torch.zeros(height, width), torch.zeros(height, width)
    for top in sorted({*range(0, height - size + 1, stride), height - size}):
        for left in sorted({*range(0, width - size + 1, stride), width - size}):
            patch = image[top : top + size, left : left + size]
            known = patch[~patch.isnan()]
            mean = known.mean() if len(known) else image[~image.isnan()].mean()
            found = reconstruct(((patch - mean) / scale)[None])[0] * scale + mean
            total[top : top + size, left : left + size] += found
            count[top : top + size, left : left + size] += 1
    assert count.min() > 0
    return total / count


def smooth(patches):
    """Not linear in a patch, and different at every pixel of it."""
    size = patches.shape[-1]
    ramp = torch.linspace(-1, 1, size * size, dtype=patches.dtype).view(size, size)
    known = patches.nan_to_num(0.3)
    return known.tanh() + ramp * known.square().mean((1, 2), keepdim=True) + 0.1 * ramp


class TestPsnr:
    def test_by_hand(self):
        reference = torch.zeros(2, 5)
        assert psnr(reference + 0.1, reference) == pytest.approx(20)
        assert psnr(torch.tensor([0.0, 0.2]), torch.zeros(2)) == pytest.approx(10 * math.log10(1 / 0.02))

    def test_of_noise(self):
        """Noise of standard deviation 25 on a scale of 255: 20.17 dB, as the literature has it."""
        reference = torch.rand(400, 400)
        noisy = reference + 25 / 255 * torch.randn(400, 400)
        relative_error = math.sqrt(2 / 400**2)
        assert psnr(noisy, reference) == pytest.approx(
            20 * math.log10(255 / 25), abs=4 * 10 / math.log(10) * relative_error
        )


class TestRestore:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (4, 3), (7, 7), (1, 1)])
    def test_against_loops(self, size, stride, dtype):
        x = image().to(dtype)
        found = restore(smooth, x, size, stride, scale=0.2)
        assert found.dtype == dtype
        expected = by_loops(smooth, x.double(), size, stride, 0.2)
        torch.testing.assert_close(
            found.double(), expected, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0
        )

    def test_patches_are_centred_and_scaled(self):
        def reconstruct(patches):
            some = ~patches.isnan().all(2).all(1)
            torch.testing.assert_close(patches[some].nanmean((1, 2)), torch.zeros(int(some.sum())))
            seen.append(patches[~patches.isnan()].abs().max())
            return patches.nan_to_num(0.0)

        seen = []
        x = image(missing=0.7)
        restore(reconstruct, x, 3, scale=1.0)
        restore(reconstruct, x, 3, scale=0.5)
        assert seen[1] == pytest.approx(2 * seen[0])

    def test_patches_without_observed_pixels_have_the_mean_of_the_image(self):
        x = torch.full((6, 6), NAN)
        x[0, 0], x[0, 1] = 0.2, 0.8
        found = restore(lambda patches: torch.full_like(patches, 0.05), x, 2, scale=2.0)
        torch.testing.assert_close(found[3:, 3:], torch.full((3, 3), 0.6))
        assert not found.isnan().any()

    def test_observed_pixels_can_be_kept(self):
        x = image()
        free, kept = restore(smooth, x, 3), restore(smooth, x, 3, keep_observed=True)
        assert torch.equal(kept[~x.isnan()], x[~x.isnan()])
        assert torch.equal(kept[x.isnan()], free[x.isnan()])
        assert (free - x)[~x.isnan()].abs().min() > 0
