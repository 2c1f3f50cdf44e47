"""Heat map of the activity of latents by class."""

import math
from collections.abc import Sequence

from pyro_fmvae.figures.heat import NUMBERED, NUMBERS, heat_map, latent_order
from pyro_fmvae.figures.page import MARGIN, NOTE, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import Array, as_array

_CELL = 24  # height
_WIDEST, _NARROWEST = 24, 3  # of a column
_MAP = 900  # that the map aims at
_LEAST = 360
_LONGEST_NAME = 180


def class_activity(
    values: Array,
    class_names: Sequence[str],
    title: str = "Share of points in which a latent is not zero, by class",
    high: float | None = None,
) -> Figure:
    """A heat map with a row per class and a column per latent.

    Latents are ordered by the class that activates them most; latents that no class activates come last.

    Args:
        values: at least 0, [C, J]: ``share_by_class`` or ``magnitude_by_class`` of
            :func:`pyro_fmvae.evaluate.activity`.
        class_names: names of the C classes.
        title: title of the figure.
        high: value of the darkest colour; the largest value if left out.

    Raises:
        ValueError: values of another shape or below 0, or ``high`` that is not above 0.
    """
    numbers = as_array("values", values)
    fits = numbers.ndim == 2 and len(numbers) == len(class_names) and numbers.size
    if not fits or numbers.min() < 0:
        raise ValueError(
            f"values: expected numbers >= 0 of shape [{len(class_names)}, J], got {list(numbers.shape)}"
        )
    largest = float(numbers.max()) or 1.0 if high is None else high
    if not 0 < largest < math.inf:
        raise ValueError(f"high: expected a number > 0, got {high}")
    latents = numbers.shape[1]
    pitch = min(_WIDEST, max(_NARROWEST, _MAP // latents))
    names = [shorten(name, _LONGEST_NAME, 8) for name in class_names]
    indent = MARGIN + 8 + math.ceil(max(text_width(name, 8) for name in names))
    width = max(indent + pitch * latents + MARGIN, _LEAST)
    titles = wrap(title, width - 2 * MARGIN, 10, weight="bold")
    idle = int((numbers.max(0) == 0).sum())
    note = (
        f"White is 0, the darkest blue {largest:.3g}. Latents are in the order of the class that activates "
    )
    note += "each most" + (f"; {idle} of {latents} are never active." if idle else ".")
    notes = wrap(note, width - 2 * MARGIN, 8)
    top = MARGIN + 22 * len(titles) + 10 + (NUMBERS if pitch >= NUMBERED else 0)
    bottom = top + _CELL * len(names) + 6
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    for number, line in enumerate(titles):
        page.text(MARGIN, MARGIN + 22 * number + 14, line, 10, weight="bold", va="baseline")
    heat_map(page, numbers, latent_order(numbers), (indent, top), (pitch, _CELL), largest)
    for row, name in enumerate(names):
        page.text(indent - 8, top + (row + 0.5) * _CELL, name, 8, ha="right")
    page.notes(notes, bottom)
    return page.figure
