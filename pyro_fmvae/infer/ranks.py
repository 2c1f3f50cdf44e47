"""Processes that train one model together: sums, rows in order, random numbers and shared decisions.

``ranks.md`` beside this file says what is shared, and how.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pyro_fmvae.distributions.recorded import is_recorded

# The rows of a batch that one rank works on.


@dataclass(frozen=True)
class Share:
    """Rows ``start`` to ``stop`` of a batch of ``total`` rows.

    A rank for which there is no row takes one that another rank has, with weight 0: programs need rows.

    Attributes:
        weight: part of the batch that the rows are, in [0, 1]. The weights of all ranks add up to 1.
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

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """True if it is all of the batch, so that there is nothing to cut."""
        return self.rows == self.total

    def cut(self, arguments: Any) -> Any:
        """Arguments, however nested, with these rows alone of every tensor that has a row per point.

        Those are the tensors with a dimension as long as the batch; the first such one is the rows'.
        """

        def own(tensor: Tensor) -> Tensor:
            if self.total not in tensor.shape:
                return tensor
            return tensor.narrow(list(tensor.shape).index(self.total), self.start, self.rows)

        return arguments if self.is_whole else tree_map_only(Tensor, own, arguments)


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


# Random numbers for the rows of one rank, as if the whole batch had been drawn.


_aten = torch.ops.aten
_BY_VALUE = {
    _aten._standard_gamma.default,
    _aten._sample_dirichlet.default,
    _aten.poisson.default,
    _aten.binomial.default,
    _aten.multinomial.default,
}
"""Draws that take as many random numbers as their arguments' values ask for, or hide the rows' dimension."""

NOWHERE = -1

_ACTIVE: list["OwnRows"] = []


class OwnRows(TorchDispatchMode):
    """Inside, whatever is drawn for the rows of a share is drawn for all rows, and cut.

    So every rank takes the same numbers from its generator, and the rows of all ranks together are those of a
    single process. Draws are of rows if one of their dimensions is as long as the share: at a sample site
    that of its plate of the data, which :class:`RowDimension` tells, elsewhere the first such. All others are
    the same on all ranks.

    Gamma, Poisson and the like take a number of random numbers that depends on values. Their draws come from
    a generator of the rank's own, which a seed from the common one starts: as good, but not those of a single
    process.

    Args:
        share: of this rank.
        ranks: those that share the batch.
        apart: True if draws of tensors that are not of rows are to be the rank's own, too.
        dim: the rows' dimension outside of sites, if it is one of several of that length; None: the first.

    Attributes:
        dim: where the rows are in draws of the sample site under way, from the left; ``NOWHERE`` where it is
            in no plate of the data. Outside of sites, as given.
        ranks, share: as given.
    """

    def __init__(self, share: Share, ranks: Ranks, apart: bool = False, dim: int | None = None) -> None:
        super().__init__()
        self.share, self.ranks, self._all_apart = share, ranks, apart
        self.dim, self._has_plate = dim, share.is_whole

    @staticmethod
    def active() -> "OwnRows | None":
        """The one that is entered, if any."""
        return _ACTIVE[-1] if _ACTIVE else None

    def __enter__(self) -> "OwnRows":
        _ACTIVE.append(self)
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> Any:
        _ACTIVE.pop()
        return super().__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.share.is_whole or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func in _BY_VALUE and self._rows_among(args):
            return self._apart(func, args, kwargs)
        given = next((a for a in args if isinstance(a, Tensor | list | tuple)), ())
        shape = list(given.shape if isinstance(given, Tensor) else given)
        dim = self._rows_in(shape)
        if dim is None:
            own = self._all_apart and self.dim != NOWHERE and isinstance(given, Tensor)
            return self._apart(func, args, kwargs) if own else func(*args, **kwargs)
        wide = [self.share.total if d == dim else size for d, size in enumerate(shape)]
        if not isinstance(given, Tensor):  # torch.rand, torch.randn, torch.randint
            args = tuple(wide if a is given else a for a in args)
            return self._own(func(*args, **kwargs), dim)

        def widened(tensor: Tensor) -> Tensor:
            return (
                tensor.index_select(dim, self._places(tensor.device))
                if list(tensor.shape) == shape
                else tensor
            )

        args, kwargs = tree_map_only(Tensor, widened, (args, kwargs))
        drawn = tree_map_only(Tensor, lambda wide: self._own(wide, dim), func(*args, **kwargs))
        return given.copy_(drawn) if func._schema.is_mutable else drawn  # of normal_, bernoulli_ and the like

    def see_plate(self) -> None:
        """Take note that the program has a plate of the data."""
        self._has_plate = True

    def check_plate(self) -> None:
        """Check that the program has a plate of the data, by which its loss is scaled.

        Raises:
            ValueError: it has none, or one that holds all points that it stands for.
        """
        if not self._has_plate:
            raise ValueError(
                "group: expected a plate of the data, pyro.plate(..., N, subsample=x), in the program; only "
                "the points of such a plate can be shared out among ranks"
            )

    def _rows_in(self, shape: Sequence[int]) -> int | None:
        """The dimension of a draw that is the rows'."""
        found = [dim for dim, size in enumerate(shape) if size == self.share.rows]
        if self.dim == NOWHERE or not found:
            return None
        return self.dim if self.dim in found else found[0]

    def _rows_among(self, args: Any) -> bool:
        """True if arguments are by rows."""
        if self.dim != NOWHERE:
            return any(self.share.rows in tensor.shape for tensor in args if isinstance(tensor, Tensor))
        return False

    def _own(self, wide: Tensor, dim: int) -> Tensor:
        return wide.narrow(dim, self.share.start, self.share.rows).contiguous()

    def _places(self, device: torch.device) -> Tensor:
        """Where to take a whole batch of valid arguments from, so that the own rows are in their place."""
        return (torch.arange(self.share.total, device=device) - self.share.start) % self.share.rows

    def _apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.partition("::")[2].lstrip("_")
        if is_recorded():
            raise NotImplementedError(
                f"{name}: draws of it cannot be shared out among ranks in a captured step"
            )
        device = args[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(2**62, ())) + self.ranks.rank)
            drawn = func(*args, **kwargs)
        torch.randint(2**62, ())  # the common generator moves on
        return drawn


class RowDimension(Messenger):
    """Tells an :class:`OwnRows` at each sample site where the rows are, by the site's plate of the data.

    A plate of the data is one that stands for more points than it holds, ``pyro.plate(..., N, subsample=x)``.

    Args:
        own: told; it has been entered.

    Raises:
        ValueError: at a site whose plate of the data is a loop over points, or chooses rows by itself.
    """

    def __init__(self, own: OwnRows) -> None:
        super().__init__()
        self._own = own

    def _pyro_sample(self, msg: Any) -> None:
        rows = self._own.share.rows
        if type(msg["fn"]).__name__ == "_Subsample":
            size, chosen = msg["fn"].size, msg["fn"].subsample_size
            if msg["value"] is None and chosen is not None and chosen < size:
                raise ValueError(_chosen(msg["name"], rows, chosen))
            return
        plates = [f for f in msg["cond_indep_stack"] if f.full_size is not None and f.full_size != f.size]
        for plate in plates:
            if not plate.vectorized:
                raise ValueError(
                    f"plate '{plate.name}': a loop over points cannot be shared out among ranks; vectorise it"
                )
            if plate.size != rows:
                raise ValueError(_chosen(plate.name, rows, plate.size))
            self._own.see_plate()
        if msg["value"] is None and not msg["done"]:
            outside = self._own.dim
            self._own.dim = len(msg["fn"].batch_shape) + plates[0].dim if plates else NOWHERE
            try:
                msg["value"] = msg["fn"](*msg["args"], **msg["kwargs"])
            finally:
                self._own.dim = outside


def _chosen(plate: str, rows: int, found: int) -> str:
    return (
        f"plate '{plate}': expected the {rows} rows of the arguments, subsample=x, got {found} others; rows "
        "that a plate chooses cannot be shared out among ranks"
    )


def row_dimension() -> AbstractContextManager[Any]:
    """A :class:`RowDimension` inside of an :class:`OwnRows`, elsewhere nothing.

    To be entered again behind each ``poutine.block``, which hides sites.
    """
    own = OwnRows.active()
    return nullcontext() if own is None else RowDimension(own)


@contextmanager
def drawing(share: Share | None, ranks: Ranks) -> Iterator[OwnRows | None]:
    """A program runs inside, on the rows of a share: what it draws is drawn for the whole batch, and cut.

    To be entered where a program is recorded, too; None: there is no share.
    """
    if share is None:
        yield None
        return
    with OwnRows(share, ranks) as own, row_dimension():
        yield own


# The rows of all ranks, in their order.


_c10d = torch.ops._c10d_functional


def whole_batch(tensor: Tensor, dim: int, counts: bool = False) -> Tensor:
    """All rows of a batch, inside of :class:`OwnRows`; elsewhere the tensor as it is.

    For what is not a sum over points, such as a penalty that compares them. Every rank computes it from all
    rows. The gradient goes to the own rows alone, divided by the rank's weight: weighted sums over ranks, of
    losses and of gradients, are then those of a single process.

    Args:
        tensor: with a row per point of the share.
        dim: the rows' dimension.
        counts: True for how many points each row stands for. That is less, where there are more rows.
    """
    own = OwnRows.active()
    if own is None or own.share.is_whole:
        return tensor
    if counts:
        tensor = own.share.weight * tensor
    found: Tensor = _Gathered.apply(tensor, dim % tensor.dim(), own.share, own.ranks)
    return found


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, share: Share, ranks: Ranks) -> Tensor:
        ctx.dim, ctx.share = dim, share
        return gathered(tensor, dim, share, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        share: Share = ctx.share
        own = grads[0].narrow(ctx.dim, share.start, share.rows)
        return own / share.weight if share.weight else torch.zeros_like(own), None, None, None


def gathered(own: Tensor, dim: int, share: Share, ranks: Ranks) -> Tensor:
    """The rows of all ranks, without gradients; recorded steps may have it inside.

    Args:
        own: with the rows of ``share`` in dimension ``dim``.
    """
    if share.is_whole:
        return own
    shares = [Share.of(share.total, rank, ranks.size) for rank in range(ranks.size)]
    most = max(each.rows for each in shares)
    first = own.detach().movedim(dim, 0)
    padded = first.new_zeros(most, *first.shape[1:])
    padded[: len(first)] = first
    everything = _c10d.wait_tensor(_c10d.all_gather_into_tensor(padded, ranks.size, ranks.group.group_name))
    places = [most * r + i for r, each in enumerate(shares) if each.weight for i in range(each.rows)]
    if len(places) < len(everything):
        everything = everything.index_select(0, torch.tensor(places, device=own.device))
    return everything.movedim(0, dim)


@contextmanager
def own_rows(ranks: Ranks, share: Share, dim: int | None = None) -> Iterator[None]:
    """Inside, a function that is no program is computed for the own rows; it may draw in any way.

    Draws with a dimension as long as the share are of rows; other tensors of draws are the rank's own. All
    ranks leave it with the same state of torch's generators.

    Args:
        ranks, share: as for :class:`OwnRows`.
        dim: the rows' dimension in draws outside of sample sites, where it is one of several of that length.
    """
    if ranks.alone:
        yield
        return
    with OwnRows(share, ranks, True, dim), row_dimension(), ranks.agreeing(same_draws=False):
        yield
    ranks.share_random_state()


def anywhere(mask: Tensor) -> bool:
    """True if an element is true: inside of :class:`OwnRows` on any rank, so that all take one branch."""
    own, found = OwnRows.active(), bool(mask.any())
    return found if own is None else own.ranks.largest([found]) == [1]


def by_rows(ranks: Ranks, function: Callable[..., Any], *arguments: Any) -> Any:
    """A function of a batch, each rank computing it for its share of the rows.

    Args:
        ranks: those that share the batch; alone, the function is called as it is.
        function: from rows to tensors, however nested, with a row per point each.
        arguments: tensors of a row per point, which have it in the first dimension; others are not cut.

    Returns:
        What the function returns for the whole batch, on every rank.
    """
    if ranks.alone:
        return function(*arguments)
    share = ranks.share(len(arguments[0]))  # of the first argument's rows
    with own_rows(ranks, share):
        found = function(*share.cut(arguments))
    return tree_map_only(Tensor, lambda tensor: gathered(tensor, 0, share, ranks), found)


# Tensors in one piece of memory per type, so that they are summed over ranks by one call each.


class FlatSums:
    """Tensors multiplied by a weight, end to end.

    Args:
        tensors: of any shapes and types.
        weight: of this rank.

    Attributes:
        flats: one vector for each type, in the order in which the types come.
    """

    def __init__(self, tensors: Sequence[Tensor], weight: float) -> None:
        self._like = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._types = list(dict.fromkeys(dtype for _, dtype in self._like))
        self.flats = [
            weight * torch.cat([tensor.reshape(-1) for tensor in tensors if tensor.dtype == dtype])
            for dtype in self._types
        ]

    def parts(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Views of vectors like ``flats`` in the shapes of the tensors, in their order."""
        pieces = {}
        for dtype, flat in zip(self._types, flats, strict=True):
            sizes = [shape.numel() for shape, kind in self._like if kind == dtype]
            pieces[dtype] = iter(flat.split(sizes))
        return [next(pieces[dtype]).view(shape) for shape, dtype in self._like]


# The ranks of a training as a whole, and the clock that they go by.


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


def now() -> float:
    """Seconds of a clock that all ranks share, rank 0's; each has to ask for it as often as the others."""
    return world().numbers_of_first([time.monotonic()])[0]
