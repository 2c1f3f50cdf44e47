"""Arrays, names and columns of texts in a person's own .h5ad file, as AnnData writes it.

HDF5 can refer to other files, and name sizes that it does not hold. A file that refers to others is refused
as a whole, and sizes are checked before anything is read. No object is built, so nothing is unpickled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pyro_fmvae.files.memory import check_fits, confined
from pyro_fmvae.files.untrusted import LARGEST, check_printable

_AT_ONCE = 1000  # names
_LENGTH = 64  # characters of a name, on average over many rows


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
    _check_piece(data, path)
    return data


def _check_piece(data: Any, path: Path) -> None:
    """Raise ValueError if one of the pieces that an array is stored in is too large."""
    check_fits(data.dtype.itemsize * int(np.prod(data.chunks or (), dtype=object)), f"{path}: {data.name}")


def _column(data: Any, path: Path, number: int | None) -> np.ndarray:
    """So many numbers; their size, also as texts, is checked before they are read."""
    _check_rows(check_numbers(data, path, 1), path, number)
    found: np.ndarray = data[()]
    return found


def _check_rows(data: Any, path: Path, number: int | None) -> None:
    """Raise ValueError unless an array [n] has so many values, which may be read and become texts."""
    if number not in (None, len(data)):
        raise ValueError(f"{path}: expected {number:,} values in {data.name!r}, got {len(data):,}")
    check_fits(len(data) * (data.dtype.itemsize + _LENGTH), f"{path}: {data.name}")


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
    return tuple(_strings(index, path, number))


def _strings(array: Any, path: Path, number: int | None) -> list[str]:
    """So many strings, of at most `LARGEST` characters or `_LENGTH` each."""
    _check_rows(array, path, number)
    _check_piece(array, path)
    strings: list[str] = []
    length, largest = 0, max(LARGEST, _LENGTH * len(array))
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
    if not (isinstance(column, h5py.Group) and "codes" in column):
        return _plain(column, path, number)
    words = _plain(member(column, "categories", path), path, None)
    codes = _column(member(column, "codes", path), path, number)
    if codes.dtype.kind not in "iu" or codes.max(initial=-1) >= len(words):
        raise ValueError(f"{path}: expected numbers of categories in {column.name!r}")
    return [words[code] if code >= 0 else "" for code in codes.tolist()]


def _plain(array: Any, path: Path, number: int | None) -> list[str]:
    """So many words or numbers as texts, '' where one is missing."""
    import h5py

    if isinstance(array, h5py.Group):  # values of which some may be missing
        values = _plain(member(array, "values", path), path, number)
        mask = _column(member(array, "mask", path), path, len(values))
        return ["" if hidden else text for text, hidden in zip(values, mask.tolist(), strict=True)]
    if array.ndim == 1 and h5py.check_string_dtype(array.dtype) is not None:
        return _strings(array, path, number)
    numbers = _column(array, path, number).astype(np.float64).tolist()
    return ["" if value != value else f"{value:.17g}" for value in numbers]
