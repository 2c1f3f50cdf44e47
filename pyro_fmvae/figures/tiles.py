"""Conversion of a model's outputs to pixels on a page."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = Tensor | np.ndarray
_CHUNK = 128  # points decoded at once


def as_images(name: str, images: Array) -> np.ndarray:
    """Check images and clip them to [0, 1].

    Args:
        name: name of the argument, for messages.
        images: floats or bools, [n, H, W] (grey) or [n, H, W, 3] (colour).

    Returns:
        The images in float64, of the same shape.

    Raises:
        ValueError: another shape or type, no images, or values that are not finite.
    """
    array = as_array(name, images)
    grey, colour = array.ndim == 3, array.ndim == 4 and array.shape[-1] == 3
    if not (grey or colour) or 0 in array.shape:
        raise ValueError(f"{name}: expected images [n, H, W] or [n, H, W, 3], got shape {list(array.shape)}")
    return array.clip(0.0, 1.0)


def as_array(name: str, values: Array) -> np.ndarray:
    """Convert floats or bools to a finite float64 array.

    Raises:
        ValueError: integers, or values that are not finite.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "fb":
        raise ValueError(f"{name}: expected floats or bools, got {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite values, got NaN or infinity")
    return array


def cell_size(images: np.ndarray, target: int) -> tuple[int, int]:
    """Height and width on the page of images [n, H, W] or [n, H, W, 3].

    Images are enlarged by the whole number that brings the longer side closest to ``target`` pixels, so that
    they stay crisp. Images of more than twice that size are shrunk.
    """
    height, width = images.shape[1:3]
    longest = max(height, width)
    if longest > 2 * target:
        return max(1, round(height * target / longest)), max(1, round(width * target / longest))
    factor = max(1, round(target / longest))
    return height * factor, width * factor


def scaled(name: str, images: Array) -> tuple[np.ndarray, float]:
    """Divide images of numbers >= 0 by the largest number, and return both; zeros stay zeros.

    Args:
        name: name of the argument, for messages.
        images: floats, [n, H, W] or [n, H, W, 3].

    Raises:
        ValueError: as for `as_images`.
    """
    greatest = float(as_array(name, images).max(initial=0.0))
    return as_images(name, images / (greatest or 1.0)), greatest


@torch.no_grad()
def in_parts(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Apply a function to latent vectors z [n, J] in chunks, to save memory."""
    return torch.cat([function(part) for part in z.split(_CHUNK)])
