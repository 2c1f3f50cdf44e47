"""Additive sufficient statistics for M-steps, and their blending over batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pyro_fmvae.distributions.exponential_family import blend


@dataclass(frozen=True)
class Statistics:
    """Sums over data points, and the number of points.

    Attributes:
        values: sums over points, by name.
        count: number of points that the sums represent, > 0.
    """

    values: Mapping[str, Tensor]
    count: float

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both sets of points together.

        Raises:
            ValueError: the names differ.
        """
        self._check(other)
        total = {name: value + other.values[name] for name, value in self.values.items()}
        return Statistics(total, self.count + other.count)

    def scaled(self, count: float) -> Statistics:
        """The statistics multiplied so that they represent ``count`` points."""
        factor = count / self.count
        return Statistics({name: factor * value for name, value in self.values.items()}, count)

    def blend(self, batch: Statistics, rate: float) -> Statistics:
        """(1 - ρ) T + ρ N/B T_B, a step of stepwise EM (Cappé and Moulines, 2009).

        T are these statistics and N is their ``count``. ρ = 1 with all data in the batch is plain EM. A
        natural gradient step of size ρ blends natural parameters in the same way: Hoffman et al. (2013),
        equation 26.

        Args:
            batch: T_B, statistics of B points.
            rate: ρ in (0, 1].

        Raises:
            ValueError: the rate is out of range, or the names differ.
        """
        if not 0 < rate <= 1:
            raise ValueError(f"rate: expected a step size in (0, 1], got {rate}")
        self._check(batch)
        new = batch.scaled(self.count).values
        return Statistics(
            {name: blend(value, new[name], rate) for name, value in self.values.items()}, self.count
        )

    def _check(self, other: Statistics) -> None:
        if self.values.keys() != other.values.keys():
            ours, theirs = (", ".join(sorted(s.values)) for s in (self, other))
            raise ValueError(f"statistics: expected {ours}, got {theirs}")
