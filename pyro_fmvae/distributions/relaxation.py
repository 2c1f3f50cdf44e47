"""Draws of spikes that carry gradients, in place of a step function while a model is learnt.

A spike is on with probability γ. From η ~ U(0, 1) it is drawn as T(η - 1 + γ), with T the unit step, whose
gradient is 0. An object of a class in this module, given to
:class:`~pyro_fmvae.distributions.SpikeAndSlab`, puts something with a gradient in its place. What a schedule
moves is a buffer, to be filled in place, so that captured steps see it.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


def hard_spikes(logits: Tensor, uniform: Tensor) -> Tensor:
    """1 with probability σ(logits), else 0.

    Args:
        logits: logit of γ, [...].
        uniform: η, uniform in [0, 1), [...].
    """
    return (uniform >= torch.sigmoid(-logits)).to(logits.dtype)


class SpikeDraws(nn.Module, ABC):
    """How draws from a spike-and-slab distribution are made, so that its logits get gradients.

    Attributes:
        warm_up: λ in [0, 1], a scalar buffer. The slab is drawn with mean λ·μ and log variance λ·log σ²: at 0
            it is N(0, 1) whatever μ and σ are, and only which spikes are on tells of the data; at 1, where it
            starts, it is the distribution's own. Densities and divergences don't look at it.
    """

    warm_up: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("warm_up", torch.ones(()), persistent=False)

    @abstractmethod
    def spikes(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Differentiable stand-ins for :func:`hard_spikes`, in [0, 1]; arguments as there."""

    def forward(self, loc: Tensor, scale: Tensor, logits: Tensor, normal: Tensor, uniform: Tensor) -> Tensor:
        """Draws from spikes and slabs of these parameters, all of one shape.

        Args:
            loc, scale, logits: μ, σ and the logit of γ.
            normal, uniform: the noise, standard normal and uniform in [0, 1).
        """
        slab = self.warm_up * loc + scale**self.warm_up * normal
        return self.spikes(logits, uniform) * slab

    def sharpen(self, fraction: float) -> None:
        """Come as close to the step as it is planned for this share of the training, in [0, 1]."""


class ShiftedSigmoid(SpikeDraws):
    """T(y) = σ(c·y) at y = η - 1 + γ: the relaxation of Tonolini et al. (2019), Supplement B.

    Its mean is not γ but log[(1 + e^{cγ}) / (1 + e^{c(γ-1)})] / c: at γ = 0.01 and c = 50, 0.0195. What is
    nominally off leaks through, the less the steeper the slope.

    Args:
        slope: c > 0 at the start.
        final_slope: where :meth:`sharpen` moves it to, linearly.

    Raises:
        ValueError: a slope out of range.
    """

    slope: Tensor

    def __init__(self, slope: float = 50.0, final_slope: float = 200.0) -> None:
        super().__init__()
        for name, value in (("slope", slope), ("final_slope", final_slope)):
            _check_positive(name, value)
        self.ends = slope, final_slope
        self.register_buffer("slope", torch.tensor(float(slope)), persistent=False)

    def spikes(self, logits: Tensor, uniform: Tensor) -> Tensor:
        return torch.sigmoid(self.slope * (uniform - torch.sigmoid(-logits)))

    def sharpen(self, fraction: float) -> None:
        start, end = self.ends
        self.slope.fill_(start + min(fraction, 1.0) * (end - start))


class Concrete(SpikeDraws):
    """σ((logit γ + logit η) / τ), the binary Concrete distribution. Maddison et al. (2017).

    Args:
        temperature: τ > 0; a half of the draws is above 1/2 wherever γ = 1/2, and towards 0 all are 0 or 1.

    Raises:
        ValueError: a temperature out of range.
    """

    temperature: Tensor

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        _check_positive("temperature", temperature)
        self.register_buffer("temperature", torch.tensor(float(temperature)), persistent=False)

    def spikes(self, logits: Tensor, uniform: Tensor) -> Tensor:
        return torch.sigmoid((logits + uniform.logit()) / self.temperature)  # 0, as it should be, at η = 0


class StraightThrough(Concrete):
    """The step itself, with the gradient of :class:`Concrete`. Bengio et al. (2013).

    The decoder sees exact zeros while it is learnt; the gradient is biased.

    Args:
        temperature: τ > 0, of the gradient.
    """

    def spikes(self, logits: Tensor, uniform: Tensor) -> Tensor:
        relaxed = super().spikes(logits, uniform)
        return hard_spikes(logits, uniform) + (relaxed - relaxed.detach())


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number > 0, got {value}")
