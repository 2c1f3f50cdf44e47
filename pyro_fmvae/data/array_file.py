"""Arrays in files, read row by row and never held as a whole."""

import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.npz_arrays import read_header
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

PIECE: Final = 1 << 20
"""Bytes of a file that are read at once."""
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a member of a zip file: signature, lengths of two texts


class RowArray(ABC):
    """An array of numbers that is read row by row.

    Args:
        shape: [n, ...].
        dtype: of the numbers.
    """

    held = False
    """True if the numbers are in memory in another form, so that rows may be read in any order."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self) * self.row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def pieces(self, rows: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read rows, about a megabyte at a time, in the order in which they lie in the file.

        Args:
            rows: their indices, int64 [m]; None: all.

        Yields:
            Places of some rows in `rows`, int64 [k], and their numbers [k, ...].

        Raises:
            ValueError: the file cannot be read, for example since it has become shorter.
        """
        step = max(1, PIECE // max(1, self.row_bytes))
        with self._opened() as source:
            if rows is None:
                for start in range(0, len(self), step):
                    stop = min(start + step, len(self))
                    yield np.arange(start, stop), self._span(source, start, stop)
                return
            order = np.argsort(rows, kind="stable")
            for places in np.split(order, np.flatnonzero(np.diff(rows[order] // step)) + 1):
                if len(places):
                    first, last = int(rows[places[0]]), int(rows[places[-1]])
                    yield places, self._span(source, first, last + 1, rows[places] - first)

    def read(self) -> np.ndarray:
        """Read all rows."""
        found = np.empty(self.shape, self.dtype)
        for places, part in self.pieces():
            found[places[0] : places[-1] + 1] = part
        return found

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Any]:
        """Open the source that :meth:`_span` reads from."""

    @abstractmethod
    def _span(self, source: Any, start: int, stop: int, chosen: np.ndarray | None = None) -> np.ndarray:
        """Rows ``start`` to ``stop``, which are neighbours; of these the chosen ones, counted from 0."""


class ArrayFile(RowArray):
    """An array of numbers in a file, row after row from a place on.

    Rows are mapped as they are read, and no others: a mapping counts as memory where a process is confined
    (``ulimit -v``).

    Args:
        path: the file.
        shape: [n, ...].
        dtype: of the numbers.
        offset: bytes before the first of them.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> None:
        super().__init__(shape, dtype)
        self.path, self.offset = path, offset

    def _opened(self) -> BinaryIO:
        return self.path.open("rb")

    def _span(self, source: BinaryIO, start: int, stop: int, chosen: np.ndarray | None = None) -> np.ndarray:
        place, shape = self.offset + start * self.row_bytes, (stop - start, *self.shape[1:])
        try:
            rows = np.memmap(source, self.dtype, "r", place, shape)
        except ValueError as error:
            raise ValueError(f"{self.path}: it has become shorter than its header says") from error
        return np.array(rows if chosen is None else rows[chosen])


class FileRows:
    """Rows of a file under a preprocessing, which is applied as they are read.

    Args:
        array: the file's array.
        preprocessing: of its rows.
        source: name of the array in messages.
    """

    def __init__(self, array: RowArray, preprocessing: Preprocessing, source: str) -> None:
        self.array, self.preprocessing, self.source = array, preprocessing, source
        self.shape = (len(array), *preprocessing.event_shape)
        self.dtype = torch.float32
        if preprocessing.binary:
            self.dtype = torch.bool
        elif preprocessing.kind is Kind.IMAGE and array.dtype in (np.bool_, np.uint8):
            self.dtype = torch.bool if array.dtype == np.bool_ else torch.uint8

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Tensor) -> Tensor:
        found = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for places, raw in self.array.pieces(rows.numpy()):
            there = torch.from_numpy(places)
            found[there] = self.preprocessing(raw, self.source, rows[there].numpy())
        return found


def open_npy(path: Path) -> ArrayFile:
    """Open the array of a .npy file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no .npy file, is damaged, holds no numbers, or columns before rows.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = read_header(file, path.stat().st_size)
            return _checked(path, shape, fortran, dtype, file.tell())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def open_member(path: Path, name: str) -> ArrayFile | None:
    """Open an array of a .npz file where it lies; None if it is compressed, or there is no such array.

    Raises:
        ValueError: the file is damaged, or the array holds no numbers, or columns before rows.
    """
    if not zipfile.is_zipfile(path):
        return None
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            member = members.get(name)
            if member is None or member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                return None
            with archive.open(member) as unpacked:
                shape, fortran, dtype = read_header(unpacked, member.file_size)
                header = unpacked.tell()
            file.seek(member.header_offset)
            _, first, second = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            offset = member.header_offset + _LOCAL_HEADER.size + first + second + header
        return _checked(path, shape, fortran, dtype, offset)
    except (ValueError, zipfile.BadZipFile, struct.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"{path}: {name!r}: {error}") from error


def _checked(path: Path, shape: tuple[int, ...], fortran: bool, dtype: np.dtype, offset: int) -> ArrayFile:
    """Raises ValueError unless rows of numbers lie one after another."""
    if dtype.kind not in "buif":
        raise ValueError(f"expected numbers, got dtype {dtype}")
    if len(shape) < 2 or not all(shape):
        raise ValueError(f"expected rows [n, ...], got shape {list(shape)}")
    if fortran:
        raise ValueError("its columns lie one after another; save numpy.ascontiguousarray of it")
    if path.stat().st_size < offset + dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError("it is shorter than its header says")
    return ArrayFile(path, shape, dtype, offset)
