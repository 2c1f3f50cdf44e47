"""Arrays, names and columns of texts in a person's own .h5ad file, as AnnData writes it.

HDF5 can refer to other files, and names sizes that it does not hold. Neither is followed: everything that is
read lies in the file itself, and its size is checked first. No object is built, so nothing is unpickled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pyro_fmvae.memory import check_fits
from pyro_fmvae.untrusted import LARGEST, check_printable

_AT_ONCE = 1000  # names
_LENGTH = 64  # characters of a name, on average over many rows


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


def check_numbers(data: Any, path: Path, dims: int) -> Any:
    """An array of a file that has numbers, and that can be read piece by piece.

    Args:
        data: the array.
        path: of the file, for messages.
        dims: number of axes that it must have.

    Raises:
        ValueError: it has others, or pieces that are larger than the memory that they may take.
    """
    if data.dtype.kind not in "buif" or data.ndim != dims:
        raise ValueError(f"{path}: expected numbers [{'n, D' if dims == 2 else 'n'}] in {data.name!r}")
    check_fits(data.dtype.itemsize * int(np.prod(data.chunks or (), dtype=object)), f"{path}: {data.name}")
    return data


def _column(data: Any, path: Path) -> np.ndarray:
    """Numbers [n]; their size is checked before they are read."""
    check_fits(check_numbers(data, path, 1).nbytes, f"{path}: {data.name}")
    found: np.ndarray = data[()]
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
    import h5py

    group = member(file, of, path)
    index = member(group, str(group.attrs.get("_index", "_index")), path)
    if isinstance(index, h5py.Group):  # strings of which some may be missing
        index = member(index, "values", path)
    strings = h5py.check_string_dtype(index.dtype) is not None and index.ndim == 1
    if not strings or number not in (None, len(index)):
        raise ValueError(
            f"{path}: expected {'' if number is None else f'{number:,} '}names in {index.name!r}"
        )
    check_fits(_LENGTH * len(index), f"{path}: {index.name}")
    return tuple(_strings(index, path, max(LARGEST, _LENGTH * len(index))))


def _strings(array: Any, path: Path, largest: int = LARGEST) -> list[str]:
    """An array of strings [n], of at most so many characters."""
    strings: list[str] = []
    length = 0
    for start in range(0, len(array), _AT_ONCE):
        strings += map(str, array.asstr()[start : start + _AT_ONCE])
        length += sum(map(len, strings[start:]))
        if length > largest:
            raise ValueError(f"{path}: expected at most {largest:,} characters of names in {array.name!r}")
    check_printable(strings, f"{path}: {array.name}")
    return strings


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
    import h5py

    column = member(member(file, "obs", path), name, path)
    if isinstance(column, h5py.Group) and "codes" in column:
        words = _plain(member(column, "categories", path), path)
        codes = _column(member(column, "codes", path), path)
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
        mask = _column(member(array, "mask", path), path)
        return ["" if hidden else text for text, hidden in zip(values, mask.tolist(), strict=True)]
    if array.ndim == 1 and h5py.check_string_dtype(array.dtype) is not None:
        return _strings(array, path)
    numbers = _column(array, path).astype(np.float64).tolist()
    return ["" if value != value else f"{value:.17g}" for value in numbers]
