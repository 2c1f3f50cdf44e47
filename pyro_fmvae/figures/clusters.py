"""Mean, variance and draws of each component of a factor. Figure 4 of Paquet et al. (2018)."""

import math

import torch
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.components import share_caption
from pyro_fmvae.figures.draws import draw_blocks, draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors, with_block
from pyro_fmvae.figures.page import INK, MARGIN, NOTE, PALE, QUIET, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size, scaled

_TARGET = 96
_GAP = 6
_APART = 18  # between variances and draws
_HEAD = 56
_LONGEST_NAME = 150


def clusters(
    factors: Factors, factor: int, most: int = 6, samples: int = 5, draws: int = 100, seed: int = 0
) -> Figure:
    """A row for each of the most used components of a factor: mean and variance of x, and some images.

    Mean and variance are those of x given the component, over draws of z. Other factors are drawn from their
    components in use, with the same draws for every row. The variance is E[Var[x | z]] + Var[E[x | z]]: black
    is 0 and white the largest variance. The images are E[x | z] for the first few draws. The caller's random
    generators are left alone.

    Args:
        factors: factors of a model of images, with ``std``.
        factor: index of the factor.
        most: largest number of components shown.
        samples: number of images of each.
        draws: draws of z for each, at least ``samples``.
        seed: seed of the draws.

    Raises:
        ValueError: a number out of range, ``factors`` without ``std``, or a decoder that does not return
            images.
    """
    factors.check_factor("factor", factor)
    if min(most, samples) < 1:
        raise ValueError(f"most, samples: expected numbers >= 1, got {most} and {samples}")
    if draws < samples:
        raise ValueError(f"draws: expected a number >= {samples}, got {draws}")
    order = factors.order(factor)[:most]
    with seeded(seed):
        base = draw_latent(factors, draw_codes(factors, draws))
        blocks = draw_blocks(factors, factor, order, draws)
    parts = [_moments(factors, with_block(base, block, factor), samples) for block in blocks]
    mean = as_images("decode", torch.stack([part[0] for part in parts]))
    variance, greatest = scaled("std", torch.stack([part[1] for part in parts]))
    drawn = as_images("decode", torch.cat([part[2] for part in parts]))

    size = cell_size(mean, _TARGET)
    names = [shorten(factors.component_name(factor, k), _LONGEST_NAME, 9) for k in order.tolist()]
    shares = [share_caption(factors, factor, k) for k in order.tolist()]
    widths = [*(text_width(name, 9) for name in names), *(text_width(share, 7) for share in shares)]
    indent = MARGIN + 10 + math.ceil(max(widths))
    pitch = max(size[1], math.ceil(text_width("variance", 8))) + _GAP
    inset = (pitch - _GAP - size[1]) // 2
    lefts = [indent + inset + n * pitch + (_APART if n > 1 else 0) for n in range(2 + samples)]
    width = max(lefts[-1] + size[1] + MARGIN, 360)
    others = ", all other factors drawn" if len(factors.sizes) > 1 else ""
    note = (
        f"Mean and variance over {draws} draws of z given the component{others}. "
        f"Variance: black is 0, white {greatest:.2g}; a pixel goes from 0 to 1."
    )
    notes = wrap(note, width - 2 * MARGIN, 8)
    bottom = MARGIN + _HEAD + len(order) * (size[0] + _GAP)
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    title = shorten(factors.names[factor], width - 2 * MARGIN, 10, weight="bold")
    page.text(MARGIN, MARGIN + 14, title, 10, weight="bold", va="baseline")
    for left, text in zip(lefts, ("mean", "variance"), strict=False):
        page.text(left + size[1] / 2, MARGIN + _HEAD - 10, text, 8, ha="center", va="baseline", color=QUIET)
    page.text(lefts[2], MARGIN + _HEAD - 10, "draws", 8, va="baseline", color=QUIET)
    for row, used in enumerate(factors.used(factor)[order].tolist()):
        top = MARGIN + _HEAD + row * (size[0] + _GAP)
        colour = INK if used else PALE
        page.text(indent - 10, top + size[0] / 2 - 8, names[row], 9, ha="right", color=colour)
        page.text(
            indent - 10, top + size[0] / 2 + 9, shares[row], 7, ha="right", color=QUIET if used else PALE
        )
        images = (mean[row], variance[row], *drawn[row * samples : (row + 1) * samples])
        for left, image in zip(lefts, images, strict=True):
            page.picture(image, left, top, size, faded=not used)
    page.notes(notes, bottom)
    return page.figure


def _moments(factors: Factors, z: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of x over z [n, I·D], and E[x | z] of the first few z."""
    means, std = factors.decode_all(z), factors.std_all(z)
    if std.shape != means.shape:
        raise ValueError(f"std: expected shape {list(means.shape)}, got {list(std.shape)}")
    variance = std.double().square().mean(0) + means.double().var(0, correction=0)
    return means.double().mean(0), variance, means[:samples].double()
