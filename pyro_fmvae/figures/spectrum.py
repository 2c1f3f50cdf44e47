"""How clearly points fall apart along independent directions of their codes, and what these move."""

from collections.abc import Mapping, Sequence

import numpy as np

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.draws import draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import MARGIN, NOTE, QUIET, Figure, Page, shorten, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size

_BAR, _NAME, _LINE, _GAP, _APART, _TARGET = 120, 150, 20, 4, 18, 64
_CLEAR, _OTHER = "#16457f", "#c9ced6"
_BASES, _SHOWN = 3, 6
_NOTE = "Bits of clusters, by independent direction; dark: with clusters, the factors that were found."
_MOVED = (
    "Each group of pictures is one draw, moved from component to component of the factor that starts there."
)


def spectrum(
    bits: Sequence[float],
    clustered: int,
    names: Mapping[int, str] | None = None,
    moved: Mapping[int, Sequence[np.ndarray]] | None = None,
) -> Figure:
    """Bars of the information that assignments to clusters have, H(π) - E[H(γ)], from the top down.

    Args:
        bits: of each group of directions, those with clusters first.
        clustered: how many have clusters: the factors that were found.
        names: group → name of the factor that starts from it.
        moved: group → pictures that it moves, as of :func:`moved_pictures`.

    Raises:
        ValueError: no groups.
    """
    if not bits:
        raise ValueError("bits: expected at least one number, got none")
    names, moved = names or {}, moved or {}
    height, width, pictures = 0, 0, 0
    if moved:
        height, width = cell_size(next(iter(moved.values()))[0], _TARGET)
        pictures = max(sum(len(part) * (width + _GAP) + _APART for part in each) for each in moved.values())
    left = MARGIN + _NAME + _BAR + 50
    lines = [max(height if number in moved else 0, _LINE - _GAP) + _GAP for number in range(len(bits))]
    notes = wrap(f"{_NOTE} {_MOVED}" if moved else _NOTE, left + pictures - MARGIN, 8)
    bottom = MARGIN + sum(lines)
    page = Page(left + pictures + MARGIN, bottom + NOTE * len(notes) + MARGIN)
    top = MARGIN
    for number, (each, line) in enumerate(zip(bits, lines, strict=True)):
        middle = top + (line - _GAP) / 2
        page.text(MARGIN, middle, shorten(names.get(number, ""), _NAME - 10, 8), 8)
        length = _BAR * each / max(*bits, 1e-3)
        page.swatch(MARGIN + _NAME, middle, length, 12, _CLEAR if number < clustered else _OTHER)
        page.text(MARGIN + _NAME + length + 6, middle, f"{each:.2f}", 8, color=QUIET)
        at = left
        for group in moved.get(number, ()):
            for picture in group:
                page.picture(picture, at, top, (height, width))
                at += width + _GAP
            at += _APART
        top += line
    page.notes(notes, bottom)
    return page.figure


def moved_pictures(factors: Factors, factor: int) -> list[np.ndarray]:
    """Pictures of three draws of z, each with the block of a factor at its most used components, at most six.

    Args:
        factors: factors of a model of images.
        factor: index of the factor.

    Returns:
        For each draw [components, H, W] or [components, H, W, 3] in [0, 1].
    """
    order = factors.order(factor)
    components = order[factors.used(factor)[order]][:_SHOWN].sort().values
    with seeded(0):
        bases = draw_latent(factors, draw_codes(factors, _BASES))
    return [as_images("decode", factors.at_components(factor, components, base)) for base in bases]
