"""Each factor's components, as images of their means."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import FAINT, INK, MARGIN, QUIET, Page, shorten
from pyro_fmvae.figures.pixels import as_images, cell_size

MOST = 64
"""Components shown per factor."""

_TARGET = 64
_GAP = 6
_CAPTION = 20
_HEAD = 46
_BETWEEN = 28  # between the blocks of two factors
_NARROWEST = 120  # so that a factor's heading has room


class _Block(NamedTuple):
    """Where a factor's tiles stand."""

    left: int
    top: int
    columns: int
    width: int


def component_grid(factors: Factors, base: Tensor | None = None, cols: int = 16) -> Figure:
    """For each factor an image of every component's mean, from the most to the least used.

    All other blocks of z stay at ``base``. Below each image stand the component's number, as in a code, and
    its share of the data; components out of use are washed out. At most 64 components are shown per factor,
    and the heading says how many are left out.

    Args:
        factors: of a model of images.
        base: z [I·D]; if left out, the location of each factor's most used component.
        cols: images side by side.

    Raises:
        ValueError: an argument of the wrong shape, or a decoder that gives something else than images.
    """
    if cols < 1:
        raise ValueError(f"cols: expected a number >= 1, got {cols}")
    factors.check_base(base)
    orders = [factors.order(factor)[:MOST] for factor in range(len(factors.sizes))]
    images = [
        as_images("decode", factors.at_components(factor, order, base)) for factor, order in enumerate(orders)
    ]
    size = cell_size(images[0], _TARGET)
    blocks, width, height = _arrange([len(order) for order in orders], cols, size)
    page = Page(width, height)
    for factor, block in enumerate(blocks):
        _heading(page, factors, factor, block)
        _tiles(page, factors, factor, block, orders[factor], images[factor], size)
    return page.figure


def _arrange(counts: list[int], cols: int, size: tuple[int, int]) -> tuple[list[_Block], int, int]:
    """Place the factors' blocks like words on lines; return them with the width and height of the page."""
    height, width = size
    widest = max(cols * (width + _GAP) - _GAP, _NARROWEST)
    blocks: list[_Block] = []
    left, top, bottom, right = 0, 0, 0, 0
    for count in counts:
        columns = min(count, cols)
        needed = max(columns * (width + _GAP) - _GAP, _NARROWEST)
        if left and left + needed > widest:
            left, top = 0, bottom + _BETWEEN // 2
        blocks.append(_Block(MARGIN + left, MARGIN + top, columns, needed))
        right = max(right, left + needed)
        bottom = max(bottom, top + _HEAD + -(-count // columns) * (height + _CAPTION))
        left += needed + _BETWEEN
    return blocks, right + 2 * MARGIN, bottom + MARGIN + MARGIN // 2


def _heading(page: Page, factors: Factors, factor: int, block: _Block) -> None:
    used, size = int(factors.used(factor).sum()), factors.sizes[factor]
    note = f"{used} of {size} in use"
    if size > MOST:
        rest = factors.order(factor)[MOST:]
        note += f"; the {MOST} most used shown, {len(rest)} left out ({share_text(factors.shares[factor][rest].sum())})"
    title = shorten(factors.names[factor], block.width, 10, weight="bold")
    page.text(block.left, block.top + 14, title, 10, weight="bold", va="baseline")
    page.text(block.left, block.top + 34, shorten(note, block.width, 8), 8, color=QUIET, va="baseline")


def _tiles(
    page: Page,
    factors: Factors,
    factor: int,
    block: _Block,
    order: Tensor,
    images: np.ndarray,
    size: tuple[int, int],
) -> None:
    height, width = size
    used = factors.used(factor)
    for number, component in enumerate(order.tolist()):
        left = block.left + number % block.columns * (width + _GAP)
        top = block.top + _HEAD + number // block.columns * (height + _CAPTION)
        page.picture(images[number], left, top, size, faded=not used[component])
        share = share_text(factors.shares[factor][component]) if used[component] else "unused"
        caption = shorten(f"{component}: {share}", width + _GAP, 6.5)
        colour = INK if used[component] else FAINT
        page.text(left + width / 2, top + height + 13, caption, 6.5, ha="center", va="baseline", color=colour)


def share_text(share: Tensor | float) -> str:
    """A fraction as a short percentage."""
    percent = 100 * float(share)
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"
