"""Confusion of predicted with true values of labels."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from pyro_fmvae.figures.page import INK, MARGIN, NOTE, QUIET, Page, frame, shorten, text_width, wrap

LEAST_CELL: Final = 14
"""Least side of a cell in pixels at which values are named; below it, counts and names are left out."""
_CELL, _WIDEST = 34, 720  # greatest side of a cell, and of a map
_LONGEST_NAME = 150
_LEAST_WIDTH = 460
_TITLE, _GAP = 30, 24
_NOTE = "Rows: true values. Columns: predicted values. Numbers: points. Shade: share of the row's points."


def confusion(classified: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Heat maps of predicted against true values, one below the other for each label.

    Args:
        classified: label → its ``n``, ``accuracy``, V names of ``values``, and ``confusion``, counts [V, V]
            of points by true value (rows) and predicted value (columns), as in a run's ``report.json``.

    Raises:
        ValueError: no label, or counts of another shape than the names.
    """
    if not classified:
        raise ValueError("classified: expected at least one label, got none")
    cells, names = {}, {}
    for label, measures in classified.items():
        shape, size = np.shape(measures["confusion"]), len(measures["values"])
        if shape != (size, size):
            raise ValueError(f"classified: expected counts [{size}, {size}] of '{label}', got {list(shape)}")
        cells[label] = min(_CELL, max(_WIDEST // size, 1))
        named = cells[label] >= LEAST_CELL
        names[label] = (
            [shorten(str(value), _LONGEST_NAME, 8) for value in measures["values"]] if named else []
        )
    longest = {
        label: math.ceil(max((text_width(name, 8) for name in names[label]), default=0)) for label in names
    }
    sides = {label: cells[label] * len(measures["values"]) for label, measures in classified.items()}
    indent = MARGIN + max(longest.values()) + 8
    width = max(_LEAST_WIDTH, indent + max(sides.values()) + MARGIN)
    notes = wrap(_NOTE, width - 2 * MARGIN, 8)
    heights = [_TITLE + longest[label] + 8 + sides[label] + _GAP for label in classified]
    page = Page(width, MARGIN + sum(heights) + NOTE * len(notes) + MARGIN)
    top = MARGIN
    for height, (label, measures) in zip(heights, classified.items(), strict=True):
        right = int(np.trace(np.asarray(measures["confusion"])))
        title = f"{label}: {right:,} of {measures['n']:,} points are right"
        page.text(MARGIN, top + 14, shorten(title, width - 2 * MARGIN, 10, weight="bold"), 10, weight="bold")
        below = top + _TITLE + longest[label] + 8
        _map(page, np.asarray(measures["confusion"]), names[label], (indent, below), cells[label])
        top += height
    page.notes(notes, top - _GAP + 6)
    return page.figure


def _map(page: Page, counts: np.ndarray, names: list[str], corner: tuple[int, int], cell: int) -> None:
    """Draw one heat map whose left upper corner is given; without names, counts are not written either."""
    left, top = corner
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    side = cell * len(counts)
    axes = page.axes(left, top, side, side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    frame(axes)
    for number, name in enumerate(names):
        middle = (number + 0.5) * cell
        page.text(left - 8, top + middle, name, 8, ha="right")
        page.text(left + middle, top - 6, name, 8, ha="center", va="bottom", rotation=90)
    for row, column in np.argwhere(counts > 0) if names else ():
        text = str(counts[row, column])
        if text_width(text, 7) > cell - 2:
            continue
        colour = "white" if shares[row, column] > 0.6 else INK if row == column else QUIET
        page.text(left + (column + 0.5) * cell, top + (row + 0.5) * cell, text, 7, ha="center", color=colour)
