"""The prior of a mixture's covariances, chosen by the data: type II maximum likelihood."""

import math
from typing import Any, Final

import numpy as np
import torch
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.special import gammaln  # type: ignore[import-untyped]
from torch import Tensor, nn

from pyro_fmvae.distributions import ColumnNormalGamma, NaturalDistribution, NormalWishart

LEAST_VARIANCE: Final = 1e-3
"""Smallest variance that the prior expects in any direction, as a share of a column's."""
SHAPES: Final = (0.5, 1000.0)
"""Range of the shape a. At the upper end, all components have nearly the same covariance."""


class LearntPrior(nn.Module):
    """Shape a and rate matrix B of the Wishart prior of K components, at the greatest bound.

    Given the posteriors of the precisions Λ_k, the bound depends on the prior through

        Σ_k E[log Wishart(Λ_k; n, B)] = Σ_k n log det B - log Γ_D(n) - tr(B E[Λ_k]) + n E[log det Λ_k]

    but for a constant, where n = a + (D - 1)/2 is half of the degrees of freedom. Its maximum over B is
    B = K n (Σ_k E[Λ_k])⁻¹, n times the harmonic mean of the covariances; what is left is a function of n
    alone. So the prior of a component is what the components have in common, and a says how alike they
    are (MacKay, 1992, Bayesian interpolation; Bishop, 2006, Section 3.5). Diagonal covariances have a rate
    for each column, and share a.

    Args:
        columns: D, of numbers.
        full: the covariances are full.
        shape: a to start with.
        variance: variance that the first prior expects in every direction.
    """

    shape: Tensor
    rate: Tensor

    def __init__(self, columns: int, full: bool, shape: float, variance: float) -> None:
        super().__init__()
        self.columns, self.full = columns, full
        expected = torch.full((columns,), variance * self._half(shape), dtype=torch.float64)
        self.register_buffer("shape", torch.tensor(shape, dtype=torch.float64))
        self.register_buffer("rate", torch.diag(expected) if full else expected)

    def _half(self, shape: Any) -> Any:
        """Half of the degrees of freedom, n."""
        return shape + (self.columns - 1) / 2 if self.full else shape

    def distribution(self, mean_concentration: float) -> Any:
        """The prior of a component's mean and precision, batch shape [], in float64.

        Args:
            mean_concentration: s0.
        """
        zero = torch.zeros_like(self.rate[0] if self.full else self.rate)
        if self.full:
            return NormalWishart(zero, mean_concentration, self.shape, torch.linalg.cholesky(self.rate))
        return ColumnNormalGamma(zero, zero + mean_concentration, self.shape.expand_as(zero), self.rate)

    @torch.no_grad()
    def update(self, posterior: NaturalDistribution) -> None:
        """Choose a and B given the posterior of the K components' parameters."""
        precision, log_precision = self._expectations(posterior)
        total = precision.sum(0)
        sizes, axes = torch.linalg.eigh(total) if self.full else (total, None)
        variances = (len(precision) / sizes).clamp(min=LEAST_VARIANCE)
        fixed = (variances.log() - variances * sizes / len(precision)).sum() + log_precision.mean()
        half = self._likeliest(float(fixed))
        self.shape.fill_(half - self._half(0.0))
        self.rate.copy_(half * (variances if axes is None else (axes * variances) @ axes.mT))

    def _likeliest(self, fixed: float) -> float:
        """The n of greatest n (D log n + fixed) - log Γ_D(n); with diagonal covariances, - D log Γ(n)."""
        shifts = np.arange(self.columns) / 2 if self.full else np.zeros(self.columns)

        def loss(log_shape: float) -> float:
            half = self._half(math.exp(log_shape))
            return float(gammaln(half - shifts).sum() - half * (self.columns * math.log(half) + fixed))

        low, high = (math.log(end) for end in SHAPES)
        return float(self._half(math.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x)))

    @torch.no_grad()
    def cost(self, posterior: NaturalDistribution) -> float:
        """Nats by which the bound at the chosen B is above its mean over B, by Laplace's method.

        Component k, of N_k rows, tells about the logarithm of B as much as n (N_k/2) / (n + N_k/2)
        observations: it has none of its own if its prior is as strong as a point, and no more than n if it
        has many rows. Each of the parameters of B costs log(1 + their sum) / 2, as under a prior that is
        worth one observation (Kass and Wasserman, 1995). With one component and a strong prior, that is
        the criterion of Schwarz (1978) for a covariance.
        """
        half, counts = self._half(self.shape), posterior.standard[2] - self.shape  # N_k/2, of each column
        told = (half * counts / (half + counts)).sum(0).log1p()
        parameters = self.columns * (self.columns + 1) / 2
        return 0.5 * float(parameters * told if self.full else told.sum())

    def _expectations(self, posterior: NaturalDistribution) -> tuple[Tensor, Tensor]:
        """E[Λ_k] [K, D, D], or its diagonal [K, D], and E[log det Λ_k] [K]."""
        _, _, shape, rate = posterior.standard
        if not self.full:
            return shape / rate, (shape.digamma() - rate.log()).sum(-1)
        steps = 0.5 * torch.arange(self.columns, dtype=shape.dtype, device=shape.device)
        shapes = shape.unsqueeze(-1) + steps
        log_rate = 2 * rate.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        precision = shapes[..., -1, None, None] * torch.cholesky_inverse(rate)
        return precision, shapes.digamma().sum(-1) - log_rate
