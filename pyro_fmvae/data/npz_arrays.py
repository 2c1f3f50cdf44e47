"""Arrays of .npz files, read without ever unpickling."""

import math
import zipfile
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from pyro_fmvae.files.memory import check_fits


def read_arrays(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Read the named arrays of a .npz file, without the optional ones that it lacks.

    Nothing is unpacked unless everything that is asked for fits into memory, by the file's own account:
    see :func:`~pyro_fmvae.files.memory.check_fits`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a .npz file, is damaged, lacks a required array, holds a pickled one, or
            would unpack to more than there is memory for.
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
        names = [name for name in required + optional if name in archive]
        with zipfile.ZipFile(file) as members:
            asked = [one for one in members.infolist() if one.filename.removesuffix(".npy") in names]
            check_fits(sum(member.file_size for member in asked), str(path))
            for member in asked:
                _check_header(members, member, f"{path}: {member.filename.removesuffix('.npy')!r}")
        return {name: _read(archive, name, path) for name in names}


def _opened(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except Exception as error:  # NumPy and zipfile raise many kinds
        raise ValueError(f"{path}: not a .npz file, or a damaged one") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path}: not a .npz file")
    return archive


def _read(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    try:
        array = archive[name]
    except Exception as error:  # as above
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path}: {name!r} is a pickled array of objects; pickles are refused"
            ) from error
        raise ValueError(f"{path}: {name!r} is damaged: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name!r} is not an array in .npy format")
    return array


def read_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array in .npy format, up to where its numbers begin.

    Args:
        file: at its start.
        size: bytes that it has, header included.

    Returns:
        Shape, whether the first index runs fastest, and dtype.

    Raises:
        ValueError: the header is damaged, or tells of another number of bytes than there are.
    """
    try:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        found = size - file.tell()
    except Exception as error:  # NumPy raises many kinds; a header is a Python literal, of any form
        raise ValueError(f"damaged: {error}") from error
    if bool in map(type, shape):
        raise ValueError(f"damaged: its shape is {shape}")
    if math.prod(shape) * dtype.itemsize != found and not dtype.hasobject:  # pickles are refused anyway
        raise ValueError(f"damaged: {found:,} bytes for {dtype} of shape {list(shape)}")
    return shape, fortran, dtype


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: str) -> None:
    """Raise ValueError if the header of an array tells of another number of bytes than the archive."""
    try:
        with archive.open(member) as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                return  # no array, as reading it says
            file.seek(0)
            read_header(file, member.file_size)
    except Exception as error:  # zipfile raises many kinds
        reason = str(error) if isinstance(error, ValueError) else f"damaged: {error}"
        raise ValueError(f"{source} is {reason}") from error
