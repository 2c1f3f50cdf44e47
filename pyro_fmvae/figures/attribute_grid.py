"""Images of all combinations of a few factors' components. Figures 1 and 6 of Paquet et al. (2018)."""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise, product
from typing import NamedTuple

import numpy as np
import torch

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.draws import draw_blocks, draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors, with_block
from pyro_fmvae.figures.page import FAINT, INK, MARGIN, NOTE, PALE, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size

MOST = 64
"""Largest number of combinations."""
FEW = 36
"""Largest number of combinations of factors chosen by default."""

_TARGETS = ((12, 96), (24, 64), (MOST, 48))  # up to so many columns, this size of a cell
_GAP = 4
_APART = 6  # further pixels between groups of columns, for each factor that changes there
_LINE = 24  # of headings
_LONGEST_NAME = 200
_NARROWEST = 320
_HELD = "Within a row each component's block is drawn once, and everything else is held."
_UNUSED = "Pale: unused components."


class _Span(NamedTuple):
    """Adjacent columns in which a factor and those before it keep their components."""

    level: int
    first: int
    last: int
    component: int


def attribute_grid(
    factors: Factors, chosen: Sequence[int] | None = None, rows: int = 8, seed: int = 0
) -> Figure:
    """Images with a column for every combination of the components of some factors.

    A row is one draw of z. Only the blocks of the chosen factors change from column to column, and each of
    them is drawn once per row and component. Combinations with an unused component are washed out. The
    caller's random generators are left alone.

    Args:
        factors: factors of a model of images.
        chosen: the factors to combine, with at most 64 combinations; `default_choice` if left out.
        rows: number of draws.
        seed: seed of the draws.

    Raises:
        ValueError: ``rows`` below 1; no, too many, unknown or repeated factors; a decoder that does not
            return images; or a sampler that does not return latent vectors.
    """
    if rows < 1:
        raise ValueError(f"rows: expected a number >= 1, got {rows}")
    chosen = default_choice(factors) if chosen is None else tuple(chosen)
    _check(factors, chosen)
    combinations = list(product(*(range(factors.sizes[factor]) for factor in chosen)))
    with seeded(seed):
        base = draw_latent(factors, draw_codes(factors, rows))
        blocks = [draw_blocks(factors, i, torch.arange(factors.sizes[i]), rows) for i in chosen]
    z = []
    for combination in combinations:
        changed = base
        for factor, block, component in zip(chosen, blocks, combination, strict=True):
            changed = with_block(changed, block[component], factor)
        z.append(changed)
    images = as_images("decode", factors.decode_all(torch.cat(z)))
    if len(images) != rows * len(z):
        raise ValueError(f"decode: expected {rows * len(z)} images, got {len(images)}")
    return _lay_out(factors, chosen, combinations, images.reshape(len(z), rows, *images.shape[1:]))


def _lay_out(
    factors: Factors, chosen: tuple[int, ...], combinations: list[tuple[int, ...]], images: np.ndarray
) -> Figure:
    """Draw the page for images [columns, rows, H, W] or [columns, rows, H, W, 3]."""
    rows = images.shape[1]
    used = [factors.used(factor).tolist() for factor in chosen]
    pale = [not all(u[k] for u, k in zip(used, combo, strict=True)) for combo in combinations]
    size = cell_size(images[0], next(target for most, target in _TARGETS if len(combinations) <= most))
    properties = [shorten(factors.names[factor], _LONGEST_NAME, 9, weight="bold") for factor in chosen]
    indent = MARGIN + 10 + math.ceil(max(text_width(name, 9, weight="bold") for name in properties))
    lefts = _lefts(combinations, indent, size[1])
    width = max(lefts[-1] + size[1] + MARGIN, _NARROWEST)
    spans = list(_spans(combinations))
    names = [_name(factors, chosen[s.level], s, lefts, size[1]) for s in spans]
    lowest = [name for s, name in zip(spans, names, strict=True) if s.level == len(chosen) - 1]
    upright = max(text_width(name, 8) for name in lowest) > size[1]
    deep = math.ceil(max(text_width(name, 8) for name in lowest)) + 10 if upright else _LINE
    head = MARGIN + (len(chosen) - 1) * _LINE + deep
    notes = wrap(f"{_HELD} {_UNUSED}" if any(pale) else _HELD, width - 2 * MARGIN, 8)
    bottom = head + rows * (size[0] + _GAP)
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    for level, name in enumerate(properties):
        last = level == len(chosen) - 1
        middle = head - _LINE / 2 - 3 if last else MARGIN + (level + 0.5) * _LINE - 3
        page.text(indent - 10, middle, name, 9, weight="bold", ha="right")
    for span, name in zip(spans, names, strict=True):
        left, right = lefts[span.first], lefts[span.last] + size[1]
        colour = INK if used[span.level][span.component] else PALE
        top = MARGIN + span.level * _LINE
        if span.level < len(chosen) - 1:
            page.text((left + right) / 2, top + _LINE / 2 - 3, name, 8, ha="center", color=colour)
            page.swatch(left, top + _LINE - 4, right - left, 1, FAINT)
        elif upright:
            page.text(
                (left + right) / 2, head - 6, name, 8, rotation=90, ha="center", va="bottom", color=colour
            )
        else:
            page.text((left + right) / 2, top + _LINE / 2 - 3, name, 8, ha="center", color=colour)
    for column, left in enumerate(lefts):
        for row in range(rows):
            top = head + row * (size[0] + _GAP)
            page.picture(images[column, row], left, top, size, faded=pale[column])
    page.notes(notes, bottom)
    return page.figure


def default_choice(factors: Factors) -> tuple[int, ...]:
    """Choose factors for `attribute_grid` with at most 36 combinations.

    Labelled factors are taken in order; if there are none, those with the fewest components in use. The first
    factor may have up to 64 components. The choice is empty if it has more.
    """
    order = list(range(factors.labelled)) or sorted(
        range(len(factors.sizes)), key=lambda i: (int(factors.used(i).sum()), factors.sizes[i])
    )
    if not factors.labelled:
        order = [i for i in order if factors.sizes[i] <= MOST]
    chosen: list[int] = []
    for factor in order:
        if math.prod(factors.sizes[i] for i in (*chosen, factor)) > (FEW if chosen else MOST):
            break
        chosen.append(factor)
    return tuple(chosen)


def _check(factors: Factors, chosen: tuple[int, ...]) -> None:
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"chosen: expected different factors, at least one, got {chosen}")
    for factor in chosen:
        factors.check_factor("chosen", factor)
    sizes = [factors.sizes[factor] for factor in chosen]
    if math.prod(sizes) > MOST:
        found = "·".join(map(str, sizes))
        raise ValueError(f"chosen: expected at most {MOST} combinations of components, got {found}")


def _lefts(combinations: list[tuple[int, ...]], start: int, width: int) -> list[int]:
    """Left sides of the columns."""
    lefts = [start]
    for before, after in pairwise(combinations):
        changes = sum(a != b for a, b in zip(before[:-1], after[:-1], strict=True))
        lefts.append(lefts[-1] + width + _GAP + _APART * changes)
    return lefts


def _spans(combinations: list[tuple[int, ...]]) -> list[_Span]:
    """Groups of columns that share a heading, for each of the factors."""
    spans = []
    for level in range(len(combinations[0])):
        first = 0
        for prefix, group in groupby(combination[: level + 1] for combination in combinations):
            count = len(list(group))
            spans.append(_Span(level, first, first + count - 1, prefix[-1]))
            first += count
    return spans


def _name(factors: Factors, factor: int, span: _Span, lefts: list[int], width: int) -> str:
    """Heading of a span: the component's name, and 'unused' if that fits."""
    name = factors.component_name(factor, span.component)
    room = lefts[span.last] + width - lefts[span.first]
    unused = f"{name} unused"
    if not factors.used(factor)[span.component] and text_width(unused, 8) <= room:
        return unused
    return shorten(name, max(room, _LONGEST_NAME if span.first == span.last else 0), 8)
