"""A sheet of numbered images for blind judgement by people."""

from pyro_fmvae.figures.page import MARGIN, Figure, Page
from pyro_fmvae.figures.tiles import Array, as_images, cell_size

_TARGET = 96
_GAP = 16
_NUMBER = 26  # below an image


def blind_sheet(images: Array, columns: int = 9) -> Figure:
    """Images in rows with their numbers below, counted from 1, and nothing else; for print.

    Args:
        images: [n, H, W] or [n, H, W, 3]; values outside [0, 1] are clipped. 54 images fill a sheet.
        columns: images side by side.

    Raises:
        ValueError: an argument of the wrong size.
    """
    pixels = as_images("images", images)
    if columns < 1:
        raise ValueError(f"columns: expected a number >= 1, got {columns}")
    height, width = cell_size(pixels, _TARGET)
    columns = min(columns, len(pixels))
    rows = -(-len(pixels) // columns)
    border = 2 * MARGIN
    page = Page(
        2 * border + columns * (width + _GAP) - _GAP, 2 * border + rows * (height + _NUMBER + _GAP) - _GAP
    )
    for number, image in enumerate(pixels):
        left = border + number % columns * (width + _GAP)
        top = border + number // columns * (height + _NUMBER + _GAP)
        page.picture(image, left, top, (height, width))
        page.text(left + width / 2, top + height + 18, str(number + 1), 10, ha="center", va="baseline")
    return page.figure
