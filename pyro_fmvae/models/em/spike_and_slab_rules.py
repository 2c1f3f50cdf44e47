"""Two rules by which spike-and-slab causes generate data: their maximum, or their sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr

from pyro_fmvae.distributions.superposition import LinearNormal, MaxNormal, Superposition, largest
from pyro_fmvae.models.em.piecewise_normal import Column

Sweep = Callable[[Tensor], None]
"""One Gibbs sweep over causes [U, R, B], in place."""

LARGEST = 2**24  # numbers in all temporaries of a chunk of data
LEAST_MASS = torch.finfo(torch.float64).tiny / torch.finfo(torch.float64).eps  # smaller sums have lost digits


class Slab(NamedTuple):
    """Prior of a cause: s = 0 with probability 1 - π, s ~ N(μ, ψ) with probability π."""

    logits: Tensor
    """logit of π, [..., R, B or 1]."""
    loc: Tensor
    """μ, likewise."""
    variance: Tensor
    """ψ, likewise."""


class Rule(ABC):
    """How data depend on causes. Data y are [B, D], NaN where missing."""

    likelihood: ClassVar[type[Superposition]]
    """Distribution of data given causes."""

    @abstractmethod
    def superpose(self, causes: Tensor, weight: Tensor) -> Tensor:
        """E[y | s], [..., D], of causes [..., H] and weights [..., D, H] that broadcast."""

    @abstractmethod
    def single_cause_log_odds(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor) -> Tensor:
        """Posterior log-odds of on against off of each unit, given that all others are off, [R, B, H].

        Args:
            y: data [B, D].
            weight: W, [R, D, H].
            slab: each [R, 1, 1 or H].
            noise_variance: σ² (times the temperature), [R].
        """

    @abstractmethod
    def sweep(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor, rest: bool) -> Sweep:
        """A Gibbs sweep over U units of each point.

        Args:
            y: data [B, D].
            weight: columns of W, [U, R, B or 1, D].
            slab: each [U, R, B or 1].
            noise_variance: σ² (times the temperature), [R].
            rest: True if there are further units, which are off.
        """

    @abstractmethod
    def statistics(self, y: Tensor, samples: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Statistics for the M-step of W: sums over points, means over draws.

        Args:
            y: data [B, D].
            samples: draws of s, [R, K, B, H].
            weight: the present W, [R, D, H].
        """

    @abstractmethod
    def maximum(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        """W of the least expected error, [R, D, H]; entries that no draw depends on keep their values."""

    @abstractmethod
    def explained(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        """Σ y² less the expected squared error Σ E(y - E[y | s])², [R]."""

    @abstractmethod
    def rescaled(self, statistics: Mapping[str, Tensor], unit: Tensor) -> dict[str, Tensor]:
        """Statistics of the causes times ``unit`` [R, H], W being divided by it."""


class MaxRule(Rule):
    """y_d ~ N(max_h W_dh s_h, σ²): Puertas et al. (2010), Shelton et al. (2015).

    The maximum is over all units; a unit that is off contributes 0. W has no closed form. Its M-step takes as
    given the unit h*(d) whose contribution to pixel d is the greatest in a draw under the present W.
    """

    likelihood = MaxNormal

    def superpose(self, causes: Tensor, weight: Tensor) -> Tensor:
        return largest(causes, weight)

    def single_cause_log_odds(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor) -> Tensor:
        positive = self._half_line(y, weight.clamp(min=0), slab, noise_variance, 1)
        negative = self._half_line(y, weight.clamp(max=0), slab, noise_variance, -1)
        return slab.logits + torch.logaddexp(positive, negative)

    def _half_line(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor, sign: int) -> Tensor:
        """Log of ∫ p(y | s) p(s | on) ds / p(y | 0) over s of one sign, [R, B, H]."""
        log_evidence, location = _normal_evidence(y, weight, slab, noise_variance)
        return log_evidence + log_ndtr(sign * location)

    def sweep(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor, rest: bool) -> Sweep:
        noise_variance = noise_variance[:, None, None]
        columns = [Column(y, w, noise_variance) for w in weight.unbind()]
        priors = [Slab(*prior) for prior in zip(*(t.unbind() for t in slab), strict=True)]
        others = weight.new_full((), 0.0 if rest else -math.inf)

        def sweep(causes: Tensor) -> None:
            given = causes.unsqueeze(-1) * weight
            later = [others.expand_as(given[0])]
            for given_one in given[1:].flip(0).unbind():
                later.append(torch.maximum(later[-1], given_one))
            before = later[0]
            for unit, (column, prior) in enumerate(zip(columns, priors, strict=True)):
                conditional = column.conditional(
                    torch.maximum(before, later.pop()), prior.loc, prior.variance
                )
                causes[unit] = conditional.sample(prior.logits)
                before = torch.maximum(before, causes[unit].unsqueeze(-1) * weight[unit])

        return sweep

    def statistics(self, y: Tensor, samples: Tensor, weight: Tensor) -> dict[str, Tensor]:
        starts, _, _, units = samples.shape
        pixels = weight.shape[1]
        sums = weight.new_zeros(2, starts, pixels * units)
        for part, draws in _chunks(y, samples, 8 * pixels):
            unit = self._responsible(draws, weight)
            cause = torch.where(part.isnan(), 0.0, draws.gather(-1, unit))
            cell = (unit + units * torch.arange(pixels, device=y.device)).flatten(1)
            sums[0].scatter_add_(1, cell, (cause * part.nan_to_num()).flatten(1))
            sums[1].scatter_add_(1, cell, cause.square().flatten(1))
        product, square = sums.reshape(2, starts, pixels, units) / samples.shape[1]
        return {"product": product, "square": square}

    def _responsible(self, samples: Tensor, weight: Tensor) -> Tensor:
        """h*, the unit of the greatest contribution to each pixel, [R, K, B, D]."""
        columns = weight[:, None, None].unbind(-1)
        causes = samples.unsqueeze(-1).unbind(-2)
        most = causes[0] * columns[0]
        unit = torch.zeros_like(most, dtype=torch.long)
        for other in range(1, len(columns)):
            given = causes[other] * columns[other]
            unit.masked_fill_(given > most, other)
            most = torch.maximum(most, given)
        return unit

    def maximum(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        square = statistics["square"]
        best = statistics["product"] / square.clamp(min=LEAST_MASS)
        return torch.where(square >= LEAST_MASS, best, weight)

    def explained(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        """As in the base class, with h* in place of the unit of the greatest contribution."""
        gain = 2 * weight * statistics["product"] - weight.square() * statistics["square"]
        return gain.sum((-2, -1))

    def rescaled(self, statistics: Mapping[str, Tensor], unit: Tensor) -> dict[str, Tensor]:
        unit = unit.unsqueeze(-2)
        return {
            "product": statistics["product"] * unit,
            "square": statistics["square"] * unit.square(),
        }


class LinearRule(Rule):
    """y ~ N(W s, σ² I): Lücke and Sheikh (2012)."""

    likelihood = LinearNormal

    def superpose(self, causes: Tensor, weight: Tensor) -> Tensor:
        return (weight @ causes.unsqueeze(-1)).squeeze(-1)

    def single_cause_log_odds(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor) -> Tensor:
        log_evidence, _ = _normal_evidence(y, weight, slab, noise_variance)
        return slab.logits + log_evidence

    def sweep(self, y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor, rest: bool) -> Sweep:
        known, y = ~y.isnan(), y.nan_to_num()
        weight = weight * known
        columns = weight.unbind()
        curvature = weight.square().sum(-1) / noise_variance[:, None] + slab.variance.reciprocal()
        slope = slab.loc / slab.variance
        constant = slab.logits - 0.5 * (slab.loc * slope + (slab.variance * curvature).log())

        def sweep(causes: Tensor) -> None:
            residual = y - (causes.unsqueeze(-1) * weight).sum(0)
            for unit, column in enumerate(columns):
                residual += causes[unit].unsqueeze(-1) * column
                pull = slope[unit] + (column * residual).sum(-1) / noise_variance[:, None]
                loc = pull / curvature[unit]
                on = torch.rand_like(loc) < (constant[unit] + 0.5 * pull * loc).sigmoid()
                draw = loc + torch.randn_like(loc) * curvature[unit].rsqrt()
                causes[unit] = torch.where(on, draw, 0.0)
                residual -= causes[unit].unsqueeze(-1) * column

        return sweep

    def statistics(self, y: Tensor, samples: Tensor, weight: Tensor) -> dict[str, Tensor]:
        starts, draws, _, units = samples.shape
        product = y.nan_to_num().T @ samples.mean(1)
        if not y.isnan().any():
            rows = samples.flatten(1, 2)
            return {"product": product, "gram": (rows.mT @ rows / draws).unsqueeze(1)}
        gram = samples.new_zeros(starts, y.shape[1], units * units)
        for known, part in _chunks((~y.isnan()).to(samples.dtype), samples, units * units):
            square = torch.einsum("rkbh,rkbg->rbhg", part, part).flatten(-2) / draws
            gram += known.T @ square
        return {"product": product, "gram": gram.unflatten(-1, (units, units))}

    def maximum(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        gram = statistics["gram"]
        missed = statistics["product"] - self._against(gram, weight)
        return weight + self._against(torch.linalg.pinv(gram, hermitian=True), missed)

    def explained(self, statistics: Mapping[str, Tensor], weight: Tensor) -> Tensor:
        gain = 2 * statistics["product"] - self._against(statistics["gram"], weight)
        return (weight * gain).sum((-2, -1))

    def rescaled(self, statistics: Mapping[str, Tensor], unit: Tensor) -> dict[str, Tensor]:
        return {
            "product": statistics["product"] * unit.unsqueeze(-2),
            "gram": statistics["gram"] * (unit.unsqueeze(-1) * unit.unsqueeze(-2)).unsqueeze(1),
        }

    def _against(self, gram: Tensor, weight: Tensor) -> Tensor:
        """Products of the rows of W [R, D, H] with their Gram matrices [R, 1 or D, H, H]."""
        return (gram @ weight.unsqueeze(-1)).squeeze(-1)


def _normal_evidence(y: Tensor, weight: Tensor, slab: Slab, noise_variance: Tensor) -> tuple[Tensor, Tensor]:
    """Log of ∫ N(y; W_h s, σ²) N(s; μ, ψ) ds / N(y; 0, σ²), and mean / deviation of s given y."""
    precision = noise_variance[:, None, None].reciprocal()
    curvature = (~y.isnan()).to(weight.dtype) @ weight.square() * precision + slab.variance.reciprocal()
    pull = y.nan_to_num() @ weight * precision + slab.loc / slab.variance
    location = pull * curvature.rsqrt()
    prior = slab.loc.square() / slab.variance + (slab.variance * curvature).log()
    return 0.5 * (location.square() - prior), location


def _chunks(y: Tensor, samples: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
    """Chunks of the data and their draws, [b, D] and [R, K, b, H], of at most LARGEST / ``width`` draws."""
    rows = max(LARGEST // (samples.shape[0] * samples.shape[1] * width), 1)
    return list(zip(y.split(rows), samples.split(rows, 2), strict=True))
