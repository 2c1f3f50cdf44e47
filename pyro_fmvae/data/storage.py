"""Stored observations, whose dtype gives their scale, and their conversion to numbers."""

import numpy as np
import torch
from torch import Tensor

_LUMINANCE = (0.299, 0.587, 0.114)


def as_float(stored: Tensor, signed: bool = False) -> Tensor:
    """Convert stored observations to float32, of the same shape.

    Args:
        stored: bool (pixels in {0, 1}), uint8 (grey levels, 255 = 1.0) or float32 (taken as they are, NaN
            included).
        signed: map [0, 1] to [-1, 1].
    """
    x = stored.to(torch.float32)
    if stored.dtype == torch.uint8:
        return x / 127.5 - 1 if signed else x / 255
    return 2 * x - 1 if signed else x


def sample_binary(stored: Tensor, generator: torch.Generator) -> Tensor:
    """Draw binary pixels, bool of the same shape, each 1 with a probability equal to its grey level.

    Args:
        stored: grey levels as in `as_float`, on the generator's device.
        generator: source of the random bits.
    """
    grey = as_float(stored)
    return torch.rand(grey.shape, generator=generator, dtype=grey.dtype, device=grey.device) < grey


def to_stored(raw: np.ndarray, source: str) -> Tensor:
    """Convert pixels to the form they are stored in: bool and uint8 as they are, others as float32.

    Args:
        raw: bool, uint8, or numbers in [0, 1].
        source: name of the array in messages.

    Raises:
        ValueError: numbers outside [0, 1], or NaN.
    """
    if raw.dtype in (np.bool_, np.uint8):
        return torch.from_numpy(np.ascontiguousarray(raw))
    if not (raw.min(initial=0) >= 0 and raw.max(initial=1) <= 1):
        raise ValueError(
            f"{source}: expected uint8 or values in [0, 1], got {raw.dtype} in [{raw.min():g}, {raw.max():g}]"
        )
    return torch.from_numpy(raw.astype(np.float32))


def to_real(raw: np.ndarray, source: str) -> Tensor:
    """Convert numbers as they are, and uint8 divided by 255, to float32 of the same shape.

    Args:
        raw: numbers, NaN where one is missing.
        source: name of the array in messages.

    Raises:
        ValueError: numbers that float32 does not hold.
    """
    if raw.dtype == np.uint8:
        return as_float(torch.from_numpy(raw))
    with np.errstate(over="ignore"):
        x = torch.from_numpy(raw.astype(np.float32))
    if x.isinf().any():
        raise ValueError(f"{source}: expected finite numbers that float32 holds, or NaN where one is missing")
    return x


def to_uint8(pixels: Tensor) -> np.ndarray:
    """Round pixels in [0, 1], of any shape, to uint8 of the same shape; those beyond are clamped."""
    return pixels.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()


def luminance(image: Tensor) -> Tensor:
    """Convert [H, W] or [H, W, 3] to greys [H, W]: 0.299 red, 0.587 green and 0.114 blue (ITU-R BT.601)."""
    return image @ image.new_tensor(_LUMINANCE) if image.dim() == 3 else image
