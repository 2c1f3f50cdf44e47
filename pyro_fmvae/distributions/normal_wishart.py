"""The Normal-Wishart family: the conjugate prior of D-dimensional Gaussians with full covariances.

Bishop (2006), Pattern Recognition and Machine Learning, Section 10.2; Murphy (2007), Conjugate Bayesian
analysis of the Gaussian distribution, Section 8. Their Wishart has ν degrees of freedom and the scale matrix
W, its mean being νW. Here it has a = (ν - D + 1)/2 and the rate matrix B = W⁻¹/2. Then every dimension by
itself is Normal-Gamma with the same m, s and a, and with b = B_dd; and D = 1 is that family, with the same λ.

As a prior it counts as ν observations of covariance 2B/ν, which may outweigh the data of a small component:
for components of about the covariance V, take B = ν/2 V. Where V is unknown, choose B by the bound.
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
from pyro_fmvae.distributions.normal_gamma import NEAR, full_gaussian_table
from pyro_fmvae.distributions.wishart import draw_factor, factor_log_prob, mean_factor, wishart_shapes


class NormalWishart(StandardDistribution):
    """Normal-Wishart distribution: μ | Λ ~ N(m, (sΛ)⁻¹), Λ ~ Wishart(ν, W) of ν = 2a + D - 1, W = B⁻¹/2.

    A draw has the shape (D+1, D), so that one site has both. Row 0 is μ. The other rows are the lower
    triangular T with Λ = TᵀT, the inverse of the Cholesky factor of the covariance: T (x - μ) is white. Its
    condition number is the square root of that of Λ, so that draws in float32 stay inside the support.
    Densities are those of (μ, T).

    Args:
        loc: m, mean of μ, [..., D].
        mean_concentration: s > 0, pseudo-observations behind ``loc``, [...].
        concentration: a > 0, half as many as the degrees of freedom of the predictive Student-t, [...]; a
            variance Σ_dd by itself is 1/Gamma(a, B_dd).
        rate_tril: lower Cholesky factor of B, [..., D, D]; a number stands for so many times the identity.

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "mean_concentration": constraints.positive,
        "concentration": constraints.positive,
        "rate_tril": constraints.lower_cholesky,
    }
    support = packed.AboveFactor()

    def __init__(
        self,
        loc: Tensor,
        mean_concentration: Tensor | float,
        concentration: Tensor | float,
        rate_tril: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(loc, Tensor) or loc.dim() == 0:
            raise ValueError("loc: expected a tensor of shape [..., D]")
        dim, given = loc.shape[-1], (mean_concentration, concentration, rate_tril)
        s, a, tril = (torch.as_tensor(t, dtype=loc.dtype, device=loc.device) for t in given)
        tril = tril if tril.dim() else tril * torch.eye(dim, dtype=loc.dtype, device=loc.device)
        try:
            if tril.shape[-2:] != (dim, dim):
                raise ValueError
            batch = broadcast_shape(loc.shape[:-1], s.shape, a.shape, tril.shape[:-2])
            self.loc, self.rate_tril = loc.expand(*batch, dim), tril.expand(*batch, dim, dim)
        except ValueError:
            raise ValueError(
                "expected loc [..., D], mean_concentration [...], concentration [...] and rate_tril "
                "[..., D, D], got " + ", ".join(str(list(t.shape)) for t in (loc, s, a, tril))
            ) from None
        self.mean_concentration, self.concentration = s.expand(batch), a.expand(batch)
        super().__init__(batch, torch.Size((dim + 1, dim)), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """(m, E[T]), [..., D+1, D]."""
        return packed.above(self.loc, mean_factor(self.concentration, self.rate_tril))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., D+1, D], of T by Bartlett's decomposition.

        Drawn in float64, as those of a Normal-Gamma are.
        """
        *batch, _, dim = self._extended_shape(sample_shape)
        m, s, a, tril = (to_float64(t) for t in self.standard)
        factor = draw_factor(a, tril, batch)
        noise = torch.randn(*batch, dim, 1, dtype=m.dtype, device=m.device)
        gap = torch.linalg.solve_triangular(factor, noise, upper=False).squeeze(-1)
        return packed.above(m + gap * s.unsqueeze(-1).rsqrt(), factor).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of (μ, T) [..., D+1, D], over the elements of μ and of the lower triangle of T."""
        if self._validate_args:
            self._validate_sample(value)
        dim, loc, factor = value.shape[-1], value[..., 0, :], value[..., 1:, :]
        s = self.mean_concentration
        white = (factor @ (loc - self.loc).unsqueeze(-1)).squeeze(-1)
        normal = 0.5 * dim * (s.log() - math.log(2 * math.pi)) - 0.5 * s * white.square().sum(-1)
        normal = normal + 0.5 * packed.log_determinant(factor)
        return normal + factor_log_prob(self.concentration, self.rate_tril, factor)


class NormalWishartFamily(ExponentialFamily):
    """N(μ; m, (sΛ)⁻¹) Wishart(Λ; 2a + D - 1, B⁻¹/2), the precision of all D dimensions being Λ.

    Packed as λ = (λ1, λ4, λ2[D(D+1)/2], λ3[D]), as in :class:`NormalGammaFamily`, with statistics
    t = (log det Λ, μᵀΛμ, Λ, Λμ):

        λ1 = a - 1/2,  λ4 = -s/2,  λ2 = -(B + s m mᵀ/2),  λ3 = s m

    λ2 is stored as its lower triangle, row by row, and Λ as that of 2Λ - diag Λ, which makes the family
    minimal: D(D+3)/2 + 2 numbers. B is the difference of nearly equal numbers when m is large against
    the spread, so λ has to be float64.
    """

    distribution = NormalWishart
    names = ("loc", "mean_concentration", "concentration", "rate_tril")
    domain = f"s and a > 0, B positive definite, {NEAR}"

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D], s [...], a [...] and L [..., D, D], the Cholesky factor of B."""
        m, s, a, tril = standard
        third = s.unsqueeze(-1) * m
        second = -packed.pack(tril @ tril.mT) - 0.5 * packed.pack_product(third, m)
        return packed.join(a - 0.5, -0.5 * s, second, third)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], s [...], a [...], L [..., D, D]); L is NaN where B has none, or few digits."""
        first, fourth, second, third = packed.split(natural)
        m = third / (-2 * fourth).unsqueeze(-1)
        rate = -packed.unpack(second + 0.5 * packed.pack_product(third, m), m.shape[-1])
        return m, -2 * fourth, first + 0.5, packed.cholesky_or_nan(rate, 0.5 * third * m)

    def event_shape(self, size: int) -> torch.Size:
        """(D+1, D)."""
        dim = packed.dim_of(size)
        if dim < 1 or size != 2 + dim * (dim + 3) // 2:
            raise ValueError(
                f"natural: expected shape [..., D(D+3)/2 + 2] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((dim + 1, dim))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (μ, T) [..., D+1, D]."""
        loc, factor = value[..., 0, :], value[..., 1:, :]
        white = (factor @ loc.unsqueeze(-1)).squeeze(-1)
        precision, scaled_loc = factor.mT @ factor, (factor.mT @ white.unsqueeze(-1)).squeeze(-1)
        return packed.join(
            packed.log_determinant(factor),
            white.square().sum(-1),
            packed.pack(packed.doubled(precision)),
            scaled_loc,
        )

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d log Γ(a + (d-1)/2) - ν/2 log det B - D/2 log s (powers of π are in the base measure)."""
        m, s, a, tril = self.unpack(natural)
        shapes = wishart_shapes(a, m.shape[-1])
        rates = shapes[..., -1] * packed.log_determinant(tril)
        return torch.lgamma(shapes).sum(-1) - rates - 0.5 * m.shape[-1] * s.log()

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: Σ_d ψ(a + (d-1)/2) - log det B, D/s + mᵀE[Λ]m, E[Λ] = ν/2 B⁻¹, E[Λ]m. Bishop, 10.64-10.65."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at m [..., D], s and a [...] and L [..., D, D], without the digits that λ would lose."""
        m, s, a, tril = standard
        shapes = wishart_shapes(a, m.shape[-1])
        precision = shapes[..., -1, None, None] * torch.cholesky_inverse(tril)
        scaled_loc = (precision @ m.unsqueeze(-1)).squeeze(-1)
        log_precision = torch.digamma(shapes).sum(-1) - packed.log_determinant(tril)
        square = m.shape[-1] / s + (scaled_loc * m).sum(-1)
        return packed.join(log_precision, square, packed.pack(packed.doubled(precision)), scaled_loc)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL of the normal and of the Wishart parts: [...]. Bishop (2006), 10.74 and 10.77."""
        first, fourth, _, third = packed.split(natural)
        s, a, dim = -2 * fourth, first + 0.5, third.shape[-1]
        log_precision, _, precision, _ = packed.split(self.mean_stats(natural) if stats is None else stats)
        m0, s0, a0, tril0 = self.unpack(prior)
        gap, shapes, shapes0 = third / s.unsqueeze(-1) - m0, wishart_shapes(a, dim), wishart_shapes(a0, dim)
        ratio, digamma = s0 / s, torch.digamma(shapes).sum(-1)
        shared = 0.5 * dim * (ratio - ratio.log() - 1) - dim * shapes[..., -1] + (a - a0) * digamma
        shared = shared + (torch.lgamma(shapes0) - torch.lgamma(shapes)).sum(-1)
        apart = (packed.pack_product(gap, gap) * precision).sum(-1)
        log_rates = digamma - log_precision - packed.log_determinant(tril0)
        trace = (precision * packed.pack(tril0 @ tril0.mT)).sum(-1)
        return shared + 0.5 * s0 * apart + trace + shapes0[..., -1] * log_rates

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂s, ∂a, ∂L), solved by hand: the metric has the blocks (m), (s) and (a, B)."""
        (m, s, a, tril), (grad_m, grad_s, grad_a, grad_tril) = standard, grads
        dim, shapes = m.shape[-1], wishart_shapes(a, m.shape[-1])
        half_dof = shapes[..., -1]
        lower = tril.mT @ grad_tril
        symmetric = 0.5 * (lower.tril() + lower.tril(-1).mT)  # ∂B = L⁻ᵀ (this) L⁻¹
        slope = grad_a + packed.diagonal(symmetric).sum(-1) / half_dof
        first = slope / (torch.polygamma(1, shapes).sum(-1) - dim / half_dof)
        fourth = -s.square() * grad_s / dim
        moved = fourth.unsqueeze(-1) * m
        scaled = (tril @ (tril.mT @ grad_m.unsqueeze(-1))).squeeze(-1) / half_dof.unsqueeze(-1)
        core = symmetric + torch.diag_embed(first.unsqueeze(-1).expand_as(m))
        rate = tril @ core @ tril.mT / half_dof[..., None, None]
        across = 0.5 * (packed.pack_product(scaled, m) + packed.pack_product(m, scaled))
        second = packed.pack_product(moved, m) - packed.pack(rate) - across
        return packed.join(first, fourth, second, scaled - 2 * moved)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where s and a are positive and B is positive definite (B is NaN where m is not finite)."""
        _, s, a, tril = self.unpack(natural)
        return (s > 0) & (a > 0) & tril.isfinite().all(-1).all(-1)

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """(1/2, -1/2, -E[x xᵀ]/2, E[x]) of x [..., D]: log N(x; μ, Λ⁻¹) is linear in these."""
        half = torch.full_like(mean[..., 0], 0.5)
        square = packed.pack_product(mean, mean) + packed.pack(torch.diag_embed(variance))
        return packed.join(half, -half, -0.5 * square, mean)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        """E[log N(x; μ_k, Λ_k⁻¹)] [..., N, K]: see :func:`full_gaussian_table`."""
        return full_gaussian_table(mean, variance, stats)

    def conjugate_update(
        self, prior: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, scale: float = 1.0
    ) -> Tensor:
        """λ*, all data at once: Bishop (2006), 10.60-10.63. One product gives all Σ_n w_nk x_n x_nᵀ."""
        weights, mean, variance = scale * weights.double(), mean.double(), variance.double()
        weighted = weights.unsqueeze(-1) * mean.unsqueeze(-2)  # [..., N, K, D]
        squares = (mean.mT @ weighted.flatten(-2)).unflatten(-1, weighted.shape[-2:]).movedim(-2, -3)
        squares = squares + torch.diag_embed(weights.mT @ variance)
        halves = 0.5 * weights.sum(-2)
        return prior.double() + packed.join(halves, -halves, -0.5 * packed.pack(squares), weights.mT @ mean)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of unit variance around a random mean (m0 plus unit noise)."""
        m0, s0, a0, tril0 = self.unpack(prior)
        noise = torch.randn(m0.shape, dtype=m0.dtype, generator=generator).to(m0.device)
        rate = tril0 @ tril0.mT + torch.diag_embed(torch.full_like(m0, count / 2))
        return self.natural(m0 + noise, s0 + count, a0 + count / 2, torch.linalg.cholesky(rate))

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> MultivariateStudentT:
        """Student-t: 2a degrees of freedom, location m, *squared* scale ((s+1)/s) B/a. Bishop, 10.81-82."""
        m, s, a, tril = standard
        scale_tril = ((s + 1) / (s * a)).sqrt()[..., None, None] * tril
        return MultivariateStudentT(*(t.to(dtype) for t in (2 * a, m, scale_tril)))


NORMAL_WISHART = NormalWishartFamily()


@register_family(NormalWishart)
class NaturalNormalWishart(NaturalDistribution, NormalWishart):  # type: ignore[misc, override]
    """A Normal-Wishart posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = NORMAL_WISHART
