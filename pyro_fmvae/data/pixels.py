"""Values of stored observations: the dtype of a tensor says how it is scaled."""

import torch
from torch import Tensor


def as_float(stored: Tensor) -> Tensor:
    """Observations as float32, of the same shape.

    Args:
        stored: bool (pixels in {0, 1}), uint8 (grey levels, 255 = 1.0) or float32 (taken as they are).
    """
    if stored.dtype == torch.uint8:
        return stored.to(torch.float32) / 255
    return stored.to(torch.float32)


def sample_binary(stored: Tensor, generator: torch.Generator) -> Tensor:
    """Binary pixels, bool of the same shape, each 1 with a probability equal to its grey level.

    Args:
        stored: grey levels as in `as_float`, on the generator's device.
        generator: source of the random bits.
    """
    grey = as_float(stored)
    return torch.rand(grey.shape, generator=generator, dtype=grey.dtype, device=grey.device) < grey
