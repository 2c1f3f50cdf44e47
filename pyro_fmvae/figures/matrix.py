"""Heat maps of tables of numbers, such as leakage or mutual information."""

import math
from collections.abc import Sequence

import matplotlib

from pyro_fmvae.figures.page import INK, MARGIN, NOTE, Figure, Page, frame, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import Array, as_array

_CELL = 28  # height
_LONGEST_NAME = 180
_COLOURS = "Blues"
_DARK = 0.21  # luminance below which white is easier to read than ink


def property_matrix(
    values: Array, row_names: Sequence[str], column_names: Sequence[str], title: str
) -> Figure:
    """A heat map from white, 0, to dark, 1, with the number in every cell.

    Args:
        values: finite floats [rows, columns].
        row_names: one per row, for example of factors.
        column_names: one per column, for example of properties.
        title: title above the map; long titles are wrapped.

    Raises:
        ValueError: values of another shape.
    """
    numbers = as_array("values", values)
    if numbers.shape != (len(row_names), len(column_names)) or not numbers.size:
        expected = [len(row_names), len(column_names)]
        raise ValueError(f"values: expected shape {expected}, of the names, got {list(numbers.shape)}")
    digits = max(0, 2 - max(0, math.floor(math.log10(abs(numbers).max() or 1.0))))
    cells = [[_number(value, digits) for value in row] for row in numbers]
    rows = [shorten(name, _LONGEST_NAME, 8, keep_end=True) for name in row_names]
    columns = [shorten(name, _LONGEST_NAME, 8, keep_end=True) for name in column_names]
    longest = math.ceil(max(text_width(name, 8) for name in columns))
    widest = math.ceil(max(text_width(text, 7) for row in cells for text in row)) + 8
    pitch = max(widest, 34, min(longest + 10, 560 // len(columns)))
    upright = longest > pitch - 6
    indent = MARGIN + 8 + math.ceil(max(text_width(name, 8) for name in rows))
    right = indent + pitch * len(columns)
    width = max(right + MARGIN, 300)
    titles = wrap(title, width - 2 * MARGIN, 10, weight="bold")
    note = f"White is {_number(0, digits)} or less, the darkest blue {_number(1, digits)} or more."
    notes = wrap(note, width - 2 * MARGIN, 8)
    top = MARGIN + 22 * len(titles) + 10 + (longest if upright else 16) + 6
    page = Page(width, top + _CELL * len(rows) + 6 + NOTE * len(notes) + MARGIN)
    for number, line in enumerate(titles):
        page.text(MARGIN, MARGIN + 22 * number + 14, line, 10, weight="bold", va="baseline")
    axes = page.axes(indent, top, right - indent, _CELL * len(rows))
    axes.imshow(numbers, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    frame(axes)
    for column, name in enumerate(columns):
        centre = indent + (column + 0.5) * pitch
        turned = {"rotation": 90, "va": "bottom"} if upright else {"va": "baseline"}
        page.text(centre, top - 6, name, 8, ha="center", **turned)
    colours = matplotlib.colormaps[_COLOURS]
    for row, name in enumerate(rows):
        middle = top + (row + 0.5) * _CELL
        page.text(indent - 8, middle, name, 8, ha="right")
        for column, text in enumerate(cells[row]):
            dark = _luminance(colours(numbers[row, column])) < _DARK
            centre = indent + (column + 0.5) * pitch
            page.text(centre, middle, text, 7, ha="center", color="white" if dark else INK)
    page.notes(notes, top + _CELL * len(rows) + 6)
    return page.figure


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour, from 0 to 1."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")
