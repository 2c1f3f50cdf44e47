"""Additive sufficient statistics: what an M-step needs to know of data, and how batches are blended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pyro_fmvae.distributions.exponential_family import blend


@dataclass(frozen=True)
class Statistics:
    """Sums over data points, and how many points they are sums over.

    Attributes:
        values: sums, by name.
        count: the number of points, > 0; after :meth:`scaled` the number that they stand for.
    """

    values: Mapping[str, Tensor]
    count: float

    def __add__(self, other: Statistics) -> Statistics:
        """Those of both sets of points.

        Raises:
            ValueError: sums of other names.
        """
        self._check(other)
        total = {name: value + other.values[name] for name, value in self.values.items()}
        return Statistics(total, self.count + other.count)

    def scaled(self, count: float) -> Statistics:
        """What they would be if ``count`` points were like these."""
        factor = count / self.count
        return Statistics({name: factor * value for name, value in self.values.items()}, count)

    def blend(self, batch: Statistics, rate: float) -> Statistics:
        """(1 - ρ) T + ρ N/B T_B: stepwise EM (Cappé and Moulines, 2009), with N the ``count`` of these.

        With ρ = 1 and all data in the batch these are the batch's own statistics: EM itself. A natural
        gradient step of size ρ does the same to natural parameters: Hoffman et al. (2013), equation 26.

        Args:
            batch: statistics of B points.
            rate: ρ in (0, 1].

        Raises:
            ValueError: a rate out of range, or sums of other names.
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
