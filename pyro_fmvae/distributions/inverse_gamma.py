"""The inverse-Gamma family: the conjugate prior of variances.

Gelman et al. (2013), Bayesian Data Analysis, Section 2.6. θ has this distribution where 1/θ has a Gamma.
"""

from typing import Any

import pyro.distributions
import torch
from pyro.distributions import StudentT, TransformedDistribution
from torch import Tensor
from torch.distributions import Gamma, InverseGamma, PowerTransform, Transform, kl_divergence, register_kl

from pyro_fmvae.distributions.exponential_family import NaturalDistribution, ScalarFamily, register_family
from pyro_fmvae.distributions.gamma import GAMMA


class InverseGammaFamily(ScalarFamily):
    """InverseGamma(a, rate b) with t = (log θ, 1/θ) and λ = (-a, -b) (the base measure is 1/θ).

    Everything but the sign of log θ is that of the Gamma over 1/θ.
    """

    distribution = pyro.distributions.InverseGamma
    names = ("concentration", "rate")
    domain = "a and b > 0"
    statistics = (("log",), ("1/x",))

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack a and b, each [...], into [..., 2]."""
        return _flip(GAMMA.natural(*standard))

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(a, b), each [...]."""
        return GAMMA.unpack(_flip(natural))

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = log Γ(a) - a log b."""
        return GAMMA.log_normalizer(_flip(natural))

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (log b - ψ(a), a/b)."""
        return _flip(GAMMA.mean_stats(_flip(natural)))

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL of the Gammas over 1/θ: [...]."""
        return GAMMA.relative_entropy(_flip(natural), _flip(prior))

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-E[log θ]."""
        return -stats[..., 0]

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂a, ∂b)."""
        return _flip(GAMMA.inverse_fisher(standard, grads))

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where a and b are positive."""
        return GAMMA.in_domain(_flip(natural))

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """Random start of the Gamma over 1/θ."""
        return _flip(GAMMA.random_start(_flip(prior), count, generator))

    def predictive_normal(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, loc: float | Tensor = 0.0
    ) -> StudentT:
        """p(x) of x ~ N(loc, θ): Student-t with 2a degrees of freedom and the squared scale b/a."""
        return GAMMA.predictive_normal(standard, dtype, loc)

    def predictive_exponential(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype
    ) -> TransformedDistribution:
        """p(x) of x ~ Exponential(1/θ), whose mean is θ: the Lomax distribution."""
        return GAMMA.predictive_exponential(standard, dtype)


def _flip(packed: Tensor) -> Tensor:
    """Natural parameters or statistics [..., 2] of θ from those of 1/θ, and back."""
    first, second = packed.unbind(-1)
    return torch.stack([-first, second], -1)


INVERSE_GAMMA = InverseGammaFamily()


@register_family(InverseGamma)
class NaturalInverseGamma(NaturalDistribution, pyro.distributions.InverseGamma):
    """An inverse-Gamma posterior in natural parameters λ [..., 2]: see :class:`NaturalDistribution`."""

    family = INVERSE_GAMMA
    transforms: list[Transform] = [PowerTransform(torch.tensor(-1.0))]  # noqa: RUF012

    @property
    def base_dist(self) -> Any:
        """The Gamma over 1/θ."""
        return Gamma(self.concentration, self.rate, validate_args=False)


@register_kl(InverseGamma, InverseGamma)
def _kl_inverse_gamma(q: InverseGamma, p: InverseGamma) -> Tensor:
    return kl_divergence(q.base_dist, p.base_dist)
