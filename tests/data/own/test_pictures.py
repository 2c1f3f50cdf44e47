"""The shape that pictures of a folder get by default."""

import numpy as np
import pytest
from PIL import Image

from pyro_fmvae.data import load
from pyro_fmvae.data.own.pictures import choose_shape

RNG = np.random.default_rng(0)


def write(folder, sizes, mode="RGB"):
    """Pictures of noise, of these heights and widths; returns their files."""
    folder.mkdir()
    files = []
    for row, (height, width) in enumerate(sizes):
        noise = Image.fromarray(RNG.integers(0, 256, (height, width, 4), dtype=np.uint8))
        files.append(folder / f"{row:02d}.png")
        picture = noise if mode == "RGBA" else noise.convert("RGB").convert(mode)
        picture.save(files[-1])
    return files


@pytest.mark.parametrize(
    ("sizes", "shape", "note"),
    [
        ([(8, 8)], (8, 8), ""),
        ([(16, 24)], (16, 24), ""),
        ([(64, 60)], (64, 60), ""),
        ([(96, 128)], (48, 64), "of 128 x 96 pixels are resized to 64 x 48 in colour"),
        ([(256, 200)], (64, 50), "of 200 x 256 pixels are resized to 50 x 64 in colour"),
        ([(200, 9)], (64, 8), "of 9 x 200 pixels are cropped and resized to 8 x 64 in colour"),
        ([(20, 30), (40, 24)], (22, 22), "of different sizes are cropped and resized to 22 x 22 in colour"),
        (
            [(20, 20), (20, 20), (20, 20), (50, 60), (90, 90)],
            (20, 20),
            "of different sizes are cropped and resized to 20 x 20",
        ),
        ([(480, 640), (700, 500)], (64, 64), "of different sizes are cropped and resized to 64 x 64"),
    ],
)
def test_shape_by_default(tmp_path, sizes, shape, note):
    files = write(tmp_path / "mine", sizes)
    found, said = choose_shape(files, None)
    assert found == (*shape, 3)
    assert said.startswith(f"{len(sizes)} pictures {note}") if note else said == ""


@pytest.mark.parametrize(
    ("mode", "grey"),
    [("L", True), ("1", True), ("I;16", True), ("LA", True), ("P", False), ("RGB", False), ("RGBA", False)],
)
def test_greys_stay_grey(tmp_path, mode, grey):
    files = write(tmp_path / "mine", [(12, 10)] * 10, "L" if mode == "I;16" else mode)
    if mode == "I;16":
        for file in files:
            Image.fromarray(RNG.integers(0, 2**16, (12, 10), dtype=np.uint16)).save(file)
    shape, note = choose_shape(files, None)
    assert shape == ((12, 10) if grey else (12, 10, 3))
    transparent = "10 pictures are put on white where they are transparent (10 of them)"
    assert note == (transparent if mode in ("LA", "RGBA") else "")


def test_one_picture_with_colours_makes_all_coloured(tmp_path):
    files = write(tmp_path / "grey", [(9, 9)] * 3, "L") + write(tmp_path / "colour", [(9, 9)])
    assert choose_shape(files, None)[0] == (9, 9, 3)
    assert choose_shape(files[:3], 16)[0] == (16, 16)


def test_greys_in_files_for_colours_are_grey(tmp_path):
    files = write(tmp_path / "grey", [(9, 9)] * 3, "L") + write(tmp_path / "more", [(9, 9)] * 3, "L")
    for file, mode, kind in zip(files[3:], ("RGB", "RGB", "RGBA"), ("JPEG", "WEBP", "PNG"), strict=True):
        Image.open(file).convert(mode).save(file, kind)
    assert choose_shape(files, None)[0] == (9, 9)
    tinted = np.asarray(Image.open(files[5]).convert("RGB")).copy()
    tinted[0, 0] = 10, 10, 13
    Image.fromarray(tinted).save(files[5])
    assert choose_shape(files, None)[0] == (9, 9, 3)


def test_a_palette_of_greys_is_grey(tmp_path):
    path = tmp_path / "a.png"
    image = Image.fromarray(RNG.integers(0, 16, (9, 9), dtype=np.uint8))
    image.putpalette([level for grey in range(0, 256, 16) for level in (grey,) * 3])
    image.save(path)
    assert choose_shape([path], None)[0] == (9, 9)


def test_a_photograph_counts_as_it_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.jpg"
    Image.fromarray(RNG.integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(path, exif=exif)
    assert choose_shape([path], None)[0] == (24, 16, 3)


@pytest.mark.parametrize("size", [(1, 1), (7, 30), (30, 7)])
def test_pictures_below_eight_pixels_are_named(tmp_path, size):
    files = write(tmp_path / "mine", [(9, 9), size])
    message = rf"01\.png: expected at least 8 pixels on each side, got {size[1]} x {size[0]}"
    with pytest.raises(ValueError, match=message):
        choose_shape(files, None)


def test_a_folder_is_read_in_its_shape(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine", [(12, 10)] * 10, "L")
    data = load(str(tmp_path / "mine"))
    assert data.event_shape == (12, 10) and data.train.x.shape == (8, 12, 10) and data.note == ""
    first = np.asarray(Image.open(tmp_path / "mine" / "00.png"))
    rows = np.concatenate([data.train.x, data.valid.x, data.test.x])
    assert (rows == first).all((1, 2)).sum() == 1
    assert load(str(tmp_path / "mine"), image_size=16).event_shape == (16, 16)
