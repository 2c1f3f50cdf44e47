"""An epoch of rows that are read from disk, in an order that reads neighbours together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from pyro_fmvae.data.readable_rows import BLOCK, WINDOW, ReadableRows, rows_in


class Windows:
    """Rows of an epoch, taken in order from its start to its end, without being held all at once.

    The rows are cut into blocks of neighbours. A shuffled epoch takes the blocks in random order, joins as
    many of them as make a window, and shuffles the rows within each window. So the disk is read in pieces of
    `block` bytes, while a batch draws from all blocks of its window. Rows that fit into a single window get
    the same order as rows in memory.

    A thread reads the next window meanwhile. At most two windows are held, each of `window` bytes or little
    more. On a GPU the window lies there, copied from pinned memory without waiting.

    Args:
        x: the rows.
        generator: makes a generator for the order of the blocks, ``generator()``, and one for the rows of
            window i, ``generator(i, 0)``; None keeps the order of the rows.
        device: where batches are to be.
        window, block: sizes in bytes.
    """

    def __init__(
        self,
        x: ReadableRows,
        generator: Callable[..., torch.Generator] | None,
        device: torch.device,
        window: int = WINDOW,
        block: int = BLOCK,
    ) -> None:
        self._x, self._generator, self._device = x, generator, device
        self._block = rows_in(block, x)
        self._length = max(1, rows_in(window, x) // self._block) * self._block  # of a window, in rows
        blocks = -(-len(x) // self._block)
        self._shuffled = generator is not None and len(x) > self._length
        self._blocks = torch.arange(blocks)
        if generator is not None and self._shuffled:
            self._blocks = torch.randperm(blocks, generator=generator())
        sizes = torch.full((blocks,), self._block)
        sizes[-1] = len(x) - self._block * (blocks - 1)
        self._ends = sizes[self._blocks].cumsum(0)[self._per_window - 1 :: self._per_window].tolist()
        if not self._ends or self._ends[-1] < len(x):
            self._ends.append(len(x))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._read: dict[int, Future[tuple[Tensor, Tensor]]] = {}
        self._there: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def _per_window(self) -> int:
        return self._length // self._block

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Rows at places ``start`` to ``stop`` of the epoch, as they are stored, and their indices.

        Args:
            start: not less than before.
            stop: more than `start`, at most the number of rows.
        """
        number = next(i for i, end in enumerate(self._ends) if end > start)
        parts, place = [], start
        while place < stop:
            end = min(stop, self._ends[number])
            begin = self._ends[number - 1] if number else 0
            parts.append([part[place - begin : end - begin] for part in self._window(number)])
            place, number = end, number + 1
        for old in [old for old in self._there if self._ends[old] <= stop]:
            del self._there[old]
        if len(parts) == 1:
            stored, rows = parts[0]
        else:
            stored, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        parts.clear()  # so that a window that has been left is let go before the next one is read
        if number < len(self._ends):
            self._begin(number)
        return stored, rows

    def close(self) -> None:
        """Read no more."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _begin(self, number: int) -> None:
        """Begin to read a window, unless that is under way."""
        if number not in self._read:
            self._read[number] = self._reader.submit(self._load, number)

    def _window(self, number: int) -> tuple[Tensor, Tensor]:
        if number not in self._there:
            self._begin(number)
            stored, rows = self._read.pop(number).result()
            if self._device.type == "cuda":
                stored, rows = stored.pin_memory(), rows.pin_memory()
            self._there[number] = (
                stored.to(self._device, non_blocking=True),
                rows.to(self._device, non_blocking=True),
            )
        return self._there[number]

    def _load(self, number: int) -> tuple[Tensor, Tensor]:
        """Read a window in the order of the epoch, and the indices of its rows."""
        rows = self._rows(number)
        if self._generator is not None:
            keys = (number, 0) if self._shuffled else ()
            rows = rows[torch.randperm(len(rows), generator=self._generator(*keys))]
        return self._x.read(rows), rows

    def _rows(self, number: int) -> Tensor:
        """Indices of the rows of a window, block by block."""
        blocks = self._blocks[number * self._per_window : (number + 1) * self._per_window]
        rows = (blocks[:, None] * self._block + torch.arange(self._block)).flatten()
        return rows[rows < len(self._x)]
