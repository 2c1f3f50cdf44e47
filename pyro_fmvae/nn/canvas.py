"""Squares of a few sizes, on which images of any size are laid."""

from collections.abc import Sequence

from torch import Tensor, nn

from pyro_fmvae.nn.sizes import check_sizes

_COLOURS = (1, 3, 4)


def is_image(event_shape: Sequence[int]) -> bool:
    """Return True for the shapes that a :class:`Canvas` takes: (H, W), and (H, W, C) with C 1, 3 or 4."""
    return len(event_shape) == 2 or (len(event_shape) == 3 and event_shape[2] in _COLOURS)


class Canvas:
    """Square on which images of one size are laid, for layers that take squares of a few sizes alone.

    Images are padded to the smallest of these squares that holds them, evenly on opposite sides, with the
    pixels of their edges.
    Images larger than the largest square are first shrunk until their longer side fits, by averages over
    areas. The inverse cuts the padding off and enlarges by bilinear interpolation.

    Args:
        event_shape: shape of one image, ``(H, W)`` or ``(H, W, C)`` with 1, 3 or 4 channels.
        sides: pixels on a side of the squares, in ascending order.

    Attributes:
        event_shape: the same, as a tuple.
        colours: C; 1 for images (H, W).
        side: pixels on a side of the square.
        size: height and width of an image on it.
        corner: row and column of an image's first pixel on it.

    Raises:
        ValueError: ``event_shape`` is not that of an image.
    """

    def __init__(self, event_shape: Sequence[int], sides: Sequence[int]) -> None:
        self.event_shape = check_sizes("event_shape", event_shape)
        if not is_image(self.event_shape):
            expected = "(H, W) or (H, W, C) with 1, 3 or 4 channels"
            raise ValueError(f"event_shape must be {expected}, got {self.event_shape}")
        height, width, self.colours = (*self.event_shape, 1)[:3]
        longest = max(height, width)
        self.side = next((side for side in sides if side >= longest), sides[-1])
        shrinkage = max(1.0, longest / self.side)
        self.size = max(1, round(height / shrinkage)), max(1, round(width / shrinkage))
        self.corner = (self.side - self.size[0]) // 2, (self.side - self.size[1]) // 2

    @property
    def shrinks(self) -> bool:
        """True where images are larger than the largest square."""
        return self.size != self.event_shape[:2]

    @property
    def pads(self) -> bool:
        """True where images leave a part of the square free."""
        return self.size != (self.side, self.side)

    def describe(self) -> str:
        """Say how images are changed: "images of 48x48 are padded to 64x64". Empty where they are not."""
        changes = [f"shrunk to {self.size[0]}x{self.size[1]}"] if self.shrinks else []
        changes += [f"padded to {self.side}x{self.side}"] if self.pads else []
        height, width = self.event_shape[:2]
        return f"images of {height}x{width} are {' and '.join(changes)}" if changes else ""

    def lay(self, images: Tensor) -> Tensor:
        """Return images ``[N, H, W, C]`` as ``[N, C, side, side]``."""
        images = images.movedim(-1, 1)
        if self.shrinks:
            images = nn.functional.interpolate(images, self.size, mode="area")
        if self.pads:
            (top, left), (height, width) = self.corner, self.size
            right, bottom = self.side - left - width, self.side - top - height
            images = nn.functional.pad(images, (left, right, top, bottom), "replicate")
        return images

    def lift(self, squares: Tensor) -> Tensor:
        """Return what lies where images do in ``[N, n, side, side]``, at their own size: ``[N, n, H, W]``."""
        (top, left), (height, width) = self.corner, self.size
        images = squares[..., top : top + height, left : left + width] if self.pads else squares
        if self.shrinks:
            images = nn.functional.interpolate(images, self.event_shape[:2], mode="bilinear")
        return images
