"""The Beta family: the conjugate prior of probabilities.

Gelman et al. (2013), Bayesian Data Analysis, Section 2.4.
"""

import torch
from pyro.distributions import Beta, BetaBinomial, Dirichlet
from torch import Tensor
from torch.distributions import Distribution, Uniform
from torch.nn.functional import pad

from pyro_fmvae.distributions.bregman import stirling_gap, x_log_x_gap
from pyro_fmvae.distributions.dirichlet import DIRICHLET
from pyro_fmvae.distributions.exponential_family import (
    NaturalDistribution,
    ScalarFamily,
    register_family,
    to_float64,
)


class BetaFamily(ScalarFamily):
    """Beta(c₁, c₀) with t = (log θ, log(1 - θ)) and λ = (c₁, c₀) (the base measure is 1/(θ(1 - θ))).

    It is the prior of Bernoulli, Binomial and Geometric observations, and of negative binomial ones with a
    known count. As a distribution of (θ, 1 - θ) it is the Dirichlet(c₁, c₀). A prior may also be the
    ``Uniform`` between 0 and 1.
    """

    distribution = Beta
    names = ("concentration1", "concentration0")
    domain = "c₁ and c₀ > 0; of uniform priors, that between 0 and 1"
    statistics = (("log",), ("log1m",))

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack c₁ and c₀, each [...], into [..., 2]."""
        return torch.stack(torch.broadcast_tensors(*standard), -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(c₁, c₀), each [...]."""
        return natural.unbind(-1)

    def standard_of(self, member: Distribution) -> tuple[Tensor, ...]:
        """(c₁, c₀) of a Beta, or of the Uniform between 0 and 1, in float64; NaN for another Uniform."""
        if isinstance(member, Uniform):
            low, high = to_float64(member.low), to_float64(member.high)
            one = torch.ones_like(low).where((low == 0) & (high == 1), torch.nan)
            return one, one
        return super().standard_of(member)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = log Γ(c₁) + log Γ(c₀) - log Γ(c₁ + c₀)."""
        return DIRICHLET.log_normalizer(natural)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (ψ(c₁), ψ(c₀)) - ψ(c₁ + c₀)."""
        return DIRICHLET.mean_stats(natural)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """The divergence of the means times c₁ + c₀ of the prior, plus that of the concentrations: [...]."""
        c, c0 = map(_with_total, torch.broadcast_tensors(natural, prior))
        slopes = torch.digamma(c if stats is None else c[2])
        if stats is not None:
            slopes = (pad(stats, (0, 1)) + slopes.unsqueeze(-1)).movedim(-1, 0)
        means = x_log_x_gap(c0[:2], c[:2] * (c0[2] / c[2]))
        counts = stirling_gap(c0, c, slopes)
        return means[0] + means[1] + counts[0] + counts[1] - counts[2]

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-E[log θ] - E[log(1 - θ)]."""
        return -stats.sum(-1)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂c₁, ∂c₀)."""
        return DIRICHLET.inverse_fisher((torch.stack(standard, -1),), (torch.stack(grads, -1),))

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where c₁ and c₀ are positive."""
        return DIRICHLET.in_domain(natural)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, of which a uniformly random share are successes."""
        share = torch.rand(prior.shape[:-1], dtype=prior.dtype, generator=generator).to(prior.device)
        return prior + count * torch.stack([share, 1 - share], -1)

    def predictive_binomial(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, total_count: int | Tensor = 1
    ) -> BetaBinomial:
        """p(x) of x ~ Binomial(total_count, θ): the beta-binomial distribution."""
        return BetaBinomial(*(t.to(dtype) for t in standard), total_count)


def _with_total(natural: Tensor) -> Tensor:
    """(c₁, c₀, c₁ + c₀), [3, ...]."""
    one, zero = natural.unbind(-1)
    return torch.stack([one, zero, one + zero])


BETA = BetaFamily()


@register_family(Uniform)
@register_family(torch.distributions.Beta)
class NaturalBeta(NaturalDistribution, Beta):
    """A Beta posterior in natural parameters λ = (c₁, c₀) [..., 2]: see :class:`NaturalDistribution`."""

    family = BETA

    @property
    def _dirichlet(self) -> Dirichlet:
        return Dirichlet(torch.stack([self.concentration1, self.concentration0], -1), validate_args=False)
