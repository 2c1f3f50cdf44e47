"""The units of a sparse-coding model, as images."""

import math

import numpy as np

from pyro_fmvae.figures.page import MARGIN, NOTE, QUIET, Figure, Page, text_width, wrap
from pyro_fmvae.figures.tiles import Array, as_array, cell_size
from pyro_fmvae.figures.unit_tiles import POSITIVE, SIGNED, as_units, tiles

MOST_WRITTEN = 64
"""Largest number of units that have their use written above them."""

_WIDTH = 1200  # that a row of tiles aims at
_SMALLEST, _LARGEST = 24, 96  # pixels that the longer side of a tile aims at
_GAP = 4
_LINE = 18
_SIZE = 7  # points
_LEAST = 300


def dictionary(units: Array, order: Array | None = None) -> Figure:
    """A tile per unit, each scaled by its own largest absolute value.

    Colours go from blue over white to red if there are negative values, otherwise from black to white.

    Args:
        units: [H, h, w], such as a model's ``dictionary``.
        order: use of each unit [H], such as its probability of being on. Units are sorted from the most to
            the least used, and if there are at most 64, their use stands above them. None: they keep their
            order.

    Raises:
        ValueError: arrays of other shapes, or values that are not finite.
    """
    arrays = as_units("units", units)
    count = len(arrays)
    use = None if order is None else as_array("order", order)
    if use is not None and use.shape != (count,):
        raise ValueError(f"order: expected shape [{count}], got {list(use.shape)}")
    ranks = np.arange(count) if use is None else np.argsort(-use, kind="stable")
    written = _numbers(use) if use is not None and count <= MOST_WRITTEN else []
    across = min(_columns(count), count)
    size = cell_size(arrays, min(_LARGEST, max(_SMALLEST, _WIDTH // across - _GAP)))
    widest = max((text_width(text, _SIZE) for text in written), default=0.0)
    pitch = max(size[1], math.ceil(widest)) + _GAP
    line = _LINE if written else 0
    signed = bool((arrays < 0).any())
    note = SIGNED if signed else POSITIVE
    if use is not None:
        above = "; how much it is used stands above it." if written else "."
        note += f" The most used unit comes first{above}"
    width = max(2 * MARGIN + across * pitch - _GAP, _LEAST)
    notes = wrap(note, width - 2 * MARGIN, 8)
    bottom = MARGIN + -(-count // across) * (size[0] + line + _GAP)
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    colours = tiles(arrays, signed)
    for place, unit in enumerate(ranks.tolist()):
        left = MARGIN + place % across * pitch + (pitch - _GAP - size[1]) // 2
        top = MARGIN + place // across * (size[0] + line + _GAP) + line
        if written:
            middle = left + size[1] / 2
            page.text(middle, top - 5, written[unit], _SIZE, ha="center", va="baseline", color=QUIET)
        page.picture(colours[unit], left, top, size)
    page.notes(notes, bottom)
    return page.figure


def _columns(count: int) -> int:
    """Choose between √H and 2 √H columns: with the fewest empty places, then closest to 1.5 √H."""
    root = math.sqrt(count)
    choices = range(math.ceil(root), math.floor(2 * root) + 1)
    return min(choices, key=lambda columns: (-count % columns, abs(columns - 1.5 * root)))


def _numbers(use: np.ndarray) -> list[str]:
    """Format all numbers with the decimals that give the largest one three significant digits."""
    digits = max(0, 2 - math.floor(math.log10(np.abs(use).max() or 1.0)))
    return [f"{value:.{digits}f}".replace("-", "−") for value in use]
