"""The Normal-Wishart family: the conjugate prior of D-dimensional Gaussians with full covariances.

Bishop (2006), Pattern Recognition and Machine Learning, Section 10.2 and Appendix B; Murphy (2007), Conjugate
Bayesian analysis of the Gaussian distribution, Section 8. Their Wishart has ν degrees of freedom and the
scale matrix W, its mean being νW. Here it has a = (ν - D + 1)/2 and the rate matrix B = W⁻¹/2, so that

* the domain is a > 0 and B positive definite, whatever D is;
* every dimension by itself is Normal-Gamma with the same m, s and a, and with b = B_dd: a hyperprior for
  independent dimensions serves full covariances too, as a diagonal B;
* D = 1 is the Normal-Gamma family, with the same λ.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import MultivariateStudentT, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to, constraints, register_kl, transform_to

from pyro_fmvae.distributions.exponential_family import ExponentialFamily, to_float64
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution, register_family

_SMALLEST_PRECISION = 1e-30  # near a = 0, most draws are smaller than any float


class _LocAboveFactor(constraints.Constraint):
    """(D+1, D): a row of real numbers above a lower triangular matrix with a positive diagonal."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        real = constraints.real_vector.check(value[..., 0, :])
        return real & constraints.lower_cholesky.check(value[..., 1:, :])


@biject_to.register(_LocAboveFactor)
@transform_to.register(_LocAboveFactor)
class _ToLocAboveFactor(Transform):
    """D(D+3)/2 real numbers to that support: μ, then the rows of T, with logarithms on the diagonal."""

    domain, codomain, bijective = constraints.real_vector, _LocAboveFactor(), True

    def __init__(self, constraint: constraints.Constraint) -> None:
        super().__init__()

    def _call(self, x: Tensor) -> Tensor:
        dim = _dim(x.shape[-1] + 2)
        lower = _unpack(x[..., dim:], dim)
        factor = lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=-2, dim2=-1).exp())
        return _stack(x[..., :dim], factor)

    def _inverse(self, y: Tensor) -> Tensor:
        factor = y[..., 1:, :]
        return torch.cat([y[..., 0, :], _pack(factor.tril(-1) + torch.diag_embed(_log_diagonal(factor)))], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return _log_diagonal(y[..., 1:, :]).sum(-1)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        dim = _dim(shape[-1] + 2)
        return torch.Size((*shape[:-1], dim + 1, dim))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 3) // 2))


class NormalWishart(TorchDistribution):
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
    support = _LocAboveFactor()
    has_rsample = True

    loc: Tensor
    mean_concentration: Tensor
    concentration: Tensor
    rate_tril: Tensor

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
        s, a, tril = (
            torch.as_tensor(t, dtype=loc.dtype, device=loc.device)
            for t in (mean_concentration, concentration, rate_tril)
        )
        dim = loc.shape[-1]
        tril = tril if tril.dim() else tril * torch.eye(dim, dtype=loc.dtype, device=loc.device)
        try:
            batch = broadcast_shape(loc.shape[:-1], s.shape, a.shape, tril.shape[:-2])
        except ValueError:
            batch = None
        if batch is None or tril.shape[-2:] != (dim, dim):
            raise ValueError(
                "expected loc [..., D], mean_concentration [...], concentration [...] and rate_tril "
                "[..., D, D], got " + ", ".join(str(list(t.shape)) for t in (loc, s, a, tril))
            )
        self._given = (loc, s, a, tril)
        self.loc, self.rate_tril = loc.expand(*batch, dim), tril.expand(*batch, dim, dim)
        self.mean_concentration, self.concentration = s.expand(batch), a.expand(batch)
        super().__init__(batch, torch.Size((dim + 1, dim)), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "NormalWishart":
        """Expand every parameter to ``batch_shape``."""
        new = self._get_checked_instance(NormalWishart, _instance)
        batch, dim = torch.Size(batch_shape), self.event_shape[-1]
        new._given = self._given
        new.loc, new.rate_tril = self.loc.expand(*batch, dim), self.rate_tril.expand(*batch, dim, dim)
        new.mean_concentration = self.mean_concentration.expand(batch)
        new.concentration = self.concentration.expand(batch)
        super(NormalWishart, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """(m, E[T]), [..., D+1, D]."""
        shapes = _shapes(self.concentration, self.event_shape[-1])
        diagonal = (torch.lgamma(shapes + 0.5) - torch.lgamma(shapes)).exp()
        return _stack(self.loc, _solve_right(self.rate_tril, torch.diag_embed(diagonal)))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., D+1, D], by Bartlett's decomposition.

        TᵀT is W(ν, B⁻¹/2) for T = G L⁻¹, with B = LLᵀ, squares of G_dd that are Gamma(a + (d-1)/2, 1), and
        G_de ~ N(0, 1/2) for d > e. Drawn in float64, as those of a Normal-Gamma are.
        """
        *batch, _, dim = self._extended_shape(sample_shape)
        m, s, a, tril = (to_float64(t) for t in self.standard)
        squares = torch._standard_gamma(_shapes(a, dim).expand(*batch, dim)).clamp(min=_SMALLEST_PRECISION)
        below = math.sqrt(0.5) * torch.randn(*batch, dim, dim, dtype=m.dtype, device=m.device).tril(-1)
        factor = _solve_right(tril, below + torch.diag_embed(squares.sqrt()))
        noise = torch.randn(*batch, dim, 1, dtype=m.dtype, device=m.device)
        gap = torch.linalg.solve_triangular(factor, noise, upper=False).squeeze(-1)
        return _stack(m + gap * s.unsqueeze(-1).rsqrt(), factor).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Of (μ, T) [..., D+1, D], with respect to the elements of μ and of the lower triangle of T."""
        if self._validate_args:
            self._validate_sample(value)
        dim, loc, factor = value.shape[-1], value[..., 0, :], value[..., 1:, :]
        s, tril, shapes = self.mean_concentration, self.rate_tril, _shapes(self.concentration, dim)
        log_diagonal = _log_diagonal(factor)
        white = (factor @ (loc - self.loc).unsqueeze(-1)).squeeze(-1)
        normal = 0.5 * dim * (s.log() - math.log(2 * math.pi)) - 0.5 * s * white.square().sum(-1)
        own = (2 * shapes * log_diagonal - torch.lgamma(shapes)).sum(-1) + dim * math.log(2)
        rates = 2 * shapes[..., -1] * _log_diagonal(tril).sum(-1) - (factor @ tril).square().sum((-2, -1))
        return normal + own + rates - 0.25 * dim * (dim - 1) * math.log(math.pi)

    @property
    def standard(self) -> tuple[Tensor, ...]:
        """(m, s, a, L) of shapes [..., D], [...], [...], [..., D, D], in the dtype in which they are kept."""
        return self.loc, self.mean_concentration, self.concentration, self.rate_tril


class NormalWishartFamily(ExponentialFamily):
    """N(μ; m, (sΛ)⁻¹) Wishart(Λ; 2a + D - 1, B⁻¹/2), the precision of all D dimensions being Λ.

    Packed as λ = (λ1, λ4, λ2[D(D+1)/2], λ3[D]), as in :class:`NormalGammaFamily`, with statistics
    t = (log |Λ|, μᵀΛμ, Λ, Λμ):

        λ1 = a - 1/2,  λ4 = -s/2,  λ2 = -(B + s m mᵀ/2),  λ3 = s m

    Of the symmetric λ2 the lower triangle is kept, row by row, and of Λ that of 2Λ - diag Λ, which makes the
    family minimal: D(D+3)/2 + 2 numbers. B is the difference of nearly equal numbers when m is large against
    the spread, so λ has to be float64.
    """

    distribution = NormalWishart
    names = ("loc", "mean_concentration", "concentration", "rate_tril")

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D], s [...], a [...] and L [..., D, D], the Cholesky factor of B."""
        m, s, a, tril = standard
        s = s.unsqueeze(-1)
        third = s * m
        second = -_pack(tril @ tril.mT) - 0.5 * _pack_product(third, m)
        parts = (a.unsqueeze(-1) - 0.5, -0.5 * s, second, third)
        batch = broadcast_shape(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], s [...], a [...], L [..., D, D]); L is NaN where B is not positive definite."""
        first, fourth, second, third = _split(natural)
        s = -2 * fourth
        m = third * s.reciprocal()
        rate = -_unpack(second + 0.5 * _pack_product(third, m), m.shape[-1])
        return m, s.squeeze(-1), first.squeeze(-1) + 0.5, _cholesky(rate)

    def event_shape(self, size: int) -> torch.Size:
        """(D+1, D)."""
        dim = _dim(size)
        if dim < 1 or size != 2 + dim * (dim + 3) // 2:
            raise ValueError(
                f"natural: expected shape [..., D(D+3)/2 + 2] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((dim + 1, dim))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (μ, T) [..., D+1, D]."""
        loc, factor = value[..., 0, :], value[..., 1:, :]
        white = (factor @ loc.unsqueeze(-1)).squeeze(-1)
        sums = torch.stack([2 * _log_diagonal(factor).sum(-1), white.square().sum(-1)], -1)
        scaled_loc = (factor.mT @ white.unsqueeze(-1)).squeeze(-1)
        return torch.cat([sums, _pack(_doubled(factor.mT @ factor)), scaled_loc], -1)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d log Γ(a + (d-1)/2) - ν/2 log |B| - D/2 log s (powers of π are in the base measure)."""
        m, s, a, tril = self.unpack(natural)
        shapes = _shapes(a, m.shape[-1])
        log_rate = 2 * _log_diagonal(tril).sum(-1)
        return torch.lgamma(shapes).sum(-1) - _half_dof(shapes) * log_rate - 0.5 * m.shape[-1] * s.log()

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: Σ_d ψ(a + (d-1)/2) - log |B|, D/s + mᵀE[Λ]m, E[Λ] = ν/2 B⁻¹, E[Λ]m. Bishop, 10.64-10.65."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] at m [..., D], s and a [...] and L [..., D, D], without the digits that λ would lose."""
        m, s, a, tril = standard
        shapes = _shapes(a, m.shape[-1])
        precision = _half_dof(shapes)[..., None, None] * torch.cholesky_inverse(tril)
        scaled_loc = (precision @ m.unsqueeze(-1)).squeeze(-1)
        log_precision = torch.digamma(shapes).sum(-1) - 2 * _log_diagonal(tril).sum(-1)
        square = m.shape[-1] / s + (scaled_loc * m).sum(-1)
        parts = (log_precision.unsqueeze(-1), square.unsqueeze(-1), _pack(_doubled(precision)), scaled_loc)
        batch = broadcast_shape(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL of the normal and of the Wishart parts: [...]. Bishop (2006), 10.74 and 10.77."""
        first, fourth, _, third = _split(natural)
        s, a = -2 * fourth, first.squeeze(-1) + 0.5
        stats = self.mean_stats(natural) if stats is None else stats
        return self.kl_from_stats(third / s, s.squeeze(-1), a, stats, self.unpack(prior))

    @staticmethod
    def kl_from_stats(m: Tensor, s: Tensor, a: Tensor, stats: Tensor, prior: tuple[Tensor, ...]) -> Tensor:
        """KL(λ || λ₀) [...] from m, s, a and E[t], in which B⁻¹ and log |B| are: no factorisation twice."""
        m0, s0, a0, tril0 = prior
        dim = m.shape[-1]
        shapes, shapes0 = _shapes(a, dim), _shapes(a0, dim)
        log_precision, precision = stats[..., 0], stats[..., 2:-dim]
        ratio, digamma = s0 / s, torch.digamma(shapes).sum(-1)
        shared = 0.5 * dim * (ratio - ratio.log() - 1) - dim * _half_dof(shapes) + (a - a0) * digamma
        shared = shared + (torch.lgamma(shapes0) - torch.lgamma(shapes)).sum(-1)
        apart = (_pack_product(m - m0, m - m0) * precision).sum(-1)
        log_rates = digamma - log_precision - 2 * _log_diagonal(tril0).sum(-1)
        trace = (precision * _pack(tril0 @ tril0.mT)).sum(-1)
        return shared + 0.5 * s0 * apart + trace + _half_dof(shapes0) * log_rates

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂s, ∂a, ∂L), solved by hand: the metric has the blocks (m), (s) and (a, B)."""
        (m, s, a, tril), (grad_m, grad_s, grad_a, grad_tril) = standard, grads
        dim, shapes = m.shape[-1], _shapes(a, m.shape[-1])
        half_dof = _half_dof(shapes)
        # ∂B is L⁻ᵀ S L⁻¹, with S symmetric of the lower triangle of Lᵀ ∂L.
        lower = tril.mT @ grad_tril
        symmetric = 0.5 * (lower.tril() + lower.tril(-1).mT)
        trace = symmetric.diagonal(dim1=-2, dim2=-1).sum(-1)
        curvature = torch.polygamma(1, shapes).sum(-1) - dim / half_dof
        first = (grad_a + trace / half_dof) / curvature
        fourth = -s.square() * grad_s / dim
        n, moved = half_dof[..., None, None], fourth.unsqueeze(-1) * m
        rate_grad = (tril @ (tril.mT @ grad_m.unsqueeze(-1)) / n).squeeze(-1)
        identity = torch.eye(dim, dtype=m.dtype, device=m.device)
        rate = tril @ (symmetric + first[..., None, None] * identity) @ tril.mT / n
        second = _pack_product(moved, m) - _pack(rate)
        second = second - 0.5 * (_pack_product(rate_grad, m) + _pack_product(m, rate_grad))
        return torch.cat([first.unsqueeze(-1), fourth.unsqueeze(-1), second, rate_grad - 2 * moved], -1)

    def pack(self, member: Distribution) -> Tensor:
        """λ of a ``NormalWishart``, packed before any expansion."""
        assert isinstance(member, NormalWishart)
        return self.natural(*(to_float64(parameter) for parameter in member._given))

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where s and a are positive and B is positive definite (B is NaN where m is not finite)."""
        _, s, a, tril = self.unpack(natural)
        return (s > 0) & (a > 0) & tril.isfinite().all(-1).all(-1)

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """(1/2, -1/2, -E[x xᵀ]/2, E[x]) of x [..., D]: log N(x; μ, Λ⁻¹) is linear in these."""
        half = torch.full_like(mean[..., :1], 0.5)
        square = _pack_product(mean, mean) + _pack(torch.diag_embed(variance))
        return torch.cat([half, -half, -0.5 * square, mean], -1)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        """E[log N(x; μ_k, Λ_k⁻¹)] [..., N, K], in float64 if ``mean`` is, else in float32. Bishop, 10.64.

        Linear in E[t], so that autograd gives natural gradients; summed in float64 throughout, as λ is. One
        product of data and all E[Λ_k] side by side takes most of the time; a tensor of N·K·D is the largest.

        Args:
            mean: of the observations, [..., N, D].
            variance: of each number, [..., N, D], or covariances [..., N, D, D].
            stats: E[t] of the members, float64 [..., K, D(D+3)/2 + 2].

        Raises:
            ValueError: observations and members differ in D.
        """
        dim, count = mean.shape[-1], stats.shape[-2]
        if stats.shape[-1] != 2 + dim * (dim + 3) // 2:
            raise ValueError(f"loc_precision has {_dim(stats.shape[-1])} dimensions, x has {dim}")
        with torch.autocast(mean.device.type, enabled=False):
            x, (log_precision, square, packed, scaled_loc) = mean.to(stats), _split(stats)
            precision = _halved(_unpack(packed, dim))
            side_by_side = precision.movedim(-3, -2).flatten(-2)  # [..., D, K·D]
            moved = (x @ side_by_side).unflatten(-1, (count, dim))
            squares = (moved * x.unsqueeze(-2)).sum(-1)
            if variance.dim() > mean.dim():
                traces = variance.to(stats).flatten(-2) @ precision.flatten(-2).mT
            else:
                traces = variance.to(stats) @ precision.diagonal(dim1=-2, dim2=-1).mT
            constant = 0.5 * (log_precision - square - dim * math.log(2 * math.pi)).mT
            table = x @ scaled_loc.mT - 0.5 * (squares + traces) + constant
            return table.to(mean.device, torch.promote_types(mean.dtype, torch.float32))

    def conjugate_update(
        self, prior: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, scale: float = 1.0
    ) -> Tensor:
        """λ*, all data at once: Bishop (2006), 10.60-10.63. One product gives all Σ_n w_nk x_n x_nᵀ."""
        weights, mean, variance = scale * weights.double(), mean.double(), variance.double()
        dim, count = mean.shape[-1], weights.shape[-1]
        halves = 0.5 * weights.sum(-2).unsqueeze(-1)
        weighted = (weights.unsqueeze(-1) * mean.unsqueeze(-2)).flatten(-2)  # [..., N, K·D]
        squares = (mean.mT @ weighted).unflatten(-1, (count, dim)).movedim(-2, -3)
        squares = squares + torch.diag_embed(weights.mT @ variance)
        return prior.double() + torch.cat([halves, -halves, -0.5 * _pack(squares), weights.mT @ mean], -1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of unit variance around a random mean (m0 plus unit noise)."""
        m0, s0, a0, tril0 = self.unpack(prior)
        noise = torch.randn(m0.shape, dtype=m0.dtype, generator=generator).to(m0.device)
        identity = torch.eye(m0.shape[-1], dtype=m0.dtype, device=m0.device)
        rate_tril = torch.linalg.cholesky(tril0 @ tril0.mT + 0.5 * count * identity)
        return self.natural(m0 + noise, s0 + count, a0 + count / 2, rate_tril)

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> MultivariateStudentT:
        """Student-t: 2a degrees of freedom, location m, *squared* scale ((s+1)/s) B/a. Bishop, 10.81-82."""
        m, s, a, tril = standard
        scale = ((s + 1) / (s * a)).sqrt()[..., None, None] * tril
        batch = broadcast_shape(m.shape[:-1], a.shape, scale.shape[:-2])
        return MultivariateStudentT(
            (2 * a).expand(batch).to(dtype),
            m.expand(*batch, -1).to(dtype),
            scale.expand(*batch, -1, -1).to(dtype),
        )


def _dim(size: int) -> int:
    """D of about D(D+3)/2 + 2 numbers."""
    return (math.isqrt(max(8 * size - 7, 0)) - 3) // 2


def _split(packed: Tensor) -> tuple[Tensor, ...]:
    """The four parts of λ or of E[t]: sizes 1, 1, D(D+1)/2 and D."""
    dim = _dim(packed.shape[-1])
    return packed.split([1, 1, dim * (dim + 1) // 2, dim], -1)


def _pack(matrix: Tensor) -> Tensor:
    """The lower triangle of [..., D, D] by rows, [..., D(D+1)/2]."""
    rows, columns = torch.tril_indices(*matrix.shape[-2:], device=matrix.device)
    return matrix[..., rows, columns]


def _pack_product(left: Tensor, right: Tensor) -> Tensor:
    """The lower triangle of the outer product of two [..., D]."""
    dim = left.shape[-1]
    rows, columns = torch.tril_indices(dim, dim, device=left.device)
    return left[..., rows] * right[..., columns]


def _unpack(packed: Tensor, dim: int) -> Tensor:
    """The symmetric matrix [..., D, D] of a lower triangle."""
    index = torch.arange(dim, device=packed.device)
    row, column = torch.maximum(index, index.unsqueeze(-1)), torch.minimum(index, index.unsqueeze(-1))
    return packed[..., row * (row + 1) // 2 + column]


def _doubled(matrix: Tensor) -> Tensor:
    """A symmetric matrix [..., D, D] with twice its elements off the diagonal."""
    return 2 * matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))


def _halved(matrix: Tensor) -> Tensor:
    """The inverse of :func:`_doubled`."""
    return 0.5 * (matrix + torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1)))


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor [..., D, D], NaN where there is none: an error would have to wait for a GPU."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill((info != 0)[..., None, None], torch.nan)


def _solve_right(tril: Tensor, matrix: Tensor) -> Tensor:
    """``matrix`` times the inverse of a lower triangular one, [..., D, D]."""
    return torch.linalg.solve_triangular(tril, matrix, upper=False, left=False)


def _log_diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).log()


def _stack(loc: Tensor, factor: Tensor) -> Tensor:
    return torch.cat([loc.unsqueeze(-2), factor], -2)


def _shapes(a: Tensor, dim: int) -> Tensor:
    """A + (d - 1)/2 for d = 1 to D, shapes of the Gammas that a Wishart is made of: [..., D]."""
    return a.unsqueeze(-1) + 0.5 * torch.arange(dim, dtype=a.dtype, device=a.device)


def _half_dof(shapes: Tensor) -> Tensor:
    """ν/2 = a + (D-1)/2, [...]."""
    return shapes[..., -1]


NORMAL_WISHART = NormalWishartFamily()


@register_family(NormalWishart)
class NaturalNormalWishart(NaturalDistribution, NormalWishart):  # type: ignore[misc, override]
    """A Normal-Wishart posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = NORMAL_WISHART


@register_kl(NormalWishart, NormalWishart)
def _kl_normal_wishart(q: NormalWishart, p: NormalWishart) -> Tensor:
    m, s, a, _ = NORMAL_WISHART.standard_of(q)
    stats = NORMAL_WISHART.stats_from_standard(*NORMAL_WISHART.standard_of(q))
    return NORMAL_WISHART.kl_from_stats(m, s, a, stats, NORMAL_WISHART.standard_of(p)).to(q.loc)
