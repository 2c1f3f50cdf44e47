"""Arrays of .npz files, read without ever unpickling."""

import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

DAMAGE = (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)  # also encryption


def read_arrays(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Read the named arrays of a .npz file, without the optional ones that it lacks.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a .npz file, is damaged, lacks a required array, or holds a pickled one.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not a .npz file")
    with path.open("rb") as file, _opened(path, file) as archive:
        for name in required:
            if name not in archive:
                raise ValueError(
                    f"{path}: expected an array {name!r}, found {', '.join(archive.files) or 'none'}"
                )
        return {name: _read(archive, name, path) for name in required + optional if name in archive}


def _opened(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except DAMAGE as error:
        raise ValueError(f"{path}: not a .npz file, or a damaged one") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path}: not a .npz file")
    return archive


def _read(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    try:
        array = archive[name]
    except DAMAGE as error:
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path}: {name!r} is a pickled array of objects; pickles are refused"
            ) from error
        raise ValueError(f"{path}: {name!r} is damaged: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name!r} is not an array in .npy format")
    return array
