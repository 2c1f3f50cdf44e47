import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae import checkpoint
from pyro_fmvae.figures import save_animation, traversal
from pyro_fmvae.figures.page import Page
from tests.figures.generator import SIZES, Generator


@pytest.fixture
def headings(monkeypatch):
    """The bold texts of all pages, in the order in which they were written."""
    found, write = [], Page.text

    def record(self, left, top, text, *arguments, **style):
        if style.get("weight") == "bold":
            found.append(text)
        write(self, left, top, text, *arguments, **style)

    monkeypatch.setattr(Page, "text", record)
    return found


def test_the_block_goes_from_component_to_component_in_a_circle():
    generator = Generator()
    frames = traversal(generator.factors(), 1, bases=4, steps=8)
    assert len(frames) == 3 * 8
    z = torch.cat(generator.decoded).unflatten(0, (24, 4)).unflatten(-1, (3, 2))
    expected = [*np.arange(16) / 8, *np.arange(2, 0, -1 / 4)]  # 0 to 1 to 2, and back to 0
    np.testing.assert_allclose(z[:, :, 1, 0], np.array(expected)[:, None].repeat(4, 1))
    assert (z[:, :, 1, 1] == 0.5).all()
    others = z[:, :, [0, 2]]
    assert (others == others[:1]).all() and len(others[0, :, 0, 1].unique()) == 4


def test_frames_are_pages_with_the_images():
    factors = Generator((2,)).factors()
    frames = traversal(factors, 0, bases=1, steps=2)
    assert all(frame.dtype == np.uint8 and frame.shape == frames[0].shape for frame in frames)
    # The picture, 128 pixels high, shows component / 2 above and the location's second number below.
    column = [frame[:, 16 + 32].astype(int) for frame in frames]
    assert [int(shades[16 + 56 + 32, 0]) for shades in column] == pytest.approx([0, 64, 128, 64], abs=1)
    assert [int(shades[16 + 56 + 96, 0]) for shades in column] == pytest.approx([128] * 4, abs=1)


def test_each_frame_names_the_nearest_component(headings):
    names = {"names": ("hat", "hair", "rest"), "value_names": ((), ("blond", "dark"))}
    traversal(Generator().factors(**names), 1, bases=1, steps=4)
    blond, dark, other = "blond  (17 %)", "dark  (33 %)", "2  (50 %)"
    assert headings == [*[blond] * 3, *[dark] * 4, *[other] * 4, blond]


def test_unused_components_are_passed_over(headings):
    generator = Generator((5,))
    frames = traversal(generator.factors(shares=[torch.tensor([1.0, 0, 3, 0, 2])]), 0, steps=1)
    assert len(frames) == 3 and [text[0] for text in headings] == ["0", "2", "4"]
    headings.clear()
    assert (
        len(traversal(generator.factors(shares=[torch.tensor([1.0, 0, 3, 0, 2])]), 0, steps=1, most=2)) == 2
    )
    assert [text[0] for text in headings] == ["2", "4"]
    assert len(traversal(generator.factors(shares=[torch.tensor([0.0, 0, 3, 0, 0])]), 0)) == 1


def test_random_numbers():
    factors, before = Generator().factors(), torch.get_rng_state()
    first, again, other = (np.stack(traversal(factors, 0, steps=1, seed=seed)) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert torch.equal(torch.get_rng_state(), before)


def test_animation(tmp_path):
    shades = (0, 60, 120, 180, 240)
    frames = [np.full((20, 30, 3), (shade, 0, 255 - shade), dtype=np.uint8) for shade in shades]
    path = tmp_path / "new" / "a.gif"
    save_animation(frames, path, milliseconds=50)
    assert list(path.parent.iterdir()) == [path]
    with Image.open(path) as image:
        assert image.n_frames == 5 and image.size == (30, 20)
        assert image.info["loop"] == 0  # for ever
        for number, frame in enumerate(frames):
            image.seek(number)
            assert image.info["duration"] == 50
            np.testing.assert_allclose(np.asarray(image.convert("RGB")).astype(int), frame, atol=4)


def test_equal_frames_give_equal_files(tmp_path):
    frames = traversal(Generator().factors(), 0, bases=1, steps=2)
    for name in "ab":
        save_animation(frames, str(tmp_path / f"{name}.gif"))
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.gif"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_animation([np.zeros((2, 2), dtype=np.uint8)], path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def frame(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("frames", "name", "message"),
    [
        ([frame(2, 2)], "a.png", r"path: expected a name that ends in \.gif"),
        ([], "a.gif", "frames: expected uint8 arrays of one shape"),
        ([frame(2, 2), frame(2, 3)], "a.gif", "frames: expected uint8 arrays of one shape"),
        ([frame(2, 2, dtype=float)], "a.gif", "frames: expected uint8 arrays"),
    ],
)
def test_errors_of_animations(tmp_path, frames, name, message):
    with pytest.raises(ValueError, match=message):
        save_animation(frames, tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": len(SIZES)}, r"factor: expected a factor in 0\.\.2, got 3"),
        ({"bases": 0}, "bases, steps, most: expected numbers >= 1"),
        ({"steps": 0}, "bases, steps, most: expected numbers >= 1"),
        ({"most": 0}, "bases, steps, most: expected numbers >= 1"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        traversal(Generator().factors(), **{"factor": 0, **arguments})
