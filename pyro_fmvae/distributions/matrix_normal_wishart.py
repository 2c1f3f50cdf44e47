"""The matrix-Normal-Wishart family: the conjugate prior of a regression's weights and its noise's precision.

The noise is that of D numbers at once, with a full covariance matrix. Gupta and Nagar (2000), Matrix variate
distributions, Chapters 2 and 3; Beal (2003), Variational algorithms for approximate Bayesian inference,
Chapter 5, has the family for linear dynamics with one precision for each row.
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
from pyro_fmvae.distributions.multivariate_normal import MULTIVARIATE_NORMAL
from pyro_fmvae.distributions.normal_gamma import NEAR
from pyro_fmvae.distributions.wishart import (
    WISHART,
    draw_factor,
    factor_log_prob,
    mean_factor,
    wishart_shapes,
)


class MatrixNormalWishart(StandardDistribution):
    """Weights W | Λ ~ MN(M, LLᵀ, Λ⁻¹), Λ ~ Wishart(ν, (2B)⁻¹) of ν = 2a + D - 1: y = Wᵀx + N(0, Λ⁻¹) noise.

    Given Λ, ``cov(w_ki, w_lj) = (LLᵀ)_kl (Λ⁻¹)_ij``. A draw has the shape (K+D, D). Its first K rows are W.
    The others are T as in :class:`NormalWishart`, which is this distribution with K = 1. Densities are those
    of (W, T).

    Args:
        loc: M, mean of W, a row for each of K features, [..., K, D].
        scale_tril: lower triangular L with a positive diagonal, [..., K, K].
        concentration: a > 0, half as many as the degrees of freedom of the predictive Student-t, [...].
        rate_tril: lower Cholesky factor of B, [..., D, D].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.independent(constraints.real, 2),
        "scale_tril": constraints.lower_cholesky,
        "concentration": constraints.positive,
        "rate_tril": constraints.lower_cholesky,
    }

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        concentration: Tensor | float,
        rate_tril: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(loc, Tensor) or loc.dim() < 2:
            raise ValueError("loc: expected a tensor of shape [..., K, D]")
        rows, dim = loc.shape[-2:]
        given = (scale_tril, concentration, rate_tril)
        tril, a, rate = (torch.as_tensor(t, dtype=loc.dtype, device=loc.device) for t in given)
        try:
            if tril.shape[-2:] != (rows, rows) or rate.shape[-2:] != (dim, dim):
                raise ValueError
            batch = broadcast_shape(loc.shape[:-2], tril.shape[:-2], a.shape, rate.shape[:-2])
        except ValueError:
            raise ValueError(
                "expected loc [..., K, D], scale_tril [..., K, K], concentration [...] and rate_tril "
                "[..., D, D], got " + ", ".join(str(list(t.shape)) for t in (loc, tril, a, rate))
            ) from None
        self.loc, self.scale_tril = loc.expand(*batch, rows, dim), tril.expand(*batch, rows, rows)
        self.concentration, self.rate_tril = a.expand(batch), rate.expand(*batch, dim, dim)
        super().__init__(batch, torch.Size((rows + dim, dim)), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> constraints.Constraint:
        """K rows of real numbers above a triangular factor."""
        total, dim = self.event_shape
        return packed.AboveFactor(total - dim)

    @property
    def mean(self) -> Tensor:
        """(M, E[T]), [..., K+D, D]."""
        return torch.cat([self.loc, mean_factor(self.concentration, self.rate_tril)], -2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., K+D, D], made in float64."""
        *batch, size, dim = self._extended_shape(sample_shape)
        m, tril, a, rate = (to_float64(t) for t in self.standard)
        factor = draw_factor(a, rate, batch)
        noise = torch.randn(*batch, size - dim, dim, dtype=m.dtype, device=m.device)
        gap = torch.linalg.solve_triangular(factor.mT, tril @ noise, upper=True, left=False)
        return torch.cat([m + gap, factor], -2).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of (W, T) [..., K+D, D], over the elements of W and of the lower triangle of T."""
        if self._validate_args:
            self._validate_sample(value)
        rows, dim = self.loc.shape[-2:]
        weights, factor = value[..., :rows, :], value[..., rows:, :]
        gap = (weights - self.loc) @ factor.mT
        white = torch.linalg.solve_triangular(self.scale_tril, gap, upper=False).square().sum((-2, -1))
        spread = rows * packed.log_determinant(factor) - dim * packed.log_determinant(self.scale_tril)
        normal = 0.5 * (spread - white) - 0.5 * rows * dim * math.log(2 * math.pi)
        return normal + factor_log_prob(self.concentration, self.rate_tril, factor)


class MatrixNormalWishartFamily(ExponentialFamily):
    """MN(W; M, P⁻¹, Λ⁻¹) Wishart(Λ; 2a + D - 1, B⁻¹/2), P being the inverse of LLᵀ and B = RRᵀ.

    Packed as λ = (λ1, λ2[D(D+1)/2], λ3[K(K+1)/2], λ4[K D], 0[K - 1]) with the statistics
    t = (log det Λ, Λ, WΛWᵀ, WΛ, 0):

        λ1 = a - 1 + K/2,  λ2 = diag(C) - 2C with C = B + MᵀPM/2,  λ3 = diag(P)/2 - P,  λ4 = P M

    Symmetric matrices are stored as their lower triangles, row by row; an element below the diagonal counts
    for the one above it as well. The number of zeros at the end says what K and D are. B is the difference of
    nearly equal numbers when M is large against the spread, so λ has to be float64.
    """

    distribution = MatrixNormalWishart
    names = ("loc", "scale_tril", "concentration", "rate_tril")
    domain = f"a > 0, P and B positive definite, {NEAR}"

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack M [..., K, D], L [..., K, K], a [...] and R [..., D, D]."""
        m, tril, a, rate = standard
        rows = m.shape[-2]
        white = torch.linalg.solve_triangular(tril, m, upper=False)
        wishart = WISHART.natural(a - 1 + 0.5 * rows, rate)
        third = -0.5 * packed.pack(packed.doubled(torch.cholesky_inverse(tril)))
        second = wishart[..., 1:] - 0.5 * packed.pack(packed.doubled(white.mT @ white))
        return packed.join_rows(wishart[..., 0], second, third, torch.cholesky_solve(m, tril))

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(M [..., K, D], L [..., K, K], a [...], R [..., D, D]); R is NaN where few digits of B are left."""
        first, second, third, fourth = packed.split_rows(natural)
        rows, dim = fourth.shape[-2:]
        _, tril = MULTIVARIATE_NORMAL.unpack(torch.cat([fourth[..., 0], third], -1))
        white = tril.mT @ fourth
        taken = 0.5 * white.mT @ white
        rate = -packed.halved(packed.unpack(second, dim)) - taken
        return (
            tril @ white,
            tril,
            first + 1 - 0.5 * rows,
            packed.cholesky_or_nan(rate, packed.diagonal(taken)),
        )

    def event_shape(self, size: int) -> torch.Size:
        """(K+D, D)."""
        rows, dim = packed.rows_and_columns(size)
        if rows < 1 or dim < 1:
            raise ValueError(
                "natural: expected shape [..., (K+D)(K+D+1)/2 + K] with K and D >= 1, got "
                f"{size} in the last dimension"
            )
        return torch.Size((rows + dim, dim))

    def size(self, event: torch.Size) -> int:
        """(K+D)(K+D+1)/2 + K."""
        total, dim = event
        return total * (total + 1) // 2 + total - dim

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (W, T) [..., K+D, D]."""
        rows = value.shape[-2] - value.shape[-1]
        weights, factor = value[..., :rows, :], value[..., rows:, :]
        white = weights @ factor.mT
        precision, squares = packed.pack(factor.mT @ factor), packed.pack(white @ white.mT)
        return packed.join_rows(packed.log_determinant(factor), precision, squares, white @ factor)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d log Γ(a + (d-1)/2) - ν/2 log det B - D/2 log det P (powers of π: base measure)."""
        m, tril, a, rate = self.unpack(natural)
        shapes = wishart_shapes(a, m.shape[-1])
        rates = shapes[..., -1] * packed.log_determinant(rate)
        return torch.lgamma(shapes).sum(-1) - rates + 0.5 * m.shape[-1] * packed.log_determinant(tril)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: Σ_d ψ(a + (d-1)/2) - log det B, E[Λ] = ν/2 B⁻¹, D P⁻¹ + M E[Λ] Mᵀ, M E[Λ]."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at M, L, a and R, without the digits that λ would lose."""
        m, tril, a, rate = standard
        dim = m.shape[-1]
        shapes = wishart_shapes(a, dim)
        precision = shapes[..., -1, None, None] * torch.cholesky_inverse(rate)
        scaled = m @ precision
        log_precision = torch.digamma(shapes).sum(-1) - packed.log_determinant(rate)
        squares = dim * tril @ tril.mT + scaled @ m.mT
        return packed.join_rows(log_precision, packed.pack(precision), packed.pack(squares), scaled)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL of the Wishart distributions, and of the normal ones of D columns on average over Λ: [...]."""
        (m, tril, a, rate), (m0, tril0, a0, rate0) = self.unpack(natural), self.unpack(prior)
        half_df = wishart_shapes(a, m.shape[-1])[..., -1, None, None]
        gap = half_df.sqrt() * torch.linalg.solve_triangular(rate.mT, m - m0, upper=True, left=False)
        columns, factors = gap.mT, [each.unsqueeze(-3) for each in (tril, tril0)]
        normal = MULTIVARIATE_NORMAL.divergence(
            (columns, factors[0]), (torch.zeros_like(columns), factors[1])
        )
        wishart = WISHART.relative_entropy(WISHART.natural(a, rate), WISHART.natural(a0, rate0))
        return normal.sum(-1) + wishart

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-K D log(2π)/2 - D(D-1) log(π)/4, for densities of (W, Λ)."""
        rows, dim = packed.rows_and_columns(stats.shape[-1])
        constant = 0.5 * rows * dim * math.log(2 * math.pi) + 0.25 * dim * (dim - 1) * math.log(math.pi)
        return torch.full_like(stats[..., 0], -constant)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂M, ∂L, ∂a, ∂R): the gradient with respect to E[t], of which they are simple functions."""
        (m, tril, a, rate), (grad_m, grad_tril, grad_a, grad_rate) = standard, grads
        rows, dim = m.shape[-2:]
        half_df = wishart_shapes(a, dim)[..., -1, None, None]
        scaled = grad_m @ rate @ rate.mT / half_df
        zero = torch.zeros_like(m[..., 0])
        third = MULTIVARIATE_NORMAL.inverse_fisher((zero, tril), (zero, grad_tril))[..., rows:] / dim
        moved = packed.halved(packed.unpack(third, rows)) @ m  # ∂(WΛWᵀ) M
        across = m.mT @ (moved - scaled)
        wishart = WISHART.inverse_fisher((a, rate), (grad_a, grad_rate))
        second = wishart[..., 1:] + 0.5 * packed.pack(packed.doubled(across + across.mT))
        return packed.join_rows(wishart[..., 0], second, third, scaled - 2 * moved)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where a is positive and B positive definite (B is NaN where P is not, or M not finite)."""
        _, _, a, rate = self.unpack(natural)
        return (a > 0) & rate.isfinite().all(-1).all(-1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, each as informative of W as the prior, around a draw of W."""
        m, tril, a, rate = self.unpack(prior)
        noise = torch.randn(m.shape, dtype=m.dtype, generator=generator).to(m.device)
        half_df = wishart_shapes(a, m.shape[-1])[..., -1, None, None]
        drawn = m + tril @ noise @ (rate * half_df.rsqrt()).mT
        a, rate = WISHART.unpack(WISHART.random_start(WISHART.natural(a, rate), count, generator))
        return self.natural(drawn, tril / math.sqrt(1 + count), a, rate)

    def predictive_linear(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, features: Tensor
    ) -> MultivariateStudentT:
        """p(y) of y ~ N(Wᵀx, Λ⁻¹) with features x [..., K], for each y by itself.

        Student-t: 2a degrees of freedom, location Mᵀx, *squared* scale (1 + xᵀ P⁻¹ x) B/a.
        """
        m, tril, a, rate = standard
        row = features.unsqueeze(-2)
        spread = 1 + (row @ tril).square().sum((-2, -1))
        scale_tril = rate * (spread / a).sqrt()[..., None, None]
        return MultivariateStudentT(*(t.to(dtype) for t in (2 * a, (row @ m).squeeze(-2), scale_tril)))


MATRIX_NORMAL_WISHART = MatrixNormalWishartFamily()


@register_family(MatrixNormalWishart)
class NaturalMatrixNormalWishart(NaturalDistribution, MatrixNormalWishart):  # type: ignore[misc, override]
    """A matrix-Normal-Wishart posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = MATRIX_NORMAL_WISHART
