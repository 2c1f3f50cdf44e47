"""The rows of all ranks, in their order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pyro_fmvae.ranks.group import Ranks
from pyro_fmvae.ranks.own_rows import OwnRows, row_dimension
from pyro_fmvae.ranks.share import Share

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
