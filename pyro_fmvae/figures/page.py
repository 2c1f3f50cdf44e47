"""A figure that is laid out in pixels, and how it gets into a file."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import BboxImage
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Bbox, TransformedBbox

DPI: Final = 128  # a power of two: any whole number of pixels is a number of inches without rounding

INK: Final = "#222222"
QUIET: Final = "#767676"
PALE: Final = "#9c9c9c"
FAINT: Final = "#cfcfcf"

MARGIN: Final = 16  # pixels of white around everything
NOTE: Final = 18  # height of a line of notes


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
        return self.figure.add_axes(self._box(left, top, width, height).bounds)

    def picture(
        self, image: np.ndarray, left: float, top: float, size: tuple[int, int], faded: bool = False
    ) -> None:
        """An image [H, W] or [H, W, 3] with values in [0, 1] in a thin frame.

        It needs no axes, which take fifty times as long to make.

        Args:
            image: what to draw.
            left, top: its corner.
            size: height and width on the page.
            faded: whether to wash the image out.
        """
        box = self._box(left, top, size[1], size[0])
        shrunk = size[0] < image.shape[0]
        picture = BboxImage(
            TransformedBbox(box, self.figure.transFigure),
            cmap="gray",
            norm=Normalize(0, 1),
            origin="upper",
            interpolation="antialiased" if shrunk else "nearest",
            alpha=0.3 if faded else None,
        )
        picture.set_data(image)
        self.figure.add_artist(picture)
        self._rectangle(box, fill=False, edgecolor=FAINT, linewidth=0.6)

    def text(self, left: float, top: float, text: str, size: float = 9, **style: Any) -> None:
        """Text from a point on, centred vertically on it, unless ``ha`` and ``va`` say otherwise."""
        style = {"ha": "left", "va": "center_baseline", "color": INK} | style
        x, y = left / self.width, 1 - top / self.height
        self.figure.text(x, y, text, fontsize=size, parse_math=False, **style)

    def notes(self, lines: Sequence[str], top: float) -> None:
        """Small grey lines at the left margin, the first one below ``top``; each takes `NOTE` pixels."""
        for number, line in enumerate(lines):
            self.text(MARGIN, top + NOTE * (number + 1), line, 8, color=QUIET, va="baseline")

    def pixels(self) -> np.ndarray:
        """What the page looks like: uint8 [height, width, 3]."""
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    def swatch(self, left: float, top: float, width: float, height: float, colour: Any) -> None:
        """A filled rectangle, with its left side and the middle of its height given."""
        self._rectangle(self._box(left, top - height / 2, width, height), facecolor=colour, edgecolor="none")

    def _box(self, left: float, top: float, width: float, height: float) -> Bbox:
        bottom = self.height - top - height
        return Bbox.from_bounds(
            left / self.width, bottom / self.height, width / self.width, height / self.height
        )

    def _rectangle(self, box: Bbox, **style: Any) -> None:
        rectangle = Rectangle((box.x0, box.y0), box.width, box.height, **style)
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

    def cut(length: int) -> str:
        tail = length // 2 if keep_end else 0
        return text[: length - tail].rstrip() + "…" + text[len(text) - tail :].lstrip()

    return cut(bisect_right(range(1, len(text)), width, key=lambda n: text_width(cut(n), size, **font)))


def two_lines(text: str, width: float, size: float = 9, **font: Any) -> list[str]:
    """The text on one line, or broken between words into two, each shortened to a width in pixels."""
    words = text.split()
    first = len(words)
    while first > 1 and text_width(" ".join(words[:first]), size, **font) > width:
        first -= 1
    lines = [" ".join(words[:first]), " ".join(words[first:])]
    return [shorten(line, width, size, **font) for line in lines if line]


def wrap(text: str, width: float, size: float = 9, **font: Any) -> list[str]:
    """The text on as many lines as it takes, broken between words; longer words are shortened."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size, **font) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(shorten(word, width, size, **font))
    return lines


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
