"""True and learnt generative fields, and true and learnt parameters, side by side."""

import math
from collections.abc import Mapping

from pyro_fmvae.evaluate.recovery import RECOVERED, UnitMatch
from pyro_fmvae.figures.page import FAINT, INK, MARGIN, NOTE, QUIET, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import Array, cell_size
from pyro_fmvae.figures.unit_tiles import POSITIVE, SIGNED, as_units, tiles

_TARGET = 64
_GAP = 6
_LINE = 20
_HEAD = 30
_BETWEEN = 12
_PAGE = 1100  # beyond, units go on another line
_FOUND, _MISSED = INK, "#b3322b"

_ROW = 24
_COLUMNS = ("true", "learnt", "difference")
_LONGEST_NAME = 320


def recovered_units(true: Array, learnt: Array, match: UnitMatch) -> Figure:
    """Each true unit with its matched learnt unit and their cosine similarity below.

    Cosines of units that are not recovered are red. Each unit is scaled by its own largest absolute value.

    Args:
        true: [H', h, w].
        learnt: [H, h, w].
        match: result of :func:`pyro_fmvae.evaluate.match_units` for these units.

    Raises:
        ValueError: arrays of other shapes, values that are not finite, or a match of other units.
    """
    targets, found = as_units("true", true), as_units("learnt", learnt)
    count = len(targets)
    if found.shape[1:] != targets.shape[1:]:
        raise ValueError(f"learnt: expected units {list(targets.shape[1:])}, got {list(found.shape[1:])}")
    if match.unit_of.shape != (count,) or match.unit_of.max() >= len(found):
        raise ValueError(
            f"match: expected units below {len(found)} for each of {count} true ones, got "
            f"{list(match.unit_of.shape)}, up to {match.unit_of.max(initial=-1)}"
        )
    signed = bool((targets < 0).any() or (found < 0).any())
    size = cell_size(targets, _TARGET)
    labels = ("true", "learnt", "cosine")
    indent = MARGIN + 8 + math.ceil(max(text_width(label, 8) for label in labels))
    pitch = max(size[1], math.ceil(text_width("−0.000", 8))) + _GAP
    lines = -(-count // max(1, (_PAGE - indent - MARGIN + _GAP) // pitch))
    across = -(-count // lines)
    title = f"{match.recovered} of {count} recovered: cosine above {RECOVERED:g}"
    least = MARGIN + math.ceil(text_width(title, 10, weight="bold"))
    width = max(indent + across * pitch - _GAP, least) + MARGIN
    notes = wrap(SIGNED if signed else POSITIVE, width - 2 * MARGIN, 8)
    step = 2 * size[0] + _GAP + _LINE + _BETWEEN
    bottom = MARGIN + _HEAD + lines * step - _BETWEEN
    page = Page(width, bottom + 4 + NOTE * len(notes) + MARGIN)
    page.text(MARGIN, MARGIN + 14, title, 10, weight="bold", va="baseline")
    for line in range(lines):
        top = MARGIN + _HEAD + line * step
        middles = (top + size[0] / 2, top + 1.5 * size[0] + _GAP, top + step - _BETWEEN - _LINE / 2 + 2)
        for label, middle in zip(labels, middles, strict=True):
            page.text(indent - 8, middle, label, 8, ha="right", color=QUIET)
    shown, answers = tiles(targets, signed), tiles(found, signed)
    for number, (unit, cosine) in enumerate(zip(match.unit_of.tolist(), match.cosines.tolist(), strict=True)):
        left = indent + number % across * pitch + (pitch - _GAP - size[1]) // 2
        top = MARGIN + _HEAD + number // across * step
        page.picture(shown[number], left, top, size)
        if unit >= 0:
            page.picture(answers[unit], left, top + size[0] + _GAP, size)
        text = f"{cosine:.3f}".replace("-", "−") if unit >= 0 else "none"
        colour = _FOUND if cosine > RECOVERED else _MISSED
        middle = top + step - _BETWEEN - _LINE / 2 + 2
        page.text(left + size[1] / 2, middle, text, 8, ha="center", color=colour)
    page.notes(notes, bottom + 4)
    return page.figure


def parameter_table(true: Mapping[str, float], learnt: Mapping[str, float]) -> Figure:
    """A table of true and learnt parameters and their differences.

    Differences are in per cent of the true value, or absolute where that is 0.

    Args:
        true: name of a parameter, such as "noise sd" → its value.
        learnt: the same names → values.

    Raises:
        ValueError: no parameters, different names, or values that are not finite.
    """
    if not true or set(true) != set(learnt):
        raise ValueError(
            f"true, learnt: expected the same names, at least one, got {list(true)} and {list(learnt)}"
        )
    if not all(math.isfinite(value) for value in [*true.values(), *learnt.values()]):
        raise ValueError("true, learnt: expected finite values, got NaN or infinity")
    names = [shorten(name, _LONGEST_NAME, 9) for name in true]
    cells = [_cells(true[name], learnt[name]) for name in true]
    rights, right = [], float(MARGIN + math.ceil(max(text_width(name, 9) for name in names)))
    for column, head in enumerate(_COLUMNS):
        right += 28 + max(text_width(head, 9, weight="bold"), *(text_width(row[column], 9) for row in cells))
        rights.append(right)
    page = Page(math.ceil(right) + MARGIN, 2 * MARGIN + _ROW * (len(names) + 1))
    for right, head in zip(rights, _COLUMNS, strict=True):
        page.text(right, MARGIN + _ROW / 2, head, 9, weight="bold", ha="right")
    page.swatch(MARGIN, MARGIN + _ROW, page.width - 2 * MARGIN, 1, FAINT)
    for number, (name, row) in enumerate(zip(names, cells, strict=True)):
        middle = MARGIN + _ROW * (number + 1.5)
        page.text(MARGIN, middle, name, 9)
        for right, text in zip(rights, row, strict=True):
            page.text(right, middle, text, 9, ha="right")
    return page.figure


def _cells(true: float, learnt: float) -> tuple[str, str, str]:
    """Format both values with four significant digits of the larger one, and their difference."""
    digits = max(0, 3 - math.floor(math.log10(max(abs(true), abs(learnt)) or 1.0)))
    difference = learnt - true
    relative = f"{100 * difference / abs(true):+.1f} %" if true else f"{difference:+.{digits}f}"
    texts = f"{true:.{digits}f}", f"{learnt:.{digits}f}", relative
    return texts[0].replace("-", "−"), texts[1].replace("-", "−"), texts[2].replace("-", "−")
