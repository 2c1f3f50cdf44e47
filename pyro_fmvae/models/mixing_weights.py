"""Priors of the mixing weights of a mixture, and what assignments tell of them."""

from abc import ABC, abstractmethod
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_fmvae.distributions import Assignment, NaturalDistribution


class MixingWeights(ABC):
    """A conjugate prior of the weights π of K components; stateless.

    The site's own value may be another one than π, from which π is made.
    """

    @abstractmethod
    def prior(self, concentration: float, components: int) -> Any:
        """The prior, a Pyro distribution of batch shape []."""

    @abstractmethod
    def assignment(self, value: Tensor) -> Any:
        """The distribution of a row's component, given a value of the site; its ``probs`` are π."""

    @abstractmethod
    def statistics(self, counts: Tensor) -> Tensor:
        """Sum that is added to λ for so many rows of each component, [..., K]."""

    @abstractmethod
    def counts(self, statistics: Tensor) -> Tensor:
        """Invert :meth:`statistics`."""

    @abstractmethod
    def log_weights(self, stats: Tensor) -> Tensor:
        """E[log π], [K], from E[t]."""

    @abstractmethod
    def weights(self, q: NaturalDistribution) -> Tensor:
        """E[π], float64 [K]."""

    @abstractmethod
    def order(self, counts: Tensor) -> Tensor:
        """Order in which components that so many rows have, [..., K], are best numbered: int64 [..., K]."""


class DirichletWeights(MixingWeights):
    """π ~ Dirichlet(c, ..., c)."""

    def prior(self, concentration: float, components: int) -> Any:
        """The Dirichlet, event shape [K]."""
        return dist.Dirichlet(torch.full((components,), concentration))

    def assignment(self, value: Tensor) -> Any:
        """The value is π itself."""
        return Assignment(value)

    def statistics(self, counts: Tensor) -> Tensor:
        """The counts themselves."""
        return counts

    def counts(self, statistics: Tensor) -> Tensor:
        """The counts themselves."""
        return statistics

    def log_weights(self, stats: Tensor) -> Tensor:
        """E[t] itself."""
        return stats

    def weights(self, q: NaturalDistribution) -> Tensor:
        """Shares of the concentration."""
        (concentration,) = q.standard
        return concentration / concentration.sum(-1)

    def order(self, counts: Tensor) -> Tensor:
        """As they are: every order is as good."""
        return torch.arange(counts.shape[-1], device=counts.device).expand(counts.shape)


class StickBreaking(MixingWeights):
    """A Dirichlet process, truncated at K components: π_k = v_k Π_{j<k} (1 - v_j), v_k ~ Beta(1, c), v_K = 1.

    Early components are larger, so the bound asks for them in falling order of size (Blei and Jordan, 2006,
    Variational inference for Dirichlet process mixtures; Kurihara et al., 2007, Section 3).
    """

    def prior(self, concentration: float, components: int) -> Any:
        """The sticks v, event shape [K - 1]."""
        ones = torch.ones(components - 1)
        return dist.Beta(ones, concentration * ones, validate_args=False).to_event(1)  # K may be 1

    def assignment(self, value: Tensor) -> Any:
        """The category of π, made of the sticks as a plain program does."""
        return dist.Categorical(_weights(value))

    def statistics(self, counts: Tensor) -> Tensor:
        """A stick's own rows, and those of the components behind it: [..., K - 1, 2]."""
        behind = counts.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return torch.stack([counts[..., :-1], behind], -1)

    def counts(self, statistics: Tensor) -> Tensor:
        """Own rows of the sticks, then all that are behind the last; of two components at least."""
        return torch.cat([statistics[..., 0], statistics[..., -1:, 1]], -1)

    def log_weights(self, stats: Tensor) -> Tensor:
        """E[log v_k] + Σ_{j<k} E[log(1 - v_j)]."""
        own, rest = stats.unbind(-1)
        return pad(own, (0, 1)) + pad(rest.cumsum(-1), (1, 0))

    def weights(self, q: NaturalDistribution) -> Tensor:
        """E[v_k] Π_{j<k} E[1 - v_j]: the sticks are independent."""
        own, rest = q.standard
        return _weights(own / (own + rest))

    def order(self, counts: Tensor) -> Tensor:
        """The largest first."""
        return counts.argsort(-1, descending=True)


def _weights(sticks: Tensor) -> Tensor:
    """π [..., K] of sticks [..., K - 1]."""
    return pad(sticks, (0, 1), value=1) * pad((1 - sticks).cumprod(-1), (1, 0), value=1)


DIRICHLET_WEIGHTS, STICK_BREAKING = DirichletWeights(), StickBreaking()
