"""Counts of a mixture component, such as columns of a table: Poisson, with Gamma priors of the rates.

Gelman et al. (2013), Bayesian Data Analysis, Section 2.6.
"""

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob
from pyro_fmvae.distributions.exponential_family import stats_under, unwrap
from pyro_fmvae.distributions.gamma import GAMMA
from pyro_fmvae.distributions.mixture import MixtureComponent, RealOrMissing


class PoissonComponent(MixtureComponent):
    """A row's counts given its own component: x_d | r=k ~ Poisson(θ_kd), θ_kd ~ Gamma.

    NaN is a missing count. It is marginalised: its factor of the probability is 1.

    Args:
        rate: θ, the very value of a site of Gammas with one event dimension, [..., K, D].
        assignment: component indices, the very value of an ``Assignment`` site, [...].

    Raises:
        ValueError: shapes that don't fit.
    """

    parents, family, parameter_dim = ("rate", "assignment"), GAMMA, 1
    support = RealOrMissing()

    rate: Tensor

    def __init__(self, rate: Tensor, assignment: Tensor, validate_args: bool | None = None) -> None:
        if rate.dim() < 2:
            raise ValueError(f"rate: expected shape [..., K, D], got {list(rate.shape)}")
        super().__init__(rate, assignment, rate.shape[-1:], validate_args)

    def given(self, parameter: Tensor) -> dist.TorchDistribution:
        """Counts of rates [..., D], none missing."""
        return dist.Poisson(parameter, validate_args=False).to_event(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of counts [..., D], summed over those that are not NaN."""
        if self._validate_args:
            self._validate_sample(value)
        known = ~value.isnan()
        terms = self.given(self._selected()).base_dist.log_prob(value.where(known, 0.0))
        log_prob = torch.where(known, terms, 0.0).sum(-1)
        return log_prob.expand(torch.broadcast_shapes(self.batch_shape, value.shape[:-1]))


def expected_log_counts(counts: Tensor, stats: Tensor) -> Tensor:
    """E[log p(x | θ_k)] = Σ_d x_d E[log θ_kd] - E[θ_kd] - log x_d! of the counts that are there.

    Args:
        counts: x, [..., N, D], NaN where missing.
        stats: E[log θ] and E[θ], [..., K, D, 2].

    Returns:
        [..., N, K].
    """
    known = ~counts.isnan()
    x = counts.where(known, 0.0).to(stats)
    log_rate, rate = stats.unbind(-1)
    return x @ log_rate.mT - known.to(stats) @ rate.mT - torch.lgamma(x + 1).sum(-1, keepdim=True)


def counts_update(prior: Tensor, weights: Tensor, counts: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """λ* of the rates given weighted counts: the shape gains Σ w x, and the rate Σ w.

    Args:
        prior: λ of the rates, [..., K, D, 2].
        weights: how much each row counts for each component, [..., N, K].
        counts: x, [..., N, D], NaN where missing.
        scale: rows that each row stands for.
    """
    known = ~counts.isnan()
    sums = [weights.mT @ counts.where(known, 0.0).to(weights), -(weights.mT @ known.to(weights))]
    return prior + scale * torch.stack(sums, -1)


def log_predictive_counts(counts: Tensor, standard: tuple[Tensor, ...]) -> Tensor:
    """Log of the negative binomial p(x) under each component, of the counts that are there: [N, K].

    Args:
        counts: x, [N, D], NaN where missing.
        standard: shapes and rates of the Gammas, each [K, D].
    """
    known = ~counts.isnan()
    x, columns = counts.where(known, 0.0), []
    for component in zip(*standard, strict=True):  # one at a time: there may be thousands of columns
        log_probs = GAMMA.predictive_poisson(component, counts.dtype).log_prob(x)
        columns.append(log_probs.where(known, 0.0).sum(-1))
    return torch.stack(columns, -1)


@register_expected_log_prob(dist.Delta, PoissonComponent)
def _poisson_component(q: dist.Delta, p: PoissonComponent, posteriors: Posteriors) -> Tensor:
    stats = stats_under(unwrap(posteriors["rate"]), GAMMA)
    return expected_log_counts(q.v, stats).to(q.v)
