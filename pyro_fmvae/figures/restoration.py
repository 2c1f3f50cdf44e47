"""Damaged and restored images side by side."""

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from pyro_fmvae.figures.page import MARGIN, NOTE, QUIET, Figure, Page, text_width, two_lines
from pyro_fmvae.figures.tiles import Array, as_images, cell_size

MISSING = (0.90, 0.42, 0.20)
"""The colour of missing pixels: orange."""

_TARGET = 256
_GAP = 12
_LINE = 18
_PAGE = 1400  # beyond, images go on another line
_NARROWEST = 128  # of a column, for its title


def restoration(images: Mapping[str, Array], psnrs: Mapping[str, float]) -> Figure:
    """Grey images side by side, with their name and their peak signal-to-noise ratio above.

    Args:
        images: name, such as "damaged" → image [H, W], all of one shape. Missing pixels (NaN) are orange.
            Values outside [0, 1] are clipped.
        psnrs: name of an image → its peak signal-to-noise ratio in dB, for some of the images.

    Raises:
        ValueError: no image, images of other shapes, or a ratio without an image.
    """
    arrays = {name: _numbers(name, image) for name, image in images.items()}
    if not arrays or len({array.shape for array in arrays.values()}) > 1:
        shapes = [list(array.shape) for array in arrays.values()]
        raise ValueError(f"images: expected at least one, all of one shape, got {shapes}")
    if not set(psnrs) <= set(images) or any(math.isnan(value) for value in psnrs.values()):
        raise ValueError(f"psnrs: expected numbers for names among {list(images)}, got {dict(psnrs)}")
    pixels = [_coloured(name, array) for name, array in arrays.items()]
    size = cell_size(np.stack(pixels), _TARGET)
    pitch = max(size[1], _NARROWEST) + _GAP
    rows = -(-len(pixels) // max(1, (_PAGE - 2 * MARGIN + _GAP) // pitch))
    across = -(-len(pixels) // rows)
    titles = [two_lines(name, pitch - _GAP, 9, weight="bold") for name in images]
    head = _LINE * max(len(lines) + (n in psnrs) for n, lines in zip(images, titles, strict=True)) + 6
    step = head + size[0] + _GAP
    note = "Orange pixels are missing." if any(np.isnan(array).any() for array in arrays.values()) else ""
    width = max(across * pitch - _GAP, math.ceil(text_width(note, 8)) if note else 0) + 2 * MARGIN
    bottom = MARGIN + rows * step - _GAP
    page = Page(width, bottom + (NOTE + 4 if note else 0) + MARGIN)
    for number, (name, image) in enumerate(zip(images, pixels, strict=True)):
        left = MARGIN + number % across * pitch
        top = MARGIN + number // across * step
        for line, text in enumerate(titles[number]):
            page.text(left, top + 14 + line * _LINE, text, 9, weight="bold", va="baseline")
        if name in psnrs:
            below = top + 14 + len(titles[number]) * _LINE
            page.text(left, below, f"PSNR {_decibel(psnrs[name])}", 8, va="baseline", color=QUIET)
        page.picture(image, left, top + head, size)
    page.notes([note] if note else [], bottom + 4)
    return page.figure


def _numbers(name: str, image: Array) -> np.ndarray:
    array = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if array.ndim != 2 or array.dtype.kind not in "fb":
        raise ValueError(f"images: expected floats [H, W] for {name}, got {array.dtype} {list(array.shape)}")
    return array.astype(np.float64)


def _coloured(name: str, array: np.ndarray) -> np.ndarray:
    missing = np.isnan(array)
    grey = as_images(name, np.where(missing, 0.0, array)[None])[0]
    return np.where(missing[..., None], MISSING, grey[..., None])


def _decibel(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2f} dB".replace("-", "−")
