"""Mean, standard deviation and a draw of x for drawn z. Figure 5 of Paquet et al. (2018)."""

import numpy as np

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.draws import draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import MARGIN, NOTE, Figure, Page, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size, scaled

_TITLES = ("mean", "standard deviation", "sample")
_TARGET = 128
_GAP = 8
_HEAD = 28
_NARROWEST = 160  # of a column, for its title


def spread(factors: Factors, rows: int = 8, seed: int = 0) -> Figure:
    """A row of images for each of some draws of z: the mean of x, its standard deviation, and a draw of x.

    Black is a standard deviation of 0, white the largest one. The caller's random generators are left alone.

    Args:
        factors: factors of a model of images, with ``std`` and ``draw``.
        rows: number of draws of z.
        seed: seed of all draws.

    Raises:
        ValueError: ``rows`` below 1, ``factors`` without ``std`` or ``draw``, or images of different shapes.
    """
    if rows < 1:
        raise ValueError(f"rows: expected a number >= 1, got {rows}")
    with seeded(seed):
        z = draw_latent(factors, draw_codes(factors, rows))
        mean = as_images("decode", factors.decode_all(z))
        std, greatest = scaled("std", factors.std_all(z))
        sample = as_images("draw", factors.draw_all(z))
    for name, images in (("std", std), ("draw", sample)):
        if images.shape != mean.shape:
            raise ValueError(f"{name}: expected shape {list(mean.shape)}, got {list(images.shape)}")
    size = cell_size(mean, _TARGET)
    column = max(size[1], _NARROWEST)
    width = 2 * MARGIN + 3 * (column + _GAP) - _GAP
    note = f"Standard deviation: black is 0, white {greatest:.2g}; a pixel goes from 0 to 1."
    notes = wrap(note, width - 2 * MARGIN, 8)
    bottom = MARGIN + _HEAD + rows * (size[0] + _GAP)
    page = Page(width, bottom + NOTE * len(notes) + MARGIN)
    for number, (title, images) in enumerate(zip(_TITLES, (mean, std, sample), strict=True)):
        left = MARGIN + number * (column + _GAP) + (column - size[1]) // 2
        page.text(left + size[1] / 2, MARGIN + 12, title, 9, weight="bold", ha="center", va="baseline")
        _column(page, images, left, size)
    page.notes(notes, bottom)
    return page.figure


def _column(page: Page, images: np.ndarray, left: int, size: tuple[int, int]) -> None:
    for row, image in enumerate(images):
        page.picture(image, left, MARGIN + _HEAD + row * (size[0] + _GAP), size)
