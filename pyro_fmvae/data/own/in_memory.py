"""A person's own arrays and data frames, written as the file that the command line would read."""

import csv
import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fmvae.data.column_transform import column_in_words
from pyro_fmvae.data.own.csv_file import check_different_names
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import is_missing


def write_data(folder: Path, data: Any, labels: Any = None) -> Path:
    """Write data and labels as ``data.npz``; a frame with words among its features as ``data.csv``.

    Frames are told by their attribute ``columns``; no library of frames is imported.

    Args:
        folder: where to write the file.
        data: an array or a tensor, or a data frame, whose columns are features. Missing numbers are NaN.
        labels: of a frame, names of the columns that are labels. Otherwise values [n] or [n, L], an array, a
            series, whose name is the label's, or a data frame. Values are integers, truth values or words;
            unknown are -1, NaN, None, '' and marks such as 'NA'. None: no labels.

    Returns:
        The file.

    Raises:
        ValueError: an unknown column, no features, or labels of another number of rows.
    """
    columns = _columns(data, "data") if hasattr(data, "columns") else {}
    named: dict[str, np.ndarray] = {}
    if columns and _are_names(labels):
        names = [labels] if isinstance(labels, str) else list(labels)
        if unknown := [name for name in names if name not in columns]:
            raise ValueError(f"labels: expected some of the columns {', '.join(columns)}, got '{unknown[0]}'")
        named = {name: columns.pop(name) for name in names}
        if not columns:
            raise ValueError("data: expected a column that is no label")
    elif labels is not None:
        named = _label_columns(labels)
    chosen = {name: [_label(value) for value in values.tolist()] for name, values in named.items()}
    numbers = [_numbers(values) for values in columns.values()]
    known = [column for column in numbers if column is not None]
    x = np.stack(known, axis=1) if known else _array(data, "data")
    if not columns and x.dtype == object:
        raise ValueError("data: expected an array of numbers, or a data frame, got dtype object")
    rows = len(next(iter(columns.values()))) if columns else len(x) if x.ndim else 0
    for texts in chosen.values():
        if rows and len(texts) != rows:
            raise ValueError(f"labels: expected {rows:,} values, one per row of data, got {len(texts):,}")
    if len(known) < len(numbers):
        return _write_csv(folder / "data.csv", columns, chosen)
    return _write_npz(folder / "data.npz", x, list(columns), chosen)


def as_numbers(
    rows: np.ndarray,
    levels: Sequence[tuple[str, ...]],
    names: Sequence[str] = (),
    ignored: Collection[int] = (),
    source: str = "x",
    unseen: dict[str, Counter[str]] | None = None,
) -> np.ndarray:
    """Read rows of numbers and words as :func:`write_data` and :func:`read_csv` do.

    Args:
        rows: [n, D], of any dtype.
        levels: words of each column [D], which become 0, 1, …; empty for a column of numbers.
        names: of the columns [D], for messages; empty: they go by their numbers from 1.
        ignored: columns, from 0, that may hold anything, and become NaN.
        source: name of the rows in messages.
        unseen: where unknown words are counted, and words in columns where at least half of the values are
            numbers, by column; they are NaN. None: they are errors.

    Returns:
        float64 [n, D], NaN where a value is missing.

    Raises:
        ValueError: another number of columns, an unknown word, or a word among numbers; it names the column.
    """
    if rows.shape[1] != len(levels):
        raise ValueError(f"{source}: expected {len(levels)} columns, got {rows.shape[1]}")
    found = np.full(rows.shape, math.nan)
    for column, words in enumerate(levels):
        known = {word: number for number, word in enumerate(words)}
        other: Counter[str] = Counter()
        for row, value in enumerate([] if column in ignored else rows[:, column].tolist()):
            text = _text(value)
            if is_missing(text):
                continue
            try:
                word = text if text in known else str(value)  # truth values are words, too
                found[row, column] = known[word] if words else float(value)
            except (KeyError, TypeError, ValueError):
                other[text] += 1
        title = column_in_words(column, names)
        numbers = np.count_nonzero(~np.isnan(found[:, column]))
        if other and (unseen is None or (not words and other.total() > numbers)):
            wanted = f"one of {', '.join(words)}" if words else "a number"
            raise ValueError(f"{source}: expected {wanted} in {title}, got {next(iter(other))!r}")
        if other and unseen is not None:
            unseen[title] = other
    return found


def _are_names(labels: Any) -> bool:
    """True for a column's name or a list of them; an array or a series of words has a value per row."""
    if isinstance(labels, str):
        return True
    return isinstance(labels, list | tuple) and all(isinstance(name, str) for name in labels)


def _array(values: Any, source: str) -> np.ndarray:
    """An array, tensor or list as an array; raises ValueError for a list of arrays of several shapes."""
    try:
        return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError:  # NumPy's message is about its own parts
        raise ValueError(f"{source}: expected rows of one shape, got several shapes") from None


def _columns(frame: Any, source: str) -> dict[str, np.ndarray]:
    """Columns of a data frame by name; raises ValueError if two have the same."""
    check_different_names(map(str, frame.columns), source)
    columns = {str(name): np.asarray(frame[name]) for name in frame.columns}
    for name, values in columns.items():
        if values.dtype.kind in "mM":  # dates and times are words, of which NaT is none
            columns[name] = values.astype(f"{values.dtype.kind}8[us]").astype(object)
    return columns


def _numbers(values: np.ndarray) -> np.ndarray | None:
    """Values of a column as float64 [n]; None if there are words among them."""
    plain = [math.nan if _missing(value) else value for value in values] if values.dtype == object else values
    try:
        return np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _label_columns(labels: Any) -> dict[str, np.ndarray]:
    """Values of each label, [n], by name."""
    if hasattr(labels, "columns"):
        return _columns(labels, "labels")
    values = _array(labels, "labels")
    if values.ndim == 1:
        name = getattr(labels, "name", None)
        return {"label" if name is None else str(name): values}
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(f"labels: expected values [n] or [n, L], got shape {list(values.shape)}")
    return {f"label{column}": values[:, column] for column in range(values.shape[1])}


def _write_npz(path: Path, x: np.ndarray, columns: list[str], chosen: dict[str, list[str]]) -> Path:
    """Write observations, names of columns, and labels as texts: see :func:`read_npz`."""
    arrays: dict[str, Any] = {"x": x}
    if columns:
        arrays["column_names"] = np.array(columns)
    if chosen:
        values = {name: find_values(texts, f"labels: '{name}'") for name, texts in chosen.items()}
        coded = [code(texts, values[name], f"labels: '{name}'") for name, texts in chosen.items()]
        arrays |= {"labels": np.stack(coded, axis=1), "label_names": np.array(list(chosen))}
        if any(values.values()):
            arrays["value_names"] = _padded(list(values.values()))
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def _write_csv(path: Path, columns: dict[str, np.ndarray], chosen: dict[str, list[str]]) -> Path:
    """Write columns of numbers and words, and labels as texts: see :func:`read_csv`."""
    texts = {name: [_text(value) for value in values.tolist()] for name, values in columns.items()}
    texts |= {f"label:{name}": values for name, values in chosen.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(texts)
        writer.writerows(zip(*texts.values(), strict=True))
    return path


def _padded(rows: Sequence[Sequence[str]]) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[""] * (width - len(row))] for row in rows])


def _text(value: Any) -> str:
    """A value as text; '' if it is missing. A truth value is 0 or 1."""
    return "" if _missing(value) else str(int(value) if isinstance(value, bool) else value).strip()


def _label(value: Any) -> str:
    """A label's value as text; '' if it is unknown. 1.0 is 1, as frames have no integers beside gaps."""
    if value == -1 or (isinstance(value, str) and is_missing(value)):
        return ""
    return _text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _missing(value: Any) -> bool:
    """True for None, NaN, and the marks for missing values of data frames."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "<NA>", "NaT"))
