"""The multivariate Normal-Gamma family: the conjugate prior of a regression's weights and noise precision.

Bernardo and Smith (1994), Bayesian Theory, Section 5.2.1 and page 442; Bishop (2006), Pattern Recognition and
Machine Learning, Exercise 3.12.
"""

import math
from collections.abc import Sequence

import torch
from pyro.distributions import MultivariateStudentT
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    StandardDistribution,
    register_family,
    to_float64,
)
from pyro_fmvae.distributions.gamma import GAMMA
from pyro_fmvae.distributions.multivariate_normal import MULTIVARIATE_NORMAL
from pyro_fmvae.distributions.normal_gamma import NEAR
from pyro_fmvae.distributions.packed_matrices import unless_cancelled

_SMALLEST_PRECISION = 1e-30


class MultivariateNormalGamma(StandardDistribution):
    """Multivariate Normal-Gamma distribution: w | τ ~ N(m, LLᵀ/τ), τ ~ Gamma(a, b).

    A draw has shape (D+1,): w, and τ behind it.

    Args:
        loc: m, mean of w, [..., D].
        scale_tril: lower triangular L with a positive diagonal, [..., D, D].
        concentration: a > 0, shape of the Gamma over τ, [...].
        rate: b > 0, its rate, [...].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "scale_tril": constraints.lower_cholesky,
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        concentration: Tensor | float,
        rate: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(loc, Tensor) or loc.dim() == 0:
            raise ValueError("loc: expected a tensor of shape [..., D]")
        dim, given = loc.shape[-1], (scale_tril, concentration, rate)
        tril, a, b = (torch.as_tensor(t, dtype=loc.dtype, device=loc.device) for t in given)
        try:
            if tril.shape[-2:] != (dim, dim):
                raise ValueError
            batch = broadcast_shape(loc.shape[:-1], tril.shape[:-2], a.shape, b.shape)
        except ValueError:
            raise ValueError(
                "expected loc [..., D], scale_tril [..., D, D], concentration [...] and rate [...], got "
                + ", ".join(str(list(t.shape)) for t in (loc, tril, a, b))
            ) from None
        self.loc, self.scale_tril = loc.expand(*batch, dim), tril.expand(*batch, dim, dim)
        self.concentration, self.rate = a.expand(batch), b.expand(batch)
        super().__init__(batch, torch.Size((dim + 1,)), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Real numbers, and a positive one behind them."""
        parts, lengths = [constraints.real, constraints.positive], [self.event_shape[0] - 1, 1]
        return constraints.independent(constraints.cat(parts, dim=-1, lengths=lengths), 1)

    @property
    def mean(self) -> Tensor:
        """(m, a/b), [..., D+1]."""
        return torch.cat([self.loc, (self.concentration / self.rate).unsqueeze(-1)], -1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., D+1], made in float64; τ is at least 1e-30."""
        *batch, size = self._extended_shape(sample_shape)
        m, tril, a, b = (to_float64(t) for t in self.standard)
        precision = (torch._standard_gamma(a.expand(batch)) / b).clamp(min=_SMALLEST_PRECISION).unsqueeze(-1)
        noise = torch.randn(*batch, size - 1, 1, dtype=m.dtype, device=m.device)
        weights = m + (tril @ noise).squeeze(-1) * precision.rsqrt()
        return torch.cat([weights, precision], -1).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of (w, τ) [..., D+1]: log N(w; m, LLᵀ/τ) + log Gamma(τ; a, b)."""
        if self._validate_args:
            self._validate_sample(value)
        weights, precision = value[..., :-1], value[..., -1]
        gap, a, dim = (weights - self.loc).unsqueeze(-1), self.concentration, value.shape[-1] - 1
        white = torch.linalg.solve_triangular(self.scale_tril, gap, upper=False).square().sum((-2, -1))
        normal = dim * (precision.log() - math.log(2 * math.pi)) - packed.log_determinant(self.scale_tril)
        gamma = a * self.rate.log() - torch.lgamma(a) + (a - 1) * precision.log() - self.rate * precision
        return 0.5 * (normal - precision * white) + gamma


class MultivariateNormalGammaFamily(ExponentialFamily):
    """N(w; m, (τP)⁻¹) Gamma(τ; a, rate b), P being the inverse of LLᵀ.

    Packed as λ = (λ1, λ2, λ3[D(D+1)/2], λ4[D]) with the statistics t = (log τ, τ, τwwᵀ, τw):

        λ1 = a - 1 + D/2,  λ2 = -(b + mᵀPm/2),  λ3 = diag(P)/2 - P,  λ4 = P m

    λ4 and λ3 are the natural parameters of N(m, P⁻¹): see :class:`MultivariateNormalFamily`. b is the
    difference of nearly equal numbers when m is large against the spread, so λ has to be float64.
    """

    distribution = MultivariateNormalGamma
    names = ("loc", "scale_tril", "concentration", "rate")
    domain = f"a and b > 0, P positive definite, {NEAR}"

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D], L [..., D, D], a [...] and b [...]."""
        m, tril, a, b = standard
        dim = m.shape[-1]
        normal = MULTIVARIATE_NORMAL.natural(m, tril)
        square = (m * normal[..., :dim]).sum(-1)
        return packed.join(a - 1 + 0.5 * dim, -(b + 0.5 * square), normal[..., dim:], normal[..., :dim])

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], L [..., D, D], a [...], b [...]); b is NaN where few of its digits are left."""
        first, second, third, fourth = packed.split(natural)
        m, tril = MULTIVARIATE_NORMAL.unpack(torch.cat([fourth, third], -1))
        b = -second - 0.5 * (m * fourth).sum(-1)
        return m, tril, first + 1 - 0.5 * m.shape[-1], unless_cancelled(b, -second)

    def event_shape(self, size: int) -> torch.Size:
        """(D+1,)."""
        dim = packed.dim_of(size)
        if dim < 1 or size != 2 + dim * (dim + 3) // 2:
            raise ValueError(
                f"natural: expected shape [..., D(D+3)/2 + 2] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((dim + 1,))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (w, τ) [..., D+1]."""
        weights, precision = value[..., :-1], value[..., -1]
        scaled = precision.unsqueeze(-1) * weights
        return packed.join(precision.log(), precision, packed.pack_product(scaled, weights), scaled)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = log Γ(a) - a log b - log det P/2 (powers of 2π are in the base measure)."""
        _, tril, a, b = self.unpack(natural)
        return torch.lgamma(a) - a * b.log() + 0.5 * packed.log_determinant(tril)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (ψ(a) - log b, a/b, P⁻¹ + (a/b) m mᵀ, (a/b) m)."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at m, L, a and b, without the digits that λ would lose."""
        m, tril, a, b = standard
        precision = a / b
        scaled = precision.unsqueeze(-1) * m
        squares = packed.pack(tril @ tril.mT) + packed.pack_product(scaled, m)
        return packed.join(torch.digamma(a) - b.log(), precision, squares, scaled)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL of the Gamma distributions, and of the normal ones on average over τ: [...]."""
        (m, tril, a, b), (m0, tril0, a0, b0) = self.unpack(natural), self.unpack(prior)
        normal = MULTIVARIATE_NORMAL.divergence((m, tril), (m0, tril0), a / b)
        return normal + GAMMA.relative_entropy(GAMMA.natural(a, b), GAMMA.natural(a0, b0))

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-D log(2π)/2."""
        dim = packed.dim_of(stats.shape[-1])
        return torch.full_like(stats[..., 0], -0.5 * dim * math.log(2 * math.pi))

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂L, ∂a, ∂b): the gradient with respect to E[t], of which they are simple functions."""
        (m, tril, a, b), (grad_m, grad_tril, grad_a, grad_b) = standard, grads
        dim, scaled = m.shape[-1], grad_m * (b / a).unsqueeze(-1)
        normal = MULTIVARIATE_NORMAL.inverse_fisher((m, tril), (scaled, grad_tril))
        first, second = GAMMA.inverse_fisher((a, b), (grad_a, grad_b)).unbind(-1)
        square = (normal[..., dim:] * packed.pack_product(m, m)).sum(-1) - (scaled * m).sum(-1)
        return packed.join(first, second + square, normal[..., dim:], normal[..., :dim])

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where a and b are positive, P is positive definite and m is finite."""
        m, _, a, b = self.unpack(natural)
        return (a > 0) & (b > 0) & m.isfinite().all(-1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, each as informative of w as the prior, around a draw of w."""
        m, tril, a, b = self.unpack(prior)
        noise = torch.randn(m.shape, dtype=m.dtype, generator=generator).to(m.device).unsqueeze(-1)
        drawn = m + (tril @ noise).squeeze(-1) * (b / a).sqrt().unsqueeze(-1)
        growth = 1 + 0.5 * count / a
        return self.natural(drawn, tril / math.sqrt(1 + count), a * growth, b * growth)

    def predictive_linear(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, features: Tensor
    ) -> MultivariateStudentT:
        """p(y) of y ~ N(Xw, I/τ) [..., N] with features X [..., N, D]: Bernardo and Smith, page 442.

        Student-t: 2a degrees of freedom, location Xm, *squared* scale (b/a) (I + X LLᵀ Xᵀ).
        """
        m, tril, a, b = standard
        root = features @ tril
        identity = torch.eye(features.shape[-2], dtype=m.dtype, device=m.device)
        scale_tril = torch.linalg.cholesky(identity + root @ root.mT) * (b / a).sqrt()[..., None, None]
        loc = (features @ m.unsqueeze(-1)).squeeze(-1)
        return MultivariateStudentT(*(t.to(dtype) for t in (2 * a, loc, scale_tril)))


MULTIVARIATE_NORMAL_GAMMA = MultivariateNormalGammaFamily()


@register_family(MultivariateNormalGamma)
class NaturalMultivariateNormalGamma(NaturalDistribution, MultivariateNormalGamma):  # type: ignore[misc, override]
    """A multivariate Normal-Gamma posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = MULTIVARIATE_NORMAL_GAMMA
