"""Bregman divergences of log, x log x and log Γ, with digits where two numbers are close.

The KL divergence between two members of an exponential family is the Bregman divergence of its
log-normaliser: ``A(λ₀) - A(λ) - (λ₀ - λ)·∇A(λ)``. Taken literally, this subtracts numbers of the size of A:
for two Gammas whose shapes of 1e6 differ by a millionth, 1e7, while the divergence is 1e-12.

The divergence of any f is ``∫ (1 - s) f''(at + s (to - at)) ds (to - at)²``. The weight 1 - s has its mean at
s = 1/3, so that one value of f'' there leaves an error of the second order. It is used where two numbers are
close, and the formula as it stands elsewhere.
"""

import torch
from torch import Tensor

_CLOSE = 1e-4  # relative difference of two numbers


def log_gap(ratio: Tensor, excess: Tensor) -> Tensor:
    """The difference r - 1 - log r of positive ratios, which is (r - 1)²/2 near 1.

    Args:
        ratio: r, with its digits near 0.
        excess: r - 1, with its digits near 1.
    """
    half = excess / (excess + 2)  # the logarithm is 2 (half + half³/3 + half⁵/5 + ...)
    square, series = half * half, torch.full_like(half, 2 / 13)
    for odd in (11, 9, 7, 5, 3):
        series = series * square + 2 / odd
    near = half * (excess - square * series)
    return torch.where(excess.abs() < 0.3, near, excess - ratio.log())


def x_log_x_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of x log x: ``to log(to/at) - to + at``, of positive numbers."""
    return to * log_gap(at / to, (at - to) / to)


def log_gamma_gap(to: Tensor, at: Tensor) -> Tensor:
    """The divergence of log Γ: ``log Γ(to) - log Γ(at) - (to - at) ψ(at)``, of positive numbers."""
    return x_log_x_gap(to, at) + stirling_gap(to, at)


def stirling_gap(to: Tensor, at: Tensor, slope: Tensor | None = None) -> Tensor:
    """The divergence of s(x) = log Γ(x) - x log x + x, of positive numbers.

    Args:
        to, at: of one shape.
        slope: ψ(at) if it is known already.
    """
    gap = to - at
    slope = torch.digamma(at) if slope is None else slope
    far = (torch.lgamma(to) - torch.lgamma(at)).sub_(to * (to / at).log()).sub_(gap * (slope - 1))
    x = torch.add(at, gap, alpha=1 / 3)
    near = (torch.polygamma(1, x) - 1 / x) * gap.square().mul_(0.5)
    return torch.where(gap.abs() < _CLOSE * at, near, far)
