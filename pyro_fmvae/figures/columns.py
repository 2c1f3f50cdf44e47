"""Heat map of the components of a model of tables: the mean of each column."""

from collections.abc import Sequence

import numpy as np

from pyro_fmvae.figures.components import caption
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import INK, MARGIN, PALE, QUIET, Figure, Page, frame, shorten, text_width
from pyro_fmvae.figures.tiles import as_array

MOST_COLUMNS = 64
MOST_COMPONENTS = 16
"""Largest number of components shown per factor."""

_CELL = 26  # height
_HEAD = 42
_LONGEST_NAME = 200
_BAR, _BAR_HEIGHT = 14, 132


def column_means(factors: Factors, columns: Sequence[str], unit: str = "standardised value") -> Figure:
    """A heat map per factor, with a row per component and a column per column of the table.

    Rows go from the most to the least used component, at most 16 per factor. A row is E[x | z] with the
    factor's block at the component's location and every other block at that of its most used component.
    Colours begin at 0 where no value is negative, as of counts.

    Args:
        factors: factors of a model of tables.
        columns: names of the table's columns, at most 64.
        unit: unit of the values, for the colour bar.

    Raises:
        ValueError: too many columns, or a decoder that does not return one value for each.
    """
    count = len(columns)
    if not 1 <= count <= MOST_COLUMNS:
        raise ValueError(f"columns: expected 1 to {MOST_COLUMNS} names, got {count}")
    orders = [factors.order(factor)[:MOST_COMPONENTS] for factor in range(len(factors.sizes))]
    values = [as_array("decode", factors.at_components(factor, order)) for factor, order in enumerate(orders)]
    for rows, order in zip(values, orders, strict=True):
        if rows.shape != (len(order), count):
            raise ValueError(f"decode: expected shape [{len(order)}, {count}], got {list(rows.shape)}")

    width = min(64, max(22, 760 // count))
    names = [shorten(name, _LONGEST_NAME, 8, keep_end=True) for name in columns]
    longest = max(text_width(name, 8) for name in names)
    upright = longest > width - 6
    labels = [[caption(factors, i, k) for k in order.tolist()] for i, order in enumerate(orders)]
    indent = MARGIN + 8 + round(max(text_width(label, 8) for block in labels for label in block))
    top = MARGIN + (round(longest) if upright else 16) + 4
    start = top
    heights = [_HEAD + len(order) * _CELL for order in orders]
    headings = [_heading(factors, i) for i in range(len(orders))]
    body = max(count * width, *(round(text_width(heading, 9, weight="bold")) for heading in headings))
    scale = max(float(max(np.abs(rows).max() for rows in values)), 1e-6)
    low = -scale if any((rows < 0).any() for rows in values) else 0.0
    bar = 20 + _BAR + 30 + round(max(text_width(text, 7) for text in _ends(low, scale)))
    page = Page(indent + body + bar, max(top + sum(heights), top + _HEAD + _BAR_HEIGHT) + MARGIN)
    for column, name in enumerate(names):
        centre = indent + (column + 0.5) * width
        if upright:
            page.text(centre, top, name, 8, rotation=90, ha="center", va="bottom")
        else:
            page.text(centre, top - 4, name, 8, ha="center", va="baseline")
    for factor, rows in enumerate(values):
        page.text(indent, top + 32, headings[factor], 9, weight="bold", va="baseline")
        _heatmap(
            page,
            rows,
            labels[factor],
            factors.used(factor)[orders[factor]].tolist(),
            scale,
            (indent, top + _HEAD),
            width,
        )
        top += heights[factor]
    _colour_bar(page, low, scale, unit, indent + body + 20, start + _HEAD)
    return page.figure


def _heading(factors: Factors, factor: int) -> str:
    left_out = factors.sizes[factor] - MOST_COMPONENTS
    note = f"  ({left_out} more left out)" if left_out > 0 else ""
    return shorten(factors.names[factor], 2 * _LONGEST_NAME, 9, weight="bold") + note


def _heatmap(
    page: Page,
    rows: np.ndarray,
    labels: list[str],
    used: list[bool],
    scale: float,
    corner: tuple[int, int],
    width: int,
) -> None:
    left, top = corner
    count = rows.shape[1]
    axes = page.axes(left, top, count * width, len(rows) * _CELL)
    axes.imshow(rows, cmap="RdBu_r", vmin=-scale, vmax=scale, aspect="auto", interpolation="nearest")
    frame(axes)
    for number, (label, in_use) in enumerate(zip(labels, used, strict=True)):
        middle = top + (number + 0.5) * _CELL
        page.text(left - 8, middle, label, 8, ha="right", color=INK if in_use else PALE)
        for column in range(count if width >= 40 else 0):
            value = rows[number, column]
            text = f"{value:.2f}".replace("-", "−") if scale < 100 else f"{value:.3g}".replace("-", "−")
            colour = "white" if abs(value) > 0.65 * scale else INK
            page.text(left + (column + 0.5) * width, middle, text, 7, ha="center", color=colour)


def _colour_bar(page: Page, low: float, scale: float, unit: str, left: int, top: int) -> None:
    axes = page.axes(left, top, _BAR, _BAR_HEIGHT)
    shades = np.linspace(scale, low, _BAR_HEIGHT)[:, None]
    axes.imshow(shades, cmap="RdBu_r", vmin=-scale, vmax=scale, aspect="auto", interpolation="nearest")
    frame(axes)
    ends = _ends(low, scale)
    for text, where in zip(ends, (5, _BAR_HEIGHT / 2, _BAR_HEIGHT - 5), strict=True):
        page.text(left + _BAR + 6, top + where, text, 7, color=QUIET)
    right = left + _BAR + 18 + max(text_width(text, 7) for text in ends)
    unit = shorten(unit, _BAR_HEIGHT, 7)
    page.text(right, top + _BAR_HEIGHT / 2, unit, 7, rotation=90, ha="center", va="center", color=QUIET)


def _ends(low: float, high: float) -> list[str]:
    """Labels of the colour bar, from the top."""
    return [f"{value:.2g}".replace("-", "−") for value in (high, (low + high) / 2, low)]
