"""Normal-Gamma distributions over mean and precision of a D-dimensional Gaussian, its dimensions independent.

Paquet et al. (2018), Section 2.2 and equations 12-13. The concentrations s and a count observations, so
every conjugate update leaves them equal over the D dimensions; they are stored once, which makes the family
minimal: 2D + 2 numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints, register_kl
from torch.distributions.utils import lazy_property

from pyro_fmvae.distributions.exponential_family import (
    InNaturalParameters,
    check_natural,
    scale_gradient,
    to_float64,
)
from pyro_fmvae.distributions.normal_gamma_family import NORMAL_GAMMA

_SMALLEST_PRECISION = 1e-30  # half of all draws from Gamma(0.01, 0.01) are smaller


class _NaturalDomain(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return NORMAL_GAMMA.in_domain(value)


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

    def pack(self) -> Tensor:
        """λ in float64, packed before any expansion: broadcastable to [..., 2D+2]."""
        return NORMAL_GAMMA.natural(*(to_float64(parameter) for parameter in self._given))

    @property
    def mean(self) -> Tensor:
        """E[(μ, α)] = (m, a/b), [..., 2, D]."""
        return torch.stack([self.loc, self.concentration.unsqueeze(-1) / self.rate], -2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., 2, D]; precisions are kept above 1e-30.

        Drawn in float64: near the prior, α^(-3/2) in the gradient of μ is beyond float32.
        """
        *batch, _, dim = self._extended_shape(sample_shape)
        m, s, a, b = (to_float64(t) for t in self.standard)
        precision = torch._standard_gamma(a.unsqueeze(-1).expand(*batch, dim)) / b
        precision = precision.clamp(min=_SMALLEST_PRECISION)
        loc = m + torch.randn_like(precision) * (s.unsqueeze(-1) * precision).rsqrt()
        return torch.stack([loc, precision], -2).to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Of (μ, α) [..., 2, D]: that of N(μ; m, 1/(sα)) plus that of Gamma(α; a, b), summed over D."""
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
        """(m, s, a, b) of shapes [..., D], [...], [...], [..., D], in the dtype in which they are kept."""
        return self.loc, self.mean_concentration, self.concentration, self.rate

    def expected_stats(self) -> Tensor:
        """E[t] in float64, in the layout of :class:`NormalGammaFamily`, [..., 2D+2]."""
        m, s, a, b = (to_float64(t) for t in self.standard)
        return NORMAL_GAMMA.stats_from_standard(m, s, a, b)


class NaturalNormalGamma(InNaturalParameters, NormalGamma):
    """A Normal-Gamma posterior given by natural parameters, which receive natural gradients.

    Args:
        natural: λ, float64 [..., 2D+2] in the layout of :class:`NormalGammaFamily`, usually a
            ``NaturalParameter``.
        dtype: of draws and log-densities; torch's default dtype if None.

    Raises:
        ValueError: λ of another shape or dtype, or (with validation on) outside the family's domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {"natural": _NaturalDomain()}  # noqa: RUF012
    family = NORMAL_GAMMA

    def __init__(
        self, natural: Tensor, dtype: torch.dtype | None = None, validate_args: bool | None = None
    ) -> None:
        check_natural(natural)
        if natural.dim() == 0 or natural.shape[-1] < 4 or natural.shape[-1] % 2:
            raise ValueError(f"natural: expected shape [..., 2D+2] with D >= 1, got {tuple(natural.shape)}")
        self.natural = natural
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        event = torch.Size((2, natural.shape[-1] // 2 - 1))
        TorchDistribution.__init__(self, natural.shape[:-1], event, validate_args=validate_args)

    @lazy_property
    def standard(self) -> tuple[Tensor, ...]:
        """(m, s, a, b) in float64; only draws and densities ask for them, closed forms don't."""
        m, s, a, b = NORMAL_GAMMA.standard(self.natural)
        batch, dim = self.batch_shape, self.event_shape[-1]
        return m.expand(*batch, dim), s.expand(batch), a.expand(batch), b.expand(*batch, dim)

    loc = property(lambda self: self.standard[0].to(self.dtype))
    mean_concentration = property(lambda self: self.standard[1].to(self.dtype))
    concentration = property(lambda self: self.standard[2].to(self.dtype))
    rate = property(lambda self: self.standard[3].to(self.dtype))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "NaturalNormalGamma":
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = self._get_checked_instance(NaturalNormalGamma, _instance)
        new.natural, new.dtype = self.natural, self.dtype
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def pack(self) -> Tensor:
        """λ, by way of the standard parameters, so that its gradients follow their rule."""
        return NORMAL_GAMMA.natural(*self.standard)

    def with_gradient_scale(self, factor: Tensor | float) -> "NaturalNormalGamma":
        """The same distribution, whose gradients reach the natural parameters multiplied by ``factor``."""
        new = NaturalNormalGamma(scale_gradient(self.natural, factor), self.dtype, validate_args=False)
        return new.expand(self.batch_shape)


@register_kl(NormalGamma, NormalGamma)
def _kl_normal_gamma(q: NormalGamma, p: NormalGamma) -> Tensor:
    m, s, a, _ = (to_float64(parameter) for parameter in q.standard)
    prior = tuple(to_float64(parameter) for parameter in p.standard)
    return NORMAL_GAMMA.kl_from_stats(m, s, a, q.expected_stats(), prior).to(q.loc)


@register_kl(NaturalNormalGamma, NormalGamma)
def _kl_natural_normal_gamma(q: NaturalNormalGamma, p: NormalGamma) -> Tensor:
    kl = NORMAL_GAMMA.kl(q.natural, p.pack().to(q.natural), q.expected_stats())
    return kl.expand(broadcast_shape(q.batch_shape, p.batch_shape))
