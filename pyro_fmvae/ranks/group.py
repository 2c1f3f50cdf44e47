"""A process group as training uses it: sums, rows in order, and decisions that all ranks take alike."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_fmvae.ranks.share import Share


class AnotherRankError(ValueError):
    """Work that was to be done together failed on another rank.

    Attributes:
        kind: name of the class of the error there.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class LostRankError(RuntimeError):
    """A rank does not answer any more."""


class Ranks:
    """The processes of a group, each of which makes the same calls in the same order.

    Args:
        group: a ``torch.distributed`` group; None: this process is alone, and all of this does nothing.

    Attributes:
        rank: of this process within the group.
        size: number of ranks.
        checked: whether a training is to check now and then that all have the same numbers.
    """

    checked = False

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self._device = "cuda" if group is not None and dist.get_backend(group) == "nccl" else "cpu"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return self

    @property
    def alone(self) -> bool:
        """True if there is no group."""
        return self.group is None

    @property
    def leads(self) -> bool:
        """True on the one rank that writes, logs and draws."""
        return self.rank == 0

    def share(self, total: int) -> Share:
        """The rows of a batch that this rank works on."""
        return Share.of(total, self.rank, self.size)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Put the sum over all ranks in the place of each tensor."""
        if not self.alone:
            with _talking():
                for tensor in tensors:
                    dist.all_reduce(tensor, group=self.group)

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

    def added(self, numbers: Sequence[float]) -> list[float]:
        """For each number the sum over ranks."""
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        self.add([values])
        return values.tolist()

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """For each number the largest one of any rank."""
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        with _talking():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values.tolist()

    def texts(self, text: str) -> list[str]:
        """The text of every rank."""
        if self.alone:
            return [text]
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._device)
        (longest,) = self.largest([len(own)])
        sent = torch.zeros(8 + longest, dtype=torch.uint8, device=self._device)
        sent[:8] = torch.tensor(list(len(own).to_bytes(8, "little")), dtype=torch.uint8)
        sent[8 : 8 + len(own)] = own
        found = [torch.empty_like(sent) for _ in range(self.size)]
        with _talking():
            dist.all_gather(found, sent, group=self.group)
        parts = [bytes(each.tolist()) for each in found]
        return [part[8 : 8 + int.from_bytes(part[:8], "little")].decode() for part in parts]

    def share_random_state(self) -> None:
        """Have all ranks go on from the state of torch's generators that rank 0 has."""
        digest = random_digest()
        above, below = self.largest([digest, -digest])
        if above == -below:
            return
        state = torch.get_rng_state().to(self._device)
        self.copy_from_first([state])
        torch.set_rng_state(state.cpu())
        if torch.cuda.is_initialized():
            state = torch.cuda.get_rng_state().to(self._device)
            self.copy_from_first([state])
            torch.cuda.set_rng_state(state.cpu())

    @contextmanager
    def agreeing(self, same_draws: bool = True) -> Iterator[None]:
        """Do something that all ranks do; if it fails on one, it fails on all.

        Args:
            same_draws: whether all are to leave torch's generators in the same state.

        Raises:
            AnotherRankError: it failed on another rank; the message says on which, and why. The rank itself
                raises its own error.
            RuntimeError: with ``same_draws``, they have not.
        """
        if self.alone:
            yield
            return
        try:
            yield
        except Exception as error:
            self._agree(error, 0)
            raise
        self._agree(None, random_digest() if same_draws else 0)

    def _agree(self, error: Exception | None, state: int) -> None:
        failed, above, below = self.largest([error is not None, state, -state])
        if failed:
            lines = (str(error).splitlines() or [""]) if error is not None else [""]
            kind = "" if error is None else type(error).__name__
            found = [text.partition(" ") for text in self.texts(f"{kind} {lines[0]}".strip())]
            rank = next(number for number, (kind, _, _) in enumerate(found) if kind)
            self.share_random_state()
            if error is None:
                kind, _, reason = found[rank]
                raise AnotherRankError(f"rank {rank}: {reason or kind}", kind)
            if not isinstance(error, AnotherRankError):
                error.first_rank = rank  # type: ignore[attr-defined]  # who tells of it
        elif above != -below:
            self.share_random_state()
            raise RuntimeError(
                "the ranks have drawn random numbers in different ways: the program draws for the rows of a "
                "batch in a shape that does not show them. Draw in a plate of the data, or in tensors with "
                "one dimension as long as the batch"
            )


@contextmanager
def _talking() -> Iterator[None]:
    """Tell errors of the connection from others."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError((str(error).splitlines() or ["no answer"])[0]) from error


def random_digest() -> int:
    """A number that tells states of torch's generators apart, below 2^62."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    found = hashlib.blake2b(b"".join(state.numpy().tobytes() for state in states), digest_size=7)
    return int.from_bytes(found.digest(), "little")
