"""Exact conditional of one cause under the max rule: a spike, and a slab of truncated normals.

The cause s contributes w_d s to pixel d and the greatest contribution of the others is m_d, so that
y_d ~ N(max(m_d, w_d s), σ²). A pixel changes from one side of the maximum to the other at the threshold
m_d / w_d. Between two thresholds the log density of s is quadratic. One sort of the D thresholds and
cumulative sums over them give all D + 1 quadratics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtri

INFINITY = float("inf")
LOG_TINY = -700.0  # exp loses digits below it in float64
TAIL = -36.0  # Φ loses digits below it in float64
NEWTON_STEPS = 2
NEGLIGIBLE = 50.0  # nats by which a segment's bound is below the largest one


@dataclass(frozen=True)
class PiecewiseNormal:
    """p(s | all else, on): truncated normals side by side.

    Attributes:
        edges: edges of the segments, ascending from -∞ to ∞, [..., D + 2].
        root: √a_j, the inverse standard deviation of the normal of segment j, [..., D + 1].
        shift: ν_j √a_j, where ν_j is the location of that normal, [..., D + 1].
        log_masses: log of the integral over each segment of p(y | s) p(s | on) / p(y | s = 0), in nats,
            [..., D + 1]; -∞ where a segment has no width, or a share of less than 1e-16.
    """

    edges: Tensor
    root: Tensor
    shift: Tensor
    log_masses: Tensor

    def log_odds(self, logits: Tensor) -> Tensor:
        """Posterior log-odds of on against off, given the prior log-odds of the unit, [...]."""
        return logits + self.log_masses.logsumexp(-1)

    def sample(self, logits: Tensor) -> Tensor:
        """One exact draw of each s from torch's generator, 0 where the unit is off, [...].

        Args:
            logits: prior log-odds of on against off, broadcastable to [...].
        """
        segments = self.log_masses.shape[-1]
        on = self.log_masses + logits.unsqueeze(-1)
        largest = on.amax(-1, keepdim=True).clamp(min=0)
        weights = torch.cat([(on - largest).exp(), (-largest).exp()], -1).cumsum(-1)
        level = weights[..., -1:] * torch.rand_like(largest)
        drawn = (weights <= level).sum(-1)
        result = torch.zeros_like(drawn, dtype=on.dtype)
        (rows,) = (drawn < segments).flatten().nonzero(as_tuple=True)
        cell = rows * segments + drawn.flatten()[rows]
        root, shift = (t.flatten()[cell] for t in (self.root, self.shift))
        low, high = (self.edges.flatten()[cell + rows + end] for end in (0, 1))
        z = truncated_normal(low * root - shift, high * root - shift)
        result.view(-1)[rows] = ((z + shift) / root).maximum(low).minimum(high)
        return result


class Column:
    """Terms of one unit's conditionals that do not depend on the other units.

    All computations are in float64: single precision loses segments beyond 13 standard deviations.

    Args:
        y: data [..., D]; NaN marks missing elements.
        weight: w, broadcastable to [..., D].
        noise_variance: σ² (times the temperature), broadcastable to [..., D].
    """

    def __init__(self, y: Tensor, weight: Tensor, noise_variance: Tensor) -> None:
        y, weight, precision = y.double(), weight.double(), noise_variance.double().reciprocal()
        used = (weight.abs() >= torch.finfo(weight.dtype).tiny) & ~y.isnan()
        y, weight = torch.where(used, y, 0.0), torch.where(used, weight, 0.0)
        self._twice = 2 * y
        self._half = 0.5 * weight.sign() * precision
        self._inverse = torch.where(used, weight.reciprocal(), 0.0)
        self._never = torch.where(used, 0.0, INFINITY)
        self._falling = weight < 0
        scaled = weight.abs() * precision
        self._linear = torch.stack([weight * scaled, y * scaled])
        self._below = -(self._linear * self._falling).sum(-1, keepdim=True)

    def conditional(self, others: Tensor, loc: Tensor, variance: Tensor) -> PiecewiseNormal:
        """p(s | all else).

        Args:
            others: m, the greatest contribution of the other units to each pixel, finite, [..., D].
            loc: μ of the slab, broadcastable to [...].
            variance: ψ > 0 of the slab, broadcastable to [...].
        """
        edges, (curvature, slope, height) = self._coefficients(others)
        loc, variance = loc.unsqueeze(-1), variance.unsqueeze(-1)
        root = (curvature.clamp(min=0) + variance.reciprocal()).sqrt_()
        shift = (slope + loc / variance).div_(root)
        height = (height - 0.5 * (loc.square() / variance + variance.log())).sub_(root.log())
        height = height.addcmul_(shift, shift, value=0.5)
        low, high = edges[..., :-1], edges[..., 1:]
        start, end = low * root - shift, high * root - shift
        nearest = torch.maximum(start, -end).clamp_(min=0)
        bound = height.addcmul(nearest, nearest, value=-0.5).masked_fill_(low >= high, -INFINITY)
        counts = bound > bound.amax(-1, keepdim=True) - NEGLIGIBLE
        (places,) = counts.flatten().nonzero(as_tuple=True)
        height, start, end = (t.flatten()[places] for t in (height, start, end))
        log_masses = torch.full_like(root, -INFINITY)
        log_masses.view(-1)[places] = height + log_normal_mass(start, end)
        return PiecewiseNormal(edges, root, shift, log_masses)

    def _coefficients(self, others: Tensor) -> tuple[Tensor, Tensor]:
        """Edges [..., D + 2] and coefficients a, b, c [3, ..., D + 1] of the segments.

        In a segment log p(y | s) / p(y | s = 0) is c + b s - a s² / 2. Passing a threshold upwards turns its
        pixel on if w > 0 and off if w < 0.
        """
        height = self._half * others * (others - self._twice)
        below = -(height * ((others < 0) ^ self._falling)).sum(-1, keepdim=True)
        thresholds, order = torch.addcmul(self._never, others, self._inverse).sort(-1)
        terms = torch.cat([self._linear.expand(2, *height.shape), height.unsqueeze(0)])
        sums = terms.new_zeros((*terms.shape[:-1], terms.shape[-1] + 1))
        torch.cumsum(terms.gather(-1, order.expand_as(terms)), -1, out=sums[..., 1:])
        sums[:2] += self._below
        sums[2] += below
        end = torch.full_like(below, INFINITY)
        return torch.cat([-end, thresholds, end], -1), sums


def log_normal_mass(low: Tensor, high: Tensor) -> Tensor:
    """Logarithm of Φ(high) - Φ(low) for low < high, which may be infinite or far out in a tail."""
    low, high, _ = _reflected(low, high)
    twice = torch.erfc(-math.sqrt(0.5) * high) - torch.erfc(-math.sqrt(0.5) * low)
    result = (0.5 * twice.clamp(min=0)).log()
    far = high < TAIL
    if far.any():
        top = log_ndtr(high[far])
        result[far] = top + (-torch.expm1((log_ndtr(low[far]) - top).clamp(max=0))).log()
    return result


def truncated_normal(low: Tensor, high: Tensor) -> Tensor:
    """Draws of N(0, 1) between low < high from torch's generator, exact far out in the tails."""
    low, high, upper = _reflected(low, high)
    top = log_ndtr(high)
    share = -torch.rand_like(low)
    z = inverse_log_ndtr(top + (share * -torch.expm1((log_ndtr(low) - top).clamp(max=0))).log1p())
    return torch.where(upper, -z, z)


def inverse_log_ndtr(log_probability: Tensor) -> Tensor:
    """Inverse of log Φ: the z at which log Φ(z) is the given value < 0, however small."""
    z = ndtri(log_probability.exp())
    far = log_probability < LOG_TINY
    if far.any():
        value = log_probability[far]
        squares = -2 * value - math.log(2 * math.pi)
        guess = -(squares - squares.log()).sqrt()
        for _ in range(NEWTON_STEPS):
            found = log_ndtr(guess)
            slope = -(found + 0.5 * guess.square()).exp() * math.sqrt(2 * math.pi)
            guess = guess + (found - value) * slope
        z[far] = guess
    return z


def _reflected(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Intervals, mirrored where they begin above 0, and the mask of those."""
    upper = low > 0
    return torch.where(upper, -high, low), torch.where(upper, -low, high), upper
