"""Heat maps with a column per latent."""

import matplotlib
import numpy as np

from pyro_fmvae.figures.page import QUIET, Axes, Page, frame

COLOURS = "Blues"
NUMBERED = 13
"""Least width in pixels of a column with room for the latent's number."""
NUMBERS = 26
"""Height in pixels of the numbers above a heat map."""


def latent_order(values: np.ndarray) -> np.ndarray:
    """Order latents by the row where each is largest; within a row by descending value, zeros last.

    Args:
        values: numbers >= 0, [rows, J].

    Returns:
        Indices of the latents, int64 [J].
    """
    largest = values.max(0)
    row = np.where(largest > 0, values.argmax(0), len(values))
    return np.lexsort((-largest, row))


def heat_map(
    page: Page,
    values: np.ndarray,
    order: np.ndarray,
    corner: tuple[int, int],
    cell: tuple[int, int],
    high: float,
) -> Axes:
    """Draw values from white (0) to dark (``high``), with the numbers of latents above if there is room.

    Args:
        page: page to draw on.
        values: [rows, J].
        order: order of the columns, int64 [J].
        corner: left and top of the map, below the numbers of latents.
        cell: width and height of a cell.
        high: value of the darkest colour.
    """
    (left, top), (width, height) = corner, cell
    rows, columns = values.shape
    axes = page.axes(left, top, width * columns, height * rows)
    colours = matplotlib.colormaps[COLOURS]
    axes.imshow(values[:, order], cmap=colours, vmin=0, vmax=high, aspect="auto", interpolation="nearest")
    frame(axes)
    if width >= NUMBERED:
        for column, latent in enumerate(order.tolist()):
            centre = left + (column + 0.5) * width
            style = {"rotation": 90, "ha": "center", "va": "bottom", "color": QUIET}
            page.text(centre, top - 4, str(latent), 6.5, **style)
    return axes
