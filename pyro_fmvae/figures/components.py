"""Mean images of each factor's components."""

import math
from typing import NamedTuple

from torch import Tensor

from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import INK, MARGIN, PALE, QUIET, Figure, Page, shorten, text_width
from pyro_fmvae.figures.tiles import as_images, cell_size

MOST = 64
"""Largest number of components shown per factor."""

_TARGET = 64
_WIDEST = 1120  # pixels of a line, so that captions can be read where the figure is made smaller
_COLUMNS = 16
_GAP = 6
_CAPTION = 20
_HEAD = 46
_BETWEEN = 28  # between the blocks of two factors
_SMALL = 6.5  # points
_LONGEST_NAME = 64
_NARROWEST = 120  # so that a factor's heading has room


class _Block(NamedTuple):
    """Position of a factor's tiles."""

    left: int
    top: int
    columns: int
    width: int


def component_grid(factors: Factors) -> Figure:
    """An image of every component's mean, factor by factor, from the most to the least used.

    All other blocks of z stay at the location of their most used component. The caption below an image is
    :func:`caption`. Unused components are washed out. At most 64 components are shown per factor, and the
    heading says how many are left out.

    Raises:
        ValueError: a decoder that does not return images.
    """
    orders = [factors.order(factor)[:MOST] for factor in range(len(factors.sizes))]
    images = [
        as_images("decode", factors.at_components(factor, order)) for factor, order in enumerate(orders)
    ]
    size = cell_size(images[0], _TARGET)
    captions = [
        [caption(factors, factor, number, _LONGEST_NAME) for number in order.tolist()]
        for factor, order in enumerate(orders)
    ]
    widest = max(text_width(text, _SMALL) for block in captions for text in block)
    pitch = max(size[1], math.ceil(widest) + 4) + _GAP
    cols = min(_COLUMNS, max(1, _WIDEST // pitch))
    blocks, width, height = _arrange([len(order) for order in orders], cols, pitch, size[0] + _CAPTION)
    page = Page(width, height)
    for factor, block in enumerate(blocks):
        _heading(page, factors, factor, block)
        used = factors.used(factor)[orders[factor]].tolist()
        for number, (image, text) in enumerate(zip(images[factor], captions[factor], strict=True)):
            left = block.left + number % block.columns * pitch + (pitch - _GAP - size[1]) // 2
            top = block.top + _HEAD + number // block.columns * (size[0] + _CAPTION)
            page.picture(image, left, top, size, faded=not used[number])
            colour = INK if used[number] else PALE
            middle = left + size[1] / 2
            page.text(middle, top + size[0] + 13, text, _SMALL, ha="center", va="baseline", color=colour)
    return page.figure


def _arrange(counts: list[int], cols: int, across: int, down: int) -> tuple[list[_Block], int, int]:
    """Place the factors' blocks like words on lines.

    Args:
        counts: number of images of each factor.
        cols: number of images that fit on a line.
        across, down: pixels from one image to the next.

    Returns:
        The blocks, and the width and height of the page.
    """
    widest = max(cols * across, _NARROWEST)
    blocks: list[_Block] = []
    left, top, bottom, right = 0, 0, 0, 0
    for count in counts:
        columns = min(count, cols)
        needed = max(columns * across, _NARROWEST)
        if left and left + needed > widest:
            left, top = 0, bottom + _BETWEEN // 2
        blocks.append(_Block(MARGIN + left, MARGIN + top, columns, needed - _GAP))
        right = max(right, left + needed - _GAP)
        bottom = max(bottom, top + _HEAD - (-count // columns) * down)
        left += needed + _BETWEEN - _GAP
    return blocks, right + 2 * MARGIN, bottom + MARGIN + MARGIN // 2


def _heading(page: Page, factors: Factors, factor: int, block: _Block) -> None:
    used, size = int(factors.used(factor).sum()), factors.sizes[factor]
    note = f"{used} of {size} in use"
    if size > MOST:
        share = percent(factors.shares[factor][factors.order(factor)[MOST:]].sum())
        note += f"; {MOST} shown, {size - MOST} left out ({share} of the data)"
    title = shorten(factors.names[factor], block.width, 10, weight="bold")
    page.text(block.left, block.top + 14, title, 10, weight="bold", va="baseline")
    page.text(block.left, block.top + 34, shorten(note, block.width, 8), 8, color=QUIET, va="baseline")


def caption(factors: Factors, factor: int, component: int, longest: int = 120) -> str:
    """A component's name (that of its value, or its number in codes), and its share of the data.

    Args:
        factors: factors of the model.
        factor: index of the factor.
        component: index of the component.
        longest: largest width of the name, in pixels at 8 points.
    """
    name = shorten(factors.component_name(factor, component), longest, 8)
    return f"{name}: {share_caption(factors, factor, component)}"


def share_caption(factors: Factors, factor: int, component: int) -> str:
    """A component's share of the data, or 'unused'."""
    used = factors.used(factor)[component]
    return percent(factors.shares[factor][component]) if used else "unused"


def percent(share: Tensor | float) -> str:
    """A fraction as a short percentage: "0.4 %", "12 %"."""
    hundredths = 100 * float(share)
    if 0 < hundredths < 0.1:
        return "<0.1 %"
    return f"{hundredths:.1f} %" if hundredths < 9.95 else f"{hundredths:.0f} %"
