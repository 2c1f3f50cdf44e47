"""Numbers that are exactly zero with some probability, and normal otherwise."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints, register_kl
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
    def code(self) -> Tensor:
        """μ where the spike is more likely on than off, exactly 0 elsewhere: [...]."""
        return torch.where(self.logits > 0, self.loc, 0.0)

    def arrays(self) -> dict[str, Tensor]:
        """``mean``; ``probs``, γ; ``loc`` and ``scale`` of the slab, each [...]."""
        return {"mean": self.mean, "probs": self.probs, "loc": self.loc, "scale": self.scale}

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


# Mixtures of products of spike-and-slab distributions, as priors that are learnt from pseudo-inputs.


class SpikeAndSlabMixture(TorchDistribution):
    """p(z) = (1/U) Σ_u Π_j p_u(z_j) over z [J], with U components that are products of spike-and-slabs.

    The prior of variational sparse coding (Tonolini et al., 2019), after the mixture of Tomczak and Welling
    (2018). Density and draws are exact. The KL divergence of a product of spike-and-slabs q from a mixture
    has no closed form; ``kl_divergence`` returns an *upper bound* of it, so that an ELBO
    in which it stands is still a lower bound of the evidence. For any weights ω on the simplex,

        KL(q || p) <= Σ_u ω_u KL(q || p_u) + Σ_u ω_u log(U ω_u) .

    The best weights, ω_u ∝ exp(-KL(q || p_u)), give log U - logsumexp_u{-KL(q || p_u)}, which is used unless
    ``log_selection`` gives others. With U = 1 all three are equal.

    Args:
        components: batch shape [U, J].
        log_selection: log ω, normalised over its last dimension, [..., U], one for each q that a divergence
            is asked for; None stands for the best. It does not matter to the density.

    Raises:
        ValueError: shapes that don't fit.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector

    components: SpikeAndSlab
    log_selection: Tensor | None

    def __init__(
        self,
        components: SpikeAndSlab,
        log_selection: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(components, SpikeAndSlab) or len(components.batch_shape) != 2:
            got = f"{type(components).__name__} of batch shape {list(components.batch_shape)}"
            raise ValueError(f"components: expected a SpikeAndSlab of batch shape [U, J], got {got}")
        count, dim = components.batch_shape
        batch_shape = torch.Size()
        if log_selection is not None:
            if log_selection.shape[-1:] != (count,):
                shape = list(log_selection.shape)
                raise ValueError(f"log_selection: expected shape [..., {count}], got {shape}")
            batch_shape = log_selection.shape[:-1]
        self.components, self.log_selection = components, log_selection
        super().__init__(batch_shape, torch.Size((dim,)), validate_args=validate_args)

    @property
    def num_components(self) -> int:
        """U."""
        return self.components.batch_shape[0]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "SpikeAndSlabMixture":
        """Expand to ``batch_shape``; ``log_selection`` stays as it is, to be broadcast."""
        new = self._get_checked_instance(SpikeAndSlabMixture, _instance)
        new.components, new.log_selection = self.components, self.log_selection
        super(SpikeAndSlabMixture, new).__init__(
            torch.Size(batch_shape), self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Exact draws [*sample_shape, ..., J], with exact zeros."""
        shape = self._extended_shape(torch.Size(sample_shape))[:-1]
        index = torch.randint(self.num_components, shape, device=self.components.loc.device)
        loc, scale, logits = (
            t[index] for t in (self.components.loc, self.components.scale, self.components.logits)
        )
        return SpikeAndSlab(loc, scale, logits, validate_args=False).sample()

    def log_prob(self, value: Tensor) -> Tensor:
        """logsumexp_u{Σ_j log p_u(z_j)} - log U of z [..., J]."""
        if self._validate_args:
            self._validate_sample(value)
        on = (value != 0).to(value.dtype)
        cross = self._cross_entropies(on, 1 - on, value, torch.zeros_like(value))
        log_prob = (-cross).logsumexp(-1) - math.log(self.num_components)
        return log_prob.expand(torch.broadcast_shapes(self.batch_shape, log_prob.shape))

    def divergences(self, q: SpikeAndSlab) -> Tensor:
        """KL(q || p_u) from each component, of products q of batch shape [..., J]: [..., U]."""
        cross = self._cross_entropies(q.probs, torch.sigmoid(-q.logits), q.loc, q.scale.square())
        return cross - q.entropy().sum(-1, keepdim=True)

    def _cross_entropies(self, on: Tensor, off: Tensor, loc: Tensor, variance: Tensor) -> Tensor:
        """-E_q[log p_u(z)] for each component, where q has spikes off, slabs on with these moments: [..., U].

        The expectation is linear in statistics of q, so it is one matrix product; no tensor of size B·U·J
        exists. The expanded square would lose digits where means are far from the origin, so each latent is
        first moved to the precision-weighted centre of its components. The value does not depend on where
        that is, and so no gradient goes through it.
        """
        p = self.components
        given, device = loc.dtype, loc.device
        dtype = given if device.type == "mps" else torch.float64  # terms of 1/scale² cancel
        p_loc, loc, variance = p.loc.to(dtype), loc.to(dtype), variance.to(dtype)
        precision = p.scale.to(dtype).square().reciprocal()
        centre = ((precision * p_loc).sum(0) / precision.sum(0)).detach()
        gap, moved = p_loc - centre, loc - centre
        constant = p.scale.log() + 0.5 * math.log(2 * math.pi) - logsigmoid(p.logits)
        costs = [
            constant + 0.5 * precision * gap.square(),
            -logsigmoid(-p.logits),
            -precision * gap,
            0.5 * precision,
        ]
        stats = [on, off, on * moved, on * (moved.square() + variance)]
        with torch.autocast(device.type, enabled=False):
            product = torch.cat(stats, -1).to(dtype) @ torch.cat(costs, -1).to(dtype).mT
        return product.to(given)


@register_kl(Independent, SpikeAndSlabMixture)
def _kl_bound(q: Independent, p: SpikeAndSlabMixture) -> Tensor:
    """The upper bound that the class describes."""
    if not isinstance(q.base_dist, SpikeAndSlab) or q.reinterpreted_batch_ndims != 1:
        raise NotImplementedError
    divergences = p.divergences(q.base_dist)
    if p.log_selection is None:
        return math.log(p.num_components) - (-divergences).logsumexp(-1)
    log_selection = p.log_selection.clamp(min=torch.finfo(p.log_selection.dtype).min)  # 0 · log 0 is 0
    return (log_selection.exp() * (divergences + log_selection)).sum(-1) + math.log(p.num_components)
