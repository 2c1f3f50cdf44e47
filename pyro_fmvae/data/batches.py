"""Batches of a split, exactly resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.dataset import Split
from pyro_fmvae.data.readable_rows import BLOCK, WINDOW, ReadableRows, rows_in
from pyro_fmvae.data.storage import as_float, sample_binary


class Batches:
    """A re-iterable loader: one iteration is one epoch.

    Every epoch visits each row once; the last batch is short where `batch_size` does not divide the number of
    rows, and left out with `full`. Batches are ``(x,)`` or ``(x, labels)``: float32 [B, *event_shape] and
    int64 [B, L]; with `indexed`, ``(x, rows)`` or ``(x, labels, rows)``.

    The order of an epoch is a function of (`seed`, epoch). The pixels that dynamic binarisation draws are a
    function of (`seed`, epoch, position of the batch) and of the kind of device. The state is two integers.
    It moves on when a batch is handed out: a checkpoint written in the body of the loop continues with the
    next batch, and a new iteration continues one that was broken off.

    Rows that are not held in memory are read by :class:`Windows`, which has its own order of an epoch. One
    iteration at a time goes through them.

    Args:
        split: the rows. Those in memory are kept on `device` as they are stored.
        batch_size: B, at least 1; it may exceed the number of rows.
        seed: of the order and of the drawn pixels, at least 0.
        shuffle: draw a new order in each epoch; False keeps the order of the rows.
        device: device of the batches.
        indexed: append the indices of the rows in the split, int64 [B].
        full: leave out a short last batch, so that all batches have one shape. The order of each epoch is
            random, so every row is left out equally often. Without effect where one batch holds all rows.

    Raises:
        ValueError: `batch_size` < 1, `seed` < 0, or an empty split.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        device: torch.device | str = "cpu",
        indexed: bool = False,
        full: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed: expected at least 0, got {seed}")
        if len(split) == 0:
            raise ValueError("split: expected at least one row, got an empty split")
        self.num_data = len(split)
        """Number of rows: N."""
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.device = torch.device(device)
        self.indexed = indexed
        self.full = full
        self._x = split.x.to(self.device) if isinstance(split.x, Tensor) else split.x
        self._labels = None if split.labels is None else split.labels.to(self.device)
        self._resample, self._signed = split.resample, split.signed
        self._epoch = 0
        self._position = 0

    def __len__(self) -> int:
        if self.full:
            return max(self.num_data // self.batch_size, 1)
        return -(-self.num_data // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the remaining batches of the current epoch."""
        epoch = self._epoch
        with self._opened(epoch) as source:
            while self._epoch == epoch:
                position = self._position
                self._epoch, self._position = divmod(epoch * len(self) + position + 1, len(self))
                yield self._batch(source, epoch, position)

    def state_dict(self) -> dict[str, int]:
        """Return the place of the next batch: `epoch` and `position`, both counted from 0."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a state of a loader with the same split, `batch_size`, `seed` and `shuffle`.

        Raises:
            ValueError: a key is missing or a number out of range.
        """
        missing = {"epoch", "position"} - set(state)
        if missing:
            raise ValueError(f"state: expected the keys epoch and position, got {sorted(state)}")
        epoch, position = state["epoch"], state["position"]
        if epoch < 0 or not 0 <= position < len(self):
            raise ValueError(
                f"state: expected epoch >= 0 and 0 <= position < {len(self)}, got {epoch} and {position}"
            )
        self._epoch, self._position = epoch, position

    def _batch(self, source: _Epoch, epoch: int, position: int) -> tuple[Tensor, ...]:
        start = position * self.batch_size
        stored, rows = source.take(start, min(start + self.batch_size, self.num_data))
        if self._resample:
            stored = sample_binary(stored, self._generator(epoch, position, device=self.device))
        batch = [as_float(stored, self._signed)]
        if self._labels is not None:
            batch.append(self._labels.index_select(0, rows))
        if self.indexed:
            batch.append(rows)
        return tuple(batch)

    @contextmanager
    def _opened(self, epoch: int) -> Iterator[_Epoch]:
        if isinstance(self._x, Tensor):
            yield _Held(self._x, self._order(epoch))
            return
        windows = Windows(self._x, partial(self._generator, epoch) if self.shuffle else None, self.device)
        try:
            yield windows
        finally:
            windows.close()

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.num_data, device=self.device)
        return torch.randperm(self.num_data, generator=self._generator(epoch)).to(self.device)

    def _generator(self, *key: int, device: torch.device | str = "cpu") -> torch.Generator:
        """Make a generator seeded by `seed` and `key`, independent between keys of any length."""
        entropy = np.random.SeedSequence(self.seed, spawn_key=key)
        return torch.Generator(device).manual_seed(int(entropy.generate_state(1)[0]))


class _Epoch(Protocol):
    """Rows of an epoch in its order."""

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Rows at these places, as they are stored, and their indices."""


class _Held(NamedTuple):
    """Rows in memory, [n, *event_shape], and their order, int64 [n]."""

    x: Tensor
    order: Tensor

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = self.order[start:stop]
        return self.x.index_select(0, rows), rows


def whole(split: Split, device: torch.device | str = "cpu") -> tuple[Tensor, ...]:
    """Return all rows in their order, as one batch; dynamic binarisation draws with a fixed seed.

    Raises:
        ValueError: an empty split.
    """
    return next(iter(Batches(split, max(len(split), 1), shuffle=False, device=device)))


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
        """Stop reading."""
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
