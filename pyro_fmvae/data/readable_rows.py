"""Observations that are read when they are needed, and need not fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import Tensor

WINDOW: Final = 64 << 20
"""Bytes of rows that are read and held at once."""
BLOCK: Final = 256 << 10
"""Bytes of neighbouring rows that stay together when an epoch is put in order: see :class:`Windows`."""


class ReadableRows(Protocol):
    """Observations of a split that are not held in memory.

    A tensor holds the same in memory; :func:`read` and its like take either.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, *event_shape]."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors that are read: bool, uint8 or float32, as in `Split.x`."""

    def __len__(self) -> int:
        """Number of rows: n."""

    def read(self, rows: Tensor) -> Tensor:
        """Read the rows at the indices int64 [m], in that order: [m, *event_shape], on the CPU.

        It is called in a thread of its own, and is fastest where neighbours are asked for together.
        """


class Selection:
    """Some rows of others, in any order.

    Args:
        source: the others.
        index: their rows, int64 [n].
    """

    def __init__(self, source: ReadableRows, index: Tensor) -> None:
        self.source, self.index = source, index

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.source.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.index)

    def read(self, rows: Tensor) -> Tensor:
        return self.source.read(self.index[rows])


def read(x: Tensor | ReadableRows, rows: Tensor) -> Tensor:
    """Take the rows at the indices int64 [m] into memory: [m, *event_shape]."""
    return x[rows] if isinstance(x, Tensor) else x.read(rows)


def select(x: Tensor | ReadableRows, rows: Tensor) -> Tensor | ReadableRows:
    """The rows at the indices int64 [m]: a copy of those in memory, and a :class:`Selection` of others."""
    if isinstance(x, Tensor):
        return x[rows]
    return Selection(x.source, x.index[rows]) if isinstance(x, Selection) else Selection(x, rows)


def joined(parts: list[Tensor | ReadableRows]) -> Tensor | ReadableRows:
    """Rows one after another: all in memory, or all selected from one source.

    Raises:
        ValueError: neither is so.
    """
    held = [part for part in parts if isinstance(part, Tensor)]
    if len(held) == len(parts):
        return torch.cat(held)
    chosen = [part for part in parts if isinstance(part, Selection)]
    if len(chosen) < len(parts) or any(part.source is not chosen[0].source for part in chosen):
        raise ValueError("parts: expected rows in memory, or selections of the same rows")
    return Selection(chosen[0].source, torch.cat([part.index for part in chosen]))


def pieces(x: Tensor | ReadableRows) -> Iterator[Tensor]:
    """All rows in their order: those in memory at once, others window by window."""
    if isinstance(x, Tensor):
        yield x
        return
    for rows in torch.arange(len(x)).split(rows_in(WINDOW, x)):
        yield x.read(rows)


def rows_in(size: int, x: ReadableRows) -> int:
    """How many rows take so many bytes, at least 1."""
    return max(1, size // max(1, math.prod(x.shape[1:]) * x.dtype.itemsize))
