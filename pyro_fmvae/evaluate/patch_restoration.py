"""Denoising and inpainting of an image patch by patch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fmvae.data.patches import assemble_patches, extract_patches


def psnr(image: Tensor, reference: Tensor, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB: 10 log10(peak² / mean squared error). Infinite for equal images.

    Args:
        image: finite values, of any shape.
        reference: the true image, of the same shape.
        peak: the largest possible value of a pixel.

    Raises:
        ValueError: different shapes, no pixels, values that are not finite, or a peak that is not above 0.
    """
    if image.shape != reference.shape or not image.numel():
        raise ValueError(
            f"image, reference: expected one shape with at least one pixel, got {list(image.shape)} and "
            f"{list(reference.shape)}"
        )
    if not 0 < peak < math.inf:
        raise ValueError(f"peak: expected a number > 0, got {peak}")
    error = (image.double() - reference.double()).square().mean().item()
    if not math.isfinite(error):
        raise ValueError("image, reference: expected finite values, got NaN or infinity")
    return math.inf if error == 0 else 20 * math.log10(peak) - 10 * math.log10(error)


@torch.no_grad()
def restore(
    reconstruct: Callable[[Tensor], Tensor],
    image: Tensor,
    patch_size: int,
    stride: int = 1,
    scale: float = 1.0,
    keep_observed: bool = False,
    batch_size: int = 4096,
) -> Tensor:
    """Denoise and inpaint a grey image with a model of patches.

    Each patch is centred at the mean of its observed pixels, divided by ``scale``, reconstructed, and
    transformed back. Overlapping reconstructions are averaged. A patch without observed pixels is centred at
    the mean of the image's observed pixels.

    Args:
        reconstruct: maps centred patches [n, P, P], NaN = missing, to their reconstructions [n, P, P].
        image: floats [H, W], NaN = missing.
        patch_size: P, height and width of a patch; at most those of the image.
        stride: distance between patches in both directions, from 1 to P; the last patches end at the edges.
        scale: divisor of centred patches, that of the model's training data.
        keep_observed: copy observed pixels from the image, for images without noise.
        batch_size: number of patches reconstructed at once.

    Returns:
        The restored image [H, W], without NaN; values outside [0, 1] are not clipped.

    Raises:
        ValueError: an argument of another shape or size, an image without observed pixels, or a
            reconstruction of another shape or with values that are not finite.
    """
    _check(image, patch_size, scale, batch_size)
    observed = ~image.isnan()
    if not observed.any() or image.isinf().any():
        raise ValueError("image: expected finite pixels, at least one, and NaN for missing ones")
    patches = extract_patches(image, patch_size, stride)
    mean = patches.nanmean((1, 2), keepdim=True)
    mean = torch.where(mean.isnan(), image.nanmean(), mean)
    batches = ((patches - mean) / scale).split(batch_size)
    restored = torch.cat([_reconstructed(reconstruct, batch) for batch in batches]) * scale + mean
    result = assemble_patches(restored, image.shape, stride)
    return torch.where(observed, image, result) if keep_observed else result


def _check(image: Tensor, patch_size: int, scale: float, batch_size: int) -> None:
    if image.dim() != 2 or not image.is_floating_point():
        raise ValueError(f"image: expected floats [H, W], got {image.dtype} {list(image.shape)}")
    if not 1 <= patch_size <= min(image.shape):
        raise ValueError(
            f"patch_size: expected a number from 1 to the image's {min(image.shape)}, got {patch_size}"
        )
    if not 0 < scale < math.inf:
        raise ValueError(f"scale: expected a number > 0, got {scale}")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected a number >= 1, got {batch_size}")


def _reconstructed(reconstruct: Callable[[Tensor], Tensor], patches: Tensor) -> Tensor:
    found = reconstruct(patches)
    if found.shape != patches.shape or not found.isfinite().all():
        raise ValueError(
            f"reconstruct: expected finite values of shape {list(patches.shape)}, got {list(found.shape)}"
            + (" with NaN or infinity" if found.shape == patches.shape else "")
        )
    return found
