"""Tables of counts, such as the molecules of each gene in a cell, and the batch that each row is of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, get_type_hints

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.files.untrusted import check_type

LARGEST: Final = 2**24
"""Largest count: beyond it, float32 has no longer every whole number."""
MOST_BATCHES: Final = 1000


@dataclass(frozen=True)
class CountOptions:
    """How to read counts."""

    batch_column: str | None = None
    """Column that tells which batch a row is of, by words or numbers: of the table, or of `obs`."""
    layer: str | None = None
    """Layer of a .h5ad file that holds the counts; None: X."""


@dataclass(frozen=True)
class CountTable:
    """The map from raw rows to observations.

    An observation has the counts as they are and then, if there are batches, the number 0, 1, … of its own.
    """

    options: CountOptions
    """As the file was read."""
    total: float
    """Median of the training rows' totals."""
    batch: int | None = None
    """Which raw column, from 0, is the batch; None: there is none."""
    batches: tuple[float, ...] = ()
    """The raw numbers in that column, in the order in which they are numbered."""

    @classmethod
    def fit(
        cls,
        pieces: Iterable[np.ndarray],
        shape: tuple[int, ...],
        training: np.ndarray,
        options: CountOptions,
        column_names: Sequence[str],
        levels: Sequence[tuple[str, ...]],
        source: str,
    ) -> CountTable:
        """Find the batches of all rows, and the total that is typical of the training rows.

        Args:
            pieces: all raw rows, some after the other, [k, D] each.
            shape: of all raw rows, [n, D].
            training: indices of the training rows.
            options: as they were read.
            column_names: of the columns [D], or none.
            levels: words of the columns [D], or none.
            source: name of the rows in messages.

        Raises:
            ValueError: no rows of a table, words in a column of counts, no such column of batches, too many
                batches, or numbers that are no counts.
        """
        if len(shape) != 2:
            raise ValueError(f"{source}: expected a table of counts [n, D], got {list(shape)}")
        batch, name = None, options.batch_column
        if name is not None:
            if name not in column_names:
                raise ValueError(f"batch_column: expected a column of {source}, but there is no {name!r}")
            if shape[1] == 1:
                raise ValueError(
                    f"batch_column: expected columns of counts beside {name!r}, but there are none"
                )
            batch = list(column_names).index(name)
        for column, words in enumerate(levels):
            if words and column != batch:
                raise ValueError(
                    f"{source}: expected counts in column {column_names[column]!r}, got {words[0]!r}"
                )
        totals, batches, number = [], np.empty(0), 0
        for part in pieces:
            counts = _without(part, batch)
            _check_counts(counts, np.arange(number, number + len(part)), _but(column_names, batch), source)
            number += len(part)
            totals.append(counts.sum(axis=1, dtype=np.float64))
            if batch is not None:
                batches = np.union1d(batches, part[:, batch])
        if len(batches) > MOST_BATCHES:
            raise ValueError(
                f"batch_column: expected at most {MOST_BATCHES:,} batches, {name!r} has {len(batches):,}"
            )
        total = float(np.median(np.concatenate(totals)[training]))
        return cls(options, total, batch, tuple(batches.tolist()))

    def __call__(
        self, raw: np.ndarray, source: str, column_names: Sequence[str] = (), rows: np.ndarray | None = None
    ) -> Tensor:
        """Convert raw rows [n, D] to float32 [n, D].

        Args:
            raw: numbers.
            source: name of the array in messages.
            column_names: of the columns, for messages.
            rows: numbers of the rows, for messages; None: they are all rows.

        Raises:
            ValueError: numbers that are no counts, a row of nothing but zeros, or an unknown batch; it names
                the row, from 0, and the column.
        """
        rows = np.arange(len(raw)) if rows is None else rows
        counts = _without(raw, self.batch)
        _check_counts(counts, rows, _but(column_names, self.batch), source)
        x = counts.astype(np.float32)
        if self.batch is None:
            return torch.from_numpy(x)
        same = raw[:, self.batch, None] == np.array(self.batches)
        unknown = ~same.any(axis=1)
        if unknown.any():
            place = int(unknown.argmax())
            known = ", ".join(f"{number:g}" for number in self.batches)
            raise ValueError(
                f"{source}: expected one of the training's batches, {known}, in column "
                f"{self.options.batch_column!r}, got {raw[place, self.batch]:g} in row {rows[place]}"
            )
        return torch.from_numpy(np.column_stack([x, same.argmax(axis=1).astype(np.float32)]))

    def inverse(self, x: Tensor) -> Tensor:
        """Give rows [..., D] that end in the number of a batch the order and the numbers of raw ones."""
        if self.batch is None:
            return x
        counts, batch = x[..., :-1], x.new_tensor(self.batches)[x[..., -1:].long()]
        return torch.cat([counts[..., : self.batch], batch, counts[..., self.batch :]], -1)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {**asdict(self), "batches": list(self.batches)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> CountTable:
        """Invert `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: `state` is not what `to_dict` writes.
        """
        options = CountOptions(**state["options"])
        found = cls(options, state["total"], state["batch"], tuple(state["batches"]))
        for checked in (options, found):
            for name, hint in get_type_hints(type(checked)).items():
                check_type(name, getattr(checked, name), hint)
        return found


def _without(x: np.ndarray, column: int | None) -> np.ndarray:
    return x if column is None else np.delete(x, column, axis=1)


def _but(names: Sequence[str], column: int | None) -> list[str]:
    return [name for index, name in enumerate(names) if index != column]


def _check_counts(counts: np.ndarray, rows: np.ndarray, names: Sequence[str], source: str) -> None:
    """Raise ValueError unless all are counts [n, D], with some in each row."""
    wrong = ~((counts >= 0) & (counts <= LARGEST) & (counts == np.floor(counts)))
    if wrong.any():
        place, column = (int(index) for index in np.argwhere(wrong)[0])
        title = repr(names[column]) if names else str(column + 1)
        hint = "" if counts[place, column] < 0 else "; normalised values are no counts"
        raise ValueError(
            f"{source}: expected counts, whole numbers from 0 to {LARGEST:,}, got "
            f"{counts[place, column]:g} in column {title} of row {rows[place]}{hint}"
        )
    empty = ~counts.any(axis=1)
    if empty.any():
        raise ValueError(
            f"{source}: expected a count in every row, but row {rows[empty.argmax()]} has none; leave it out"
        )
