"""True and learnt generative fields side by side."""

import math

from pyro_fmvae.evaluate.recovery import RECOVERED, UnitMatch
from pyro_fmvae.figures.page import INK, MARGIN, NOTE, QUIET, Figure, Page, text_width, wrap
from pyro_fmvae.figures.tiles import Array, cell_size
from pyro_fmvae.figures.unit_tiles import POSITIVE, SIGNED, as_units, tiles

_TARGET = 64
_GAP = 6
_LINE = 20
_HEAD = 30
_BETWEEN = 12
_PAGE = 1100  # beyond, units go on another line
_FOUND, _MISSED = INK, "#b3322b"


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
