"""The Normal family: the conjugate prior of a location whose scale is known or has a distribution of its own.

Gelman et al. (2013), Bayesian Data Analysis, Section 2.5.
"""

import math

import torch
from pyro.distributions import Normal
from torch import Tensor

from pyro_fmvae.distributions.bregman import log_gap
from pyro_fmvae.distributions.exponential_family import NaturalDistribution, ScalarFamily, register_family


class NormalFamily(ScalarFamily):
    """N(m, σ²) with t = (θ, θ²) and λ = (m/σ², -1/(2σ²))."""

    distribution = Normal
    names = ("loc", "scale")
    domain = "a precision > 0 and a finite m"
    statistics = (("x",), ("x", "x"))

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m and σ, each [...], into [..., 2]."""
        m, scale = standard
        precision = scale.square().reciprocal()
        return torch.stack(torch.broadcast_tensors(m * precision, -0.5 * precision), -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m, σ), each [...]."""
        first, second = natural.unbind(-1)
        variance = -0.5 / second
        return first * variance, variance.sqrt()

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = m²/(2σ²) + log σ."""
        m, scale = self.unpack(natural)
        return 0.5 * m * natural[..., 0] + scale.log()

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (m, m² + σ²)."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] [..., 2] at m and σ [...]."""
        m, scale = torch.broadcast_tensors(*standard)
        return torch.stack([m, m.square() + scale.square()], -1)

    def stats_about(self, natural: Tensor, centre: Tensor) -> Tensor:
        """(m - c, (m - c)² + σ²)."""
        m, scale = self.unpack(natural)
        return self.stats_from_standard(m - centre, scale)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """Half of ``r - 1 - log r + (m - m₀)²/σ₀²``, with r = σ²/σ₀²: [...]."""
        second, second0 = natural[..., 1], prior[..., 1]
        gap = self.unpack(natural)[0] - self.unpack(prior)[0]
        return 0.5 * log_gap(second0 / second, (second0 - second) / second) - second0 * gap.square()

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-log(2π)/2."""
        return torch.full_like(stats[..., 0], -0.5 * math.log(2 * math.pi))

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂σ): the gradient with respect to E[t], of which m and σ² are simple functions."""
        (m, scale), (grad_m, grad_scale) = standard, grads
        second = 0.5 * grad_scale / scale
        return torch.stack([grad_m - 2 * m * second, second], -1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where σ is positive and m is finite."""
        m, scale = self.unpack(natural)
        return (scale > 0) & m.isfinite()

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, each as informative as the prior, around a draw from the prior."""
        m, scale = self.unpack(prior)
        noise = torch.randn(m.shape, dtype=m.dtype, generator=generator).to(m.device)
        return self.natural(m + scale * noise, scale / math.sqrt(1 + count))

    def predictive_normal(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, scale: float | Tensor
    ) -> Normal:
        """p(x) of x ~ N(θ, scale²): normal, with the sum of the two variances."""
        m, own = standard
        return Normal(m.to(dtype), (own.square() + scale**2).sqrt().to(dtype))


NORMAL = NormalFamily()


@register_family(torch.distributions.Normal)
class NaturalNormal(NaturalDistribution, Normal):
    """A Normal posterior in natural parameters λ [..., 2]: see :class:`NaturalDistribution`."""

    family = NORMAL
