"""The Gamma family: the conjugate prior of rates and precisions.

Gelman et al. (2013), Bayesian Data Analysis, Sections 2.6 and 2.7. It is the prior of the rate of Poisson,
Exponential and Gamma observations and of the precision of Normal ones.
"""

import torch
from pyro.distributions import Gamma, GammaPoisson, Pareto, StudentT, TransformedDistribution
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Exponential

from pyro_fmvae.distributions.bregman import log_gap, stirling_gap
from pyro_fmvae.distributions.exponential_family import (
    NaturalDistribution,
    ScalarFamily,
    register_family,
    to_float64,
)


class GammaFamily(ScalarFamily):
    """Gamma(a, rate b) with t = (log θ, θ) and λ = (a, -b) (the base measure is 1/θ).

    A prior may also be an ``Exponential``, whose a is 1, or a ``Chi2``.
    """

    distribution = Gamma
    names = ("concentration", "rate")
    domain = "a and b > 0"
    statistics = (("log",), ("x",))

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack a and b, each [...], into [..., 2]."""
        a, b = standard
        return torch.stack(torch.broadcast_tensors(a, -b), -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(a, b), each [...]."""
        a, negative = natural.unbind(-1)
        return a, -negative

    def standard_of(self, member: Distribution) -> tuple[Tensor, ...]:
        """(a, b) of a Gamma or an Exponential, in float64."""
        if isinstance(member, Exponential):
            rate = to_float64(member.rate)
            return torch.ones_like(rate), rate
        return super().standard_of(member)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = log Γ(a) - a log b."""
        a, b = self.unpack(natural)
        return torch.lgamma(a) - a * b.log()

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (ψ(a) - log b, a/b)."""
        a, b = self.unpack(natural)
        return torch.stack([torch.digamma(a) - b.log(), a / b], -1)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """``a₀ (r - 1 - log r)``, r the ratio of the two means, plus the divergence of the shapes: [...]."""
        (a, b), (a0, b0) = self.unpack(natural), self.unpack(prior)
        excess = ((a - a0) * b0 + a0 * (b0 - b)) / (a0 * b)
        slope = None if stats is None else stats[..., 0] + b.log()
        return a0 * log_gap(a / a0 * (b0 / b), excess) + stirling_gap(a0, a, slope)

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-E[log θ]."""
        return -stats[..., 0]

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂a, ∂b), by the inverse of a matrix of two rows."""
        (a, b), (grad_a, grad_b) = standard, grads
        trigamma = torch.polygamma(1, a)
        first = a * grad_a + b * grad_b
        second = -b * (grad_a + b * trigamma * grad_b)
        return torch.stack([first, second], -1) / (a * trigamma - 1).unsqueeze(-1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where a and b are positive."""
        a, b = self.unpack(natural)
        return (a > 0) & (b > 0)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` exponential observations, whose rate is the prior's mean times exp of unit noise."""
        a, b = self.unpack(prior)
        noise = torch.randn(a.shape, dtype=a.dtype, generator=generator).to(a.device)
        return self.natural(a + count, b + count * b / a * (-noise).exp())

    def predictive_poisson(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, exposure: float | Tensor = 1.0
    ) -> GammaPoisson:
        """p(x) of counts x ~ Poisson(exposure · θ): the negative binomial distribution."""
        a, b = standard
        return GammaPoisson(a.to(dtype), (b / exposure).to(dtype))

    def predictive_normal(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, loc: float | Tensor = 0.0
    ) -> StudentT:
        """p(x) of x ~ N(loc, 1/θ): Student-t with 2a degrees of freedom and the squared scale b/a."""
        a, b = standard
        return StudentT((2 * a).to(dtype), loc, (b / a).sqrt().to(dtype))

    def predictive_exponential(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype
    ) -> TransformedDistribution:
        """p(x) of x ~ Exponential(θ): the Lomax distribution, a Pareto that starts at 0."""
        a, b = (t.to(dtype) for t in standard)
        return TransformedDistribution(Pareto(b, a), [AffineTransform(-b, 1.0)])


GAMMA = GammaFamily()


@register_family(Exponential)
@register_family(torch.distributions.Gamma)
class NaturalGamma(NaturalDistribution, Gamma):
    """A Gamma posterior in natural parameters λ [..., 2]: see :class:`NaturalDistribution`."""

    family = GAMMA
