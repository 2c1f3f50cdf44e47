"""Bregman divergences of x log x and log Γ as sums of terms that do not cancel.

The KL divergence between two members of an exponential family is the Bregman divergence of its
log-normaliser: ``A(λ₀) - A(λ) - (λ₀ - λ)·∇A(λ)``. Taken literally, this subtracts numbers of the size of A:
for two Gammas whose shapes of 1e6 differ by a millionth, 1e7, while the divergence is 1e-12. Below, the
divergence of log Γ is split by Stirling's formula, ``log Γ(x) = x log x - x + s(x)``.
"""

import torch
from torch import Tensor

_SHIFT = 10  # from here on, Stirling's series has float64's digits
_STIRLING = (0, 1 / 12, 0, -1 / 360, 0, 1 / 1260, 0, -1 / 1680, 0, 1 / 1188, 0, -691 / 360360)  # of x^-k


def log1p_gap(x: Tensor) -> Tensor:
    """The difference x - log(1 + x) of x > -1, which is x²/2 near 0.

    With w = x/(2 + x) it is ``x w - 2 (w³/3 + w⁵/5 + …)``, as the logarithm is 2 artanh w.
    """
    w = x / (2 + x)
    square = w * w
    series = torch.zeros_like(x)
    for power in range(21, 1, -2):
        series = (series + 1 / power) * square
    return torch.where(x.abs() < 0.25, w * (x - 2 * series), x - torch.log1p(x))


def x_log_x_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of x log x: ``to log(to/at) - to + at``, of positive numbers."""
    return to * log1p_gap((at - to) / to)


def log_gamma_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of log Γ: ``log Γ(to) - log Γ(at) - (to - at) ψ(at)``, of positive numbers."""
    return x_log_x_gap(to, at) + stirling_gap(to, at)


def stirling_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of s(x) = log Γ(x) - x log x + x, of positive numbers.

    From x = 10 on, s(x) = -log(x)/2 + log(2π)/2 + p(1/x), where p is a polynomial. Smaller numbers are moved
    there by log Γ(x) = log Γ(x + 10) - Σ_j log(x + j), j from 0 to 9.
    """
    gap = to - at
    steps = torch.arange(_SHIFT, dtype=at.dtype, device=at.device)
    moves = log1p_gap(gap.unsqueeze(-1) / (at.unsqueeze(-1) + steps)).sum(-1)
    moves = moves + (to + _SHIFT) * log1p_gap(-gap / (to + _SHIFT)) - x_log_x_gap(to, at)
    small = torch.minimum(to, at) < _SHIFT
    u, v = (1 / torch.where(small, x + _SHIFT, x) for x in (to, at))
    value = slope = curve = torch.zeros_like(u * v)  # p(v), p'(v), (p(u) - p(v) - (u - v) p'(v)) / (u - v)²
    for coefficient in reversed(_STIRLING):
        curve, slope, value = curve * u + slope, slope * v + value, value * v + coefficient
    series = 0.5 * log1p_gap(gap * v) + (gap * u * v).square() * (slope / u + curve)
    return torch.where(small, moves, 0.0) + series
