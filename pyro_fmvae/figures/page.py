"""A figure that is laid out in pixels, and how it gets into a file."""

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

DPI: Final = 128  # a power of two: any whole number of pixels is a number of inches without rounding

INK: Final = "#222222"
QUIET: Final = "#767676"
FAINT: Final = "#cfcfcf"

MARGIN: Final = 16  # pixels of white around everything


class Page:
    """A white figure on which things are placed in pixels, from its top left corner.

    Args:
        width, height: in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes whose frame is the given rectangle."""
        bottom = self.height - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def picture(
        self, image: np.ndarray, left: float, top: float, size: tuple[int, int], faded: bool = False
    ) -> Axes:
        """An image [H, W] or [H, W, 3] with values in [0, 1], without ticks, in a thin frame.

        Args:
            image: what to draw.
            left, top: its corner.
            size: height and width on the page.
            faded: whether to wash the image out.
        """
        axes = self.axes(left, top, size[1], size[0])
        shrunk = size[0] < image.shape[0]
        axes.imshow(
            image,
            cmap="gray",
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="antialiased" if shrunk else "nearest",
            alpha=0.3 if faded else None,
        )
        frame(axes)
        return axes

    def text(self, left: float, top: float, text: str, size: float = 9, **style: Any) -> None:
        """Text from a point on, centred vertically on it, unless ``ha`` and ``va`` say otherwise."""
        style = {"ha": "left", "va": "center_baseline", "color": INK} | style
        x, y = left / self.width, 1 - top / self.height
        self.figure.text(x, y, text, fontsize=size, parse_math=False, **style)

    def swatch(self, left: float, top: float, width: float, height: float, colour: Any) -> None:
        """A filled rectangle, with its left side and the middle of its height given."""
        corner = (left / self.width, 1 - (top + height / 2) / self.height)
        rectangle = Rectangle(
            corner, width / self.width, height / self.height, facecolor=colour, edgecolor="none"
        )
        rectangle.set_transform(self.figure.transFigure)
        self.figure.add_artist(rectangle)


def frame(axes: Axes) -> None:
    """Take the ticks away and make the frame thin and pale."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.6)


def text_width(text: str, size: float = 9, **font: Any) -> float:
    """Width of a line of text in pixels."""
    properties = FontProperties(size=size, **font)
    width, _, _ = text_to_path.get_text_width_height_descent(text, properties, False)
    return width * DPI / 72


def shorten(text: str, width: float, size: float = 9, keep_end: bool = False, **font: Any) -> str:
    """The text, or as much of it as fits into a width in pixels together with '…'.

    Args:
        text: one line.
        width: in pixels.
        size: of the font, in points.
        keep_end: whether to cut in the middle rather than at the end.
        font: other properties, for example ``weight``.
    """
    if text_width(text, size, **font) <= width:
        return text
    for length in range(len(text) - 1, 0, -1):
        tail = length // 2 if keep_end else 0
        shorter = text[: length - tail].rstrip() + "…" + text[len(text) - tail :].lstrip()
        if text_width(shorter, size, **font) <= width:
            return shorter
    return "…"


def two_lines(text: str, width: float, size: float = 9, **font: Any) -> list[str]:
    """The text on one line, or broken between words into two, each shortened to a width in pixels."""
    words = text.split()
    first = len(words)
    while first > 1 and text_width(" ".join(words[:first]), size, **font) > width:
        first -= 1
    lines = [" ".join(words[:first]), " ".join(words[first:])]
    return [shorten(line, width, size, **font) for line in lines if line]


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG: never half a file, and equal bytes for equal figures.

    Args:
        figure: one of this package's.
        path: a name that ends in .png; folders that are missing are made.

    Raises:
        ValueError: another ending.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"path: expected a name that ends in .png, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            # Without this entry the bytes would change with matplotlib's version.
            FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
