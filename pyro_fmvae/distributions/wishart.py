"""The Wishart family: the conjugate prior of precision matrices, of Gaussians whose mean is known or apart.

Bishop (2006), Pattern Recognition and Machine Learning, Section 2.3.6 and equations B.78 to B.82.
"""

import math
from collections.abc import Sequence

import torch
from pyro.distributions import MultivariateStudentT
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions import Wishart as TorchWishart

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.bregman import log_gamma_gap, log_gap, x_log_x_gap
from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    StandardDistribution,
    register_family,
    to_float64,
)

_SMALLEST_PRECISION = 1e-30  # near a = 0, most draws are smaller than any float


def wishart_shapes(a: Tensor, dim: int) -> Tensor:
    """Shapes of the Gammas in a Wishart, a + (d-1)/2 for d = 1 to D, the last of which is df/2: [..., D]."""
    return a.unsqueeze(-1) + 0.5 * torch.arange(dim, dtype=a.dtype, device=a.device)


def draw_factor(a: Tensor, tril: Tensor, batch: Sequence[int]) -> Tensor:
    """Lower triangular T [*batch, D, D], TᵀT being Wishart with 2a + D - 1 degrees of freedom and the rate B.

    Bartlett's decomposition: T = G L⁻¹ with B = LLᵀ, squares of G_dd that are Gamma(a + (d-1)/2, 1), kept
    above 1e-30, and G_de ~ N(0, 1/2) for d > e. Reparameterised.

    Args:
        a: [...].
        tril: L, [..., D, D].
        batch: shape of the draws, to which [...] is expanded.
    """
    dim = tril.shape[-1]
    shapes = wishart_shapes(a, dim).expand(*batch, dim)
    squares = torch._standard_gamma(shapes).clamp(min=_SMALLEST_PRECISION)
    below = math.sqrt(0.5) * torch.randn(*batch, dim, dim, dtype=a.dtype, device=a.device).tril(-1)
    return packed.divide(below + torch.diag_embed(squares.sqrt()), tril)


def mean_factor(a: Tensor, tril: Tensor) -> Tensor:
    """E[T] of :func:`draw_factor`, [..., D, D]."""
    shapes = wishart_shapes(a, tril.shape[-1])
    diagonal = (torch.lgamma(shapes + 0.5) - torch.lgamma(shapes)).exp()
    return packed.divide(torch.diag_embed(diagonal), tril)


def factor_log_prob(a: Tensor, tril: Tensor, factor: Tensor) -> Tensor:
    """The log-density [...] of T [..., D, D] of :func:`draw_factor`, in the elements of its triangle."""
    dim, shapes = tril.shape[-1], wishart_shapes(a, tril.shape[-1])
    own = ((2 * shapes - 1) * packed.diagonal(factor).log() - torch.lgamma(shapes)).sum(-1)
    rates = shapes[..., -1] * packed.log_determinant(tril) - (factor @ tril).square().sum((-2, -1))
    return own + rates + dim * math.log(2) - 0.25 * dim * (dim - 1) * math.log(math.pi)


class RateWishart(StandardDistribution):
    """Wishart distribution of a precision matrix Λ [D, D], in parameters that are free of each other.

    It is torch's ``Wishart`` with df = 2a + D - 1 and ``precision_matrix`` 2B: torch's df has a bound that
    depends on D.

    Args:
        concentration: a > 0, [...]. A variance (Λ⁻¹)_dd by itself is 1/Gamma(a, B_dd).
        rate_tril: lower Cholesky factor of B, [..., D, D].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "concentration": constraints.positive,
        "rate_tril": constraints.lower_cholesky,
    }
    support = constraints.positive_definite

    def __init__(self, concentration: Tensor, rate_tril: Tensor, validate_args: bool | None = None) -> None:
        if rate_tril.dim() < 2 or rate_tril.shape[-1] != rate_tril.shape[-2]:
            raise ValueError(f"rate_tril: expected shape [..., D, D], got {list(rate_tril.shape)}")
        event = rate_tril.shape[-2:]
        batch = torch.broadcast_shapes(concentration.shape, rate_tril.shape[:-2])
        self.concentration, self.rate_tril = concentration.expand(batch), rate_tril.expand(*batch, *event)
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """E[Λ] = (df/2) B⁻¹, [..., D, D]."""
        half_df = wishart_shapes(self.concentration, self.event_shape[-1])[..., -1, None, None]
        return half_df * torch.cholesky_inverse(self.rate_tril)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., D, D], made in float64."""
        batch = self._extended_shape(sample_shape)[:-2]
        factor = draw_factor(to_float64(self.concentration), to_float64(self.rate_tril), batch)
        return (factor.mT @ factor).to(self.rate_tril)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of Λ [..., D, D], over the elements of its lower triangle."""
        if self._validate_args:
            self._validate_sample(value)
        dim, a, tril = value.shape[-1], self.concentration, self.rate_tril
        shapes = wishart_shapes(a, dim)
        log_det, trace = torch.logdet(value), (tril * (value @ tril)).sum((-2, -1))
        own = (a - 1) * log_det - trace + shapes[..., -1] * packed.log_determinant(tril)
        return own - torch.lgamma(shapes).sum(-1) - 0.25 * dim * (dim - 1) * math.log(math.pi)


class WishartFamily(ExponentialFamily):
    """Wishart(Λ) of a and B, as :class:`RateWishart` has them; a prior may also be torch's ``Wishart``.

    Packed as λ = (λ1, λ2[D(D+1)/2]) with the statistics t = (log det Λ, Λ):

        λ1 = a,  λ2 = diag(B) - 2B

    Symmetric matrices are stored as their lower triangles, row by row; an element below the diagonal of λ2
    counts for the one above it as well. The base measure is 1/det Λ.
    """

    distribution = RateWishart
    names = ("concentration", "rate_tril")
    domain = "a > 0 and B positive definite"
    monomials = frozenset({("x",), ("logdet",)})

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack a [...] and L [..., D, D], the Cholesky factor of B, into [..., D(D+1)/2 + 1]."""
        a, tril = standard
        second = -packed.pack(packed.doubled(tril @ tril.mT))
        batch = torch.broadcast_shapes(a.shape, second.shape[:-1])
        return torch.cat([a.expand(batch).unsqueeze(-1), second.expand(*batch, second.shape[-1])], -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(a [...], L [..., D, D]); L is NaN where B is not positive definite."""
        rate = -packed.halved(packed.unpack(natural[..., 1:], _dim_of(natural.shape[-1])))
        return natural[..., 0], packed.cholesky_or_nan(rate)

    def standard_of(self, member: Distribution) -> tuple[Tensor, ...]:
        """(a, L) of a ``RateWishart`` or of torch's ``Wishart``, in float64."""
        if isinstance(member, TorchWishart):
            rate = 0.5 * to_float64(member.precision_matrix)
            return 0.5 * (to_float64(member.df) - rate.shape[-1] + 1), torch.linalg.cholesky(rate)
        return super().standard_of(member)

    def event_shape(self, size: int) -> torch.Size:
        """(D, D)."""
        dim = _dim_of(size)
        if dim < 1 or size != dim * (dim + 1) // 2 + 1:
            raise ValueError(
                f"natural: expected shape [..., D(D+1)/2 + 1] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((dim, dim))

    def size(self, event: torch.Size) -> int:
        """D(D+1)/2 + 1."""
        if len(event) != 2 or event[0] != event[1]:
            raise ValueError(f"WishartFamily: expected square matrices, got values of shape {list(event)}")
        return event[0] * (event[0] + 1) // 2 + 1

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """The place of a statistic: 0 for the log-determinant; for Λ_ij, its place in the triangle."""
        (element,), dim = elements, event[-1]
        if monomial == ("logdet",):
            return torch.zeros_like(element)
        return 1 + packed.position(element.div(dim, rounding_mode="floor"), element % dim)

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at Λ [..., D, D]."""
        return torch.cat([torch.logdet(value).unsqueeze(-1), packed.pack(value)], -1)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d log Γ(a + (d-1)/2) - df/2 log det B (powers of π are in the base measure)."""
        a, tril = self.unpack(natural)
        shapes = wishart_shapes(a, tril.shape[-1])
        return torch.lgamma(shapes).sum(-1) - shapes[..., -1] * packed.log_determinant(tril)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: Σ_d ψ(a + (d-1)/2) - log det B, df/2 B⁻¹. Bishop, B.80 and B.81."""
        a, tril = self.unpack(natural)
        shapes = wishart_shapes(a, tril.shape[-1])
        log_det = torch.digamma(shapes).sum(-1) - packed.log_determinant(tril)
        mean = shapes[..., -1:] * packed.pack(torch.cholesky_inverse(tril))
        return torch.cat([log_det.unsqueeze(-1), mean], -1)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """``n₀ Σ_d (r_d - 1 - log r_d)`` and so on, with n = df/2: [...].

        T = √(n/n₀) L⁻¹L₀ is triangular; r are the squares of its diagonal, and the elements below it are
        squared. The rest is the divergence of the shapes.
        """
        (a, tril), (a0, tril0) = self.unpack(natural), self.unpack(prior)
        dim, shape = tril.shape[-1], torch.broadcast_shapes(tril.shape, tril0.shape)
        tril, tril0 = tril.expand(shape), tril0.expand(shape)
        shapes, shapes0 = wishart_shapes(a, dim), wishart_shapes(a0, dim)
        n, n0 = shapes[..., -1:], shapes0[..., -1:]
        below = torch.linalg.solve_triangular(tril, tril0, upper=False).tril(-1).square().sum((-2, -1))
        own, own0 = packed.diagonal(tril), packed.diagonal(tril0)
        excess = ((n - n0) * own0.square() + n0 * (own0 - own) * (own0 + own)) / (n0 * own.square())
        spread = (n0 * log_gap(n / n0 * (own0 / own).square(), excess)).sum(-1) + n.squeeze(-1) * below
        counts = log_gamma_gap(shapes0, shapes) - x_log_x_gap(n0, n)
        return spread + counts.sum(-1)

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-E[log det Λ] - D(D-1) log(π)/4."""
        dim = _dim_of(stats.shape[-1])
        return -stats[..., 0] - 0.25 * dim * (dim - 1) * math.log(math.pi)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂a, ∂L), solved by hand."""
        (a, tril), (grad_a, grad_tril) = standard, grads
        dim, shapes = tril.shape[-1], wishart_shapes(a, tril.shape[-1])
        half_df = shapes[..., -1]
        lower = tril.mT @ grad_tril
        symmetric = 0.5 * (lower.tril() + lower.tril(-1).mT)  # ∂B = L⁻ᵀ (this) L⁻¹
        slope = grad_a + packed.diagonal(symmetric).sum(-1) / half_df
        first = slope / (torch.polygamma(1, shapes).sum(-1) - dim / half_df)
        identity = torch.eye(dim, dtype=tril.dtype, device=tril.device)
        rate = tril @ (symmetric + first[..., None, None] * identity) @ tril.mT / half_df[..., None, None]
        return torch.cat([first.unsqueeze(-1), -packed.pack(packed.doubled(rate))], -1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where a is positive and B is positive definite."""
        a, tril = self.unpack(natural)
        return (a > 0) & tril.isfinite().all(-1).all(-1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations, whose covariance is that of D draws from N(0, E[Λ]⁻¹) of the prior."""
        a, tril = self.unpack(prior)
        dim = tril.shape[-1]
        draws = tril @ torch.randn(tril.shape, dtype=tril.dtype, generator=generator).to(tril.device)
        half_df = a + 0.5 * (dim - 1)
        weight = (0.5 * count / (half_df * dim))[..., None, None]
        rate = tril @ tril.mT + weight * (draws @ draws.mT)
        return self.natural(a + 0.5 * count, torch.linalg.cholesky(rate))

    def predictive_normal(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, loc: Tensor
    ) -> MultivariateStudentT:
        """p(x) of x ~ N(loc, Λ⁻¹): Student-t with 2a degrees of freedom and the squared scale B/a."""
        a, tril = standard
        scale_tril = tril * a.rsqrt()[..., None, None]
        return MultivariateStudentT((2 * a).to(dtype), loc.to(dtype), scale_tril.to(dtype))


def _dim_of(size: int) -> int:
    """D of D(D+1)/2 + 1 numbers; for other sizes rounded down."""
    return (math.isqrt(max(8 * size - 7, 0)) - 1) // 2


WISHART = WishartFamily()


@register_family(TorchWishart)
@register_family(RateWishart)
class NaturalWishart(NaturalDistribution, RateWishart):  # type: ignore[misc, override]
    """A Wishart posterior in natural parameters λ: see :class:`NaturalDistribution`."""

    family = WISHART
