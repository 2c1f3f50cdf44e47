"""The multivariate Normal family: the conjugate prior of locations and of regression weights.

Bishop (2006), Pattern Recognition and Machine Learning, Sections 2.3.3 and 3.3.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import MultivariateNormal, Normal, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.bregman import log_gap
from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    register_family,
)
from pyro_fmvae.distributions.restated import restate

# Normal distributions of matrices, whose rows share one precision matrix.
#
# Gupta and Nagar (2000), Matrix variate distributions, Chapter 2.


class MatrixNormal(TorchDistribution):
    """Matrices W = M + L Z, where each row of Z is N(0, Λ⁻¹) by itself.

    A row of W by itself is N(m_k, (LLᵀ)_kk Λ⁻¹).

    Args:
        loc: M, [..., K, D].
        scale_tril: lower triangular L with a positive diagonal, [..., K, K].
        precision_matrix: Λ, [..., D, D].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.independent(constraints.real, 2),
        "scale_tril": constraints.lower_cholesky,
        "precision_matrix": constraints.positive_definite,
    }
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        precision_matrix: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        rows, dim = loc.shape[-2:] if loc.dim() > 1 else (0, 0)
        if scale_tril.shape[-2:] != (rows, rows) or precision_matrix.shape[-2:] != (dim, dim):
            raise ValueError(
                "expected loc [..., K, D], scale_tril [..., K, K] and precision_matrix [..., D, D], got "
                + ", ".join(str(list(t.shape)) for t in (loc, scale_tril, precision_matrix))
            )
        batch = broadcast_shape(loc.shape[:-2], scale_tril.shape[:-2], precision_matrix.shape[:-2])
        self.loc, self.scale_tril, self.precision_matrix = loc, scale_tril, precision_matrix
        super().__init__(batch, (rows, dim), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the parameters stay the tensors that were given."""
        new: Any = self._get_checked_instance(MatrixNormal, _instance)
        new.loc, new.scale_tril, new.precision_matrix = self.loc, self.scale_tril, self.precision_matrix
        super(MatrixNormal, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """M, [..., K, D]."""
        return self.loc.expand(*self.batch_shape, *self.event_shape)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., K, D]."""
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        factor = torch.linalg.cholesky(self.precision_matrix)
        return self.loc + packed.divide(self.scale_tril @ noise, factor)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of matrices [..., K, D]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        density = _log_density(self, value)
        return density.expand(broadcast_shape(density.shape, self.batch_shape))


@restate(MatrixNormal)
def _log_density(fn: MatrixNormal, value: Tensor) -> Tensor:
    """In the elements of W and Λ, which may be values that are not there."""
    (rows, dim), gap = fn.event_shape, value - fn.loc
    square = (torch.cholesky_inverse(fn.scale_tril) * (gap @ fn.precision_matrix @ gap.mT)).sum((-2, -1))
    determinants = rows * fn.precision_matrix.logdet() - dim * packed.log_determinant(fn.scale_tril)
    return 0.5 * (determinants - square) - 0.5 * rows * dim * math.log(2 * math.pi)


class MultivariateNormalFamily(ExponentialFamily):
    """N(m, P⁻¹) of D dimensions, the standard parameters being m and L with P⁻¹ = LLᵀ.

    Packed as λ = (λ1[D], λ2[D(D+1)/2]) with the statistics t = (θ, θθᵀ):

        λ1 = P m,  λ2 = diag(P)/2 - P

    Symmetric matrices are stored as their lower triangles, row by row; an element below the diagonal of λ2
    counts for the one above it as well. L is the inverse of a triangular factor of P, so P itself is never
    inverted.
    """

    distribution = MultivariateNormal
    names = ("loc", "scale_tril")
    domain = "P positive definite and m finite"
    monomials = frozenset({("x",), ("x", "x")})

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D] and L [..., D, D] into [..., D(D+3)/2]."""
        m, tril = standard
        batch = torch.broadcast_shapes(m.shape[:-1], tril.shape[:-2])
        m, tril = m.expand(*batch, *m.shape[-1:]), tril.expand(*batch, *tril.shape[-2:])
        first = torch.cholesky_solve(m.unsqueeze(-1), tril).squeeze(-1)
        return torch.cat([first, -0.5 * packed.pack(packed.doubled(torch.cholesky_inverse(tril)))], -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], L [..., D, D]), NaN where P is not positive definite."""
        dim = _dim_of(natural.shape[-1])
        first, second = natural[..., :dim], natural[..., dim:]
        precision = -2 * packed.halved(packed.unpack(second, dim))
        factor = packed.cholesky_or_nan(precision.flip(-1, -2)).flip(-1, -2).mT  # P = UᵀU, U lower triangular
        identity = torch.eye(dim, dtype=natural.dtype, device=natural.device)
        tril = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        return _product(tril, _product(tril.mT, first)), tril

    def event_shape(self, size: int) -> torch.Size:
        """(D,)."""
        dim = _dim_of(size)
        if dim < 1 or size != dim * (dim + 3) // 2:
            raise ValueError(
                f"natural: expected shape [..., D(D+3)/2] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((dim,))

    def size(self, event: torch.Size) -> int:
        """D(D+3)/2."""
        if len(event) != 1:
            raise ValueError(f"MultivariateNormalFamily: expected values of one dimension, got {list(event)}")
        return event[0] * (event[0] + 3) // 2

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """The place of a statistic: i for θ_i; for θ_i θ_j, its place in the triangle."""
        if len(monomial) == 1:
            return elements[0]
        return event[0] + packed.position(*elements)

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at θ [..., D]."""
        return torch.cat([value, packed.pack_product(value, value)], -1)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = (mᵀPm - log det P)/2."""
        m, tril = self.unpack(natural)
        return 0.5 * ((m * natural[..., : m.shape[-1]]).sum(-1) + packed.log_determinant(tril))

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = (m, P⁻¹ + m mᵀ)."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at m [..., D] and L [..., D, D]."""
        m, tril = standard
        squares = packed.pack(tril @ tril.mT) + packed.pack_product(m, m)
        return torch.cat([m.expand(*squares.shape[:-1], m.shape[-1]), squares], -1)

    def stats_about(self, natural: Tensor, centre: Tensor) -> Tensor:
        """(m - c, P⁻¹ + (m - c)(m - c)ᵀ)."""
        m, tril = self.unpack(natural)
        return self.stats_from_standard(m - centre, tril)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """See :meth:`divergence`."""
        return self.divergence(self.unpack(natural), self.unpack(prior))

    @staticmethod
    def divergence(
        posterior: tuple[Tensor, ...], prior: tuple[Tensor, ...], precision: Tensor | float = 1.0
    ) -> Tensor:
        """Half of ``Σ_d (r_d - 1 - log r_d) + |T below its diagonal|² + τ |L₀⁻¹(m - m₀)|²``: [...].

        T = L₀⁻¹ L is triangular, and r are the squares of its diagonal. That is the KL divergence, for τ = 1.

        Args:
            posterior, prior: standard parameters.
            precision: τ [...], by which both covariance matrices are divided.
        """
        (m, tril), (m0, tril0) = posterior, prior
        shape = torch.broadcast_shapes(tril.shape, tril0.shape)
        tril, tril0 = tril.expand(shape), tril0.expand(shape)
        below = torch.linalg.solve_triangular(tril0, tril, upper=False).tril(-1).square().sum((-2, -1))
        own, own0 = packed.diagonal(tril), packed.diagonal(tril0)
        ratio = own / own0
        spread = log_gap(ratio.square(), (own - own0) / own0 * (ratio + 1)).sum(-1)
        gap = torch.linalg.solve_triangular(tril0, (m - m0).unsqueeze(-1), upper=False).square()
        return 0.5 * (spread + below + precision * gap.sum((-2, -1)))

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-D log(2π)/2."""
        return torch.full_like(stats[..., 0], -0.5 * _dim_of(stats.shape[-1]) * math.log(2 * math.pi))

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂L): the gradient with respect to E[t], of which m and LLᵀ are simple functions."""
        (m, tril), (grad_m, grad_tril) = standard, grads
        lower = tril.mT @ grad_tril
        symmetric = 0.5 * (lower.tril() + lower.tril(-1).mT)
        left = torch.linalg.solve_triangular(tril.mT, symmetric, upper=True)
        covariance = torch.linalg.solve_triangular(tril, left, upper=False, left=False)  # ∂(LLᵀ)
        first = grad_m - 2 * _product(covariance, m)
        return torch.cat([first, packed.pack(packed.doubled(covariance))], -1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where P is positive definite and m is finite."""
        m, _ = self.unpack(natural)
        return m.isfinite().all(-1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, each as informative as the prior, around a draw from the prior."""
        m, tril = self.unpack(prior)
        noise = torch.randn(m.shape, dtype=m.dtype, generator=generator).to(m.device)
        return self.natural(m + _product(tril, noise), tril / math.sqrt(1 + count))

    def predictive_linear(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, features: Tensor, scale: float | Tensor
    ) -> Normal:
        """p(y) of y ~ N(xᵀθ, scale²) with features x [..., D], for each y by itself. Bishop, 3.58."""
        m, tril = standard
        variance = _product(tril.mT, features).square().sum(-1) + scale**2
        return Normal((features * m).sum(-1).to(dtype), variance.sqrt().to(dtype))

    def predictive_normal(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, covariance: Tensor
    ) -> MultivariateNormal:
        """p(x) of x ~ N(θ, covariance): normal, with the sum of the two covariance matrices."""
        m, tril = standard
        return MultivariateNormal(m.to(dtype), (tril @ tril.mT + covariance).to(dtype))


def _dim_of(size: int) -> int:
    """D of D(D+3)/2 numbers; for other sizes rounded down."""
    return packed.dim_of(size + 2)


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


MULTIVARIATE_NORMAL = MultivariateNormalFamily()


@register_family(torch.distributions.MultivariateNormal)
class NaturalMultivariateNormal(NaturalDistribution, MultivariateNormal):
    """A multivariate Normal posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = MULTIVARIATE_NORMAL

    @property
    def _unbroadcasted_scale_tril(self) -> Tensor:
        return self.scale_tril
