"""From a model's numbers to pixels on a page."""

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
        name: of the argument, for messages.
        images: floats or bools, [n, H, W] (grey) or [n, H, W, 3] (colour).

    Returns:
        float64, of the same shape.

    Raises:
        ValueError: another shape or type, no image at all, or values that are not finite.
    """
    array = as_array(name, images)
    grey, colour = array.ndim == 3, array.ndim == 4 and array.shape[-1] == 3
    if not (grey or colour) or 0 in array.shape:
        raise ValueError(f"{name}: expected images [n, H, W] or [n, H, W, 3], got shape {list(array.shape)}")
    return array.clip(0.0, 1.0)


def as_array(name: str, values: Array) -> np.ndarray:
    """Floats or bools as a finite float64 array.

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
    """Height and width on the page of each of the images [n, H, W] or [n, H, W, 3].

    Small images are enlarged by the whole number that brings the longer side closest to ``target`` pixels,
    so that they stay crisp; images of more than twice that are made smaller.
    """
    height, width = images.shape[1:3]
    longest = max(height, width)
    if longest > 2 * target:
        return max(1, round(height * target / longest)), max(1, round(width * target / longest))
    factor = max(1, round(target / longest))
    return height * factor, width * factor


def scaled(name: str, images: Array) -> tuple[np.ndarray, float]:
    """Images of numbers >= 0, divided by the greatest of them, and that number; zeros stay zeros.

    Args:
        name: of the argument, for messages.
        images: floats, [n, H, W] or [n, H, W, 3].

    Raises:
        ValueError: as `as_images`.
    """
    greatest = float(as_array(name, images).max(initial=0.0))
    return as_images(name, images / (greatest or 1.0)), greatest


@torch.no_grad()
def in_parts(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """function(z) of latent vectors z [n, J], a part at a time so that many need little memory."""
    return torch.cat([function(part) for part in z.split(_CHUNK)])
