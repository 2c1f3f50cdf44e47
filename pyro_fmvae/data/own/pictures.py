"""Files of a folder that are pictures, by their names, and the shape that they get, by their headers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from pyro_fmvae.data.image_cache import Header, is_grey, read_header

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
"""Endings of images, in lower case."""
TABLE_SUFFIX: Final = ".csv"


def find_images(path: Path) -> list[str]:
    """List the images in a folder and below it: names relative to it, with forward slashes, sorted.

    Images end in one of `SUFFIXES`; names that begin with a dot are skipped.

    Raises:
        ValueError: there are none.
    """
    names = [file.as_posix() for file in files_below(path) if file.suffix.lower() in SUFFIXES]
    if not names:
        raise ValueError(f"{path}: no images in this folder; they end in {', '.join(SUFFIXES)}")
    return sorted(names)


def other_files(path: Path) -> str:
    """Say which files of a folder and below it are no images, as "2 files are left out (.heic 1, .txt 1)".

    Tables and names that begin with a dot are not mentioned. Without other files, an empty text.
    """
    endings = Counter(file.suffix.lower() or file.name for file in files_below(path))
    others = {end: n for end, n in sorted(endings.items()) if end not in (*SUFFIXES, TABLE_SUFFIX)}
    if not others:
        return ""
    total, listed = sum(others.values()), ", ".join(f"{end} {n:,}" for end, n in others.items())
    return f"{total:,} {'files are' if total > 1 else 'file is'} left out ({listed})"


def files_below(path: Path) -> Iterator[Path]:
    """Ordinary files in a folder and below it, relative to it; no hidden ones."""
    for file in path.rglob("*"):
        relative = file.relative_to(path)
        if file.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative


SMALLEST: Final = 8
"""Pixels on a side of the smallest pictures."""
LONGEST: Final = 64
"""Pixels on the longer side of the largest pictures, unless another size is asked for."""


def choose_shape(files: Sequence[Path], image_size: int | None) -> tuple[tuple[int, ...], str]:
    """Choose one shape for all pictures.

    Pictures of one size keep it, up to 64 pixels on the longer side; larger ones keep their proportions.
    Pictures of different sizes become squares, of the median of their shorter sides but no more than 64.
    Pictures that are all grey stay grey, also where their files have room for colours: those are read until
    one has a colour.

    Args:
        files: of the pictures.
        image_size: side of the squares that are wanted instead; None: as above.

    Returns:
        (H, W), or (H, W, 3) if there are colours; and a sentence on what is done to the pictures.

    Raises:
        ValueError: a file that is no image, or has less than 8 pixels on a side.
    """
    headers = [_checked(file) for file in files]
    height, width = (image_size, image_size) if image_size is not None else _size(headers)
    grey = all(header.grey or is_grey(file) for file, header in zip(files, headers, strict=True))
    return (height, width) if grey else (height, width, 3), _note(headers, (height, width), grey)


def _checked(file: Path) -> Header:
    header = read_header(file)
    if min(header.height, header.width) < SMALLEST:
        raise ValueError(
            f"{file}: expected at least {SMALLEST} pixels on each side, got {header.width} x {header.height}"
        )
    return header


def _size(headers: Sequence[Header]) -> tuple[int, int]:
    sizes = {(header.height, header.width) for header in headers}
    if len(sizes) > 1:
        side = min(round(median(min(header.height, header.width) for header in headers)), LONGEST)
        return side, side
    ((height, width),) = sizes
    scale = min(LONGEST / max(height, width), 1.0)
    return max(round(scale * height), SMALLEST), max(round(scale * width), SMALLEST)


def _note(headers: Sequence[Header], size: tuple[int, int], grey: bool) -> str:
    """Say what becomes of pictures, as width x height; empty if they stay as they are."""
    sizes = Counter((header.height, header.width) for header in headers)
    kind, (height, width) = "grey" if grey else "colour", size
    parts = []
    if set(sizes) != {size}:
        given = "different sizes" if len(sizes) > 1 else "{1} x {0} pixels".format(*next(iter(sizes)))
        cropped = any(high * width != wide * height for high, wide in sizes)
        how = "cropped and resized" if cropped else "resized"
        parts.append(f"of {given} are {how} to {width} x {height} in {kind} (see --image-size)")
    if transparent := sum(header.transparent for header in headers):
        parts.append(f"are put on white where they are transparent ({transparent:,} of them)")
    return f"{len(headers):,} pictures {' and '.join(parts)}" if parts else ""
