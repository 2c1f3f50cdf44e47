"""A person's own arrays and data frames."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.column_plan import PlannedColumn, dated, entries_of, is_gap, is_missing, word_of
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.own.csv_file import INDEX, index_of, table_of, unique
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.npz_file import described, raw_of
from pyro_fmvae.data.own.raw import Raw


@dataclass(frozen=True, eq=False)
class InMemory:
    """Arrays or a data frame that Python holds: data like those of a file, of which a run keeps one.

    Attributes:
        x: observations; of a frame, None.
        columns: of a frame, by name.
        labels: texts of the values of each label, '' where one is unknown.
        kinds: of columns of a frame whose dtype tells, by name.
        index: of a frame, what names its rows, by name; the model does not take it.
        note: on names of columns of a frame that were not different.
    """

    x: np.ndarray | None
    columns: Mapping[str, np.ndarray]
    labels: Mapping[str, list[str]]
    kinds: tuple[tuple[str, str], ...] = ()
    index: Mapping[str, np.ndarray] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(cls, data: Any, labels: Any = None) -> "InMemory":
        """Take data and labels; frames are recognised by their attribute ``columns``, no library is imported.

        Args:
            data: an array or a tensor, or a data frame, whose columns are features. Missing numbers are NaN.
            labels: of a frame, names of the columns that are labels. Otherwise values [n] or [n, L], an
                array, a series, whose name is the label's, or a data frame. Values are integers, truth values
                or words; unknown are -1, NaN, None, '' and marks such as 'NA'. None: no labels.

        Raises:
            ValueError: an unknown column, no features, or labels of another number of rows.
        """
        own = _columns(data) if hasattr(data, "columns") else {}
        columns = _values(own)
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
        x = None if columns else _array(data, "data")
        if x is not None and x.dtype == object:
            raise ValueError("data: expected an array of numbers, or a data frame, got dtype object")
        rows = len(next(iter(columns.values()))) if x is None else len(x) if x.ndim else 0
        for texts in chosen.values():
            if rows and len(texts) != rows:
                raise ValueError(f"labels: expected {rows:,} values, one per row of data, got {len(texts):,}")
        categories = [name for name in columns if str(getattr(own[name], "dtype", "")) == "category"]
        note = unique(list(map(str, names_of(data))))[1]
        kinds = tuple((name, "category") for name in categories)
        return cls(x, columns, chosen, kinds, index_of(data), note)

    def __str__(self) -> str:
        return "data"

    @property
    def file(self) -> Path:
        """Name of the file that a run keeps."""
        return Path("data.csv" if self.x is None else "data.npz")

    def read(
        self,
        missing: bool = False,
        asked: TableOptions | None = None,
        plan: Sequence[PlannedColumn] = (),
        unseen: dict[str, Counter[str]] | None = None,
    ) -> Raw:
        """The contents, as those of the file that :meth:`write` writes.

        Args:
            missing: accept missing numbers in arrays.
            asked, plan, unseen: of a data frame: see :func:`~pyro_fmvae.data.own.csv_file.read_csv`.

        Raises:
            ValueError: contents that the reader of that file refuses.
        """
        if self.x is not None:
            return raw_of(self._arrays(), "data", missing)
        asked = asked or TableOptions()
        for name, values in self.columns.items():
            if name not in asked.ignore:
                _check_single(name, values)
        columns = [entries_of(name, values) for name, values in self.columns.items()]
        raw = table_of(columns, "data", asked, plan, unseen)
        return raw._replace(
            **described(self._described(), raw.x.shape, "data") | {"column_names": raw.column_names},
            note=self.note,
        )

    def write(self, folder: Path) -> Path:
        """Write arrays as ``data.npz``, and a frame as ``data.csv``."""
        path = folder / self.file
        if self.x is not None:
            with path.open("wb") as file:
                np.savez(file, **self._arrays())
            return path
        every = {INDEX + name: values for name, values in self.index.items()} | {**self.columns}
        texts = {name: [word_of(value) for value in values.tolist()] for name, values in every.items()}
        texts |= {f"label:{name}": values for name, values in self.labels.items()}
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(texts)
            writer.writerows(zip(*texts.values(), strict=True))
        return path

    def _arrays(self) -> dict[str, Any]:
        """Observations and labels: see :func:`read_npz`."""
        return {"x": self.x, **self._described()}

    def _described(self) -> dict[str, Any]:
        if not self.labels:
            return {}
        values = {name: find_values(texts, f"labels: '{name}'") for name, texts in self.labels.items()}
        coded = [code(texts, values[name], f"labels: '{name}'") for name, texts in self.labels.items()]
        arrays = {"labels": np.stack(coded, axis=1), "label_names": np.array(list(self.labels))}
        return arrays | ({"value_names": _padded(list(values.values()))} if any(values.values()) else {})


def _check_single(name: str, values: np.ndarray) -> None:
    """Raise ValueError if an entry of a column holds several values."""
    for row, value in enumerate(values.tolist() if values.dtype == object else ()):
        if isinstance(value, list | tuple | dict | set | np.ndarray):
            raise ValueError(
                f"data, row {row + 1}: expected a number or a word in column {name!r}, got a "
                f"{type(value).__name__}; give each part a column, or leave it out with ignore=[{name!r}]"
            )


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


def _columns(frame: Any) -> dict[str, Any]:
    """Columns of a data frame by their names, made different."""
    names = names_of(frame)
    if hasattr(frame, "iloc"):
        found = [frame.iloc[:, place] for place in range(len(names))]
    else:
        at = getattr(frame, "column", None)  # of an Arrow table
        found = [at(place) if callable(at) else frame[name] for place, name in enumerate(names)]
    return dict(zip(unique(list(map(str, names)))[0], found, strict=True))


def _values(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: dated(np.asarray(column)) for name, column in columns.items()}


def _label_columns(labels: Any) -> dict[str, np.ndarray]:
    """Values of each label, [n], by name."""
    if hasattr(labels, "columns"):
        return _values(_columns(labels))
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


def _label(value: Any) -> str:
    """A label's value as text; '' if it is unknown. 1.0 is 1, as frames have no integers beside gaps."""
    if is_gap(value) or value == -1 or (isinstance(value, str) and is_missing(value)):
        return ""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return word_of(int(value) if whole else value)
