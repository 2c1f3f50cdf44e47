"""Image files, decoded once into one array on disk, so that an epoch does no work per file."""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pyro_fmvae.data.decoded import first_writable, forget_unused, mark_used, write_npy
from pyro_fmvae.files.memory import check_fits, limit

logger = logging.getLogger("pyro_fmvae")

_VERSION: Final = 2  # of `decode`: another one makes all older arrays invalid
_GREY: Final = ("1", "L", "LA", "La")  # PIL's modes
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM")
"""PIL's names of the formats that are read, whatever the file is called. Others may start other programs."""
_ROUNDING: Final = 2  # of 255, between red, green and blue of greys that a lossy format has kept as colours
_BYTES: Final = 12  # that a pixel takes while it is turned, put on white and converted
_TURNS: Final = Lock()  # of images so large that one on each core would take too much memory
_CHUNK: Final = 256  # images that are decoded ahead of what is written


def load_images(
    folder: Path,
    names: Sequence[str],
    shape: tuple[int, ...],
    caches: Sequence[Path],
    crop: int | None = None,
) -> np.ndarray:
    """Decode images, uint8 [n, *shape], or map them from a file ``images-<digest>.npy`` of an earlier call.

    Writing to the array changes neither the file nor other views of it. The digest covers the folder, the
    names in their order, the files' sizes and times of change, `shape` and `crop`. If one of them differs,
    the images are decoded again.

    Args:
        folder: where the images lie.
        names: n file names, relative to `folder`, in the order of the result.
        shape: (H, W) for greys or (H, W, 3) for colours: see `decode`.
        caches: folders that may hold the file. If none does, it is written to the first that can be written.
        crop: see `decode`.

    Raises:
        FileNotFoundError: an image is missing.
        ValueError: an image is damaged or too small.
        OSError: none of `caches` can be written, or the disk is full.
    """
    name = f"images-{_digest(folder, names, shape, crop)}.npy"
    expected = (len(names), *shape)
    for cache in caches:
        images = _open(cache / name, expected)
        if images is not None:
            mark_used(cache / name)
            return images
    writable = first_writable(caches)
    forget_unused(writable, "images")
    logger.info("decoding %d images of %s into %s (once)", len(names), folder, writable)
    start = time.monotonic()
    _write(writable / name, [folder / name for name in names], shape, crop)
    logger.info("decoded %d images in %.0f s", len(names), time.monotonic() - start)
    images = _open(writable / name, expected)
    if images is None:
        raise OSError(f"{writable / name}: cannot be read back")
    return images


def decode(path: Path, shape: tuple[int, ...], crop: int | None = None) -> np.ndarray:
    """Read the centre of an image, turned upright (EXIF) and resized with antialiasing, uint8 of `shape`.

    Args:
        path: a .png, .jpg, .webp, .bmp, .gif, .tiff or .ppm file, whatever its name. Only the first frame
            counts, and what is transparent is put on white.
        shape: (H, W): greys, or (H, W, 3): red, green, blue.
        crop: side in pixels of the centre square that is kept; None: the largest centre part of
            proportions H : W.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no image, is damaged, or is smaller than `crop`.
    """
    image = _read(path, "RGB" if len(shape) == 3 else "L")
    height, width = shape[:2]
    if crop is None:
        scale = min(image.height / height, image.width / width)
        kept_height, kept_width = max(1, round(height * scale)), max(1, round(width * scale))
    elif min(image.size) < crop:
        raise ValueError(
            f"{path}: expected at least {crop} x {crop} pixels, got {image.width} x {image.height}"
        )
    else:
        kept_height = kept_width = crop
    left, top = (image.width - kept_width) // 2, (image.height - kept_height) // 2
    part = image.crop((left, top, left + kept_width, top + kept_height))
    return np.array(part.resize((width, height), Image.Resampling.BILINEAR))


def read_pixels(path: Path) -> np.ndarray:
    """Read a whole image at its own size, turned upright (EXIF): red, green and blue, uint8 [H, W, 3].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no image, or is damaged.
    """
    return np.array(_read(path, "RGB"))


def is_grey(path: Path) -> bool:
    """True if the colours of no pixel are further apart than rounding; raises what `read_pixels` does."""
    return bool((np.ptp(read_pixels(path), axis=-1) <= _ROUNDING).all())


class Header(NamedTuple):
    """Description of an image, without its pixels."""

    height: int
    width: int
    """Pixels once it is turned upright (EXIF)."""
    grey: bool
    """It has no colours, nor has its palette."""
    transparent: bool
    """Pixels may be transparent."""


def read_header(path: Path) -> Header:
    """Describe what `read_pixels` gives, from the header alone; raises the same errors."""
    with _opened(path) as file:
        lies = file.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        size = (file.width, file.height) if lies else (file.height, file.width)
        grey = file.mode in _GREY or file.mode.startswith("I")
        if file.mode == "P":
            colours = np.array(file.getpalette("RGB")).reshape(-1, 3)
            grey = bool((colours == colours[:, :1]).all())
        return Header(*size, grey, file.has_transparency_data)


def measure(path: Path) -> tuple[int, int]:
    """Return height and width of what `read_pixels` gives, from the header alone; raises the same errors."""
    return read_header(path)[:2]


def _read(path: Path, mode: str) -> Image.Image:
    with _opened(path) as file:
        size = _BYTES * file.width * file.height
        check_fits(size, "decoded")
        with _TURNS if size * (os.cpu_count() or 1) > limit() else nullcontext():
            return _converted(ImageOps.exif_transpose(file), mode)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image, whose pixels are not read yet, and name the file in errors."""
    try:
        if path.exists() and not path.is_file():  # a pipe might never end
            raise ValueError("not an ordinary file")
        with Image.open(path, formats=_FORMATS) as file:
            if file.mode == "F" or (file.mode == "I" and file.format == "TIFF"):
                kind = "decimal numbers" if file.mode == "F" else "32-bit integers"
                raise ValueError(f"expected 8 or 16 bits a channel, got {kind}, whose range is not known")
            yield file
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such image") from None
    except PermissionError:
        raise
    except UnidentifiedImageError:
        raise ValueError(f"{path}: not an image that can be read") from None
    except Exception as error:  # PIL's readers raise many kinds on a damaged file
        raise ValueError(f"{path}: not an image that can be read: {error}") from error


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits, which PIL would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.has_transparency_data:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    return image.convert(mode)


def _digest(folder: Path, names: Sequence[str], shape: tuple[int, ...], crop: int | None) -> str:
    digest = hashlib.sha256(f"{_VERSION} {shape} {crop}\0".encode())
    digest.update(os.fsencode(folder.resolve()))
    for name in names:
        try:
            status = (folder / name).stat()
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder / name}: no such image") from None
        digest.update(os.fsencode(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}"))
    return digest.hexdigest()[:16]


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Open the array of that shape in a file; None if there is none."""
    try:
        images = np.lib.format.open_memmap(path, mode="c")
    except Exception:  # NumPy raises many kinds on a damaged header
        return None
    return images if images.shape == shape and images.dtype == np.uint8 else None


def _write(target: Path, paths: Sequence[Path], shape: tuple[int, ...], crop: int | None) -> None:
    """Decode into a .npy file, some images ahead of what is written."""

    def decoded() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(paths), _CHUNK):
                chunk = paths[start : start + _CHUNK]
                yield from pool.map(lambda path: decode(path, shape, crop), chunk)

    write_npy(target, (len(paths), *shape), np.dtype(np.uint8), decoded())
