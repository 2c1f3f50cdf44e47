"""Numbers that are exactly zero with some probability, and normal otherwise."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid

from pyro_fmvae.distributions.relaxation import SpikeDraws, hard_spikes


class SpikeAndSlab(TorchDistribution):
    """z = 0 with probability 1 - γ (the spike), z ~ N(μ, σ²) with probability γ (the slab).

    Densities are with respect to Lebesgue measure plus a unit mass at 0: 1 - γ at z = 0, γ N(z; μ, σ²)
    elsewhere. For γ in (0, 1) any two such distributions have densities with respect to each other, so that
    KL divergences are finite.

    Draws without ``draws`` are exact, but carry no gradient to the logits; those of ``rsample`` with
    ``draws`` carry one, and may be other than exact: with :class:`~pyro_fmvae.distributions.ShiftedSigmoid`
    or :class:`~pyro_fmvae.distributions.Concrete` none is 0, so don't ask :meth:`log_prob` for their density.
    Use the KL divergence, which is in closed form, as ``TraceConjugate_ELBO`` does.

    Args:
        loc: μ, [...].
        scale: σ > 0, [...].
        logits: logit of γ, finite, [...].
        draws: the rule by which ``rsample`` draws spikes; ``sample`` does not use it.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.real,
        "scale": constraints.positive,
        "logits": constraints.real,
    }
    support = constraints.real
    has_rsample = True

    loc: Tensor
    scale: Tensor
    logits: Tensor

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        logits: Tensor | float,
        draws: SpikeDraws | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.logits = broadcast_all(loc, scale, logits)
        self.draws = draws
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """γ, the probability of the slab, [...]."""
        return self.logits.sigmoid()

    @property
    def mean(self) -> Tensor:
        """γμ, [...]."""
        return self.probs * self.loc

    @property
    def variance(self) -> Tensor:
        """γ(σ² + (1 - γ)μ²), [...]."""
        return self.probs * (self.scale.square() + torch.sigmoid(-self.logits) * self.loc.square())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "SpikeAndSlab":
        """Expand to ``batch_shape``."""
        new = self._get_checked_instance(SpikeAndSlab, _instance)
        shape = torch.Size(batch_shape)
        new.loc, new.scale, new.logits = (t.expand(shape) for t in (self.loc, self.scale, self.logits))
        new.draws = self.draws
        super(SpikeAndSlab, new).__init__(shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """log(1 - γ) where the value is 0, log γ + log N(value; μ, σ²) elsewhere."""
        if self._validate_args:
            self._validate_sample(value)
        slab = -0.5 * ((value - self.loc) / self.scale).square() - self.scale.log()
        on = logsigmoid(self.logits) + slab - 0.5 * math.log(2 * math.pi)
        return torch.where(value == 0, logsigmoid(-self.logits), on)

    def entropy(self) -> Tensor:
        """-E[log p(z)] with respect to the measure of the densities, [...]."""
        slab = self.scale.log() + 0.5 * math.log(2 * math.pi * math.e) - logsigmoid(self.logits)
        return self.probs * slab - torch.sigmoid(-self.logits) * logsigmoid(-self.logits)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Exact draws [*sample_shape, ...], with exact zeros."""
        with torch.no_grad():
            return self._exact(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws [*sample_shape, ...] with gradients, as ``draws`` makes them; exact ones without it.

        Raises:
            ValueError: there is no ``draws``, and the logits ask for a gradient.
        """
        if self.draws is not None:
            return self.draws(*self._expanded(sample_shape), *self._noise(sample_shape))
        if self.logits.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "draws: expected a ShiftedSigmoid, Concrete or StraightThrough, because the logits require a "
                "gradient and an exact draw carries none to them; got None (use sample(), or torch.no_grad())"
            )
        return self._exact(sample_shape)

    def _exact(self, sample_shape: Sequence[int]) -> Tensor:
        loc, scale, logits = self._expanded(sample_shape)
        normal, uniform = self._noise(sample_shape)
        return hard_spikes(logits, uniform) * (loc + scale * normal)

    def _expanded(self, sample_shape: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.loc.expand(shape), self.scale.expand(shape), self.logits.expand(shape)

    def _noise(self, sample_shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        shape, like = self._extended_shape(torch.Size(sample_shape)), self.loc
        return (
            torch.randn(shape, dtype=like.dtype, device=like.device),
            torch.rand(shape, dtype=like.dtype, device=like.device),
        )


@register_kl(SpikeAndSlab, SpikeAndSlab)
def _kl(q: SpikeAndSlab, p: SpikeAndSlab) -> Tensor:
    """γ KL(slabs) + KL of the spikes, term by term, so that digits are kept where γ is near 0 or 1."""
    slabs = torch.distributions.kl_divergence(_slab(q), _slab(p))
    on = slabs + logsigmoid(q.logits) - logsigmoid(p.logits)
    off = logsigmoid(-q.logits) - logsigmoid(-p.logits)
    return q.probs * on + torch.sigmoid(-q.logits) * off


def _slab(fn: SpikeAndSlab) -> Distribution:
    return torch.distributions.Normal(fn.loc, fn.scale, validate_args=False)
