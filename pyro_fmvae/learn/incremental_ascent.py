"""Coordinate ascent on one part of the rows after another, with weights of rows."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.learn.mixture_steps import Naturals, updated
from pyro_fmvae.models import ObservedMixture

LARGEST: Final = 2**22
"""Numbers in a tensor, at most, unless a single row needs more."""


class Rows(NamedTuple):
    """Part of a table."""

    x: Tensor
    """Rows [B, D], as :meth:`ObservedMixture.observations` takes them."""
    weights: Tensor
    """How many rows each one stands for, float64 [B]."""

    def split(self, most: int) -> "list[Rows]":
        """Parts of at most so many rows, in their order."""
        return [Rows(*part) for part in zip(self.x.split(most), self.weights.split(most), strict=True)]


class IncrementalAscent:
    """Variational Bayes for an observed mixture that keeps the statistics of every part of the rows.

    A visit to a part replaces its statistics T_b by those at the present responsibilities, and takes λ to
    λ0 + Σ_b T_b. Every visit raises the bound, so that no step size has to be chosen, and one sweep over many
    small parts gets further than one over all rows at once. With a single part it is coordinate ascent (Neal
    and Hinton, 1998, A view of the EM algorithm that justifies incremental, sparse, and other variants;
    Hughes and Sudderth, 2013, Memoized online variational inference for Dirichlet process mixture models).

    The bound is Σ_b h_b + Σ_b T_b · E[t] - KL(λ || λ0), where h_b is what a part adds beside its statistics:
    the entropy of its assignments and missing numbers, and constants.

    Args:
        model: learnt in place, from where it stands.
        parts: of the rows.
        before: λ0; None: the model's prior, which is learnt after each sweep if the model learns it. The
            posterior given earlier rows makes it streaming variational Bayes (Broderick et al., 2013).
        stand_for: how many rows λ - λ0 stands for at first. Until its first visit, a part has its share of
            these statistics, scaled to its number of rows. 0: none, λ is λ0 at first.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: ObservedMixture,
        parts: Sequence[Rows],
        before: Naturals | None = None,
        stand_for: float = 0.0,
    ) -> None:
        self.model, self.parts = model, parts
        self.before, self._learns = before or self._priors(), before is None
        self.total_weight = float(sum(part.weights.sum() for part in parts))
        self._told: list[dict[str, Tensor]] = []
        self._beside = [-math.inf] * len(parts)
        gaps = {name: model.natural(name).natural - value for name, value in self.before.items()}
        for part in parts:
            share = float(part.weights.sum()) / stand_for if stand_for else 0.0
            self._told.append({name: share * gap for name, gap in gaps.items()})

    @torch.no_grad()
    def sweep(self) -> float:
        """Visit every part once; returns the bound, in nats for all rows."""
        totals = self._totals()  # summed anew in every sweep, so that rounding does not pile up
        for number, part in enumerate(self.parts):
            old = self._told[number]
            self._told[number], self._beside[number] = told(self.model, part)
            for name, total in totals.items():
                total += self._told[number][name] - old[name]
                self.model.posterior_of(name).natural.copy_(self.before[name] + total)
        if self._learns:
            self.model.learn_prior()
            self.before = self._priors()
        return self.bound()

    def _priors(self) -> Naturals:
        return {name: prior.natural.detach() for name, prior in self.model.natural_priors().items()}

    @torch.no_grad()
    def bound(self) -> float:
        """The bound, in nats for all rows; minus infinity before the first sweep."""
        bound = sum(self._beside)
        for name, total in self._totals().items():
            q = self.model.natural(name)
            divergence = q.family.kl(q.natural, self.before[name]).sum()
            bound += float((total * q.expected_stats()).sum() - divergence)
        return bound

    def _totals(self) -> dict[str, Tensor]:
        return {name: torch.stack([part[name] for part in self._told]).sum(0) for name in self.before}


@torch.no_grad()
def told(model: ObservedMixture, rows: Rows) -> tuple[dict[str, Tensor], float]:
    """Statistics of weighted rows at their best responsibilities, by site, and what is beside them.

    Args:
        model: whose posterior decides the responsibilities.
        rows: any number; they are taken in pieces.

    Returns:
        T, the sum that λ* has beside λ0; and h, so that h + T · E[t] is the rows' part of the bound.
    """
    stats = {name: model.natural(name).expected_stats() for name in model.natural_priors()}
    sums = {name: torch.zeros_like(value) for name, value in stats.items()}
    beside = 0.0
    for x, weights in rows.split(max(LARGEST // (model.components * model.dim), 1)):
        seen = model.packed(x)
        table = model.table(seen)
        beside += float(weights @ table.logsumexp(-1))
        gamma = weights.unsqueeze(-1) * table.softmax(-1)
        sums = updated(model, sums, seen, gamma)
    return sums, beside - float(sum((sums[name] * stats[name]).sum() for name in sums))
