import logging
import os

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import image_cache
from pyro_fmvae.data.decoded import user_cache
from pyro_fmvae.data.image_cache import decode, load_images, measure

RNG = np.random.default_rng(0)
NAMES = ("b.png", "a.png", "deep/c.png", "d.png", "e.png")


def noise(height, width, *channels):
    return RNG.integers(0, 256, (height, width, *channels), dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Five images [6, 6, 3] that differ."""
    for name in NAMES:
        save(tmp_path / "images" / name, noise(6, 6, 3))
    return tmp_path / "images"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch):
    """The names that are decoded, in order of their start."""
    names = []

    def recording(path, shape, crop=None):
        names.append(path.name)
        return decode(path, shape, crop)

    monkeypatch.setattr(image_cache, "decode", recording)
    return names


def read(folder, names=NAMES):
    return np.stack([np.asarray(Image.open(folder / name)) for name in names])


# One file


def test_an_image_of_the_size_wanted_is_taken_as_it_is(tmp_path):
    pixels = noise(5, 5, 3)
    assert (decode(save(tmp_path / "a.png", pixels), (5, 5, 3)) == pixels).all()


@pytest.mark.parametrize(
    ("size", "shape", "rows", "columns"),
    [
        ((5, 9), (5, 5), slice(0, 5), slice(2, 7)),
        ((9, 5), (5, 5), slice(2, 7), slice(0, 5)),
        ((8, 8), (8, 4), slice(0, 8), slice(2, 6)),
        ((12, 10), (5, 10), slice(3, 8), slice(0, 10)),
    ],
)
def test_the_largest_centre_part_of_the_right_proportions_is_kept(tmp_path, size, shape, rows, columns):
    pixels = noise(*size, 3)
    found = decode(save(tmp_path / "a.png", pixels), (*shape, 3))
    assert (found == pixels[rows, columns]).all()


def test_a_centre_crop(tmp_path):
    pixels = noise(218, 178, 3)
    path = save(tmp_path / "a.png", pixels)
    assert (decode(path, (148, 148, 3), crop=148) == pixels[35:183, 15:163]).all()


@pytest.mark.parametrize("side", [5, 8, 30])
def test_resizing_is_bilinear_with_antialiasing(tmp_path, side):
    pixels = noise(20, 20, 3)
    found = decode(save(tmp_path / "a.png", pixels), (side, side, 3))
    reference = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].double(), size=side, mode="bilinear", antialias=True
    )
    assert np.abs(found - reference[0].permute(1, 2, 0).numpy()).max() < 1.01
    with pytest.raises(ValueError, match=r"a\.png: expected at least 21 x 21 pixels, got 20 x 20"):
        decode(tmp_path / "a.png", (side, side, 3), crop=21)


def test_greys_and_colours_become_what_the_shape_asks_for(tmp_path):
    grey, colour = noise(4, 4), noise(4, 4, 3)
    path = save(tmp_path / "grey.png", grey)
    assert (decode(path, (4, 4)) == grey).all()
    assert (decode(path, (4, 4, 3)) == grey[..., None]).all()
    found = decode(save(tmp_path / "colour.png", colour), (4, 4))
    assert np.abs(found - colour @ np.array([0.299, 0.587, 0.114])).max() < 1


def test_transparency_palettes_and_deep_greys(tmp_path):
    colour, alpha, deep = noise(4, 4, 3), noise(4, 4, 1), RNG.integers(0, 2**16, (4, 4)).astype(np.uint16)
    transparent = save(tmp_path / "rgba.png", np.concatenate([colour, alpha], axis=-1))
    on_white = colour * (alpha / 255) + 255 * (1 - alpha / 255)
    assert np.abs(decode(transparent, (4, 4, 3)) - on_white).max() <= 1
    indices = np.arange(16, dtype=np.uint8).reshape(4, 4)
    image = Image.fromarray(indices)
    image.putpalette(colour.tobytes())
    image.save(tmp_path / "palette.png", transparency=bytes(range(16)))
    share = np.arange(16).reshape(4, 4, 1) / 255
    found = decode(tmp_path / "palette.png", (4, 4, 3))
    assert np.abs(found - (colour * share + 255 * (1 - share))).max() <= 1
    image.save(tmp_path / "opaque.png")
    assert (decode(tmp_path / "opaque.png", (4, 4, 3)) == colour).all()
    for suffix in ("png", "tiff"):
        assert (decode(save(tmp_path / f"deep.{suffix}", deep), (4, 4)) == deep // 256).all()
    (tmp_path / "deep.pgm").write_bytes(b"P5 4 4 65535\n" + deep.astype(">u2").tobytes())
    assert (decode(tmp_path / "deep.pgm", (4, 4)) == deep // 256).all()


@pytest.mark.parametrize(("orientation", "quarters"), [(1, 0), (6, -1), (3, 2), (8, 1)])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_photographs_are_turned_upright(tmp_path, orientation, quarters, suffix):
    # Smooth, so that JPEG leaves it nearly as it is.
    pixels = np.add.outer(np.arange(16) * 10, np.arange(16) * 3).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / f"a.{suffix}", pixels, exif=exif)
    found = decode(path, (16, 16)).astype(int)
    assert np.abs(found - np.rot90(pixels, quarters)).max() <= (0 if suffix == "png" else 6)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_a_damaged_image_is_named(tmp_path, content):
    whole = save(tmp_path / "a.png", noise(30, 30, 3)).read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ValueError, match=r"a\.png: not an image that can be read"):
        decode(tmp_path / "a.png", (8, 8, 3))


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "decimal numbers"), (np.int32, "32-bit integers")])
def test_numbers_without_a_known_range_are_refused(tmp_path, dtype, kind):
    path = save(tmp_path / "a.tiff", noise(8, 8).astype(dtype))
    for read in (measure, lambda path: decode(path, (8, 8))):
        with pytest.raises(ValueError, match=rf"a\.tiff: .*expected 8 or 16 bits a channel, got {kind}"):
            read(path)


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.png: no such image"):
        decode(tmp_path / "a.png", (8, 8, 3))


# Many files


@pytest.mark.parametrize("chunk", [1, 2, 5, 256])
def test_images_come_in_the_order_of_their_names(folder, cache, monkeypatch, chunk):
    monkeypatch.setattr(image_cache, "_CHUNK", chunk)
    images = load_images(folder, NAMES, (6, 6, 3), [cache])
    assert images.dtype == np.uint8 and (images == read(folder)).all()
    backwards = load_images(folder, NAMES[::-1], (6, 6, 3), [cache])
    assert (backwards == read(folder)[::-1]).all()


def test_greys(folder, cache):
    images = load_images(folder, NAMES, (6, 6), [cache])
    assert images.shape == (5, 6, 6)
    assert all(
        (image == decode(folder / name, (6, 6))).all() for image, name in zip(images, NAMES, strict=True)
    )


def test_the_second_time_nothing_is_decoded(folder, cache, decoded):
    first = load_images(folder, NAMES, (6, 6, 3), [cache])
    assert sorted(decoded) == sorted(name.rpartition("/")[2] for name in NAMES)
    decoded.clear()
    second = load_images(folder, NAMES, (6, 6, 3), [cache])
    assert decoded == [] and (first == second).all()
    assert [path.name.startswith("images-") for path in cache.iterdir()] == [True]


def test_images_are_mapped_and_writing_to_them_changes_no_file(folder, cache):
    images = load_images(folder, NAMES, (6, 6, 3), [cache])
    assert isinstance(images, np.memmap)
    torch.from_numpy(images).zero_()  # without a warning that the array can't be written to
    assert (load_images(folder, NAMES, (6, 6, 3), [cache]) == read(folder)).all()


@pytest.mark.parametrize("change", ["contents", "time"])
def test_a_changed_image_is_decoded_again(folder, cache, decoded, change):
    load_images(folder, NAMES, (6, 6, 3), [cache])
    decoded.clear()
    path = folder / NAMES[2]
    before = path.stat()
    if change == "contents":
        save(path, np.zeros((6, 6, 3), np.uint8))  # another size of the file, at the same time
        assert path.stat().st_size != before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    images = load_images(folder, NAMES, (6, 6, 3), [cache])
    assert len(decoded) == 5 and (images == read(folder)).all()


def test_folder_names_shape_and_crop_belong_to_the_key(folder, cache, tmp_path, decoded):
    load_images(folder, NAMES, (6, 6, 3), [cache])
    copy = tmp_path / "copy"
    for name in NAMES:  # files of equal names, sizes and times, with other pixels
        save(copy / name, read(folder, [name])[0][::-1], compress_level=0)
        save(folder / name, read(folder, [name])[0], compress_level=0)
        for root in (copy, folder):
            os.utime(root / name, ns=(0, 0))
    load_images(folder, NAMES, (6, 6, 3), [cache])
    for arguments in (
        (copy, NAMES, (6, 6, 3), [cache]),
        (folder, NAMES[:4], (6, 6, 3), [cache]),
        (folder, NAMES, (4, 4, 3), [cache]),
        (folder, NAMES, (6, 6), [cache]),
        (folder, NAMES, (4, 4, 3), [cache], 5),
    ):
        decoded.clear()
        load_images(*arguments)
        assert len(decoded) == len(arguments[1])
    decoded.clear()  # and all of them are kept beside each other
    assert (load_images(copy, NAMES, (6, 6, 3), [cache]) == read(folder)[:, ::-1]).all()
    assert (load_images(folder, NAMES, (6, 6, 3), [cache]) == read(folder)).all()
    assert load_images(folder, NAMES, (4, 4, 3), [cache], 5).shape == (5, 4, 4, 3)
    assert decoded == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_interrupted_decoding_leaves_nothing(folder, cache, monkeypatch, error):
    def broken_off(path, shape, crop=None):
        if path.name == "c.png":
            raise error("stop")
        return decode(path, shape, crop)

    monkeypatch.setattr(image_cache, "_CHUNK", 2)
    monkeypatch.setattr(image_cache, "decode", broken_off)
    with pytest.raises(error, match="stop"):
        load_images(folder, NAMES, (6, 6, 3), [cache])
    assert list(cache.iterdir()) == []
    monkeypatch.setattr(image_cache, "decode", decode)
    assert (load_images(folder, NAMES, (6, 6, 3), [cache]) == read(folder)).all()


def test_the_array_appears_when_it_is_complete(folder, cache, monkeypatch):
    seen = []

    def looking(path, shape, crop=None):
        seen.extend(file.name for file in cache.iterdir())
        return decode(path, shape, crop)

    monkeypatch.setattr(image_cache, "decode", looking)
    load_images(folder, NAMES, (6, 6, 3), [cache])
    assert seen and all(name.startswith(".images-") and name.endswith(".tmp") for name in seen)
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


def test_a_damaged_array_is_made_again(folder, cache):
    load_images(folder, NAMES, (6, 6, 3), [cache])
    (path,) = cache.iterdir()
    for content in (path.read_bytes()[:-1], b"", b"hello"):
        path.write_bytes(content)
        assert (load_images(folder, NAMES, (6, 6, 3), [cache]) == read(folder)).all()
    np.save(path, np.zeros((5, 6, 6)))
    assert (load_images(folder, NAMES, (6, 6, 3), [cache]) == read(folder)).all()


def test_missing_and_damaged_images_are_named(folder, cache):
    (folder / "d.png").write_text("no image")
    with pytest.raises(ValueError, match=r"images/d\.png: not an image that can be read"):
        load_images(folder, NAMES, (6, 6, 3), [cache])
    (folder / "d.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"images/d\.png: no such image"):
        load_images(folder, NAMES, (6, 6, 3), [cache])
    assert not cache.exists() or list(cache.iterdir()) == []


def test_the_first_folder_that_can_be_written_is_taken(folder, cache, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    below_a_file, read_only = tmp_path / "file" / "cache", tmp_path / "read_only"
    read_only.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != read_only and access(path, mode))
    load_images(folder, NAMES, (6, 6, 3), [below_a_file, read_only, cache, tmp_path / "other"])
    assert len(list(cache.iterdir())) == 1
    assert list(read_only.iterdir()) == [] and not (tmp_path / "other").exists()
    with pytest.raises(
        OSError, match=r"expected a folder for decoded data that can be written to, .*read_only$"
    ):
        load_images(folder, NAMES, (6, 6, 3), [read_only])


def test_any_folder_that_holds_the_array_will_do(folder, cache, tmp_path, decoded):
    load_images(folder, NAMES, (6, 6, 3), [cache])
    decoded.clear()
    assert (load_images(folder, NAMES, (6, 6, 3), [tmp_path / "first", cache]) == read(folder)).all()
    assert decoded == [] and not (tmp_path / "first").exists()


def test_decoding_is_announced_and_a_hit_is_not(folder, cache, caplog):
    with caplog.at_level(logging.INFO, logger="pyro_fmvae"):
        load_images(folder, NAMES, (6, 6, 3), [cache])
        first, last = caplog.messages
        assert first == f"decoding 5 images of {folder} into {cache} (once)"
        assert last.startswith("decoded 5 images in ")
        load_images(folder, NAMES, (6, 6, 3), [cache])
    assert len(caplog.messages) == 2


def test_the_user_s_cache_lies_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "pyro_fmvae"
