"""The distribution of sparse latents where they are not zero, and new points with the same active latents."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Slabs(NamedTuple):
    """A normal for the non-zero values of each latent."""

    loc: Tensor
    """[J]."""
    scale: Tensor
    """[J], at least 0."""


def slabs_of(latents: Tensor) -> Slabs:
    """Mean and standard deviation of each latent's non-zero values.

    A latent that is never active gets N(0, 1), the slab of a fixed prior.

    Args:
        latents: codes [n, J], exactly zero where a latent is off.

    Raises:
        ValueError: another shape, or no latents.
    """
    if latents.dim() != 2 or not latents.shape[1]:
        raise ValueError(f"latents: expected shape [n, J], got {list(latents.shape)}")
    values = latents.double()
    on = values != 0
    count = on.sum(0)
    loc = values.sum(0) / count.clamp(min=1)
    squares = torch.where(on, values - loc, 0.0).square().sum(0)
    scale = torch.where(count > 0, (squares / count.clamp(min=1)).sqrt(), 1.0)
    return Slabs(loc.to(latents.dtype), scale.to(latents.dtype))


def resample_active(z: Tensor, slabs: Slabs, draws: int) -> Tensor:
    """Redraw the values of each point's active latents from their slabs.

    Args:
        z: codes [n, J], exactly zero where a latent is off.
        slabs: slabs of the J latents.
        draws: number of draws for each point.

    Returns:
        New codes [draws, n, J], zero where `z` is.

    Raises:
        ValueError: tensors of different shapes, or `draws` < 1.
    """
    if z.dim() != 2 or z.shape[1:] != slabs.loc.shape or draws < 1:
        raise ValueError(
            f"z, draws: expected [n, {len(slabs.loc)}] and a number >= 1, got {list(z.shape)} and {draws}"
        )
    noise = torch.randn(draws, *z.shape, dtype=z.dtype, device=z.device)
    return torch.where(z != 0, slabs.loc + slabs.scale * noise, 0.0)
