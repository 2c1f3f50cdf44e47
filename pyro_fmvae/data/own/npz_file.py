"""A person's own .npz file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw
from pyro_fmvae.files.untrusted import check_printable

OPTIONAL: Final = ("labels", "label_names", "value_names", "column_names")
"""Arrays that a file may hold beside `x`."""


def read_npz(path: Path, missing: bool = False) -> Raw:
    """Read a data set from a .npz file.

    The file holds `x`, [n, H, W], [n, H, W, C] or [n, D], where images are bool, uint8 or float. Of C
    channels the last is opacity if C is 2 or 4, which puts the others on white. One channel is grey, and read
    as [n, H, W]; three are red, green and blue. Optionally it holds

    * `labels`, integers [n, L] or [n], -1 = unknown;
    * `label_names`, L strings;
    * `value_names`, strings [L, V]: names of the values 0, 1, … of each label, '' beyond the last of them,
      and nothing but '' for a label whose values are just numbers;
    * `column_names`, D strings, of a table.

    Args:
        path: the file.
        missing: accept NaN, as a missing number.

    Raises:
        ValueError: anything else; the message names the file and the array.
    """
    return raw_of(read_arrays(path, required=("x",), optional=OPTIONAL), path, missing)


def raw_of(arrays: Mapping[str, np.ndarray], source: Path | str, missing: bool = False) -> Raw:
    """The contents of a .npz file, whose name in messages is the source: see :func:`read_npz`."""
    x = arrays["x"]
    check_shape(x.shape, x.dtype, source)
    _check_finite(x, source, missing)
    note = ""
    if x.ndim == 4 and x.shape[3] in (2, 4):
        x, note = _on_white(x), f"{len(x):,} pictures are put on white where they are transparent"
    if x.ndim == 4 and x.shape[3] == 1:
        x = x[..., 0]
    return Raw(x, **described(arrays, x.shape, source), note=note)


def described(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...], path: Path | str) -> dict[str, Any]:
    """Labels and names beside `x`, of this shape, in the arrays of a .npz file: attributes of :class:`Raw`.

    Raises:
        ValueError: they are malformed, or do not fit `x`.
    """
    for name in OPTIONAL[1:]:
        if name in arrays and arrays[name].dtype.kind == "U":
            check_printable(arrays[name].reshape(-1).tolist(), f"{path}: {name!r}")
    columns = _check_columns(arrays.get("column_names"), shape, path)
    if "labels" not in arrays:
        for name in ("label_names", "value_names"):
            if name in arrays:
                raise ValueError(f"{path}: there are '{name}' but no 'labels'")
        return {"column_names": columns}
    labels = _check_labels(arrays["labels"], shape[0], path)
    names = _check_names(arrays.get("label_names"), labels.shape[1], path)
    values = _check_values(arrays.get("value_names"), labels, path)
    return {"labels": labels, "label_names": names, "column_names": columns, "value_names": values}


def check_shape(shape: tuple[int, ...], dtype: np.dtype, path: Path | str) -> None:
    """Raise ValueError unless an array can be the observations of a data set."""
    if dtype.kind not in "buif":
        raise ValueError(f"{path}: 'x' must hold numbers, got dtype {dtype}")
    table = len(shape) == 2
    if not (table or len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 2, 3, 4))):
        shapes = "[n, H, W], [n, H, W, C] with 1 to 4 channels C, or [n, D]"
        raise ValueError(f"{path}: 'x' must have shape {shapes}, got {list(shape)}")
    if 0 in shape:
        raise ValueError(f"{path}: 'x' is empty, its shape is {list(shape)}")
    if not table and dtype not in (np.bool_, np.uint8) and dtype.kind != "f":
        raise ValueError(f"{path}: images in 'x' must be bool, uint8 or float, got dtype {dtype}")


def _check_finite(x: np.ndarray, path: Path | str, missing: bool) -> None:
    if missing and np.isinf(x).any():
        raise ValueError(f"{path}: 'x' must be finite, or NaN where it is missing, but holds infinity")
    if not missing and not np.isfinite(x).all():
        raise ValueError(f"{path}: 'x' must be finite, but holds NaN or infinity")


def _on_white(x: np.ndarray) -> np.ndarray:
    """Put images, whose last channel is opacity, on white: one channel less, of the same type."""
    colours, opacity = x[..., :-1], x[..., -1:]
    if x.dtype == np.bool_:
        return colours | ~opacity
    if x.dtype == np.uint8 and x.max() > 1:
        share = opacity / 255
        return np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)
    return (colours * opacity + (1 - opacity)).astype(x.dtype)


def _check_labels(labels: np.ndarray, n: int, path: Path | str) -> np.ndarray:
    if labels.dtype.kind not in "bui":
        hint = DECIMAL_HINT if labels.dtype.kind == "f" else ""
        raise ValueError(f"{path}: 'labels' must hold integers, got dtype {labels.dtype}{hint}")
    columns = labels[:, None] if labels.ndim == 1 else labels
    if columns.ndim != 2 or len(columns) != n or columns.shape[1] == 0:
        raise ValueError(
            f"{path}: 'labels' must have shape [{n}, L] or [{n}], as 'x', got {list(labels.shape)}"
        )
    if columns.min() < -1:
        raise ValueError(f"{path}: 'labels' must be >= -1, where -1 is unknown, got {columns.min()}")
    if columns.max() > LARGEST_LABEL:
        raise ValueError(f"{path}: 'labels' must be {LARGEST_LABEL} at most, got {columns.max()}")
    return columns.astype(np.int64)


def _check_names(names: np.ndarray | None, count: int, path: Path | str) -> tuple[str, ...]:
    if names is None:
        return tuple(f"label{column}" for column in range(count))
    if names.dtype.kind != "U" or names.shape != (count,):
        raise ValueError(
            f"{path}: 'label_names' must be {count} strings, one per column of 'labels', "
            f"got dtype {names.dtype} of shape {list(names.shape)}"
        )
    if len(set(names.tolist())) != count:
        raise ValueError(f"{path}: 'label_names' must differ from each other, got {names.tolist()}")
    return tuple(names.tolist())


def _check_columns(names: np.ndarray | None, shape: tuple[int, ...], path: Path | str) -> tuple[str, ...]:
    if names is None:
        return ()
    if len(shape) != 2 or names.dtype.kind != "U" or names.shape != shape[1:]:
        raise ValueError(
            f"{path}: 'column_names' must be strings, one per column of a table 'x', "
            f"got dtype {names.dtype} of shape {list(names.shape)}"
        )
    return tuple(names.tolist())


def _check_values(
    names: np.ndarray | None, labels: np.ndarray, path: Path | str
) -> tuple[tuple[str, ...], ...]:
    if names is None:
        return ()
    count = labels.shape[1]
    if names.dtype.kind != "U" or names.ndim != 2 or len(names) != count:
        raise ValueError(
            f"{path}: 'value_names' must be strings [{count}, V], a row per column of 'labels', "
            f"got dtype {names.dtype} of shape {list(names.shape)}"
        )
    found = tuple(tuple(filter(None, row)) for row in names.tolist())
    for row, known, greatest in zip(names.tolist(), found, labels.max(axis=0).tolist(), strict=True):
        if tuple(row[: len(known)]) != known or len(set(known)) < len(known):
            raise ValueError(
                f"{path}: 'value_names' must differ, with '' behind the last one only, got {row}"
            )
        if known and greatest >= len(known):
            raise ValueError(f"{path}: 'value_names' names {len(known)} values, but a label is {greatest}")
    return found
