"""Confusion of predicted values or clusters with true values of labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pyro_fmvae.figures.page import INK, MARGIN, NOTE, QUIET, Figure, Page, frame, shorten, text_width, wrap

LEAST_CELL: Final = 14
"""Least side of a cell in pixels along which values are named; if either is less, counts are left out."""
_CELL, _WIDEST = 34, 720  # greatest side of a cell, and of a map
_LONGEST_NAME = 150
_LEAST_WIDTH = 460
_TITLE, _GAP = 30, 24
_NOTE = "Rows: true values. Columns: {}. Numbers: points. Shade: share of the row's points."
_PREDICTED, _CLUSTERS = "predicted values", "components, each by the value that it is named after"


def confusion(classified: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Heat maps of predicted values or clusters against true values, one below the other for each label.

    Args:
        classified: label → its ``n``, ``accuracy``, V names of ``values``, and ``confusion``, counts [V, V]
            of points by true value (rows) and predicted value (columns), as in a run's ``report.json``. Of
            clusters the counts are [V, C], and ``named_after`` has the names of the C columns.

    Raises:
        ValueError: no label, or counts of another shape than the names.
    """
    if not classified:
        raise ValueError("classified: expected at least one label, got none")
    maps = [_Map(label, measures) for label, measures in classified.items()]
    indent = MARGIN + max(_longest(one.rows) for one in maps) + 8
    width = max(_LEAST_WIDTH, indent + max(one.width for one in maps) + MARGIN)
    clusters = ["named_after" in measures for measures in classified.values()]
    columns = [_CLUSTERS] * any(clusters) + [_PREDICTED] * (not all(clusters))
    notes = wrap(_NOTE.format(" or ".join(columns)), width - 2 * MARGIN, 8)
    above = [_TITLE + _longest(one.columns) + 8 for one in maps]
    heights = [over + one.height + _GAP for over, one in zip(above, maps, strict=True)]
    page = Page(width, MARGIN + sum(heights) + NOTE * len(notes) + MARGIN)
    top = MARGIN
    for one, over, height in zip(maps, above, heights, strict=True):
        title = shorten(one.title, width - 2 * MARGIN, 10, weight="bold")
        page.text(MARGIN, top + 14, title, 10, weight="bold")
        one.draw(page, indent, top + over)
        top += height
    page.notes(notes, top - _GAP + 6)
    return page.figure


class _Map:
    """One heat map; where its cells are too small, without names or counts.

    Args:
        label: its name.
        measures: as :func:`confusion` takes them.
    """

    def __init__(self, label: str, measures: Mapping[str, Any]) -> None:
        rows, columns = measures["values"], measures.get("named_after", measures["values"])
        self.counts = np.asarray(measures["confusion"])
        if self.counts.shape != (len(rows), len(columns)):
            expected, shape = [len(rows), len(columns)], list(self.counts.shape)
            raise ValueError(f"classified: expected counts {expected} of '{label}', got {shape}")
        self.right = np.array(rows)[:, None] == np.array(columns)
        self.cell = tuple(min(_CELL, max(_WIDEST // size, 1)) for size in self.counts.shape)
        self.height, self.width = (
            side * size for side, size in zip(self.cell, self.counts.shape, strict=True)
        )
        self.rows, self.columns = (
            [shorten(str(value), _LONGEST_NAME, 8) for value in names] if side >= LEAST_CELL else []
            for side, names in zip(self.cell, (rows, columns), strict=True)
        )
        verb = "match" if "named_after" in measures else "are right"
        right = round(measures["accuracy"] * measures["n"])
        self.title = f"{label}: {right:,} of {measures['n']:,} points {verb}"

    def draw(self, page: Page, left: int, top: int) -> None:
        totals = self.counts.sum(1, keepdims=True)
        shares = np.divide(self.counts, totals, out=np.zeros(self.counts.shape), where=totals > 0)
        axes = page.axes(left, top, self.width, self.height)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        frame(axes)
        height, width = self.cell
        for number, name in enumerate(self.rows):
            page.text(left - 8, top + (number + 0.5) * height, name, 8, ha="right")
        for number, name in enumerate(self.columns):
            middle = left + (number + 0.5) * width
            page.text(middle, top - 6, name, 8, ha="center", va="bottom", rotation=90)
        for row, column in np.argwhere(self.counts > 0) if min(self.cell) >= LEAST_CELL else ():
            text, right = str(self.counts[row, column]), self.right[row, column]
            if text_width(text, 7) > width - 2:
                continue
            colour = "white" if shares[row, column] > 0.6 else INK if right else QUIET
            x, y = left + (column + 0.5) * width, top + (row + 0.5) * height
            page.text(x, y, text, 7, ha="center", color=colour)


def _longest(names: Sequence[str]) -> int:
    """Width of the longest name, in pixels."""
    return math.ceil(max((text_width(name, 8) for name in names), default=0))
