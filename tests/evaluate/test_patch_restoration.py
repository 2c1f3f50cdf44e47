import math

import pytest
import torch

from pyro_fmvae.evaluate import psnr, restore

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
        assert psnr(reference + 25.5, reference, peak=255) == pytest.approx(20)
        assert psnr(torch.tensor([0.0, 0.2]), torch.zeros(2)) == pytest.approx(10 * math.log10(1 / 0.02))

    def test_of_noise(self):
        """Noise of standard deviation 25 on a scale of 255: 20.17 dB, as the literature has it."""
        reference = torch.rand(400, 400)
        noisy = reference + 25 / 255 * torch.randn(400, 400)
        relative_error = math.sqrt(2 / 400**2)
        assert psnr(noisy, reference) == pytest.approx(
            20 * math.log10(255 / 25), abs=4 * 10 / math.log(10) * relative_error
        )

    def test_equal_images(self):
        assert psnr(torch.ones(2, 2), torch.ones(2, 2)) == math.inf

    @pytest.mark.parametrize(
        ("image", "reference", "peak", "message"),
        [
            (torch.zeros(2, 3), torch.zeros(3, 2), 1.0, r"image, reference: .* got \[2, 3\] and \[3, 2\]"),
            (
                torch.zeros(0),
                torch.zeros(0),
                1.0,
                "image, reference: expected one shape with at least one pixel",
            ),
            (torch.tensor([NAN]), torch.zeros(1), 1.0, "image, reference: expected finite values"),
            (torch.zeros(1), torch.zeros(1), 0.0, "peak: expected a number > 0, got 0.0"),
            (torch.zeros(1), torch.zeros(1), NAN, "peak: expected a number > 0, got nan"),
        ],
    )
    def test_errors(self, image, reference, peak, message):
        with pytest.raises(ValueError, match=message):
            psnr(image, reference, peak)


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

    def test_batches_change_nothing(self):
        x, sizes = image(), []

        def reconstruct(patches):
            sizes.append(len(patches))
            return smooth(patches)

        found = restore(reconstruct, x, 3, batch_size=10)
        assert sizes == [10, 10, 10, 5]
        torch.testing.assert_close(found, restore(smooth, x, 3))

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

    def test_the_identity_gives_the_image_back(self):
        x = image(missing=0.0)
        torch.testing.assert_close(restore(lambda patches: patches, x, 3, 2, scale=0.1), x)

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

    def test_averages_denoise(self):
        """Of flat patches: each pixel is a mean over a window, which takes noise away."""
        reference = torch.full((20, 20), 0.4)
        noisy = reference + 0.1 * torch.randn(20, 20)
        assert psnr(restore(torch.zeros_like, noisy, 5), reference) > psnr(noisy, reference) + 10

    def test_no_gradients(self):
        weight = torch.ones((), requires_grad=True)
        assert not restore(lambda patches: weight * patches, image(missing=0.0), 3).requires_grad

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"image": torch.zeros(3)}, r"image: expected floats \[H, W\], got torch.float32 \[3\]"),
            ({"image": torch.zeros(3, 3, dtype=torch.int64)}, "image: expected floats"),
            ({"image": torch.full((4, 4), NAN)}, "image: expected finite pixels, at least one"),
            ({"image": torch.full((4, 4), math.inf)}, "image: expected finite pixels"),
            ({"patch_size": 5}, "patch_size: expected a number from 1 to the image's 4, got 5"),
            ({"patch_size": 0}, "patch_size: expected a number from 1"),
            ({"stride": 0}, "stride: expected 1 to 2, the patches' size, got 0"),
            ({"stride": 3}, "stride: expected 1 to 2, the patches' size, got 3"),
            ({"scale": 0.0}, "scale: expected a number > 0, got 0.0"),
            ({"scale": NAN}, "scale: expected a number > 0, got nan"),
            ({"batch_size": 0}, "batch_size: expected a number >= 1, got 0"),
            ({"reconstruct": lambda x: x.flatten(1)}, r"reconstruct: .* shape \[9, 2, 2\], got \[9, 4\]"),
            (
                {"reconstruct": lambda x: x * NAN},
                "reconstruct: expected finite values .* with NaN or infinity",
            ),
        ],
    )
    def test_errors(self, changes, message):
        arguments = {"reconstruct": smooth, "image": torch.zeros(4, 4), "patch_size": 2}
        with pytest.raises(ValueError, match=message):
            restore(**(arguments | changes))
