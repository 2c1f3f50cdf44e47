"""A figure laid out in pixels, and saving it as a file."""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pyro_fmvae.files.checkpoint import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.transforms import Bbox
else:  # matplotlib takes a while to import, and is needed only for drawing
    Axes, Figure, Bbox = "Axes", "Figure", "Bbox"

DPI: Final = 128  # a power of two: any whole number of pixels is a number of inches without rounding

INK: Final = "#222222"
QUIET: Final = "#767676"
PALE: Final = "#9c9c9c"
FAINT: Final = "#cfcfcf"

MARGIN: Final = 16  # pixels of white around everything
NOTE: Final = 18  # height of a line of notes


class Page:
    """A white figure; positions are pixels from its top left corner.

    Args:
        width, height: size in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)
        # A notebook takes a figure that has neither axes nor lines for an empty one.
        self.figure.lines.append(Line2D([], [], visible=False))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes in the given rectangle."""
        return self.figure.add_axes(self._box(left, top, width, height).bounds)

    def picture(
        self, image: np.ndarray, left: float, top: float, size: tuple[int, int], faded: bool = False
    ) -> None:
        """Draw an image in a thin frame, without axes, which take fifty times as long.

        Args:
            image: values in [0, 1], [H, W] or [H, W, 3].
            left, top: its corner.
            size: height and width on the page.
            faded: True to wash the image out.
        """
        from matplotlib.colors import Normalize
        from matplotlib.image import BboxImage
        from matplotlib.transforms import TransformedBbox

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
        """Draw text to the right of a point, centred vertically, unless ``ha`` and ``va`` say otherwise."""
        style = {"ha": "left", "va": "center_baseline", "color": INK} | style
        x, y = left / self.width, 1 - top / self.height
        self.figure.text(x, y, text, fontsize=size, parse_math=False, **style)

    def notes(self, lines: Sequence[str], top: float) -> None:
        """Draw small grey lines at the left margin, below ``top``; each takes `NOTE` pixels."""
        for number, line in enumerate(lines):
            self.text(MARGIN, top + NOTE * (number + 1), line, 8, color=QUIET, va="baseline")

    def pixels(self) -> np.ndarray:
        """Render the page: uint8 [height, width, 3]."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    def swatch(self, left: float, top: float, width: float, height: float, colour: Any) -> None:
        """Fill a rectangle, given its left side and the middle of its height."""
        self._rectangle(self._box(left, top - height / 2, width, height), facecolor=colour, edgecolor="none")

    def _box(self, left: float, top: float, width: float, height: float) -> Bbox:
        from matplotlib.transforms import Bbox

        bottom = self.height - top - height
        return Bbox.from_bounds(
            left / self.width, bottom / self.height, width / self.width, height / self.height
        )

    def _rectangle(self, box: Bbox, **style: Any) -> None:
        from matplotlib.patches import Rectangle

        rectangle = Rectangle((box.x0, box.y0), box.width, box.height, **style)
        rectangle.set_transform(self.figure.transFigure)
        self.figure.add_artist(rectangle)


def frame(axes: Axes) -> None:
    """Remove the ticks, and make the frame thin and pale."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.6)


def plain_axes(axes: Axes, grid: str | None = FAINT) -> None:
    """Style axes with numbers: small labels, the left and the lower side of the frame, horizontal lines.

    Args:
        axes: with ticks where they are to be.
        grid: colour of the lines; None for no lines.
    """
    from matplotlib.ticker import FuncFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(tick_label))
    axes.tick_params(labelsize=8, labelcolor=QUIET, color=FAINT)
    if grid is not None:
        axes.grid(axis="y", color=grid, linewidth=0.8)
        axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(color=FAINT, linewidth=0.8, visible=side in ("left", "bottom"))


def tick_label(value: float, _: int) -> str:
    """A number as :func:`plain_axes` labels it; the second argument is for matplotlib."""
    return f"{value:,.10g}".replace("-", "−")


def text_width(text: str, size: float = 9, **font: Any) -> float:
    """Width of a line of text in pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    properties = FontProperties(size=size, **font)
    width, _, _ = text_to_path.get_text_width_height_descent(text, properties, False)
    return width * DPI / 72


def shorten(text: str, width: float, size: float = 9, keep_end: bool = False, **font: Any) -> str:
    """Shorten a line of text to a width in pixels, with '…' for the part that is cut.

    Args:
        text: one line.
        width: width in pixels.
        size: size of the font in points.
        keep_end: True to cut in the middle instead of at the end.
        font: other properties of the font, for example ``weight``.
    """
    if text_width(text, size, **font) <= width:
        return text

    def cut(length: int) -> str:
        tail = length // 2 if keep_end else 0
        return text[: length - tail].rstrip() + "…" + text[len(text) - tail :].lstrip()

    return cut(bisect_right(range(1, len(text)), width, key=lambda n: text_width(cut(n), size, **font)))


def two_lines(text: str, width: float, size: float = 9, **font: Any) -> list[str]:
    """Break text between words into one or two lines, each shortened to a width in pixels."""
    words = text.split()
    first = len(words)
    while first > 1 and text_width(" ".join(words[:first]), size, **font) > width:
        first -= 1
    lines = [" ".join(words[:first]), " ".join(words[first:])]
    return [shorten(line, width, size, **font) for line in lines if line]


def wrap(text: str, width: float, size: float = 9, **font: Any) -> list[str]:
    """Wrap text at a width in pixels; words that are longer are shortened."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size, **font) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(shorten(word, width, size, **font))
    return lines


def save(figure: Figure, path: str | Path) -> None:
    """Save a figure as PNG, atomically; equal figures give equal bytes.

    Args:
        figure: a figure of this package.
        path: name that ends in .png; missing folders are created.

    Raises:
        ValueError: another ending.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"path: expected a name that ends in .png, got {path}")

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            # By default the bytes would change with matplotlib's version.
            FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
