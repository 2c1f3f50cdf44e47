"""A person's own arrays and data frames, written as the file that the command line would read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fmvae.data.own.folder import code, find_values


def write_npz(path: Path, data: Any, labels: Any = None) -> None:
    """Write data and labels to a .npz file: see :func:`~pyro_fmvae.data.own.npz_file.read_npz`.

    Frames are told by their attribute ``columns``; no library of frames is imported.

    Args:
        path: the file.
        data: an array or a tensor, or a data frame, whose columns are features. Missing numbers are NaN.
        labels: of a frame, names of the columns that are labels. Otherwise values [n] or [n, L], an array, a
            series, whose name is the label's, or a data frame. Values are integers, truth values or words;
            unknown are -1, NaN, None and ''. None: no labels.

    Raises:
        ValueError: a column of text among the features, an unknown column, or labels of another number of
            rows.
    """
    columns = _columns(data) if hasattr(data, "columns") else None
    chosen: dict[str, np.ndarray] = {}
    if columns is not None and _are_names(labels):
        names = [labels] if isinstance(labels, str) else list(map(str, labels))
        if unknown := [name for name in names if name not in columns]:
            raise ValueError(f"labels: expected some of the columns {', '.join(columns)}, got '{unknown[0]}'")
        chosen = {name: columns.pop(name) for name in names}
    elif labels is not None:
        chosen = _label_columns(labels)
    x = _array(data) if columns is None else _features(columns)
    arrays: dict[str, Any] = {"x": x}
    if columns is not None:
        arrays["column_names"] = np.array(list(columns))
    if chosen:
        number = len(next(iter(chosen.values())))
        if x.ndim and number != len(x):
            raise ValueError(f"labels: expected {len(x):,} values, one per row of data, got {number:,}")
        arrays |= _coded(chosen)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _are_names(labels: Any) -> bool:
    """True for a column's name or a list of them; an array or a series of words has a value per row."""
    if isinstance(labels, str):
        return True
    return isinstance(labels, list | tuple) and all(isinstance(name, str) for name in labels)


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _columns(frame: Any) -> dict[str, np.ndarray]:
    """Columns of a data frame by name."""
    return {str(name): np.asarray(frame[name]) for name in frame.columns}


def _features(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Columns of numbers side by side, float64 [n, D]."""
    if not columns:
        raise ValueError("data: expected a column that is no label")
    numbers = []
    for name, values in columns.items():
        plain = (
            [np.nan if _missing(value) else value for value in values] if values.dtype == object else values
        )
        try:
            numbers.append(np.asarray(plain, dtype=np.float64))
        except (TypeError, ValueError):
            raise ValueError(
                f"data: expected numbers in column '{name}', got text such as {_example(values)!r}; give the "
                "column in labels, leave it out, or write the frame to a .csv file and give its path"
            ) from None
    return np.stack(numbers, axis=1)


def _example(values: np.ndarray) -> str:
    return next(value for value in values.tolist() if isinstance(value, str) and value)


def _label_columns(labels: Any) -> dict[str, np.ndarray]:
    """Values of each label, [n], by name."""
    if hasattr(labels, "columns"):
        return _columns(labels)
    values = _array(labels)
    if values.ndim == 1:
        name = getattr(labels, "name", None)
        return {"label" if name is None else str(name): values}
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(f"labels: expected values [n] or [n, L], got shape {list(values.shape)}")
    return {f"label{column}": values[:, column] for column in range(values.shape[1])}


def _coded(columns: dict[str, np.ndarray]) -> dict[str, Any]:
    """The arrays ``labels``, ``label_names`` and, where values have names, ``value_names``."""
    texts = {name: [_text(value) for value in values.tolist()] for name, values in columns.items()}
    values = {name: find_values(column, f"labels: '{name}'") for name, column in texts.items()}
    coded = [code(column, values[name], f"labels: '{name}'") for name, column in texts.items()]
    arrays: dict[str, Any] = {"labels": np.stack(coded, axis=1), "label_names": np.array(list(columns))}
    if any(values.values()):
        arrays["value_names"] = _padded(list(values.values()))
    return arrays


def _padded(rows: Sequence[Sequence[str]]) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[""] * (width - len(row))] for row in rows])


def _text(value: Any) -> str:
    """A label's value as text, '' if it is unknown; 1.0 is 1, as frames have no integers beside gaps."""
    if _missing(value) or value == -1:
        return ""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return str(value).strip()


def _missing(value: Any) -> bool:
    """True for None, NaN, and the marks for missing values of data frames."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "<NA>", "NaT"))
