"""Sparse latents where they are not zero, and points with the same active latents but other values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Slabs(NamedTuple):
    """Each latent's values where it is not zero, as a normal."""

    loc: Tensor
    """[J]."""
    scale: Tensor
    """[J], at least 0."""


def slabs_of(latents: Tensor) -> Slabs:
    """Mean and standard deviation of each latent's non-zero values.

    Of latents that are never active nothing is known: they have the slab N(0, 1) of a fixed prior.

    Args:
        latents: [n, J], exact zeros where a latent is off, such as the codes of a data set.

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
    """Points with the same active latents, whose values are drawn anew from the slabs.

    Args:
        z: [n, J], exact zeros where a latent is off.
        slabs: of J latents.
        draws: of each point.

    Returns:
        [draws, n, J]: zero where `z` is.

    Raises:
        ValueError: shapes that don't fit, or `draws` < 1.
    """
    if z.dim() != 2 or z.shape[1:] != slabs.loc.shape or draws < 1:
        raise ValueError(
            f"z, draws: expected [n, {len(slabs.loc)}] and a number >= 1, got {list(z.shape)} and {draws}"
        )
    noise = torch.randn(draws, *z.shape, dtype=z.dtype, device=z.device)
    return torch.where(z != 0, slabs.loc + slabs.scale * noise, 0.0)
