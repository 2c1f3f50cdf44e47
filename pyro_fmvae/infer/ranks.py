"""Processes that train one model together: each takes a share of every batch, and gradients are averaged.

All ranks make the same calls with the same batches and the same state of torch's generators, so that
everything but a step is that of a single process, and equal on all ranks. In a step each rank takes its
share of the rows, with random numbers of its own: the seed is a common draw plus the rank. Its loss and
gradients, natural ones included, are added with the weight B_r / B: the step is unbiased for uneven shares,
and all ranks have the same bits afterwards. Whatever depends on a clock, a signal or a measure comes from
rank 0, and it alone writes.

A collective that not every rank reaches waits for the timeout of the group: put what may fail into
:meth:`Ranks.agreeing`, and no collective behind a condition that ranks may see differently.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Share(NamedTuple):
    """Rows ``start`` to ``stop`` of a batch of ``total``; the weights of all ranks, in [0, 1], add up to 1.

    A rank for which there is no row takes one that another rank has, with weight 0: programs need rows.
    """

    start: int
    stop: int
    total: int
    weight: float

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> "Share":
        """The share of a rank out of ``size``: shares differ by one row at most, in the order of ranks.

        Raises:
            ValueError: an empty batch.
        """
        if total < 1:
            raise ValueError("batch: expected at least one row, got none")
        start, stop = rank * total // size, (rank + 1) * total // size
        if start < stop:
            return cls(start, stop, total, (stop - start) / total)
        row = min(start, total - 1)
        return cls(row, row + 1, total, 0.0)

    def cut(self, arguments: Any) -> Any:
        """Arguments, however nested, with these rows alone in the first dimension as long as the batch."""

        def own(tensor: Tensor) -> Tensor:
            if self.total not in tensor.shape:
                return tensor
            return tensor.narrow(tensor.shape.index(self.total), self.start, self.stop - self.start)

        return tree_map_only(Tensor, own, arguments)


class AnotherRankError(ValueError):
    """Work that was to be done together failed on another rank."""


class LostRankError(RuntimeError):
    """A rank does not answer any more."""


class Ranks:
    """The processes of a group, each of which makes the same calls in the same order.

    Args:
        group: a ``torch.distributed`` group; None: this process is alone, and all of this does nothing.

    Attributes:
        rank, size: of this process within the group, and number of ranks.
        checked: whether a training is to check now and then that all have the same numbers.
    """

    checked = False

    def __init__(self, group: Any = None) -> None:
        self.group, self.alone = group, group is None
        self.rank, self.size = (0, 1) if self.alone else (dist.get_rank(group), dist.get_world_size(group))
        self.leads = self.rank == 0
        self._device = "cuda" if not self.alone and dist.get_backend(group) == "nccl" else "cpu"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return self

    @contextmanager
    def own_draws(self) -> Iterator[None]:
        """Draw other random numbers on every rank inside; the common generators move on by one draw."""
        if self.size == 1:
            yield
            return
        seed = int(torch.randint(2**62, ())) + self.rank
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            torch.manual_seed(seed)
            yield

    def add(self, tensors: Iterable[Tensor], op: Any = dist.ReduceOp.SUM) -> None:
        """Put the sum over all ranks in the place of each tensor."""
        if not self.alone:
            with _talking():
                for tensor in tensors:
                    dist.all_reduce(tensor, op, group=self.group)

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Put the values of rank 0 in the place of those of the other ranks."""
        if not self.alone:
            source = dist.get_global_rank(self.group, 0)
            with _talking(), torch.no_grad():
                for tensor in tensors:
                    sent = tensor.detach().contiguous()
                    dist.broadcast(sent, source, group=self.group)
                    tensor.copy_(sent)

    def numbers_of_first(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of rank 0."""
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        self.copy_from_first([values])
        return values.tolist()

    def largest(self, number: int) -> int:
        """The largest number of any rank."""
        if self.alone:
            return number
        value = torch.tensor(number, device=self._device)
        self.add([value], dist.ReduceOp.MAX)
        return int(value)

    def texts(self, text: str) -> list[str]:
        """The text of every rank."""
        if self.alone:
            return [text]
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._device)
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self._device)
        lengths[self.rank] = len(own)
        self.add([lengths])
        sent = own.new_zeros(int(lengths.max()))
        sent[: len(own)] = own
        found = [torch.empty_like(sent) for _ in range(self.size)]
        with _talking():
            dist.all_gather(found, sent, group=self.group)
        return [bytes(part[:n].tolist()).decode() for part, n in zip(found, lengths.tolist(), strict=True)]

    def of_first(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0 alone; its result, something for JSON, on all ranks."""
        with self.agreeing():
            found = function() if self.leads else None
        return found if self.alone else json.loads(self.texts(json.dumps(found))[0])

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Do something that all ranks do; if it fails on one, it fails on all.

        Raises:
            AnotherRankError: it failed on another rank; the message says on which, and why. The rank itself
                raises its own error.
        """
        try:
            yield
        except Exception as error:
            if not self.alone and not isinstance(error, LostRankError):
                self.largest(1)
                failed = self._failures(f"{type(error).__name__} {error}")
                error.first_rank = failed[0][0]  # type: ignore[attr-defined]  # who tells of it
            raise
        if not self.alone and self.largest(0):
            rank, text = self._failures("")[0]
            kind, _, reason = text.partition(" ")
            raise AnotherRankError(f"rank {rank}: {(reason.splitlines() or [kind])[0]}")

    def _failures(self, text: str) -> list[tuple[int, str]]:
        return [(rank, found) for rank, found in enumerate(self.texts(text)) if found]


@contextmanager
def _talking() -> Iterator[None]:
    """Tell errors of the connection from others."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError((str(error).splitlines() or ["no answer"])[0]) from error


class FlatSums:
    """Tensors multiplied by a weight, end to end: one vector for each type, to be added by one call each.

    Attributes:
        flats: the vectors, in the order in which the types come.
    """

    def __init__(self, tensors: Sequence[Tensor], weight: float) -> None:
        self._like = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._types = list(dict.fromkeys(dtype for _, dtype in self._like))
        self.flats = [
            weight * torch.cat([tensor.reshape(-1) for tensor in tensors if tensor.dtype == dtype])
            for dtype in self._types
        ]

    def parts(self) -> list[Tensor]:
        """Views of the vectors in the shapes of the tensors, in their order."""
        pieces = {}
        for dtype, flat in zip(self._types, self.flats, strict=True):
            sizes = [shape.numel() for shape, kind in self._like if kind == dtype]
            pieces[dtype] = iter(flat.split(sizes))
        return [next(pieces[dtype]).view(shape) for shape, dtype in self._like]


_worlds = [Ranks()]


def world() -> Ranks:
    """The ranks that train together: those of :func:`together`, outside of it this process alone."""
    return _worlds[-1]


@contextmanager
def together(ranks: Ranks) -> Iterator[Ranks]:
    """Inside, loops, clocks, stopping and files are those of several ranks."""
    _worlds.append(ranks)
    try:
        yield ranks
    finally:
        _worlds.pop()
