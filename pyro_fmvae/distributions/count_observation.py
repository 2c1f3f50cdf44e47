"""Observation models of counts, such as the molecules of each gene in a cell. Lopez et al. (2018)."""

from abc import abstractmethod
from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.observation import Observation

LEAST_MEAN = 1e-4  # that a decoder starts with
CONCENTRATIONS = 0.1, 100.0  # range of those that it starts with


class CountObservation(Observation):
    """Counts of D columns, independent given their means. The first of the decoder's numbers is log E[x].

    A data point holds the D counts and then, if there are batches, the number of its own. Only the counts are
    explained. Their total and the batch are given: :meth:`density` hands both to the decoder.

    Args:
        columns: D.
    """

    def __init__(self, columns: int) -> None:
        super().__init__(1)
        self.columns = columns

    def explained(self, x: Tensor) -> Tensor:
        """The counts [..., D]."""
        return x[..., : self.columns]

    def density(self, decoder: Callable[..., Tensor], z: Tensor, x: Tensor) -> Distribution:
        """p(counts | z, total, batch); the decoder is a :class:`~pyro_fmvae.nn.CountDecoder`."""
        total = self.explained(x).sum(-1, keepdim=True)
        return self(decoder(z, total, x[..., self.columns :]))

    def mean(self, features: Tensor) -> Tensor:
        """E[x]."""
        return self._split(features)[0].exp()

    @abstractmethod
    def __call__(self, features: Tensor) -> Distribution:
        """The density of counts [..., D]."""


class PoissonObservation(CountObservation):
    """Counts whose variance is their mean."""

    outputs = 1

    def __call__(self, features: Tensor) -> Distribution:
        """Poisson(mean), columns independent."""
        return dist.Poisson(self.mean(features)).to_event(1)

    def std(self, features: Tensor) -> Tensor:
        """Square root of the mean."""
        return self.mean(features).sqrt()

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Log of the mean; the standard deviation follows from it."""
        return mean.clamp(min=LEAST_MEAN).log().unsqueeze(-2)


class NegativeBinomialObservation(CountObservation):
    """Counts of variance m + m² / θ, for a mean m. The second of the decoder's numbers is log θ."""

    outputs = 2

    def __call__(self, features: Tensor) -> Distribution:
        """NegativeBinomial of θ failures and mean m, columns independent."""
        log_mean, log_concentration = self._split(features)
        negative = dist.NegativeBinomial(log_concentration.exp(), logits=log_mean - log_concentration)
        return negative.to_event(1)

    def std(self, features: Tensor) -> Tensor:
        """Square root of m + m² / θ."""
        log_mean, log_concentration = self._split(features)
        return (log_mean.exp() + (2 * log_mean - log_concentration).exp()).sqrt()

    def features(self, mean: Tensor, std: Tensor) -> Tensor:
        """Logs of the mean and of θ, by moments; θ is kept within 0.1 and 100."""
        beyond = (std.square() - mean).clamp(min=LEAST_MEAN)
        concentration = (mean.square() / beyond).clamp(*CONCENTRATIONS)
        return torch.stack([mean.clamp(min=LEAST_MEAN).log(), concentration.log()], -2)
