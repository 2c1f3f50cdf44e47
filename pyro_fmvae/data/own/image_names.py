"""Files of a folder that are images, by their names, and those that are not."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
"""Endings of images, in lower case."""
TABLE_SUFFIX: Final = ".csv"


def find_images(path: Path) -> list[str]:
    """List the images in a folder and below it: names relative to it, with forward slashes, sorted.

    Images end in one of `SUFFIXES`; names that begin with a dot are skipped.

    Raises:
        ValueError: there are none.
    """
    names = [file.as_posix() for file in _files(path) if file.suffix.lower() in SUFFIXES]
    if not names:
        raise ValueError(f"{path}: no images in this folder; they end in {', '.join(SUFFIXES)}")
    return sorted(names)


def other_files(path: Path) -> str:
    """Say which files of a folder and below it are no images, as "2 files are left out (.heic 1, .txt 1)".

    Tables and names that begin with a dot are not mentioned. Without other files, an empty text.
    """
    endings = Counter(file.suffix.lower() or file.name for file in _files(path))
    others = {end: n for end, n in sorted(endings.items()) if end not in (*SUFFIXES, TABLE_SUFFIX)}
    if not others:
        return ""
    total, listed = sum(others.values()), ", ".join(f"{end} {n:,}" for end, n in others.items())
    return f"{total:,} {'files are' if total > 1 else 'file is'} left out ({listed})"


def _files(path: Path) -> Iterator[Path]:
    """Ordinary files in a folder and below it, relative to it; no hidden ones."""
    for file in path.rglob("*"):
        relative = file.relative_to(path)
        if file.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative
