"""A person's own .h5ad file, as AnnData writes it: the matrix X, and the names of its rows and columns.

HDF5 can refer to other files, and names sizes that it does not hold. Neither is followed: everything that is
read lies in the file itself, and its size is checked first. No object is built, so nothing is unpickled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix  # type: ignore[import-untyped]

from pyro_fmvae.data.own.raw import Raw
from pyro_fmvae.memory import check_fits
from pyro_fmvae.untrusted import LARGEST, check_printable

_SPARSE: Final = {"csr_matrix": csr_matrix, "csc_matrix": csc_matrix}
_AT_ONCE = 1000  # names


def read_h5ad(path: Path, missing: bool = False) -> Raw:
    """Read the rows of X, dense or sparse, with the names of the variables as those of columns.

    Args:
        path: the file.
        missing: accept NaN, as a missing number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: h5py is not installed; or X is no matrix of finite numbers, is larger than the memory that
            it may take, or lies in another file; or the names of variables are not different.
    """
    with opened(path) as file:
        x = _matrix(member(file, "X", path), path)
        names = _names(file, "var", x.shape[1], path)
    if not x.size:
        raise ValueError(f"{path}: X is empty, its shape is {list(x.shape)}")
    if not (np.isfinite(x) | (missing & np.isnan(x))).all():
        allowed = "finite, or NaN where it is missing" if missing else "finite"
        raise ValueError(f"{path}: X must be {allowed}, but holds NaN or infinity")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: expected different names of variables (AnnData.var_names_make_unique)")
    return Raw(x, column_names=names)


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
    names: list[str] = []
    length = 0
    for start in range(0, number, _AT_ONCE):
        names += map(str, index.asstr()[start : start + _AT_ONCE])
        length += sum(map(len, names[start:]))
        if length > LARGEST:
            raise ValueError(f"{path}: expected at most {LARGEST:,} characters of names in {index.name!r}")
    check_printable(names, f"{path}: {of}")
    return tuple(names)
