"""The Normal-Gamma family: the conjugate prior of D-dimensional Gaussians with independent dimensions.

Paquet et al. (2018), Section 2.2, equations 12-13 and Appendix C.1. The concentrations s and a count
observations, so every conjugate update leaves them equal over the D dimensions; they are stored once, which
makes the family minimal: 2D + 2 numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import Independent, StudentT, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.utils import lazy_property

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    register_family,
    to_float64,
)
from pyro_fmvae.distributions.packed_matrices import unless_cancelled

# Expected log-densities of Gaussian components as matrix products. Paquet et al. (2018), equation 6.


def gaussian_table(mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
    """E[log N(z; μ_k, 1/α_k)] for z of the given mean and variance, by equation 6.

    The expectation is linear in E[t], so the whole table is one matrix product of the data's statistics
    (mean² + variance, mean) with the components' expected ones; no tensor of size B·K·D exists, in either
    direction. The expanded square would lose digits where means are far from the origin, so each factor is
    first moved to the precision-weighted centre c of its components, in float64. What float32 then rounds are
    terms of the size of a/b (m - c)². Gradients with respect to ``stats`` are summed in float64: the b that
    they lead to is the small rest of Σ γ (z - c)²: of clusters 1000 standard deviations from c, a
    millionth of the sum is all that counts.

    In float32, γ is inexact where components overlap far from c. For D = 2, at r standard
    deviations from it, entries are off by about 1e-7 r² nats: γ by 2e-4 at most for r = 100, 0.01 for 1000,
    and 0.08 for 3000; for 10,000, γ means nothing. Standard deviations of components follow γ (off by 6e-6,
    2e-4, 1e-3 and 7 %), but are exact to 1e-7 for clusters that one component has to itself, up to r = 10,000
    at least. Beyond r = 1000, give float64, or allow ``torch.set_float32_matmul_precision("high")``.

    Args:
        mean: of q(z), [..., B, D].
        variance: of q(z), per dimension, [..., B, D].
        stats: E[t] of the components in the layout of ``NormalGammaFamily``, float64 [..., K, 2D+2].

    Returns:
        [..., B, K], in float64 if ``mean`` is or if torch may round float32 products, else in float32. Never
        in autocast's type, nor are its gradients; they can't be differentiated again. The gradient with
        respect to ``stats`` is in float64.

    Raises:
        ValueError: z and the components differ in D.
    """
    if stats.shape[-1] != 2 * mean.shape[-1] + 2:
        raise ValueError(f"loc_precision has {stats.shape[-1] // 2 - 1} dimensions, z has {mean.shape[-1]}")
    return _GaussianTable.apply(mean, variance, stats)


def full_gaussian_table(mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
    """E[log N(z; μ_k, Λ_k⁻¹)] for z of the given mean and variance. Bishop (2006), equation 10.64.

    Linear in E[t], so that autograd gives natural gradients. Summed in float64 throughout, as λ is, so that
    nothing need be moved to a centre. One matrix product takes most of the time: of the packed z zᵀ and
    E[Λ_k], or, with few components, of z and all E[Λ_k] side by side. The largest tensor has
    B·D·min(K, (D+1)/2) numbers.

    Args:
        mean: of q(z), [..., B, D].
        variance: of q(z), per dimension, [..., B, D], or its covariances [..., B, D, D].
        stats: E[t] of the components in the layout of ``NormalWishartFamily``, float64
            [..., K, D(D+3)/2 + 2].

    Returns:
        [..., B, K], in float64 if ``mean`` is, else in float32.

    Raises:
        ValueError: z and the components differ in D.
    """
    dim, count = mean.shape[-1], stats.shape[-2]
    if stats.shape[-1] != 2 + dim * (dim + 3) // 2:
        raise ValueError(f"loc_precision has {packed.dim_of(stats.shape[-1])} dimensions, z has {dim}")
    with torch.autocast(mean.device.type, enabled=False):
        z, spread = mean.to(stats), variance.to(stats)
        log_precision, square, lower, scaled_loc = packed.split(stats)
        across = z.mT.contiguous()  # [..., D, B]: products of the few by the many are the fast ones
        precision = packed.halved(packed.unpack(lower, dim))
        if dim < 2 * count:
            rows, columns = torch.tril_indices(dim, dim, device=z.device)
            squares = lower @ (across.index_select(-2, rows) * across.index_select(-2, columns))
        else:
            side_by_side = precision.movedim(-3, -2).flatten(-2)  # [..., D, K·D]
            squares = ((z @ side_by_side).unflatten(-1, (count, dim)) * z.unsqueeze(-2)).sum(-1).mT
        if variance.dim() > mean.dim():
            traces = precision.flatten(-2) @ spread.flatten(-2).mT
        else:
            traces = packed.diagonal(precision) @ spread.mT
        constant = 0.5 * (log_precision - square - dim * math.log(2 * math.pi)).unsqueeze(-1)
        table = scaled_loc @ across - 0.5 * (squares + traces) + constant
        return table.to(mean.device, torch.promote_types(mean.dtype, torch.float32)).mT.contiguous()


class _GaussianTable(torch.autograd.Function):
    """One node, differentiated by hand: none of the products in autocast's type, and few large temporaries.

    With c the centre,
    E[log N] = E[log N at z=c] + (mean - c)·E[α (μ - c)] - ((mean - c)² + variance)·E[α] / 2.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        dim, device, dtype = mean.shape[-1], mean.device, product_dtype(mean)
        precision, scaled_loc = stats[..., 2 : dim + 2], stats[..., dim + 2 :]
        shift = scaled_loc.sum(-2, keepdim=True) / precision.sum(-2, keepdim=True)
        # E[t] is that of (Σ log α, Σ α μ², α, α μ); log N(c; μ, 1/α) takes it times (1/2, -1/2, -c²/2, c).
        half = shift.new_full((*shift.shape[:-1], 1), 0.5)
        at_centre = torch.cat([half, -half, -0.5 * shift.square(), shift], -1)
        with torch.autocast(device.type, enabled=False):
            constant = stats @ at_centre.mT - 0.5 * dim * math.log(2 * math.pi)
            moved = torch.addcmul(scaled_loc, shift, precision, value=-1)
            factors = torch.cat([precision.to(device, dtype), moved.to(device, dtype)], -1)
            centred = mean.to(stats) - shift
            data = torch.cat([-0.5 * (centred.square() + variance.to(stats)), centred], -1)
            ctx.save_for_backward(mean, variance, stats, data, factors, shift)
            return data.to(device, dtype) @ factors.mT + constant.to(device, dtype).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With respect to E[t]: the data's own statistics, (1/2, -1/2, -(mean² + variance)/2, mean)."""
        mean, variance, stats, data, factors, shift = ctx.saved_tensors
        dim = mean.shape[-1]
        to_mean = to_variance = to_stats = None
        with torch.autocast(grad.device.type, enabled=False):
            if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
                to_square, to_centred = (grad @ factors).split(dim, -1)
                centred = data[..., dim:].to(to_centred)
                to_mean = torch.addcmul(to_centred, centred, to_square, value=-1).sum_to_size(mean.shape)
                to_variance = (-0.5 * to_square).sum_to_size(variance.shape)
            if ctx.needs_input_grad[2]:
                weight = grad.to(stats)
                half = 0.5 * weight.sum(-2).unsqueeze(-1)
                square, linear = (weight.mT @ data).split(dim, -1)
                # From about c to about the origin: mean² = (mean - c)² + 2c (mean - c) + c².
                square = square - shift * (linear + shift * half)
                to_stats = torch.cat([half, -half, square, linear + 2 * shift * half], -1)
                to_stats = to_stats.sum_to_size(stats.shape)
        return to_mean, to_variance, to_stats


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Float64 for float64, and wherever TF32 or bfloat16 may stand in for float32 inside a matrix product."""
    if tensor.dtype == torch.float64:
        return torch.float64
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # raised where only some backends were allowed to round
        exact = False
    return torch.float32 if exact or tensor.device.type == "mps" else torch.float64


# Student-t variables with equal degrees of freedom: predictive densities of Normal-Gamma components.


class IndependentStudentT(Independent):
    """Independent Student-t variables with equal degrees of freedom, as one event: few logarithms a point."""

    @lazy_property
    def _constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """1 / (scale √df) [..., D]; (df + 1) / 2 and the sum of the log-normalisers [...]."""
        base = self.base_dist
        half, power = base.df / 2, (base.df + 1) / 2
        log_normaliser = power.lgamma() - half.lgamma() - 0.5 * (math.pi * base.df).log() - base.scale.log()
        return (base.scale * base.df.sqrt()).reciprocal(), power[..., 0], log_normaliser.sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of values [..., D], Σ_d log p(value_d), [...]."""
        if self.base_dist._validate_args:
            self.base_dist._validate_sample(value)
        inverse, power, log_normaliser = self._constants
        distance = (value - self.base_dist.loc) * inverse
        logs = sum_of_logs(1 + (distance * distance).double())
        return log_normaliser - power * logs.to(distance.dtype)


def sum_of_logs(b: Tensor) -> Tensor:
    """Σ_d log b_d of b [..., D] > 0, by one logarithm for each four numbers between 1e-77 and 1e77.

    Float64 logarithms are the most expensive part of E[t] otherwise.
    """
    quarter = b.shape[-1] // 4
    first, second, third, fourth, rest = b.split([quarter] * 4 + [b.shape[-1] - 4 * quarter], -1)
    return (first * second * third * fourth).log().sum(-1) + rest.log().sum(-1)


NEAR = (
    "m within 300,000 spreads of 0; standardise the data, or subtract their mean, also from the prior's loc"
)
_SMALLEST_PRECISION = 1e-30  # half of all draws from Gamma(0.01, 0.01) are smaller


class NormalGamma(TorchDistribution):
    """Normal-Gamma distribution over (μ, α), stacked: a draw has shape (2, D), row 0 is μ and row 1 is α.

    Args:
        loc: m, mean of μ, [..., D].
        mean_concentration: s > 0, pseudo-observations behind ``loc``, [...].
        concentration: a > 0, shape of the Gamma over each precision α_d, [...].
        rate: b > 0, its rate, [..., D] or a number.

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "mean_concentration": constraints.positive,
        "concentration": constraints.positive,
        "rate": constraints.independent(constraints.positive, 1),
    }
    # Not `stack`, whose transform leaves the log-determinant unsummed where the dimension is negative.
    support = constraints.independent(
        constraints.cat([constraints.real, constraints.positive], dim=-2, lengths=[1, 1]), 2
    )
    has_rsample = True

    loc: Tensor
    mean_concentration: Tensor
    concentration: Tensor
    rate: Tensor

    def __init__(
        self,
        loc: Tensor,
        mean_concentration: Tensor | float,
        concentration: Tensor | float,
        rate: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(loc, Tensor) or loc.dim() == 0:
            raise ValueError("loc: expected a tensor of shape [..., D]")
        s, a, b = (
            torch.as_tensor(t, dtype=loc.dtype, device=loc.device)
            for t in (mean_concentration, concentration, rate)
        )
        b = b if b.dim() else b.unsqueeze(-1)
        try:
            (dim,) = broadcast_shape(loc.shape[-1:], b.shape[-1:])
            batch = broadcast_shape(loc.shape[:-1], s.shape, a.shape, b.shape[:-1])
        except ValueError:
            raise ValueError(
                "expected loc [..., D], mean_concentration [...], concentration [...] and rate [..., D], got "
                + ", ".join(str(list(t.shape)) for t in (loc, s, a, b))
            ) from None
        self._given = (loc, s, a, b)
        self.loc, self.rate = loc.expand(*batch, dim), b.expand(*batch, dim)
        self.mean_concentration, self.concentration = s.expand(batch), a.expand(batch)
        super().__init__(batch, torch.Size((2, dim)), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "NormalGamma":
        """Expand every parameter to ``batch_shape``."""
        new = self._get_checked_instance(NormalGamma, _instance)
        batch, dim = torch.Size(batch_shape), self.event_shape[-1]
        new._given = self._given
        new.loc, new.rate = self.loc.expand(*batch, dim), self.rate.expand(*batch, dim)
        new.mean_concentration = self.mean_concentration.expand(batch)
        new.concentration = self.concentration.expand(batch)
        super(NormalGamma, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """E[(μ, α)] = (m, a/b), [..., 2, D]."""
        return torch.stack([self.loc, self.concentration.unsqueeze(-1) / self.rate], -2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., 2, D]; precisions are at least 1e-30.

        Drawn in float64: near the prior, α^(-3/2) in the gradient of μ is beyond float32.
        """
        *batch, _, dim = self._extended_shape(sample_shape)
        m, s, a, b = (to_float64(t) for t in self.standard)
        precision = torch._standard_gamma(a.unsqueeze(-1).expand(*batch, dim)) / b
        precision = precision.clamp(min=_SMALLEST_PRECISION)
        loc = m + torch.randn_like(precision) * (s.unsqueeze(-1) * precision).rsqrt()
        return torch.stack([loc, precision], -2).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of (μ, α) [..., 2, D]: log N(μ; m, 1/(sα)) + log Gamma(α; a, b), summed over D."""
        if self._validate_args:
            self._validate_sample(value)
        loc, precision = value.unbind(-2)
        s, a = self.mean_concentration.unsqueeze(-1), self.concentration.unsqueeze(-1)
        gap = loc - self.loc
        normal = 0.5 * (s.log() + precision.log() - math.log(2 * math.pi) - s * precision * gap * gap)
        gamma = a * self.rate.log() - torch.lgamma(a) + (a - 1) * precision.log() - self.rate * precision
        return (normal + gamma).sum(-1)

    @property
    def standard(self) -> tuple[Tensor, ...]:
        """(m, s, a, b) of shapes [..., D], [...], [...], [..., D], in the dtype in which they are stored."""
        return self.loc, self.mean_concentration, self.concentration, self.rate


class NormalGammaFamily(ExponentialFamily):
    """Π_d N(μ_d; m_d, 1/(s α_d)) Gamma(α_d; a, rate b_d).

    Packed as λ = (λ1, λ4, λ2[D], λ3[D]) with statistics t = (Σ_d log α_d, Σ_d α_d μ_d², α[D], (α μ)[D]):

        λ1 = a - 1/2,  λ4 = -s/2,  λ2 = -(b + s m²/2),  λ3 = s m                              (equation 12)

    ``b = -λ2 - λ3²/(2s)`` subtracts nearly equal numbers when m is large against the spread, so λ has to be
    float64. At 300,000 spreads from the origin, bounds are off by 1e-5 nats per point; b is NaN beyond.
    """

    distribution = NormalGamma
    names = ("loc", "mean_concentration", "concentration", "rate")
    domain = f"s, a and b > 0, {NEAR}"

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D], s [...], a [...] and b [..., D] into [..., 2D+2]."""
        m, s, a, b = standard
        s_d, a_d = s.unsqueeze(-1), a.unsqueeze(-1)
        parts = (a_d - 0.5, -0.5 * s_d, -(b + 0.5 * s_d * m.square()), s_d * m)
        batch = broadcast_shape(*(part.shape[:-1] for part in parts))
        dim = max(m.shape[-1], b.shape[-1])
        sizes = (1, 1, dim, dim)
        return torch.cat([part.expand(*batch, size) for part, size in zip(parts, sizes, strict=True)], -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], s [...], a [...], b [..., D]); b is NaN where few of its digits are left."""
        dim = natural.shape[-1] // 2 - 1
        first, fourth, second, third = natural.split([1, 1, dim, dim], -1)
        s = -2 * fourth
        m = third * s.reciprocal()  # a division for each dimension would cost more than all the rest
        b = torch.addcmul(second, third, m, value=0.5).neg_()
        return m, s.squeeze(-1), first.squeeze(-1) + 0.5, unless_cancelled(b, -second)

    def event_shape(self, size: int) -> torch.Size:
        """(2, D)."""
        if size < 4 or size % 2:
            raise ValueError(
                f"natural: expected shape [..., 2D+2] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((2, size // 2 - 1))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (μ, α) [..., 2, D]."""
        loc, precision = value.unbind(-2)
        scaled_loc = precision * loc
        sums = torch.stack([precision.log().sum(-1), (scaled_loc * loc).sum(-1)], -1)
        return torch.cat([sums, precision, scaled_loc], -1)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d { log Γ(a) - a log b_d - 1/2 log s } (the base measure contains the powers of 2π)."""
        m, s, a, b = self.unpack(natural)
        return m.shape[-1] * (torch.lgamma(a) - 0.5 * s.log()) - a * b.log().sum(-1)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: D ψ(a) - Σ log b, D/s + Σ m² a/b, a/b [D], m a/b [D]."""
        return self.stats_from_standard(*self.unpack(natural))

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] [..., 2D+2] at m and b [..., D], s and a [...], without the digits that λ would lose."""
        m, s, a, b = standard
        dim = m.shape[-1]
        precision = a.unsqueeze(-1) / b
        scaled_loc = precision * m
        log_precision = dim * torch.digamma(a) - sum_of_logs(b)
        square = dim / s + (scaled_loc * m).sum(-1)
        return torch.cat([log_precision.unsqueeze(-1), square.unsqueeze(-1), precision, scaled_loc], -1)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """Appendix C.1 (with log Γ where the paper prints ψ), summed over d: [...]."""
        s, a = -2 * natural[..., 1], natural[..., 0] + 0.5
        m = natural[..., natural.shape[-1] // 2 + 1 :] * s.reciprocal().unsqueeze(-1)
        stats = self.mean_stats(natural) if stats is None else stats
        return self.kl_from_stats(m, s, a, stats, self.unpack(prior))

    @staticmethod
    def kl_from_stats(m: Tensor, s: Tensor, a: Tensor, stats: Tensor, prior: tuple[Tensor, ...]) -> Tensor:
        """KL(λ || λ₀) [...] from m, s, a and E[t], in which a/b and Σ log b are: no logarithm twice."""
        m0, s0, a0, b0 = prior
        dim = stats.shape[-1] // 2 - 1
        log_precision, precision = stats[..., 0], stats[..., 2 : dim + 2]
        ratio, digamma = s0 / s, torch.digamma(a)
        shared = 0.5 * (ratio - ratio.log() - 1) - a + (a - a0) * digamma
        shared = shared + torch.lgamma(a0) - torch.lgamma(a)
        apart = ((m - m0).square() * precision).sum(-1)
        log_rates = dim * digamma - log_precision - b0.log().expand(*b0.shape[:-1], dim).sum(-1)
        return dim * shared + 0.5 * s0 * apart + (precision * b0).sum(-1) + a0 * log_rates

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂s, ∂a, ∂b), solved by hand: the metric has the blocks (m), (s) and (a, b)."""
        (m, s, a, b), (grad_m, grad_s, grad_a, grad_b) = standard, grads
        dim = m.shape[-1]
        variance = b / a.unsqueeze(-1)
        curvature = dim * (torch.polygamma(1, a) - 1 / a)
        first = ((grad_a + (grad_b * variance).sum(-1)) / curvature).unsqueeze(-1)
        fourth = (-s.square() * grad_s / dim).unsqueeze(-1)
        third = grad_m * variance - 2 * fourth * m
        second = -variance * (first + grad_b * b + grad_m * m) + fourth * m.square()
        return torch.cat([first, fourth, second, third], -1)

    def pack(self, member: Distribution) -> Tensor:
        """λ of a ``NormalGamma``, packed before any expansion."""
        assert isinstance(member, NormalGamma)
        return self.natural(*(to_float64(parameter) for parameter in member._given))

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where s, a and every b are positive (b is NaN where m is not finite, or too far out)."""
        _, s, a, b = self.unpack(natural)
        return (s > 0) & (a > 0) & (b > 0).all(-1)

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """(1/2, -1/2, -E[z²]/2 [D], E[z] [D]) of z [..., D]: log N(z; μ, 1/α) is linear in these."""
        half = torch.full_like(mean[..., :1], 0.5)
        return torch.cat([half, -half, -0.5 * (mean.square() + variance), mean], -1)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        """E[log N(z; μ_k, 1/α_k)], by equation 6: see :func:`gaussian_table`."""
        return gaussian_table(mean, variance, stats)

    def conjugate_update(
        self, prior: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, scale: float = 1.0
    ) -> Tensor:
        """λ* of equation 13, all data at once; the weights of λ1 and λ4 are summed only once."""
        weights, mean, variance = scale * weights.double(), mean.double(), variance.double()
        halves = 0.5 * weights.sum(-2).unsqueeze(-1)
        squares = weights.mT @ (mean.square() + variance)
        return prior.double() + torch.cat([halves, -halves, -0.5 * squares, weights.mT @ mean], -1)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of unit variance around a random mean (m0 plus unit noise)."""
        m0, s0, a0, b0 = self.unpack(prior)
        noise = torch.randn(m0.shape, dtype=m0.dtype, generator=generator).to(m0.device)
        return self.natural(m0 + noise, s0 + count, a0 + count / 2, b0 + count / 2)

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> Independent:
        """Student-t: 2a degrees of freedom, location m, *squared* scale ((s+1)/s)(b/a). Equation 10."""
        m, s, a, b = standard
        s, a = s.unsqueeze(-1), a.unsqueeze(-1)
        scale = ((s + 1) / s * b / a).sqrt()
        student = StudentT(*(t.to(dtype) for t in torch.broadcast_tensors(2 * a, m, scale)))
        return IndependentStudentT(student, 1)


NORMAL_GAMMA = NormalGammaFamily()


@register_family(NormalGamma)
class NaturalNormalGamma(NaturalDistribution, NormalGamma):  # type: ignore[misc, override]
    """A Normal-Gamma posterior in natural parameters λ [..., 2D+2]: see :class:`NaturalDistribution`."""

    family = NORMAL_GAMMA


@register_kl(NormalGamma, NormalGamma)
def _kl_normal_gamma(q: NormalGamma, p: NormalGamma) -> Tensor:
    m, s, a, _ = NORMAL_GAMMA.standard_of(q)
    stats = NORMAL_GAMMA.stats_from_standard(*NORMAL_GAMMA.standard_of(q))
    return NORMAL_GAMMA.kl_from_stats(m, s, a, stats, NORMAL_GAMMA.standard_of(p)).to(q.loc)
