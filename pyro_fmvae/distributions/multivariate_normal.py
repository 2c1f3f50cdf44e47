"""The multivariate Normal family: the conjugate prior of locations and of regression weights.

Bishop (2006), Pattern Recognition and Machine Learning, Sections 2.3.3 and 3.3.
"""

import copyreg
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import torch
from pyro.distributions import MultivariateNormal, Normal, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.bregman import log_gap
from pyro_fmvae.distributions.exponential_family import (
    Domain,
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

    def pairs(self, event: torch.Size, device: torch.device) -> Tensor:
        """The lower triangle, row by row."""
        return torch.tril_indices(event[0], event[0], device=device)

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

    # Parts of a vector, each given the numbers before it.

    def of_covariances(self, loc: Tensor, covariances: Tensor) -> Tensor:
        """λ of a mean [D] and the covariances that t has products for."""
        return self.natural(loc, torch.linalg.cholesky(packed.unpack(covariances, loc.shape[-1])))

    def deviations(self, standard: tuple[Tensor, ...]) -> Tensor:
        """Standard deviations [D] of the numbers by themselves."""
        return standard[1].norm(dim=-1)

    def draw(self, standard: tuple[Tensor, ...], before: Tensor, noise: Tensor) -> Tensor:
        """The next n numbers [*S, n] of a vector.

        Args:
            standard: standard parameters.
            before: the numbers before them, [*S, start].
            noise: independent standard Normal numbers, [*S, n].
        """
        loc, tril = self._next(standard, before, noise.shape[-1])
        return loc + noise @ tril.mT

    def noise(self, standard: tuple[Tensor, ...], before: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`draw`: the noise [*S, n], and the numbers' standard deviations [n]."""
        loc, tril = self._next(standard, before, value.shape[-1])
        gap = (value - loc).unsqueeze(-1)
        return torch.linalg.solve_triangular(tril, gap, upper=False).squeeze(-1), packed.diagonal(tril)

    @staticmethod
    def _next(standard: tuple[Tensor, ...], before: Tensor, count: int) -> tuple[Tensor, Tensor]:
        (m, tril), start = standard, before.shape[-1]
        rows = slice(start, start + count)
        gap = (before - m[:start]).unsqueeze(-1)
        noise = torch.linalg.solve_triangular(tril[:start, :start], gap, upper=False)
        return m[rows] + (tril[rows, :start] @ noise).squeeze(-1), tril[rows, rows]

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


# Normal vectors with sparse precision matrices: hierarchies by plates, trees and chains.
#
# Numbers are eliminated in rounds. Those of a round do not depend on each other given the numbers that are
# left, so they go at once: all groups of a plate (an arrowhead matrix), or every other step of a chain
# (cyclic reduction). What is left in the end is a small dense vector, the root. Elimination adds the products
# that the numbers left depend on each other by. The statistics have these, too, so that E[t] is known by
# going through the rounds backwards: Takahashi, Fagan and Chin (1973); Rue and Held (2005), Gaussian Markov
# random fields, Sections 2.3 and 2.4; Lauritzen (1996), Graphical models, Section 5.2.

MOST_PRODUCTS = 2**22  # of numbers that one is eliminated from, in all rounds
FEW = 64  # numbers of a vector that are not worth a round


class Round(NamedTuple):
    """L numbers that are eliminated from M others each, or fewer: then D, and the entry E, stand for none.

    Numbers that all depend on the same others have these once: then there is 1 in the place of L.

    Args:
        start: the first number of the site that they are of.
        numbers: theirs, [L].
        others: those left that they depend on, [L, M].
        own, cross: entries of the precision matrix, of each with itself [L] and with the others [L, M].
        among: entries of the others with each other, [L, M, M].
    """

    start: int
    numbers: Tensor
    others: Tensor
    own: Tensor
    cross: Tensor
    among: Tensor

    def to(self, device: torch.device) -> "Round":
        """The round on a device."""
        start, *indices = self
        return Round(start, *(index.to(device) for index in indices))


class SparseNormalFamily(MultivariateNormalFamily):
    """N(m, P⁻¹) of D dimensions, where P has E elements in its lower triangle that need not be 0.

    Packed as λ = (λ1[D], λ2[E]), as in :class:`MultivariateNormalFamily` without the other elements. The
    standard parameters are m and the E covariances at the same places.

    Args:
        sizes: of the parts of the vector. A part is eliminated before those in front of it.
        pairs: numbers that depend on each other, int64 [2, ...].
        most: numbers in the root, at most.

    Raises:
        ValueError: elimination would take too many products.
    """

    names = ("loc", "covariances")
    is_sparse = True

    def __init__(self, sizes: Sequence[int], pairs: Tensor, most: int = FEW) -> None:
        self.sizes, self.couplings, self.most = tuple(sizes), pairs, most
        self.dim = sum(sizes)
        found, self.root = _rounds_of(self.sizes, pairs, most)
        places = [torch.tril_indices(self.root, self.root)]
        for _, numbers, others in found:
            own = numbers.unsqueeze(-1).expand(others.shape)[others < self.dim]
            other = others[others < self.dim]
            places += [torch.stack([numbers, numbers])]
            places += [torch.stack([torch.maximum(own, other), torch.minimum(own, other)])]
        every = torch.cat(places, -1)
        self.keys, order = packed.position(*every).sort()
        self.keys, (self.rows, self.columns) = self.keys.to(pairs.device), every[:, order].to(pairs.device)
        self.times = 1.0 + (self.rows != self.columns).double()
        self.diagonal = self.dim + (self.rows == self.columns).nonzero().squeeze(-1)
        self.rounds = []
        for start, numbers, others in found:
            own, cross = self._entries(numbers, numbers), self._entries(numbers.unsqueeze(-1), others)
            others = others[:1] if bool((others == others[:1]).all()) else others
            among = self._entries(others.unsqueeze(-1), others.unsqueeze(-2))
            self.rounds.append(Round(start, numbers, others, own, cross, among).to(pairs.device))

    def _entries(self, one: Tensor, other: Tensor) -> Tensor:
        """The places of elements among the E; E for those that are not there."""
        wanted = packed.position(*torch.broadcast_tensors(one, other)).to(self.keys.device)
        found = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return found.where(self.keys[found] == wanted, len(self.keys))

    def _on(self, device: torch.device) -> tuple[list[Round], Tensor, Tensor, Tensor]:
        rows, columns, times = (t.to(device) for t in (self.rows, self.columns, self.times))
        return [r.to(device) for r in self.rounds], rows, columns, times

    def event_shape(self, size: int) -> torch.Size:
        """(D,)."""
        if size != (wanted := self.dim + len(self.keys)):
            raise ValueError(f"natural: expected shape [..., {wanted}], got {size} in the last dimension")
        return torch.Size((self.dim,))

    def size(self, event: torch.Size) -> int:
        """D + E."""
        return self.dim + len(self.keys)

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """The place of a statistic; -1 for a product that is not there."""
        if len(monomial) == 1:
            return elements[0]
        device = elements[0].device
        if elements[0] is elements[1]:
            return self.diagonal.to(device)[elements[0]]
        found = self._entries(*elements).to(device)
        return (self.dim + found).where(found < len(self.keys), -1)

    def pairs(self, event: torch.Size, device: torch.device) -> Tensor:
        """The E elements."""
        return torch.stack([self.rows, self.columns]).to(device)

    def natural(self, *standard: Tensor) -> Tensor:
        """λ of m [..., D] and covariances [..., E]."""
        m, covariances = standard
        rounds, rows, columns, times = self._on(m.device)
        zero = covariances.new_zeros(*covariances.shape[:-1], 1)
        covariances = torch.cat([covariances, zero], -1)
        root = torch.linalg.cholesky(packed.unpack(covariances, self.root))
        precision = torch.zeros_like(covariances)
        precision = torch.cat(
            [packed.pack(torch.cholesky_inverse(root)), precision[..., self.root * (self.root + 1) // 2 :]],
            -1,
        )
        for r in rounds:
            weights, deviations = self._regression(covariances, r)
            pivot = deviations.square().reciprocal()
            precision = precision.index_add(-1, r.own, pivot)
            cross = -pivot.unsqueeze(-1) * weights
            precision = precision.index_add(-1, r.cross.flatten(), cross.flatten(-2))
            precision = _add_among(precision, r, -cross, weights)
        precision = precision[..., :-1]
        product = torch.zeros_like(m).index_add(-1, rows, precision * m[..., columns])
        apart = (times - 1) * precision * m[..., rows]
        return torch.cat([product.index_add(-1, columns, apart), -precision / (3 - times)], -1)

    def of_covariances(self, loc: Tensor, covariances: Tensor) -> Tensor:
        """λ of a mean [D] and the covariances that t has products for."""
        return self.natural(loc, covariances)

    def _regression(self, covariances: Tensor, r: Round) -> tuple[Tensor, Tensor]:
        """Weights [..., L, M] of the others in the means of a round, and deviations [..., L] given them."""
        missing = (r.others == self.dim).to(covariances).diag_embed()
        across = covariances[..., r.cross]
        weights = torch.linalg.solve(covariances[..., r.among] + missing, across.unsqueeze(-1)).squeeze(-1)
        return weights, (covariances[..., r.own] - (weights * across).sum(-1)).sqrt()

    def _eliminate(self, natural: Tensor) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor, Tensor]:
        """Pivots [..., L], weights [..., L, M], values [..., L] of rounds; factor and vector of the root."""
        rounds, _, _, times = self._on(natural.device)
        zero = natural.new_zeros(*natural.shape[:-1], 1)
        vector = torch.cat([natural[..., : self.dim], zero], -1)
        matrix = torch.cat([natural[..., self.dim :] * (times - 3), zero], -1)
        found = []
        for r in rounds:
            pivot = matrix.index_select(-1, r.own)
            pivot = pivot.where(pivot > 0, torch.nan)
            cross, value = matrix[..., r.cross], vector.index_select(-1, r.numbers)
            weights = cross / pivot.unsqueeze(-1)
            found.append((pivot, weights, value))
            vector = _add_at(vector, r.others, -weights * value.unsqueeze(-1))
            matrix = _add_among(matrix, r, -weights, cross)
        root = packed.unpack(matrix[..., : self.root * (self.root + 1) // 2], self.root)
        return found, packed.cholesky_or_nan(root), vector[..., : self.root]

    def _substitute(self, eliminated: Any, noise: Tensor | None = None) -> Tensor:
        """P⁻¹ λ1, [..., D], and with independent standard Normal noise [..., D] a draw."""
        found, factor, vector = eliminated
        first = torch.linalg.solve_triangular(factor, vector.unsqueeze(-1), upper=False)
        if noise is not None:
            first = first + noise[..., : self.root, None]
        root = torch.linalg.solve_triangular(factor.mT, first, upper=True).squeeze(-1)
        x = torch.cat([root, root.new_zeros(*root.shape[:-1], self.dim + 1 - self.root)], -1)
        rounds, *_ = self._on(x.device)
        for r, (pivot, weights, value) in zip(reversed(rounds), reversed(found), strict=True):
            own = value / pivot - (weights * x[..., r.others]).sum(-1)
            if noise is not None:
                own = own + pivot.rsqrt() * noise[..., r.numbers]
            x = x.index_add(-1, r.numbers, own)
        return x[..., : self.dim]

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], covariances [..., E]), NaN where P is not positive definite."""
        found, factor, _ = eliminated = self._eliminate(natural)
        identity = torch.eye(self.root, dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        root = packed.pack(inverse.mT @ inverse)
        c = torch.cat([root, root.new_zeros(*root.shape[:-1], 1 + len(self.keys) - root.shape[-1])], -1)
        rounds, *_ = self._on(natural.device)
        for r, (pivot, weights, _) in zip(reversed(rounds), reversed(found), strict=True):
            across = -(weights.unsqueeze(-2) @ c[..., r.among]).squeeze(-2)
            own = pivot.reciprocal() - (weights * across).sum(-1)
            c = c.index_add(-1, r.own, own).index_add(-1, r.cross.flatten(), across.flatten(-2))
        return self._substitute(eliminated), c[..., :-1]

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at θ [..., D]."""
        _, rows, columns, _ = self._on(value.device)
        return torch.cat([value, value[..., rows] * value[..., columns]], -1)

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at m [..., D] and covariances [..., E]."""
        m, covariances = standard
        stats = self.stats(m)
        return torch.cat([stats[..., : self.dim], stats[..., self.dim :] + covariances], -1)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = (mᵀPm - log det P)/2."""
        found, factor, vector = self._eliminate(natural)
        first = torch.linalg.solve_triangular(factor, vector.unsqueeze(-1), upper=False)
        total = first.square().sum((-2, -1)) - packed.log_determinant(factor)
        for pivot, _, value in found:
            total = total + (value.square() / pivot - pivot.log()).sum(-1)
        return 0.5 * total

    def about_mean(self, natural: Tensor) -> Tensor:
        """λ of the distribution with the mean 0."""
        return torch.cat([torch.zeros_like(natural[..., : self.dim]), natural[..., self.dim :]], -1)

    def entropy(self, natural: Tensor) -> Tensor:
        """D(1 + log 2π)/2 - (log det P)/2."""
        return self.log_normalizer(self.about_mean(natural)) + 0.5 * self.dim * (1 + math.log(2 * math.pi))

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀) by moments about the prior's mean, which cancel nothing far from 0."""
        (m, covariances), (m0, _) = self.unpack(natural), self.unpack(prior)
        own, other = self.about_mean(natural), self.about_mean(prior)
        expected = self.stats_from_standard(torch.zeros_like(m), covariances)
        expected0 = self.stats_from_standard(m - m0, covariances)
        gap = (own * expected).sum(-1) - (other * expected0).sum(-1)
        return gap - self.log_normalizer(own) + self.log_normalizer(other)

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-D log(2π)/2."""
        return torch.full_like(stats[..., 0], -0.5 * self.dim * math.log(2 * math.pi))

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂C): the gradient with respect to E[t], of which both are simple functions."""
        (m, _), (grad_m, grad) = standard, grads
        _, rows, columns, _ = self._on(m.device)
        first = grad_m.index_add(-1, rows, -grad * m[..., columns])
        return torch.cat([first.index_add(-1, columns, -grad * m[..., rows]), grad], -1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where P is positive definite and m is finite."""
        return self._substitute(self._eliminate(natural)).isfinite().all(-1)

    def member(self, *standard: Tensor) -> Any:
        """The distribution with these standard parameters."""
        return SparseNormal(self, *standard)

    def sample(self, natural: Tensor, shape: Sequence[int]) -> Tensor:
        """Draws at λ [..., P], [*shape, ..., D], NaN where P is not positive definite."""
        noise = torch.randn(*shape, *natural.shape[:-1], self.dim, dtype=natural.dtype, device=natural.device)
        return self._substitute(self._eliminate(natural), noise)

    def deviations(self, standard: tuple[Tensor, ...]) -> Tensor:
        """Standard deviations [..., D] of the numbers by themselves."""
        return standard[1][..., (self.diagonal - self.dim).to(standard[1].device)].sqrt()

    def draw(self, standard: tuple[Tensor, ...], before: Tensor, noise: Tensor) -> Tensor:
        """The next part of a vector: see :meth:`MultivariateNormalFamily.draw`."""
        if before.shape[-1] < self.root:
            return super().draw(self._of_root(standard), before, noise)
        return self._pass(standard, before, noise, is_noise=True)[0]

    def noise(self, standard: tuple[Tensor, ...], before: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`draw`."""
        if before.shape[-1] < self.root:
            return super().noise(self._of_root(standard), before, value)
        return self._pass(standard, before, value, is_noise=False)

    def _of_root(self, standard: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        m, covariances = standard
        root = packed.unpack(covariances[: self.root * (self.root + 1) // 2], self.root)
        return m[: self.root], torch.linalg.cholesky(root)

    def _pass(
        self, standard: tuple[Tensor, ...], before: Tensor, given: Tensor, is_noise: bool
    ) -> tuple[Tensor, Tensor]:
        """From noise to a part's numbers or back, and the numbers' standard deviations given those before."""
        m, covariances = standard
        start, count = before.shape[-1], given.shape[-1]
        lead = torch.broadcast_shapes(before.shape[:-1], given.shape[:-1])
        covariances = torch.cat([covariances, covariances.new_zeros(1)])
        gap = before - m[:start]
        gaps = torch.cat([gap.expand(*lead, -1), gap.new_zeros(*lead, self.dim + 1 - start)], -1)
        result, spread = torch.zeros_like(gaps), torch.zeros_like(gaps[(0,) * len(lead)])
        rounds, *_ = self._on(m.device)
        for r in reversed([r for r in rounds if r.start == start]):
            weights, deviations = self._regression(covariances, r)
            mean, own = (weights * gaps[..., r.others]).sum(-1), given[..., r.numbers - start]
            own_gap = mean + deviations * own if is_noise else own - m[r.numbers]
            gaps = gaps.index_add(-1, r.numbers, own_gap)
            new = m[r.numbers] + own_gap if is_noise else (own_gap - mean) / deviations
            result = result.index_add(-1, r.numbers, new)
            spread = spread.index_add(-1, r.numbers, deviations)
        return result[..., start : start + count], spread[start : start + count]


def _add_among(matrix: Tensor, r: Round, left: Tensor, right: Tensor) -> Tensor:
    """Entries of a matrix [..., E + 1] plus outer products over the others of a round, each element once."""
    one, other = torch.tril_indices(*r.among.shape[-2:], device=matrix.device)
    return _add_at(matrix, r.among[:, one, other], left[..., one] * right[..., other])


def _add_at(numbers: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Numbers [..., N] plus values [..., L, M] at the places of an index [L, M], or [1, M]."""
    values = values.sum(-2) if len(index) == 1 else values.flatten(-2)
    return numbers.index_add(-1, index.flatten(), values)


def _rounds_of(
    sizes: Sequence[int], pairs: Tensor, most: int
) -> tuple[list[tuple[int, Tensor, Tensor]], int]:
    """The rounds, each with the start of its part, its numbers and the others, and the size of the root."""
    dim, work = sum(sizes), 0
    beside: list[set[int]] = [set() for _ in range(dim)]
    for one, other in pairs.T.tolist():
        if one != other:
            beside[one].add(other)
            beside[other].add(one)
    rounds: list[tuple[int, Tensor, Tensor]] = []
    for size, end in zip(reversed(sizes), reversed(list(accumulate(sizes))), strict=True):
        if end <= most:
            return rounds, end
        left = list(range(end - size, end))
        while left:
            left.sort(key=lambda number: len(beside[number]))
            limit = 2 * len(beside[left[0]]) + 1
            taken: set[int] = set()
            blocked: set[int] = set()
            for number in left:
                if len(beside[number]) <= limit and number not in blocked:
                    taken.add(number)
                    blocked |= beside[number]
            numbers = sorted(taken)
            width = max(len(beside[number]) for number in numbers)
            work += len(numbers) * width**2
            if work > MOST_PRODUCTS:
                raise ValueError("its numbers depend on too many others each")
            others = [sorted(beside[number]) for number in numbers]
            padded = [each + [dim] * (width - len(each)) for each in others]
            shape = len(numbers), width
            rounds.append((end - size, torch.tensor(numbers), torch.tensor(padded).view(shape).long()))
            for number, each in zip(numbers, others, strict=True):
                for other in each:
                    beside[other].update(each)
                    beside[other] -= {number, other}
            left = [number for number in left if number not in taken]
    return rounds, 0


class SparseNormal(TorchDistribution):
    """A member of a :class:`SparseNormalFamily`, in its standard parameters."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector

    def __init__(self, family: SparseNormalFamily, loc: Tensor, covariances: Tensor) -> None:
        self.family, self.loc, self.covariances = family, loc, covariances
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """m, [..., D]."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variances of the numbers by themselves, [..., D]."""
        return self.family.deviations((self.loc, self.covariances)).square()


SparseNormalFamily.distribution = SparseNormal


class NaturalSparseNormal(NaturalDistribution, TorchDistribution):
    """A Normal vector with a sparse precision matrix, in natural parameters: see :func:`sparse_kind`."""

    support = constraints.real_vector
    family: ClassVar[SparseNormalFamily]

    @property
    def mean(self) -> Tensor:
        """m, [..., D]."""
        return self.standard[0].to(self.dtype)

    @property
    def variance(self) -> Tensor:
        """Variances of the numbers by themselves, [..., D]."""
        return self.family.deviations(self.standard).square().to(self.dtype)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws [*sample_shape, ..., D]."""
        with torch.no_grad():
            return self.family.sample(self.natural, sample_shape).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of vectors [..., D]: [...]."""
        family = self.family
        stats, natural = family.stats(value - self.standard[0]), family.about_mean(self.natural)
        density = (natural * stats).sum(-1) - family.log_normalizer(natural)
        return (density + family.log_base_measure(stats)).to(self.dtype)


class _OfFamily(type(NaturalSparseNormal)):  # type: ignore[misc]
    """Class of the classes of posteriors that are made for one vector each."""


def sparse_kind(sizes: Sequence[int], pairs: Tensor, most: int = FEW) -> Any:
    """The class of natural posteriors of a vector; arguments as of :class:`SparseNormalFamily`."""
    family: Any = SparseNormalFamily(sizes, pairs, most)
    inside = {"family": family, "arg_constraints": {"natural": Domain(family)}}
    return _OfFamily("NaturalSparseNormal", (NaturalSparseNormal,), inside)


copyreg.pickle(
    _OfFamily, lambda kind: (sparse_kind, (kind.family.sizes, kind.family.couplings, kind.family.most))
)
