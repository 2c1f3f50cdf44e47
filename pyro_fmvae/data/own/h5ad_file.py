"""A person's own .h5ad file: names and columns by anndata, rows of a matrix as they are needed.

HDF5 can refer to other files, and name sizes that it does not hold. A file that refers to others is refused
as a whole, and sizes are checked before anything is read. No object is built, so nothing is unpickled. Rows
are read by h5py, since anndata trusts the indices of a sparse matrix, and SciPy does not check all of them.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix  # type: ignore[import-untyped]

from pyro_fmvae.data.array_file import RowArray
from pyro_fmvae.data.count_table import LARGEST as LARGEST_COUNT
from pyro_fmvae.data.count_table import CountOptions
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.files.memory import check_fits, confined
from pyro_fmvae.files.untrusted import LARGEST, check_printable

LARGE: Final = 1 << 30
"""Bytes of the observations from which on they stay in their file."""
_SPARSE: Final = {"csr_matrix": csr_matrix, "csc_matrix": csc_matrix}
_AT_ONCE: Final = 1000  # strings
_LENGTH: Final = 64  # characters of a string, on average over many rows


@contextmanager
def opened(path: Path, mode: str = "r") -> Iterator[Any]:
    """An HDF5 file in which everything lies in the file itself; what is wrong with it is a ValueError.

    Args:
        path: the file.
        mode: of h5py.
    """
    with unchecked(path, mode) as file:
        _check_links(file, path)
        yield file


@contextmanager
def unchecked(path: Path, mode: str = "r") -> Iterator[Any]:
    """An HDF5 file as by :func:`opened`, which has checked it before."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if find_spec("h5py") is None or find_spec("anndata") is None:
        raise ValueError(f"{path}: .h5ad needs anndata: pip install 'pyro_fmvae[anndata]'")
    import h5py

    with confined(str(path)):
        try:
            with h5py.File(path, mode) as file:
                yield file
        except (ValueError, MemoryError):
            raise
        except Exception as error:  # h5py raises many kinds
            if "memory allocation" in str(error):
                raise MemoryError(str(error)) from error
            raise ValueError(f"{path}: not a .h5ad file, or a damaged one") from error


def _check_links(file: Any, path: Path) -> None:
    """Raise ValueError if a link or an array refers to another place or file.

    Only identifiers are used: h5py's objects ask an array for its shape, for which HDF5 opens other files.
    """
    from h5py import h5d, h5g, h5l, h5o

    groups, visited = [(h5g.open(file.id, b"/"), "")], set()
    while groups:
        group, place = groups.pop()
        for name in group:
            here = f"{place}/{name.decode(errors='replace')}"
            own = group.links.get_info(name).type == h5l.TYPE_HARD
            found = h5o.open(group, name) if own else None
            if isinstance(found, h5d.DatasetID):
                made = found.get_create_plist()
                own = made.get_layout() != h5d.VIRTUAL and not made.get_external_count()
            if not own:
                raise ValueError(
                    f"{path}: {here!r} refers to another place; store the data in the file itself"
                )
            if isinstance(found, h5g.GroupID) and (address := h5o.get_info(found).addr) not in visited:
                visited.add(address)
                groups.append((found, here))


def member(group: Any, name: str, path: Path) -> Any:
    """A group or an array of a file.

    Args:
        group: that it is in.
        name: of it.
        path: of the file, for messages.

    Raises:
        ValueError: there is none.
    """
    if name not in group:
        raise ValueError(f"{path}: expected {name!r} in {group.name!r}, found {', '.join(group)}")
    return group[name]


def _readable(element: Any, path: Path) -> Any:
    """A column whose values, or codes and categories, are words or numbers [n] that may be read.

    Strings are added up piece by piece: headers do not say how long they are, and anndata reads all at once.
    """
    import h5py

    if isinstance(element, h5py.Group):
        for name in element:
            _readable(element[name], path)
        return element
    strings = h5py.check_string_dtype(element.dtype) is not None
    if element.ndim != 1 or not (strings or element.dtype.kind in "buif"):
        raise ValueError(f"{path}: expected words or numbers [n] in {element.name!r}")
    check_fits(len(element) * (element.dtype.itemsize + _LENGTH), f"{path}: {element.name}")
    _check_piece(element, path)
    length, largest = 0, max(LARGEST, _LENGTH * len(element))
    for start in range(0, len(element) if strings else 0, _AT_ONCE):
        length += sum(map(len, element[start : start + _AT_ONCE]))
        if length > largest:
            raise ValueError(f"{path}: expected at most {largest:,} characters in {element.name!r}")
    return element


def _values(column: Any, path: Path) -> list[Any]:
    """Words or numbers of a column, None where one is missing."""
    import pandas as pd
    from anndata.io import read_elem

    readable = _readable(column, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files of anndata before 0.7
            values = pd.Series(read_elem(readable))
    except ValueError as error:
        raise ValueError(f"{path}: {column.name!r} is damaged: {error}") from error
    found: list[Any] = values.astype(object).where(values.notna(), None).tolist()
    check_printable((value for value in found if isinstance(value, str)), f"{path}: {column.name}")
    return found


def read_names(file: Any, of: str, number: int | None, path: Path) -> tuple[str, ...]:
    """Names of the rows ('obs') or columns ('var') of X.

    Args:
        file: open.
        of: which of the two.
        number: of names that there must be; None: any.
        path: of the file, for messages.

    Raises:
        ValueError: these are no names, or not so many.
    """
    group = member(file, of, path)
    index = member(group, str(group.attrs.get("_index", "_index")), path)
    names = _values(index, path)
    if number not in (None, len(names)) or not all(isinstance(name, str) for name in names):
        expected = "" if number is None else f"{number:,} "
        raise ValueError(f"{path}: expected {expected}names in {index.name!r}")
    return tuple(names)


def read_texts(file: Any, name: str, number: int, path: Path) -> list[str]:
    """A column of obs as texts [n], '' where one is missing: words, numbers, or categories of either.

    Args:
        file: open.
        name: of the column.
        number: of values that there must be: n.
        path: of the file, for messages.

    Raises:
        ValueError: there is no such column, or it is damaged.
    """
    column = member(member(file, "obs", path), name, path)
    values = _values(column, path)
    if len(values) != number:
        raise ValueError(f"{path}: expected {number:,} values in {column.name!r}, got {len(values):,}")
    texts = ("" if value is None else value for value in values)
    return [text if isinstance(text, str) else f"{float(text):.17g}" for text in texts]


def _check_numbers(data: Any, path: Path, dims: int) -> Any:
    """An array of numbers with so many axes, none of whose pieces is larger than the memory it may take."""
    if data.dtype.kind not in "buif" or data.ndim != dims:
        raise ValueError(f"{path}: expected numbers [{'n, D' if dims == 2 else 'n'}] in {data.name!r}")
    _check_piece(data, path)
    return data


def _check_piece(data: Any, path: Path) -> None:
    """Raise ValueError if one of the pieces that an array is stored in is too large."""
    check_fits(data.dtype.itemsize * int(np.prod(data.chunks or (), dtype=object)), f"{path}: {data.name}")


class MatrixRows(RowArray):
    """Rows of X or of a layer, and the batch of each as one number more: float32 if that loses nothing.

    Args:
        path: the file.
        place: names on the way to the matrix in the file.
        shape: of the matrix, [n, D].
        dtype: of its numbers.
        batch: number of the batch of each row, int64 [n]; None: there are none.
    """

    def __init__(
        self,
        path: Path,
        place: Sequence[str],
        shape: tuple[int, int],
        dtype: np.dtype,
        batch: np.ndarray | None,
    ) -> None:
        single = dtype == np.float32 and (batch is None or batch.max(initial=0) <= LARGEST_COUNT)
        super().__init__(
            (shape[0], shape[1] + (batch is not None)), np.dtype(np.float32 if single else np.float64)
        )
        self.path, self.place, self.columns, self.batch = path, place, shape[1], batch

    def _opened(self) -> AbstractContextManager[Any]:
        return _opened_matrix(self.path, self.place)

    def _span(self, source: Any, start: int, stop: int, chosen: np.ndarray | None = None) -> np.ndarray:
        rows = np.arange(stop - start) if chosen is None else chosen
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        found[:, : self.columns] = self._numbers(source, start, stop, rows)
        if self.batch is not None:
            found[:, self.columns] = self.batch[start + rows]
        return found

    @abstractmethod
    def _numbers(self, source: Any, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        """The matrix's rows ``start + rows``, which are in ``start`` to ``stop``."""


class DenseRows(MatrixRows):
    """Rows of a dense matrix, which stays in its file."""

    def _numbers(self, source: Any, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = source[start:stop][rows]
        return found


class SparseRows(MatrixRows):
    """Rows of a sparse matrix, which become dense as they are read.

    The matrix is held as it is; a CSR one of `LARGE` or more stays in its file.

    Args:
        source: the matrix in the open file.
        path, place, shape, batch: as for :class:`MatrixRows`.

    Raises:
        ValueError: it is damaged, or takes too much memory.
    """

    def __init__(
        self, source: Any, path: Path, place: Sequence[str], shape: tuple[int, int], batch: np.ndarray | None
    ) -> None:
        data, indices, pointers = (
            _check_numbers(member(source, name, path), path, 1) for name in ("data", "indices", "indptr")
        )
        super().__init__(path, place, shape, data.dtype, batch)
        self.form, self.name = _SPARSE[source.attrs["encoding-type"]], source.name
        size = len(data) * data.dtype.itemsize + len(indices) * indices.dtype.itemsize
        self.held = self.form is csc_matrix or size < LARGE
        copies = (2 if self.form is csc_matrix else 1) if self.held else 0
        check_fits(pointers.nbytes + size * copies, f"{path}: {source.name}")
        self._pointers = self._checked_pointers(pointers[()], min(len(data), len(indices)))
        if self.held:
            self._matrix = self._matrix_of(self.form, data[()], indices[()], self._pointers, shape).tocsr()

    def _opened(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.held else super()._opened()

    def _numbers(self, source: Any, start: int, stop: int, rows: np.ndarray) -> np.ndarray:
        if self.held:
            found: np.ndarray = self._matrix[start + rows].toarray()
            return found
        pointers = self._pointers[start : stop + 1]
        data, indices = (source[name][pointers[0] : pointers[-1]] for name in ("data", "indices"))
        shape = stop - start, self.columns
        found = self._matrix_of(csr_matrix, data, indices, pointers - pointers[0], shape)[rows].toarray()
        return found

    def _checked_pointers(self, pointers: np.ndarray, number: int) -> np.ndarray:
        """Where rows or columns begin and end, which rises from 0 to at most so many numbers."""
        lines = self.columns if self.form is csc_matrix else len(self)
        sound = pointers.dtype.kind in "iu" and len(pointers) == lines + 1
        if not sound or pointers[0] or pointers[-1] > number or (pointers[1:] < pointers[:-1]).any():
            raise self._damaged("indptr", f"{lines + 1:,} integers that rise from 0 to {number:,} at most")
        return pointers

    def _matrix_of(
        self, form: Any, data: np.ndarray, indices: np.ndarray, pointers: np.ndarray, shape: tuple[int, int]
    ) -> Any:
        """A sparse matrix none of whose indices is out of bounds, which SciPy relies on."""
        across = shape[0] if form is csc_matrix else shape[1]
        whole = indices.dtype.kind in "iu"
        if not whole or indices.min(initial=0) < 0 or indices.max(initial=0) >= across:
            raise self._damaged("indices", f"integers from 0 to {across - 1:,}")
        return form((data, indices, pointers), shape=shape)

    def _damaged(self, name: str, expected: str) -> ValueError:
        return ValueError(
            f"{self.path}: {self.name!r} is not a valid sparse matrix: expected {expected} in {name!r}"
        )


def open_h5ad(
    path: Path, counts: CountOptions | None = None, batches: Sequence[str] = ()
) -> tuple[MatrixRows, dict[str, Any]]:
    """Describe X or a layer, dense or sparse; the names of the variables are those of columns.

    A column of `obs` with batches becomes the last one, numbers or words.

    Args:
        path: the file.
        counts: the layer to read, and the column of batches.
        batches: words for batches that are known already. Others are found in the file.

    Returns:
        The rows, and ``column_names`` and ``levels``: attributes of :class:`~pyro_fmvae.data.own.raw.Raw`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: anndata is not installed; or X is no matrix of numbers, or lies in another file; or the
            names of variables are not different; or there is no such layer or column, or a batch that is
            missing or not known.
    """
    options = counts or CountOptions()
    place = ("X",) if options.layer is None else ("layers", options.layer)
    name = options.batch_column
    with opened(path) as file:
        source = _found(file, place, path)
        form = source.attrs.get("encoding-type")
        shape = _shape(source, path)
        names = read_names(file, "var", shape[1], path)
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: expected different names of variables (AnnData.var_names_make_unique)")
        if not all(shape):
            raise ValueError(f"{path}: X is empty, its shape is {list(shape)}")
        batch, words = (None, ()) if name is None else _batch(file, name, shape[0], path, batches)
        if form in _SPARSE:
            x: MatrixRows = SparseRows(source, path, place, shape, batch)
        else:
            x = DenseRows(path, place, shape, source.dtype, batch)
    described = {"column_names": names if name is None else (*names, name)}
    return x, described | ({"levels": (*[()] * len(names), words)} if words else {})


@contextmanager
def _opened_matrix(path: Path, place: Sequence[str]) -> Iterator[Any]:
    with unchecked(path) as file:
        yield _found(file, place, path)


def _found(group: Any, place: Sequence[str], path: Path) -> Any:
    for name in place:
        group = member(group, name, path)
    return group


def _shape(matrix: Any, path: Path) -> tuple[int, int]:
    """Shape of a dense or sparse matrix in an open file, [n, D]."""
    import h5py

    if isinstance(matrix, h5py.Dataset):
        _check_numbers(matrix, path, 2)
        return matrix.shape[0], matrix.shape[1]
    shape = np.asarray(matrix.attrs.get("shape", ()))
    known = matrix.attrs.get("encoding-type") in _SPARSE and shape.shape == (2,)
    if not known or shape.dtype.kind not in "iu" or (shape < 0).any():
        raise ValueError(f"{path}: expected X to be a dense, CSR or CSC matrix")
    return int(shape[0]), int(shape[1])


def _batch(
    file: Any, name: str, number: int, path: Path, known: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers [n] of the batches in a column of `obs`, and their words, if they have such."""
    texts, source = read_texts(file, name, number, path), f"{path}: obs[{name!r}]"
    if "" in texts:
        raise ValueError(f"{source}: expected a batch in every row, that of row {texts.index('')} is missing")
    words = tuple(known) or find_values(texts, source)
    return code(texts, words, source), words
