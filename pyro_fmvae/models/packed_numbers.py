"""Columns of numbers whose sufficient statistics are computed once, for rows that are visited often."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

import torch
from torch import Tensor

from pyro_fmvae.distributions import COLUMN_NORMAL_GAMMA
from pyro_fmvae.distributions.marginal_component import (
    filled_statistics,
    marginal_expectation,
    marginal_update,
)

LARGEST: Final = 2**26
"""Numbers that are kept at most."""

SAME: Final = 1e-13
"""Responsibilities that differ by no more are the same but for rounding."""

PackedObservations = Mapping[str, "Tensor | PackedNumbers"]
"""What each child of the assignment observes, by its site."""


class PackedNumbers:
    """Rows of numbers [N, D] with E[log p] and conjugate updates as one matrix product each.

    They take the place of the rows among the observations of an :class:`ObservedMixture`. Where covariances
    are full, rows that miss some of their numbers have no such statistics, and are computed anew each time.

    Args:
        x: NaN where missing.
        full: covariances are full.
    """

    def __init__(self, x: Tensor, full: bool) -> None:
        x, with_gaps = x.double(), incomplete(x)
        self.count, self.gaps = len(x), None
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        if full and with_gaps.any():
            self.gaps, self.whole = with_gaps.nonzero().squeeze(-1), (~with_gaps).nonzero().squeeze(-1)
            self.with_gaps, x = x[self.gaps], x[self.whole]
        known = (~x.isnan()).double().sum(-1)
        self.constant = -0.5 * math.log(2 * math.pi) * known
        self.own_statistics = (
            _across(x).masked_fill_(known == 0, 0.0)
            if full
            else COLUMN_NORMAL_GAMMA.data_stats(x, torch.zeros_like(x)).mT.contiguous()
        )

    def chosen(self, rows: Tensor) -> "PackedNumbers":
        """Rows of C mixtures, by their indices [C, n], where none of the rows has gaps."""
        found = copy(self)
        found.count, found.constant = rows.shape[-1], self.constant[rows]
        statistics = self.own_statistics.index_select(1, rows.flatten())
        found.own_statistics = statistics.unflatten(1, rows.shape).transpose(0, 1)
        return found

    def only(self, chosen: Sequence[int]) -> "PackedNumbers":
        """Some of the mixtures that :meth:`chosen` gives rows of."""
        found, places = copy(self), list(chosen)
        found.constant, found.own_statistics = self.constant[places], self.own_statistics[places]
        return found

    def filled(self, stats: Tensor, gamma: Tensor) -> "PackedNumbers":
        """These rows with statistics that are expected of what is missing, as if they had no gaps.

        Args:
            stats: E[t] of the components, [K, P].
            gamma: responsibilities, [N, K].
        """
        found = copy(self)
        found.gaps, found.constant = None, gamma.new_zeros(self.count)
        found.constant[self.whole] = self.constant
        found.own_statistics = gamma.new_empty(stats.shape[-1], self.count)
        found.own_statistics[:, self.whole] = self.own_statistics
        found.own_statistics[:, self.gaps] = filled_statistics(self.with_gaps, stats, gamma[self.gaps]).mT
        return found

    @staticmethod
    def size(x: Tensor, full: bool) -> int:
        """How many numbers are stored of rows [N, D]."""
        dim = x.shape[-1]
        return len(x) * (2 + dim * (dim + 3) // 2 if full else 4 * dim)

    def __len__(self) -> int:
        return self.count

    def log_likelihoods(self, stats: Tensor, others: Tensor) -> Tensor:
        """E[log p(x | θ_k)], or the bound on it, at E[t] [..., K, P] of the components: float64 [..., N, K].

        ``others``, [N, K] or [K], are as for :func:`marginal_expectation`. Without gaps, mixtures may have
        leading dimensions, and their rows too.
        """
        if self.constant.dim() > 1:
            return torch.baddbmm(self.constant.unsqueeze(-2), stats, self.own_statistics).mT
        flat = torch.addmm(self.constant, stats.flatten(0, -2), self.own_statistics)
        table = flat.view(*stats.shape[:-1], -1).mT
        if self.gaps is None:
            return table
        both = table.new_empty(self.count, table.shape[-1])
        others = others.expand_as(both)[self.gaps]
        own, sums = marginal_expectation(self.with_gaps, stats, others)
        both[self.whole], both[self.gaps] = table, own
        self._last = stats, (others + own).softmax(-1), sums
        return both

    def update(self, prior: Tensor, gamma: Tensor, stats: Tensor, scale: Tensor | float) -> Tensor:
        """λ* [..., K, P].

        Args:
            prior: λ, [..., K, P].
            gamma: responsibilities, [..., N, K].
            stats: E[t] of the present components, [K, P], by which missing numbers are filled in.
            scale: rows that each row stands for.
        """
        gamma = gamma.double()
        if self.gaps is None:
            across = gamma.mT if self.constant.dim() > 1 else gamma.mT.flatten(0, -2)
            sums = across @ self.own_statistics.mT
            return prior.double() + scale * sums.view(*gamma.mT.shape[:-1], -1)
        target = prior.double() + scale * (self.own_statistics @ gamma[self.whole]).mT
        gamma = gamma[self.gaps]
        last = self._last
        if last is not None and torch.equal(last[0], stats) and torch.allclose(last[1], gamma, 0, SAME):
            return target + scale * last[-1]
        return marginal_update(target, gamma, self.with_gaps, stats, float(scale))


def incomplete(x: Tensor) -> Tensor:
    """Which rows [N, D] miss some of their numbers, but not all: bool [N]."""
    gone = x.isnan()
    return gone.any(-1) & ~gone.all(-1)


def _across(x: Tensor) -> Tensor:
    """``NORMAL_WISHART.data_stats`` of rows [N, D] that are known, row by row of [P, N]: far faster.

    On a GPU, a few operations on all pairs of columns are faster than one for each column.
    """
    (count, dim), across = x.shape, x.mT.contiguous()
    statistics, negative, start = x.new_empty(2 + dim * (dim + 3) // 2, count), -0.5 * across, 2
    statistics[0], statistics[1], statistics[-dim:] = 0.5, -0.5, across
    if x.is_cuda:
        rows, columns = torch.tril_indices(dim, dim, device=x.device)
        torch.mul(across[columns], negative[rows], out=statistics[2:-dim])
        return statistics
    for row in range(dim):
        torch.mul(across[: row + 1], negative[row], out=statistics[start : start + row + 1])
        start += row + 1
    return statistics
