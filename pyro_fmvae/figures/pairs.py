"""Mean images of pairs of components of two factors. Figures 8 to 10 of Paquet et al. (2018)."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.components import share_caption
from pyro_fmvae.figures.draws import check_held, draw_blocks, draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors, with_block
from pyro_fmvae.figures.page import INK, MARGIN, NOTE, PALE, QUIET, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size

_FEW, _TARGET_FEW, _TARGET = 6, 96, 64  # up to so many columns, size of a cell; beyond
_GAP = 4
_AXIS = 24  # for the name of an axis
_CAPTIONS = 36  # for name and share above a column
_LONGEST_NAME = 120
_NARROWEST = 360


def pair_grid(
    factors: Factors,
    i: int,
    j: int,
    draws: int = 100,
    most: int = 10,
    seed: int = 0,
    held: Mapping[int, int] | None = None,
) -> Figure:
    """A grid of mean images, with a row per component of one factor and a column per component of another.

    A cell is the mean of E[x | z] over draws of z given both components. The other factors are held fixed, or
    drawn from their components in use. Draws are the same in every cell, so that two cells of a row differ
    only in the column's block. Components go from the most to the least used; unused ones are washed out. The
    caller's random generators are left alone.

    Args:
        factors: factors of a model of images.
        i: factor of the rows.
        j: factor of the columns.
        draws: draws of z for each cell.
        most: largest number of components shown of each of the two.
        seed: seed of the draws.
        held: other factor → its fixed component.

    Raises:
        ValueError: a number out of range, equal factors, ``held`` with one of the two, or a decoder that does
            not return images.
    """
    held = dict(held or {})
    factors.check_factor("i", i)
    factors.check_factor("j", j)
    check_held(factors, held)
    if i == j or {i, j} & held.keys():
        raise ValueError(f"i, j: expected two factors that are not held, got {i} and {j}, held {[*held]}")
    if min(draws, most) < 1:
        raise ValueError(f"draws, most: expected numbers >= 1, got {draws} and {most}")
    orders = factors.order(i)[:most], factors.order(j)[:most]
    with seeded(seed):
        base = draw_latent(factors, draw_codes(factors, draws, held))
        rows, columns = (
            draw_blocks(factors, f, order, draws) for f, order in zip((i, j), orders, strict=True)
        )
    images = as_images("decode", _means(factors, base, (i, rows), (j, columns)))
    return _lay_out(
        factors, (i, j), orders, images.reshape(len(rows), len(columns), *images.shape[1:]), draws, held
    )


def _means(factors: Factors, base: Tensor, row: tuple[int, Tensor], column: tuple[int, Tensor]) -> Tensor:
    """Mean images [rows · columns, ...]; ``row`` and ``column`` are a factor and its blocks [m, draws, D]."""
    means = []
    for block in row[1]:
        given = with_block(base, block, row[0])
        means += [
            factors.decode_all(with_block(given, other, column[0])).double().mean(0) for other in column[1]
        ]
    return torch.stack(means)


def _lay_out(
    factors: Factors,
    pair: tuple[int, int],
    orders: tuple[Tensor, Tensor],
    images: np.ndarray,
    draws: int,
    held: dict[int, int],
) -> Figure:
    """Draw the page for images [rows, columns, H, W] or [rows, columns, H, W, 3]."""
    size = cell_size(images[0], _TARGET_FEW if images.shape[1] <= _FEW else _TARGET)
    names = [
        [shorten(factors.component_name(f, k), _LONGEST_NAME, 8) for k in order.tolist()]
        for f, order in zip(pair, orders, strict=True)
    ]
    shares = [
        [share_caption(factors, f, k) for k in order.tolist()] for f, order in zip(pair, orders, strict=True)
    ]
    used = [factors.used(f)[order].tolist() for f, order in zip(pair, orders, strict=True)]
    indent = MARGIN + _AXIS + 8 + math.ceil(max(*_widths(names[0], 8), *_widths(shares[0], 6.5)))
    pitch = max(size[1], *(math.ceil(width) for width in _widths(shares[1], 6.5))) + _GAP
    upright = max(_widths(names[1], 8)) > pitch
    head = MARGIN + _AXIS + (math.ceil(max(_widths(names[1], 8))) + 24 if upright else _CAPTIONS)
    right = indent + len(names[1]) * pitch - _GAP
    width = max(right + MARGIN, _NARROWEST)
    notes = wrap(_note(factors, pair, draws, held), width - 2 * MARGIN, 8)
    bottom = head + len(names[0]) * (size[0] + _GAP)
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    across, down = (_axis(factors, f, len(order)) for f, order in zip(pair[::-1], orders[::-1], strict=True))
    across = shorten(across, width - indent - MARGIN, 9, weight="bold")
    down = shorten(down, bottom - MARGIN, 9, weight="bold")
    middle = min((head + bottom) / 2, bottom - text_width(down, 9, weight="bold") / 2)
    page.text(indent, MARGIN + 12, across, 9, weight="bold", va="baseline")
    page.text(MARGIN + 8, middle, down, 9, weight="bold", rotation=90, ha="center", va="center")
    for column, (name, share) in enumerate(zip(names[1], shares[1], strict=True)):
        centre = indent + column * pitch + (pitch - _GAP) / 2
        dark, light = (INK, QUIET) if used[1][column] else (PALE, PALE)
        turned = {"rotation": 90, "va": "bottom"} if upright else {"va": "baseline"}
        page.text(centre, head - 22, name, 8, ha="center", color=dark, **turned)
        page.text(centre, head - 6, share, 6.5, ha="center", va="baseline", color=light)
    for row, (name, share) in enumerate(zip(names[0], shares[0], strict=True)):
        top = head + row * (size[0] + _GAP)
        dark, light = (INK, QUIET) if used[0][row] else (PALE, PALE)
        page.text(indent - 8, top + size[0] / 2 - 8, name, 8, ha="right", color=dark)
        page.text(indent - 8, top + size[0] / 2 + 8, share, 6.5, ha="right", color=light)
        for column, image in enumerate(images[row]):
            left = indent + column * pitch + (pitch - _GAP - size[1]) // 2
            page.picture(image, left, top, size, faded=not (used[0][row] and used[1][column]))
    page.notes(notes, bottom)
    return page.figure


def _widths(texts: list[str], size: float) -> list[float]:
    return [text_width(text, size) for text in texts]


def _axis(factors: Factors, factor: int, shown: int) -> str:
    size = factors.sizes[factor]
    return factors.names[factor] + (f"  ({shown} of {size})" if shown < size else "")


def _note(factors: Factors, pair: tuple[int, int], draws: int, held: dict[int, int]) -> str:
    text = f"Means of {draws} draws given both components"
    if held:
        text += "; held: " + ", ".join(
            f"{factors.names[f]} = {factors.component_name(f, k)}" for f, k in held.items()
        )
    if len(factors.sizes) > 2 + len(held):
        text += "; all other factors drawn"
    return text + "."
