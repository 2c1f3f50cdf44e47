"""Priors of sparse codes: a fixed one, and mixtures of the encoder's posteriors of learnt pseudo-inputs.

A prior is a module that the model takes as an argument. It gets the encoder as an argument of its methods, so
that each module is saved once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from pyro_fmvae.distributions import SpikeAndSlab, SpikeAndSlabMixture

STARTING_RANGE = 0.1, 0.9  # as shares of the bounds: closer to them, pseudo-inputs would hardly move


class SparsePrior(nn.Module, ABC):
    """p(z) over sparse codes z [J]."""

    @abstractmethod
    def density(self, encoder: nn.Module) -> TorchDistribution:
        """p(z) with exact density and exact draws: batch shape [], event shape [J].

        Args:
            encoder: maps data to location, scale and logits, each [..., J].
        """

    def forward(self, encoder: nn.Module, x: Tensor) -> TorchDistribution:
        """p(z) in the form that gives the divergences of these data points' codes from it.

        Args:
            encoder: as for :meth:`density`.
            x: a batch ``[B, *event_shape]``.
        """
        return self.density(encoder)

    @abstractmethod
    def mean_spike(self, p: TorchDistribution) -> Tensor:
        """γ̄ of the result of :meth:`forward`: the mean probability that a latent is on, a scalar."""

    def start_at(self, x: Tensor) -> None:
        """Initialise from data points ``[n, *event_shape]``. Does nothing by default."""


class FixedSparsePrior(SparsePrior):
    """Independent latents that are on with probability α, and then N(0, 1).

    Args:
        latent_dim: J.
        alpha: in (0, 1).

    Raises:
        ValueError: ``alpha`` out of range.
    """

    logits: Tensor

    def __init__(self, latent_dim: int, alpha: float) -> None:
        super().__init__()
        if not 0 < alpha < 1:
            raise ValueError(f"alpha: expected a number in (0, 1), got {alpha}")
        logits = torch.full((latent_dim,), math.log(alpha) - math.log1p(-alpha))
        self.register_buffer("logits", logits, persistent=False)

    def density(self, encoder: nn.Module) -> TorchDistribution:
        zeros = torch.zeros_like(self.logits)
        return SpikeAndSlab(zeros, torch.ones_like(zeros), self.logits).to_event(1)

    def mean_spike(self, p: TorchDistribution) -> Tensor:
        return self.logits.sigmoid().mean()


class PseudoInputs(nn.Module):
    """U learnt points in the space of the data. Tomczak and Welling (2018).

    Args:
        count: U.
        event_shape: shape of one data point.
        bounds: range of the data, such as (0, 1), to which the points are constrained; None for no bounds.

    Raises:
        ValueError: ``count`` < 1, or bounds in the wrong order.
    """

    def __init__(
        self, count: int, event_shape: Sequence[int], bounds: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"count: expected a number >= 1, got {count}")
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"bounds: expected (lower, upper) with lower < upper, got {bounds}")
        self.bounds = bounds
        self.raw = nn.Parameter(torch.randn(count, *event_shape))

    def forward(self) -> Tensor:
        """The points, ``[U, *event_shape]``."""
        if self.bounds is None:
            return self.raw
        lower, upper = self.bounds
        return lower + (upper - lower) * self.raw.sigmoid()

    @torch.no_grad()
    def start_at(self, x: Tensor) -> None:
        """Initialise at data points ``[n, *event_shape]``, or near them if there are bounds.

        The points are chosen at random by torch's generator, some of them repeatedly if n < U.

        Raises:
            ValueError: no data, or data of another shape.
        """
        if not len(x) or x.shape[1:] != self.raw.shape[1:]:
            expected = ", ".join(map(str, ("n", *self.raw.shape[1:])))
            raise ValueError(f"x: expected at least one point of shape [{expected}], got {list(x.shape)}")
        count = len(self.raw)
        order = torch.cat([torch.randperm(len(x)) for _ in range(math.ceil(count / len(x)))])
        points = x[order[:count].to(x.device)].to(self.raw)
        if self.bounds is not None:
            lower, upper = self.bounds
            points = ((points - lower) / (upper - lower)).clamp(*STARTING_RANGE).logit()
        self.raw.copy_(points)


class MixtureSparsePrior(SparsePrior):
    """An equal mixture of q(z | x_u) over pseudo-inputs x_u. Tonolini et al. (2019).

    Divergences from it are the log-sum-exp bound of
    :class:`~pyro_fmvae.distributions.SpikeAndSlabMixture`.

    Args:
        pseudo_inputs: x_u.
        sharpness: s > 0 replaces the probabilities γ_u of components by σ(s (γ_u - 1/2)), as the authors'
            code does. They are then at least σ(-s/2), which weakens the sparsity penalty. None keeps γ_u.

    Raises:
        ValueError: ``sharpness`` out of range.
    """

    def __init__(self, pseudo_inputs: PseudoInputs, sharpness: float | None = None) -> None:
        super().__init__()
        if sharpness is not None and not 0 < sharpness < math.inf:
            raise ValueError(f"sharpness: expected a number > 0, or None, got {sharpness}")
        self.pseudo_inputs, self.sharpness = pseudo_inputs, sharpness

    def components(self, encoder: nn.Module) -> SpikeAndSlab:
        """Components of the mixture, batch shape [U, J]."""
        loc, scale, logits = encoder(self.pseudo_inputs())
        if self.sharpness is not None:
            logits = self.sharpness * (logits.sigmoid() - 0.5)
        return SpikeAndSlab(loc, scale, logits)

    def density(self, encoder: nn.Module) -> TorchDistribution:
        return SpikeAndSlabMixture(self.components(encoder))

    def mean_spike(self, p: TorchDistribution) -> Tensor:
        """Mean over latents and components."""
        assert isinstance(p, SpikeAndSlabMixture)
        return p.components.probs.mean()

    def start_at(self, x: Tensor) -> None:
        self.pseudo_inputs.start_at(x)


class SelectionSparsePrior(MixtureSparsePrior):
    """A :class:`MixtureSparsePrior` with divergences bounded by a learnt choice of components per data point.

    The weights ω(x) = softmax(selection(x)) approximate the optimal ones; an entropy term makes the result a
    bound. Tonolini et al. (2019), Supplement A.3, apply a steep sigmoid after the normalisation instead.
    Their weights do not add up to 1, and the divergence all but vanishes where no weight exceeds 1/2.

    Args:
        pseudo_inputs, sharpness: as for :class:`MixtureSparsePrior`.
        selection: maps x ``[B, *event_shape]`` to scores [B, U].
    """

    def __init__(
        self, pseudo_inputs: PseudoInputs, selection: nn.Module, sharpness: float | None = None
    ) -> None:
        super().__init__(pseudo_inputs, sharpness)
        self.selection = selection

    def forward(self, encoder: nn.Module, x: Tensor) -> TorchDistribution:
        components = self.components(encoder)
        scores = self.selection(x).to(components.loc.dtype)
        return SpikeAndSlabMixture(components, scores.log_softmax(-1))

    def mean_spike(self, p: TorchDistribution) -> Tensor:
        """Mean over latents, and over components weighted by the batch's selection, if there is one."""
        assert isinstance(p, SpikeAndSlabMixture)
        if p.log_selection is None:
            return super().mean_spike(p)
        return (p.log_selection.exp() @ p.components.probs.mean(-1)).mean()
