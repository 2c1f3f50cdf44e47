"""Images in which one factor at a time is redrawn."""

import torch
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.draws import draw_latent
from pyro_fmvae.figures.factors import Factors, with_block
from pyro_fmvae.figures.page import MARGIN, QUIET, Figure, Page, shorten, text_width, two_lines
from pyro_fmvae.figures.tiles import as_images, cell_size

_TARGET = 128
_GAP = 8
_APART = 28  # between the base and the rest
_HEAD = 48
_LINE = 20
_CAPTION = 24
_ARROW = 16
_NOTES = (
    "one factor drawn anew, all else as in the base (component before → after)",
    "one factor drawn anew, all else as in the base",
    "one factor drawn anew",
    "drawn anew",
)


def attribute_rows(factors: Factors, rows: int = 6, seed: int = 0) -> Figure:
    """Rows of images: a base draw, and for each factor the same draw with this factor's block redrawn.

    The new block comes from a component other than the base's. Both are drawn from the components in use, in
    proportion to their shares; the caption says which replaced which. A factor with a single component in use
    is redrawn from that component. The caller's random generators are left alone.

    Args:
        factors: factors of a model of images.
        rows: number of base draws.
        seed: seed of the draws.

    Raises:
        ValueError: ``rows`` below 1, a decoder that does not return images, or a sampler that does not return
            latent vectors.
    """
    if rows < 1:
        raise ValueError(f"rows: expected a number >= 1, got {rows}")
    count = len(factors.sizes)
    with seeded(seed):
        codes, others = _draw_codes(factors, rows)
        base, other = draw_latent(factors, codes), draw_latent(factors, others)
    dim = factors.means[0].shape[1]
    blocks = other.unflatten(1, (count, dim)).unbind(1)
    z = torch.cat([base, *(with_block(base, block, factor) for factor, block in enumerate(blocks))])
    images = as_images("decode", factors.decode_all(z))
    if len(images) != len(z):
        raise ValueError(f"decode: expected {len(z)} images, got {len(images)}")

    height, width = cell_size(images, _TARGET)
    titles = [two_lines(name, width, 10, weight="bold") for name in ("base", *factors.names)]
    head = _HEAD + _LINE * (max(len(lines) for lines in titles) - 1)
    page = Page(
        2 * MARGIN + width + _APART + count * (width + _GAP) - _GAP,
        MARGIN + head + rows * (height + _CAPTION) + MARGIN // 2,
    )
    lefts = [MARGIN, *(MARGIN + width + _APART + factor * (width + _GAP) for factor in range(count))]
    for left, lines in zip(lefts, titles, strict=True):
        for number, line in enumerate(reversed(lines)):
            bottom = MARGIN + head - 14 - _LINE * number
            page.text(left + width / 2, bottom, line, 10, weight="bold", ha="center", va="baseline")
    room = page.width - lefts[1] - MARGIN // 2
    note = next((note for note in _NOTES if text_width(note, 8) <= room), "")
    page.text(lefts[1], MARGIN + 8, note, 8, color=QUIET, va="baseline")
    for row in range(rows):
        top = MARGIN + head + row * (height + _CAPTION)
        for column, left in enumerate(lefts):
            page.picture(images[column * rows + row], left, top, (height, width))
            if column:
                factor = column - 1
                names = (factors.component_name(factor, int(drawn[row, factor])) for drawn in (codes, others))
                caption = " → ".join(shorten(name, (width - _ARROW) / 2, 7) for name in names)
                middle = left + width / 2
                page.text(middle, top + height + 15, caption, 7, ha="center", va="baseline", color=QUIET)
    return page.figure


def _draw_codes(factors: Factors, rows: int) -> tuple[Tensor, Tensor]:
    """Draw the components of the bases, and another component for each of them: int64 [rows, I]."""
    codes, others = [], []
    for factor, share in enumerate(factors.shares):
        weights = (share * factors.used(factor)).expand(rows, -1)
        code = weights.multinomial(1)
        rest = weights.scatter(1, code, 0.0)
        rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, weights)  # no other one in use
        codes.append(code)
        others.append(rest.multinomial(1))
    return torch.cat(codes, 1), torch.cat(others, 1)
