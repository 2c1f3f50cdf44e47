"""A grid of images, and originals above their reconstructions."""

from collections.abc import Sequence

from pyro_fmvae.figures.page import MARGIN, QUIET, Figure, Page, shorten, text_width
from pyro_fmvae.figures.tiles import Array, as_images, cell_size

_TARGET = 96  # pixels that the longer side of an image aims at
_GAP = 4
_LINE = 20


def sample_grid(images: Array, rows: int, cols: int, titles: Sequence[str] | None = None) -> Figure:
    """Images side by side, row after row.

    Args:
        images: [n, H, W] or [n, H, W, 3], n <= rows·cols; values outside [0, 1] are clipped.
        rows, cols: size of the grid.
        titles: one per image, shortened to its width; None for no titles.

    Raises:
        ValueError: an argument of the wrong size.
    """
    pixels = as_images("images", images)
    n = len(pixels)
    if min(rows, cols) < 1:
        raise ValueError(f"rows, cols: expected numbers >= 1, got {rows} and {cols}")
    if n > rows * cols:
        raise ValueError(f"images: expected at most {rows}·{cols}, got {n}")
    if titles is not None and len(titles) != n:
        raise ValueError(f"titles: expected one for each of {n} images, got {len(titles)}")
    height, width = cell_size(pixels, _TARGET)
    line = 0 if titles is None else _LINE
    page = Page(2 * MARGIN + cols * (width + _GAP) - _GAP, 2 * MARGIN + rows * (height + _GAP + line) - _GAP)
    for number, image in enumerate(pixels):
        left = MARGIN + number % cols * (width + _GAP)
        top = MARGIN + number // cols * (height + _GAP + line)
        if titles is not None:
            title = shorten(titles[number], width, 8)
            page.text(left + width / 2, top + line - 7, title, 8, ha="center", va="baseline")
        page.picture(image, left, top + line, (height, width))
    return page.figure


def reconstructions(x: Array, mean: Array, cols: int = 10) -> Figure:
    """Originals, each with its reconstruction below.

    Args:
        x: n data points, [n, H, W] or [n, H, W, 3]; values outside [0, 1] are clipped.
        mean: E[x | z] for each, of the same shape.
        cols: number of pairs side by side.

    Raises:
        ValueError: an argument of the wrong shape.
    """
    originals, reconstructed = as_images("x", x), as_images("mean", mean)
    if originals.shape != reconstructed.shape:
        raise ValueError(
            f"mean: expected the shape {list(originals.shape)} of x, got {list(reconstructed.shape)}"
        )
    if cols < 1:
        raise ValueError(f"cols: expected a number >= 1, got {cols}")
    n, (height, width) = len(originals), cell_size(originals, _TARGET)
    cols, rows = min(cols, n), -(-n // cols)
    labels = ("original", "reconstruction")
    indent = MARGIN + max(round(text_width(label, 8)) for label in labels) + 8
    pair = 2 * height + _GAP
    between = 3 * _GAP
    page = Page(
        indent + cols * (width + _GAP) - _GAP + MARGIN, 2 * MARGIN + rows * (pair + between) - between
    )
    for row in range(rows):
        for line, (label, images) in enumerate(zip(labels, (originals, reconstructed), strict=True)):
            top = MARGIN + row * (pair + between) + line * (height + _GAP)
            page.text(indent - 8, top + height / 2, label, 8, ha="right", color=QUIET)
            for col, image in enumerate(images[row * cols : (row + 1) * cols]):
                page.picture(image, indent + col * (width + _GAP), top, (height, width))
    return page.figure
