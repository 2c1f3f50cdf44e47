"""Random numbers for the rows of one rank, as if the whole batch had been drawn."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.ranks.group import Ranks
from pyro_fmvae.ranks.share import Share

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
