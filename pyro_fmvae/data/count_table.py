"""Tables of counts, such as the molecules of each gene in a cell, and the batch that each row is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, get_type_hints

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.untrusted import check_type

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
        x: np.ndarray,
        training: np.ndarray,
        options: CountOptions,
        column_names: Sequence[str],
        levels: Sequence[tuple[str, ...]],
        source: str,
    ) -> CountTable:
        """Find the batches of all rows, and the total that is typical of the training rows.

        Args:
            x: raw rows [n, D].
            training: indices of the training rows.
            options: as they were read.
            column_names: of the columns [D], or none.
            levels: words of the columns [D], or none.
            source: name of the rows in messages.

        Raises:
            ValueError: no rows of a table, words in a column of counts, no such column of batches, or too
                many batches.
        """
        if x.ndim != 2:
            raise ValueError(f"{source}: expected a table of counts [n, D], got {list(x.shape)}")
        batch, batches, name = None, (), options.batch_column
        if name is not None:
            if name not in column_names:
                raise ValueError(f"batch_column: expected a column of {source}, there is no {name!r}")
            batch = list(column_names).index(name)
            batches = tuple(np.unique(x[:, batch]).tolist())
            if len(batches) > MOST_BATCHES or x.shape[1] == 1:
                raise ValueError(
                    f"batch_column: expected columns of counts, and at most {MOST_BATCHES:,} batches beside "
                    f"them, {name!r} has {len(batches):,}"
                )
        for column, words in enumerate(levels):
            if words and column != batch:
                raise ValueError(
                    f"{source}: expected counts in column {column_names[column]!r}, got {words[0]!r}"
                )
        total = float(np.median(_without(x[training], batch).sum(axis=1, dtype=np.float64)))
        return cls(options, total, batch, batches)

    def __call__(self, raw: np.ndarray, source: str, column_names: Sequence[str] = ()) -> Tensor:
        """Convert raw rows [n, D] to float32 [n, D].

        Args:
            raw: numbers.
            source: name of the array in messages.
            column_names: of the columns, for messages.

        Raises:
            ValueError: numbers that are no counts, a row of nothing but zeros, or an unknown batch; it names
                the row, from 0, and the column.
        """
        counts = _without(raw, self.batch)
        wrong = ~((counts >= 0) & (counts <= LARGEST) & (counts == np.floor(counts)))
        if wrong.any():
            row, column = (int(place) for place in np.argwhere(wrong)[0])
            names = [name for index, name in enumerate(column_names) if index != self.batch]
            title = repr(names[column]) if names else str(column + 1)
            hint = "" if counts[row, column] < 0 else "; normalised values are no counts"
            raise ValueError(
                f"{source}: expected counts, whole numbers from 0 to {LARGEST:,}, got "
                f"{counts[row, column]:g} in column {title} of row {row}{hint}"
            )
        empty = ~counts.any(axis=1)
        if empty.any():
            raise ValueError(
                f"{source}: expected a count in every row, row {int(empty.argmax())} has none; leave it out"
            )
        x = counts.astype(np.float32)
        if self.batch is None:
            return torch.from_numpy(x)
        same = raw[:, self.batch, None] == np.array(self.batches)
        unknown = ~same.any(axis=1)
        if unknown.any():
            row = int(unknown.argmax())
            known = ", ".join(f"{number:g}" for number in self.batches)
            raise ValueError(
                f"{source}: expected one of the training's batches, {known}, in column "
                f"{self.options.batch_column!r}, got {raw[row, self.batch]:g} in row {row}"
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
