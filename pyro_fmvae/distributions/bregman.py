"""Bregman divergences of x log x and log Γ as sums of terms that do not cancel.

The KL divergence between two members of an exponential family is the Bregman divergence of its
log-normaliser: ``A(λ₀) - A(λ) - (λ₀ - λ)·∇A(λ)``. Taken literally, this subtracts numbers of the size of A:
for two Gammas whose shapes of 1e6 differ by a millionth, 1e7, while the divergence is 1e-12. Below, the
divergence of log Γ is split by Stirling's formula, ``log Γ(x) = x log x - x + s(x)``.
"""

import torch
from torch import Tensor

_SHIFT = 32  # from here on, Stirling's series needs four terms
_STIRLING = (0, 1 / 12, 0, -1 / 360, 0, 1 / 1260, 0, -1 / 1680)  # of x^-k


def log1p_gap(x: Tensor) -> Tensor:
    """The difference x - log(1 + x) of x > -1, which is x²/2 near 0.

    With w = x/(2 + x) it is ``x w - 2 (w³/3 + w⁵/5 + …)``, as the logarithm is 2 artanh w.
    """
    w = x / (2 + x)
    square = w * w
    series = square / 11
    for power in range(9, 1, -2):
        series = (series + 1 / power) * square
    return torch.where(x.abs() < 0.1, w * (x - 2 * series), x - torch.log1p(x))


def x_log_x_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of x log x: ``to log(to/at) - to + at``, of positive numbers."""
    return to * log1p_gap((at - to) / to)


def log_gamma_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of log Γ: ``log Γ(to) - log Γ(at) - (to - at) ψ(at)``, of positive numbers."""
    return x_log_x_gap(to, at) + stirling_gap(to, at)


def stirling_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of s(x) = log Γ(x) - x log x + x, of positive numbers.

    From x = 32 on, s(x) = -log(x)/2 + log(2π)/2 + p(1/x), where p is a polynomial. Smaller numbers are moved
    there by log Γ(x) = log Γ(x + 32) - Σ_j log(x + j), j from 0 to 31.
    """
    gap, small = to - at, torch.minimum(to, at) < _SHIFT
    u, v = (1 / torch.where(small, x + _SHIFT, x) for x in (to, at))
    steps = torch.arange(_SHIFT, dtype=at.dtype, device=at.device)
    moves = gap.unsqueeze(-1) / (at.unsqueeze(-1) + steps)
    ends = torch.stack([-gap / (to + _SHIFT), -gap / to, gap * v], -1)
    gaps = log1p_gap(torch.cat([moves, ends], -1))
    moved = gaps[..., :_SHIFT].sum(-1) + (to + _SHIFT) * gaps[..., -3] - to * gaps[..., -2]
    value = slope = curve = torch.zeros_like(gap)  # p(v), p'(v) and (p(u) - p(v) - (u - v) p'(v)) / (u - v)²
    for coefficient in reversed(_STIRLING):
        curve, slope = torch.addcmul(slope, curve, u), torch.addcmul(value, slope, v)
        value = value * v + coefficient
    series = 0.5 * gaps[..., -1] + (gap * u * v).square() * (slope / u + curve)
    return torch.where(small, moved, 0.0) + series
