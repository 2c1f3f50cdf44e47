"""Reading zarr stores, whose chunks are decoded once into rows on disk.

A chunk passes through codecs that the store names itself, and one of them unpickles. So the names are read
first, and none is used but those of `CODECS`. Only arrays are opened, never a group, whose description may
contradict that of its arrays.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final

import numpy as np

from pyro_fmvae.data.array_file import ArrayFile, open_npy
from pyro_fmvae.data.decoded import decoded_rows
from pyro_fmvae.data.own.npz_file import OPTIONAL, check_shape, described
from pyro_fmvae.files.memory import check_fits, confined
from pyro_fmvae.files.untrusted import read_json

STORE: Final = ".zarr"
"""End of the name of a folder that is a store."""
CODECS: Final = frozenset(
    (
        *("bytes", "transpose", "shuffle", "delta", "sharding_indexed", "crc32c"),
        *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
    )
)
"""Names of the codecs that are used: they move and compress bytes, and do nothing else."""
_VERSION: Final = 1  # of what is decoded: another one makes all older arrays invalid
_PIECE: Final = 16 << 20  # bytes that are decoded at once


def is_folder(path: Path) -> bool:
    """Tell whether a path is a folder of images. One whose name ends in `STORE` is a store of arrays."""
    return path.is_dir() and path.suffix.lower() != STORE


def decode_store(path: Path) -> tuple[ArrayFile, dict[str, Any]]:
    """Decode the observations of a zarr store, or open what an earlier call has decoded.

    The store is an array, or a group that holds an array ``x`` and maybe an array ``labels``; both as in a
    .npz file. The attributes of the group, or of the single array, may be ``label_names``, ``value_names``
    and ``column_names``, lists as the arrays of these names there. Rows are kept in
    ``~/.cache/pyro_fmvae/tables`` as one array. Another size or time of change of a file in the store makes a
    new one.

    Args:
        path: the store, a folder whose name ends in `STORE`.

    Returns:
        The array, and labels and names: attributes of :class:`~pyro_fmvae.data.own.raw.Raw`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: zarr 3 is not installed, the store is damaged or holds something else, names another
            codec, has chunks larger than the memory that they may take, or would not fit on the disk.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; a zarr store is one whose name ends in {STORE}")
    if find_spec("zarr") is None or int(version("zarr").partition(".")[0]) < 3:
        raise ValueError(
            f"{path}: reading it needs zarr 3: pip install 'pyro_fmvae[zarr]', Python 3.11 or later"
        )
    key = f"{_VERSION} {path.resolve()} {_state(path)}"
    description = _description(path, path) or {}
    single = "shape" in description
    x = _array(path if single else path / "x", path)
    check_shape(x.shape, x.dtype, path)
    arrays = _names(description, path)
    if not single and (path / "labels").is_dir():
        labels = _array(path / "labels", path)
        check_fits(labels.nbytes, f"{path}: 'labels'")
        arrays["labels"] = _read(labels, slice(None), path)
    found = described(arrays, x.shape, path)
    target = decoded_rows(path, key, x.shape, x.dtype, lambda: _rows(x, path))
    return open_npy(target), found


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the store in errors, which are of many kinds, and limit what a chunk unpacks to."""
    with confined(str(path)):
        try:
            yield
        except (OSError, MemoryError):
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path}: cannot be read: {reason}") from error


def _state(path: Path) -> str:
    """Names, sizes and times of change of all files in the store."""
    files = []
    for file in sorted(path.rglob("*")):
        status = file.lstat()
        if not S_ISDIR(status.st_mode):
            if not S_ISREG(status.st_mode):  # a pipe might never end, and a link leads elsewhere
                raise ValueError(f"{file}: not an ordinary file")
            files.append(f"{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}")
    return "\0".join(files)


def _description(place: Path, path: Path) -> dict[str, Any] | None:
    """The description of an array or a group, with attributes and version of the format, if there is one."""
    with _naming(path):
        for name, number in (("zarr.json", 3), (".zarray", 2), (".zgroup", 2)):
            if (place / name).exists():
                found = {**read_json(place / name), "zarr_format": number}
                if number == 2 and (place / ".zattrs").exists():
                    found["attributes"] = read_json(place / ".zattrs")
                return found
    return None


def _array(place: Path, path: Path) -> Any:
    """Open an array, of which nothing is decoded yet, after a look at its codecs and the size of a chunk."""
    import zarr

    description = _description(place, path)
    if description is None or "shape" not in description:
        raise ValueError(f"{path}: expected an array, or a group with an array 'x'")
    with _naming(path):
        parts = [description.get(name) for name in ("codecs", "filters", "compressor")]
        unknown = sorted({str(name) for name in _codecs(parts)} - CODECS)
    if unknown:
        raise ValueError(f"{path}: expected the codecs {', '.join(sorted(CODECS))}, got {unknown[0]!r}")
    with _naming(path):
        array = zarr.open_array(place, mode="r", zarr_format=description["zarr_format"])
        chunks, shards = array.chunks, array.shards or ()
    if min((*chunks, *shards, 1)) < 1:
        raise ValueError(f"{path}: expected chunks of at least one row and column, got {list(chunks)}")
    check_fits(array.dtype.itemsize * math.prod(shards or chunks), f"{path}: a chunk")
    return array


def _codecs(part: Any) -> Iterator[Any]:
    """Names of codecs in the description of an array, those inside of others too."""
    if isinstance(part, list):
        for one in part:
            yield from _codecs(one)
    elif isinstance(part, dict):
        yield part["id"] if "id" in part else part.get("name")
        inner = part.get("configuration") or {}
        yield from _codecs([inner.get("codecs"), inner.get("index_codecs")])
    elif part is not None:
        yield part


def _names(description: dict[str, Any], path: Path) -> dict[str, np.ndarray]:
    """The attributes that name labels, values and columns, as the arrays of a .npz file."""
    found = {}
    with _naming(path):
        attributes = dict(description.get("attributes") or {})
        for name in OPTIONAL[1:]:
            if name in attributes:
                found[name] = np.array(attributes[name])
    return found


def _read(x: Any, rows: slice, path: Path) -> np.ndarray:
    with _naming(path):
        return np.asarray(x[rows])


def _rows(x: Any, path: Path) -> Iterator[np.ndarray]:
    """Decode some rows after the other, whole chunks at once."""
    chunk, row = (x.shards or x.chunks)[0], x.dtype.itemsize * math.prod(x.shape[1:])
    check_fits(chunk * row, f"{path}: rows in one chunk")
    step = chunk * max(1, _PIECE // (chunk * row))
    for start in range(0, x.shape[0], step):
        yield _read(x, slice(start, start + step), path)
