"""Values of stored observations: the dtype of a tensor says how it is scaled."""

import torch
from torch import Tensor


def as_float(stored: Tensor, signed: bool = False) -> Tensor:
    """Observations as float32, of the same shape.

    Args:
        stored: bool (pixels in {0, 1}), uint8 (grey levels, 255 = 1.0) or float32 (taken as they are).
        signed: map [0, 1] to [-1, 1].
    """
    x = stored.to(torch.float32)
    if stored.dtype == torch.uint8:
        return x / 127.5 - 1 if signed else x / 255
    return 2 * x - 1 if signed else x


def sample_binary(stored: Tensor, generator: torch.Generator) -> Tensor:
    """Binary pixels, bool of the same shape, each 1 with a probability equal to its grey level.

    Args:
        stored: grey levels as in `as_float`, on the generator's device.
        generator: source of the random bits.
    """
    grey = as_float(stored)
    return torch.rand(grey.shape, generator=generator, dtype=grey.dtype, device=grey.device) < grey
