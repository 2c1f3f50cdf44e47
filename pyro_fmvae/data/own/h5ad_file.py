"""A person's own .h5ad file, as AnnData writes it: the matrix X, and the names of its rows and columns.

HDF5 can refer to other files, and names sizes that it does not hold. Neither is followed: everything that is
read lies in the file itself, and its size is checked first. No object is built, so nothing is unpickled.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix  # type: ignore[import-untyped]

from pyro_fmvae.data.count_table import CountOptions
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import Raw
from pyro_fmvae.memory import check_fits
from pyro_fmvae.untrusted import LARGEST, check_printable

_SPARSE: Final = {"csr_matrix": csr_matrix, "csc_matrix": csc_matrix}
_AT_ONCE = 1000  # names
_X: Final = CountOptions()  # no layer, no batches


def read_h5ad(
    path: Path, missing: bool = False, counts: CountOptions = _X, batches: Sequence[str] = ()
) -> Raw:
    """Read the rows of X or of a layer, dense or sparse; the names of the variables are those of columns.

    A column of `obs` with batches becomes the last one, numbers or words.

    Args:
        path: the file.
        missing: accept NaN, as a missing number.
        counts: the layer to read, and the column of batches.
        batches: words for batches that are known already. Others are found in the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: h5py is not installed; or X is no matrix of finite numbers, is larger than the memory that
            it may take, or lies in another file; or the names of variables are not different; or there is no
            such layer or column, or a batch that is missing or not known.
    """
    with opened(path) as file:
        matrix = file if counts.layer is None else member(file, "layers", path)
        x = _matrix(member(matrix, counts.layer or "X", path), path)
        names = _names(file, "var", x.shape[1], path)
        texts = None if counts.batch_column is None else _texts(file, counts.batch_column, len(x), path)
    if not x.size:
        raise ValueError(f"{path}: X is empty, its shape is {list(x.shape)}")
    if not (np.isfinite(x) | (missing & np.isnan(x))).all():
        allowed = "finite, or NaN where it is missing" if missing else "finite"
        raise ValueError(f"{path}: X must be {allowed}, but holds NaN or infinity")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: expected different names of variables (AnnData.var_names_make_unique)")
    if texts is None or counts.batch_column is None:
        return Raw(x, column_names=names)
    source = f"{path}: obs[{counts.batch_column!r}]"
    if "" in texts:
        raise ValueError(f"{source}: expected a batch in every row, that of row {texts.index('')} is missing")
    known = tuple(batches) or find_values(texts, source)
    levels = (*[()] * len(names), known) if known else ()
    return Raw(
        np.column_stack([x, code(texts, known, source)]),
        column_names=(*names, counts.batch_column),
        levels=levels,
    )


@contextmanager
def opened(path: Path, mode: str = "r") -> Iterator[Any]:
    """An HDF5 file; what is wrong with it is a ValueError.

    Args:
        path: the file.
        mode: of h5py.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if find_spec("h5py") is None or find_spec("anndata") is None:
        raise ValueError(f"{path}: .h5ad needs anndata: pip install 'pyro_fmvae[anndata]'")
    import h5py

    try:
        with h5py.File(path, mode) as file:
            yield file
    except ValueError:
        raise
    except Exception as error:  # h5py raises many kinds
        raise ValueError(f"{path}: not a .h5ad file, or a damaged one") from error


def member(group: Any, name: str, path: Path) -> Any:
    """A group or an array of a file that lies in the file itself.

    Args:
        group: that it is in.
        name: of it.
        path: of the file, for messages.

    Raises:
        ValueError: there is none, or it lies in another file.
    """
    import h5py

    if name not in group:
        raise ValueError(f"{path}: expected {name!r} in {group.name!r}, found {', '.join(group)}")
    found = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if found is None or (isinstance(found, h5py.Dataset) and (found.external or found.is_virtual)):
        raise ValueError(f"{path}: {name!r} refers to another place, and only the file itself is read")
    return found


def _matrix(x: Any, path: Path) -> np.ndarray:
    """X as an array, float32 if it holds that, else float64."""
    import h5py

    if isinstance(x, h5py.Dataset):
        return _array(x, path, 2)
    kind = _SPARSE.get(str(x.attrs.get("encoding-type")))
    shape = np.asarray(x.attrs.get("shape", ()))
    if kind is None or shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 0).any():
        raise ValueError(f"{path}: expected X to be a dense, CSR or CSC matrix")
    check_fits(8 * int(shape[0]) * int(shape[1]), f"{path}: X")
    data, indices, pointers = (
        _array(member(x, name, path), path, 1, as_number=name == "data")
        for name in ("data", "indices", "indptr")
    )
    try:
        sparse = kind((data, indices, pointers), shape=tuple(map(int, shape)))
        sparse.check_format(full_check=True)  # so that no index is out of bounds
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: X is damaged ({error})") from None
    dense: np.ndarray = sparse.toarray()
    return dense


def _array(data: Any, path: Path, dims: int, as_number: bool = True) -> np.ndarray:
    """An array of numbers; its size is checked before it is read."""
    if data.dtype.kind not in "buif" or data.ndim != dims:
        raise ValueError(f"{path}: expected numbers [{'n, D' if dims == 2 else 'n'}] in {data.name!r}")
    check_fits(max(8, data.dtype.itemsize) * int(np.prod(data.shape, dtype=object)), f"{path}: {data.name}")
    array: np.ndarray = data[()]
    if not as_number or array.dtype == np.float32:
        return array
    return array.astype(np.float64)


def _names(file: Any, of: str, number: int, path: Path) -> tuple[str, ...]:
    """Names of the rows ('obs') or columns ('var') of X."""
    import h5py

    group = member(file, of, path)
    index = member(group, str(group.attrs.get("_index", "_index")), path)
    if isinstance(index, h5py.Group):  # strings of which some may be missing
        index = member(index, "values", path)
    if h5py.check_string_dtype(index.dtype) is None or index.shape != (number,):
        raise ValueError(f"{path}: expected {number:,} names in {index.name!r}")
    return tuple(_strings(index, path))


def _strings(array: Any, path: Path) -> list[str]:
    """An array of strings [n], as long as they are not too many."""
    strings: list[str] = []
    length = 0
    for start in range(0, len(array), _AT_ONCE):
        strings += map(str, array.asstr()[start : start + _AT_ONCE])
        length += sum(map(len, strings[start:]))
        if length > LARGEST:
            raise ValueError(f"{path}: expected at most {LARGEST:,} characters of names in {array.name!r}")
    check_printable(strings, f"{path}: {array.name}")
    return strings


def _texts(file: Any, name: str, number: int, path: Path) -> list[str]:
    """A column of obs as texts [n], '' where one is missing: words, numbers, or categories of either."""
    import h5py

    column = member(member(file, "obs", path), name, path)
    if isinstance(column, h5py.Group) and "codes" in column:
        words = _plain(member(column, "categories", path), path)
        codes = _array(member(column, "codes", path), path, 1, as_number=False)
        if codes.dtype.kind not in "iu" or codes.max(initial=-1) >= len(words):
            raise ValueError(f"{path}: expected numbers of categories in {column.name!r}")
        texts = [words[code] if code >= 0 else "" for code in codes.tolist()]
    else:
        texts = _plain(column, path)
    if len(texts) != number:
        raise ValueError(f"{path}: expected {number:,} values in {column.name!r}, got {len(texts):,}")
    return texts


def _plain(array: Any, path: Path) -> list[str]:
    """Words or numbers as texts, '' where one is missing."""
    import h5py

    if isinstance(array, h5py.Group):  # values of which some may be missing
        values = _plain(member(array, "values", path), path)
        mask = _array(member(array, "mask", path), path, 1, as_number=False)
        return ["" if hidden else text for text, hidden in zip(values, mask.tolist(), strict=True)]
    if array.ndim == 1 and h5py.check_string_dtype(array.dtype) is not None:
        return _strings(array, path)
    numbers = _array(array, path, 1).tolist()
    return ["" if value != value else f"{value:.17g}" for value in numbers]
