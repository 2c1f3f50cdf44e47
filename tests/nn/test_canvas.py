import pytest
import torch

from pyro_fmvae.nn import is_image
from pyro_fmvae.nn.canvas import Canvas

SIDES = (28, 32, 64, 128)
SHAPES = {  # event shape: side, size on it, first pixel on it, what is said
    (28, 28): (28, (28, 28), (0, 0), ""),
    (32, 32, 3): (32, (32, 32), (0, 0), ""),
    (64, 64, 3): (64, (64, 64), (0, 0), ""),
    (128, 128, 4): (128, (128, 128), (0, 0), ""),
    (8, 8): (28, (8, 8), (10, 10), "images of 8x8 are padded to 28x28"),
    (20, 27, 1): (28, (20, 27), (4, 0), "images of 20x27 are padded to 28x28"),
    (29, 9, 4): (32, (29, 9), (1, 11), "images of 29x9 are padded to 32x32"),
    (48, 48): (64, (48, 48), (8, 8), "images of 48x48 are padded to 64x64"),
    (96, 128, 3): (128, (96, 128), (16, 0), "images of 96x128 are padded to 128x128"),
    (256, 256, 3): (128, (128, 128), (0, 0), "images of 256x256 are shrunk to 128x128"),
    (200, 130): (128, (128, 83), (0, 22), "images of 200x130 are shrunk to 128x83 and padded to 128x128"),
    (4, 1000, 3): (128, (1, 128), (63, 0), "images of 4x1000 are shrunk to 1x128 and padded to 128x128"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_padded_or_shrunk_to_the_next_square(shape):
    canvas = Canvas(shape, SIDES)
    assert (canvas.side, canvas.size, canvas.corner, canvas.describe()) == SHAPES[shape]


def ramps(height, width, colours):
    """Two images [2, H, W, C] that grow brighter from the top left to the bottom right."""
    down, right = torch.linspace(0, 1, height), torch.linspace(0, 1, width)
    return (down[:, None] + right)[None, ..., None].expand(2, height, width, colours)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if max(shape) <= 128])
def test_padded_images_return_to_the_bit(shape):
    canvas = Canvas(shape, SIDES)
    images = ramps(*shape[:2], canvas.colours)
    squares = canvas.lay(images)
    assert squares.shape == (2, canvas.colours, canvas.side, canvas.side)
    assert torch.equal(canvas.lift(squares).movedim(1, -1), images)
    (top, left), (height, width) = canvas.corner, canvas.size
    rows, columns = (torch.arange(canvas.side) - start for start in (top, left))
    nearest = images[:, rows.clamp(0, height - 1)][:, :, columns.clamp(0, width - 1)]
    assert torch.equal(squares.movedim(1, -1), nearest)  # the edges go on where there is no image


@pytest.mark.parametrize("shape", [(256, 256, 3), (200, 130), (130, 260)])
def test_shrunk_images_return_in_their_place(shape):
    canvas = Canvas(shape, SIDES)
    images = ramps(*shape[:2], canvas.colours)
    squares = canvas.lay(images)
    assert squares.shape == (2, canvas.colours, 128, 128)
    torch.testing.assert_close(canvas.lift(squares).movedim(1, -1), images, rtol=0, atol=0.02)


def test_images_are_told_by_their_shape():
    assert all(map(is_image, SHAPES))
    assert not any(map(is_image, [(28,), (3, 64, 64), (8, 8, 2), (1, 8, 8, 3), ()]))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((28,), r"event_shape must be \(H, W\) or \(H, W, C\) with 1, 3 or 4 channels, got \(28,\)"),
        ((3, 64, 64), r"event_shape must be .*, got \(3, 64, 64\)"),
        ((28, 0), r"event_shape\[1\] must be a positive integer, got 0"),
    ],
)
def test_shapes_of_other_things_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        Canvas(shape, SIDES)
