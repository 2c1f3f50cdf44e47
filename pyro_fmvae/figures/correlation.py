"""Correlations of latents with known sources, for several models side by side (Tonolini et al., 2019)."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pyro_fmvae.evaluate.sources import active_latents, block_concentration, per_block
from pyro_fmvae.figures.heat import NUMBERED, NUMBERS, heat_map, latent_order
from pyro_fmvae.figures.page import MARGIN, NOTE, PALE, QUIET, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import Array, as_array

_CELL = 18  # height
_WIDEST, _NARROWEST = 18, 3  # of a column
_PANEL = 400  # that a panel aims at
_LEAST_PANEL = 210  # room for what stands above
_BETWEEN = 28
_PAGE = 1500  # beyond, panels go on another line
_HEAD = 54  # name, number of active latents, concentration
_LONGEST_NAME = 150


class _MatrixPanel(NamedTuple):
    name: str
    values: np.ndarray  # [F, J]
    notes: list[str]
    pitch: int  # width of a column

    @property
    def width(self) -> int:
        return max(_LEAST_PANEL, self.pitch * self.values.shape[1])


def correlation_matrices(
    correlations: Mapping[str, Array], source_names: Sequence[str], blocks: Mapping[str, int]
) -> Figure:
    """A heat map for each model, a row per source and a column per latent.

    Latents are ordered by the source that each is most correlated with, so that lines mark the blocks on both
    axes. Inactive latents come last. A model with one latent per source shows a diagonal.

    Args:
        correlations: name of a model → result [F, J] of :func:`pyro_fmvae.evaluate.correlation_matrix`. J may
            differ between models.
        source_names: names of the F sources.
        blocks: name of a block of sources → its number of sources, in the order of the rows.

    Raises:
        ValueError: no model, numbers outside [0, 1], or shapes that do not match the names.
    """
    arrays = {name: as_array(f"correlations of {name}", values) for name, values in correlations.items()}
    count, sizes = len(source_names), list(blocks.values())
    if not arrays or not sizes or min(sizes) < 1 or sum(sizes) != count:
        raise ValueError(
            f"correlations, blocks: expected at least one model, and blocks of {count} sources in all, "
            f"got {len(arrays)} and {sizes}"
        )
    for name, values in arrays.items():
        fits = values.ndim == 2 and len(values) == count and values.size
        if not fits or values.min() < 0 or values.max() > 1:
            raise ValueError(
                f"correlations: expected numbers in [0, 1] of shape [{count}, J] for {name}, "
                f"got {list(values.shape)}"
            )
    panels = [_panel(name, values, blocks) for name, values in arrays.items()]
    names = [shorten(name, _LONGEST_NAME, 8) for name in source_names]
    groups = [shorten(name, _LONGEST_NAME, 8, weight="bold") for name in blocks]
    first = MARGIN + math.ceil(max(text_width(group, 8, weight="bold") for group in groups)) + 12
    indent = first + math.ceil(max(text_width(name, 8) for name in names)) + 8
    lines = _lines(panels, _PAGE - indent - MARGIN)
    width = max(indent + sum(p.width for p in line) + _BETWEEN * (len(line) - 1) for line in lines) + MARGIN
    numbered = any(panel.pitch >= NUMBERED for panel in panels)
    head = _HEAD + (NUMBERS if numbered else 0)
    pitch = head + _CELL * count + _BETWEEN
    note = (
        "Absolute correlation of the absolute values of source and latent: white is 0, the darkest blue 1. "
        "Latents are in the order of the source that each is most correlated with, the others come last."
    )
    notes = wrap(note, width - 2 * MARGIN, 8)
    bottom = MARGIN + pitch * len(lines) - _BETWEEN
    page = Page(width, bottom + NOTE * len(notes) + MARGIN + 8)
    for number, line in enumerate(lines):
        top = MARGIN + number * pitch + head
        _name_rows(page, names, dict(zip(groups, sizes, strict=True)), top, first, indent)
        left = indent
        for panel in line:
            _draw(page, panel, sizes, left, top, top - head)
            left += panel.width + _BETWEEN
    page.notes(notes, bottom + 4)
    return page.figure


def _panel(name: str, values: np.ndarray, blocks: Mapping[str, int]) -> _MatrixPanel:
    latents = values.shape[1]
    sizes = list(blocks.values())
    counts = " + ".join(map(str, per_block(values, sizes).tolist()))
    active = int(active_latents(values).sum())
    notes = [f"{active} of {latents} active" + (f": {counts}" if active and len(sizes) > 1 else "")]
    if active:
        notes.append(f"block concentration {block_concentration(values, sizes):.2f}")
    pitch = min(_WIDEST, max(_NARROWEST, _PANEL // latents))
    return _MatrixPanel(name, values, notes, pitch)


def _lines(panels: list[_MatrixPanel], room: int) -> list[list[_MatrixPanel]]:
    """Break panels into lines that fit the page."""
    lines: list[list[_MatrixPanel]] = []
    taken = math.inf
    for panel in panels:
        if taken + panel.width > room:
            lines.append([])
            taken = 0
        lines[-1].append(panel)
        taken += panel.width + _BETWEEN
    return lines


def _name_rows(
    page: Page, names: list[str], groups: dict[str, int], top: int, first: int, indent: int
) -> None:
    row = 0
    for group, size in groups.items():
        page.text(MARGIN, top + (row + 0.5) * _CELL, group, 8, weight="bold")
        for name in names[row : row + size]:
            page.text(first, top + (row + 0.5) * _CELL, name, 8, color=QUIET)
            row += 1


def _draw(page: Page, panel: _MatrixPanel, sizes: list[int], left: int, top: int, above: int) -> None:
    page.text(left, above + 12, shorten(panel.name, panel.width, 9, weight="bold"), 9, weight="bold")
    for number, note in enumerate(panel.notes):
        page.text(left, above + 29 + 15 * number, shorten(note, panel.width, 7), 7, color=QUIET)
    order = latent_order(panel.values)
    axes = heat_map(page, panel.values, order, (left, top), (panel.pitch, _CELL), 1.0)
    columns = np.cumsum(per_block(panel.values, sizes)) - 0.5
    for row, column in zip((np.cumsum(sizes) - 0.5).tolist(), columns.tolist(), strict=True):
        if row < len(panel.values) - 1:
            axes.axhline(row, color=PALE, linewidth=0.6)
        if -0.5 < column < len(order) - 1:
            axes.axvline(column, color=PALE, linewidth=0.6)
