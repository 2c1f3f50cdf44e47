"""A person's own arrays and data frames."""

import csv
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.column_transform import column_in_words
from pyro_fmvae.data.own.csv_file import TableColumn, check_different_names, features
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.npz_file import described, raw_of
from pyro_fmvae.data.own.raw import Raw, is_missing
from pyro_fmvae.files.untrusted import check_printable


@dataclass(frozen=True, eq=False)
class InMemory:
    """Arrays or a data frame that Python holds: data like those of a file, of which a run keeps one.

    Attributes:
        x: observations; of a frame with words, None.
        columns: of a frame, by name.
        labels: texts of the values of each label, '' where one is unknown.
    """

    x: np.ndarray | None
    columns: Mapping[str, np.ndarray]
    labels: Mapping[str, list[str]]

    @classmethod
    def of(cls, data: Any, labels: Any = None) -> "InMemory":
        """Take data and labels; frames are told by their attribute ``columns``, no library is imported.

        Args:
            data: an array or a tensor, or a data frame, whose columns are features. Missing numbers are NaN.
            labels: of a frame, names of the columns that are labels. Otherwise values [n] or [n, L], an
                array, a series, whose name is the label's, or a data frame. Values are integers, truth values
                or words; unknown are -1, NaN, None, '' and marks such as 'NA'. None: no labels.

        Raises:
            ValueError: an unknown column, no features, or labels of another number of rows.
        """
        columns = _columns(data, "data") if hasattr(data, "columns") else {}
        named: dict[str, np.ndarray] = {}
        if columns and _are_names(labels):
            names = [labels] if isinstance(labels, str) else list(dict.fromkeys(labels))
            if unknown := [name for name in names if name not in columns]:
                listed = ", ".join(columns)
                raise ValueError(f"labels: expected some of the columns {listed}, got '{unknown[0]}'")
            named = {name: columns.pop(name) for name in names}
            if not columns:
                raise ValueError("data: expected a column that is no label")
        elif labels is not None:
            named = _label_columns(labels)
        chosen = {name: [_label(value) for value in values.tolist()] for name, values in named.items()}
        numbers = [_numbers(values) for values in columns.values()]
        known = [column for column in numbers if column is not None]
        x = None if len(known) < len(numbers) else np.stack(known, 1) if known else _array(data, "data")
        if x is not None and not columns and x.dtype == object:
            raise ValueError("data: expected an array of numbers, or a data frame, got dtype object")
        rows = len(next(iter(columns.values()))) if x is None else len(x) if x.ndim else 0
        for texts in chosen.values():
            if rows and len(texts) != rows:
                raise ValueError(f"labels: expected {rows:,} values, one per row of data, got {len(texts):,}")
        return cls(x, columns, chosen)

    def __str__(self) -> str:
        return "data"

    @property
    def file(self) -> Path:
        """Name of the file that a run keeps."""
        return Path("data.csv" if self.x is None else "data.npz")

    def read(self, missing: bool = False, words: bool = False, ignore: Collection[str] = ()) -> Raw:
        """The contents, as those of the file that :meth:`write` writes.

        Args:
            missing: accept missing numbers.
            words: accept columns of words.
            ignore: columns of words or numbers, by name or by number from 1, that are left out.

        Raises:
            ValueError: contents that the reader of that file refuses.
        """
        if self.x is not None:
            return raw_of(self._arrays(), "data", missing)
        columns = [_FrameColumn(name, values, () if words else None) for name, values in self.columns.items()]
        x, levels, ignored = features(columns, missing, ignore, None)
        names = tuple(self.columns)
        check_printable(chain(names, *levels), "data")
        arrays = described(self._described(), x.shape, "data") | {"column_names": names}
        return Raw(x, **arrays, levels=levels, ignored=ignored)

    def write(self, folder: Path) -> Path:
        """Write the data as ``data.npz``; a frame with words among its features as ``data.csv``."""
        path = folder / self.file
        if self.x is not None:
            with path.open("wb") as file:
                np.savez(file, **self._arrays())
            return path
        texts = {name: [_text(value) for value in values.tolist()] for name, values in self.columns.items()}
        texts |= {f"label:{name}": values for name, values in self.labels.items()}
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(texts)
            writer.writerows(zip(*texts.values(), strict=True))
        return path

    def _arrays(self) -> dict[str, Any]:
        """Observations, names of columns, and labels: see :func:`read_npz`."""
        columns = {"column_names": np.array(list(self.columns))} if self.columns else {}
        return {"x": self.x, **columns, **self._described()}

    def _described(self) -> dict[str, Any]:
        if not self.labels:
            return {}
        values = {name: find_values(texts, f"labels: '{name}'") for name, texts in self.labels.items()}
        coded = [code(texts, values[name], f"labels: '{name}'") for name, texts in self.labels.items()]
        arrays = {"labels": np.stack(coded, axis=1), "label_names": np.array(list(self.labels))}
        return arrays | ({"value_names": _padded(list(values.values()))} if any(values.values()) else {})


class _FrameColumn(TableColumn):
    mixture = "; model='mixture' takes missing entries and words"

    def __init__(self, name: str, values: np.ndarray, words: tuple[str, ...] | None) -> None:
        numbers = _numbers(values)
        if numbers is None:
            numbers = np.array([_text(value) for value in values.tolist()], dtype=object)
        super().__init__(Path("data"), False, 0, numbers)
        self.name, self.words, self._held = name, words, values

    @property
    def beside(self) -> str:
        return f" of {self}"

    @property
    def advice(self) -> str:
        return f"; leave it out with ignore=[{self.name!r}]"

    @cached_property
    def texts(self) -> list[str]:
        for row, value in enumerate(self._held.tolist()):
            if isinstance(value, list | tuple | dict | set | np.ndarray):
                raise ValueError(
                    f"data, row {row + 1}: expected a number or a word in {self}, got a "
                    f"{type(value).__name__}; give each part a column{self.advice.replace(';', ', or', 1)}"
                )
        return super().texts

    def _written(self, row: int) -> tuple[str, str]:
        return f"data, row {row + 1}", str(self.values[row])


def as_numbers(
    rows: np.ndarray,
    levels: Sequence[tuple[str, ...]],
    names: Sequence[str] = (),
    ignored: Collection[int] = (),
    source: str = "x",
    unseen: dict[str, Counter[str]] | None = None,
) -> np.ndarray:
    """Read rows of numbers and words as :class:`InMemory` and :func:`read_csv` do.

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
        if isinstance(values, Tensor):
            known = values.detach().cpu()  # NumPy has no bfloat16
            return (known.float() if known.dtype == torch.bfloat16 else known).numpy()
        return np.asarray(values)
    except ValueError:  # NumPy's message is about its own parts
        raise ValueError(f"{source}: expected rows of one shape, got several shapes") from None


def names_of(data: Any) -> tuple[Any, ...]:
    """Names of the columns of a data frame or an Arrow table; none of an array."""
    return tuple(getattr(data, "column_names", getattr(data, "columns", ())))


def _columns(frame: Any, source: str) -> dict[str, np.ndarray]:
    """Columns of a data frame by name; raises ValueError if two have the same."""
    names = names_of(frame)
    check_different_names(map(str, names), source)
    columns = {str(name): np.asarray(frame[name]) for name in names}
    for name, values in columns.items():
        if values.dtype.kind in "mM":  # dates and times are words, of which NaT is none
            columns[name] = values.astype(f"{values.dtype.kind}8[us]").astype(object)
    return columns


def _numbers(values: np.ndarray) -> np.ndarray | None:
    """Values of a column as float64 [n]; None if there are words among them."""
    plain = [math.nan if _missing(value) else value for value in values] if values.dtype == object else values
    try:
        numbers = None if values.dtype.kind == "c" else np.asarray(plain, dtype=np.float64)
        return None if numbers is None or numbers.ndim != 1 else numbers
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
        found = f"shape {list(values.shape)}" if values.ndim else labels
        raise ValueError(
            f"labels: expected values [n] or [n, L], or names of columns as strings, got {found}"
        )
    return {f"label{column}": values[:, column] for column in range(values.shape[1])}


def _padded(rows: Sequence[Sequence[str]]) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[""] * (width - len(row))] for row in rows])


def _text(value: Any) -> str:
    """A value as text; '' if it is missing. A truth value is 0 or 1."""
    return "" if _missing(value) else str(int(value) if isinstance(value, bool) else value).strip()


def _label(value: Any) -> str:
    """A label's value as text; '' if it is unknown. 1.0 is 1, as frames have no integers beside gaps."""
    if _missing(value) or value == -1 or (isinstance(value, str) and is_missing(value)):
        return ""
    return _text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _missing(value: Any) -> bool:
    """True for None, NaN, and the marks for missing values of data frames."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "<NA>", "NaT"))
