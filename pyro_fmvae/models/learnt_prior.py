"""The prior of a mixture's covariances, chosen by the data: type II maximum likelihood."""

import math
from typing import Any, Final

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import ColumnNormalGamma, NaturalDistribution, NormalWishart

LEAST_VARIANCE: Final = 1e-3
"""Smallest variance that the prior expects in any direction, as a share of a column's."""
SHAPES: Final = (0.5, 1000.0)
"""Range of the shape a. At the upper end, all components have nearly the same covariance."""
SCALES: Final = (1e-4, 1e3)
"""Range of the scale of a prior."""
LEAST_ROWS: Final = 1e-3
"""Rows that the prior mean of a component's mean counts for, at least."""


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
            return float(
                scipy.special.gammaln(half - shifts).sum() - half * (self.columns * math.log(half) + fixed)
            )

        low, high = (math.log(end) for end in SHAPES)
        return float(
            self._half(math.exp(scipy.optimize.minimize_scalar(loss, bounds=(low, high), method="bounded").x))
        )

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


class LearntScale(nn.Module):
    """Scale c of the rate matrix of a given prior, and s0 of its means, at the greatest bound.

    The prior stays as it is given otherwise. At the responsibilities that the posterior stands for, λ_k = λ0
    + T_k, the bound depends on c through

        K n D log c - Σ_k n_k Σ_d log(c + e_kd)

    where n and n_k are half of the degrees of freedom of the prior and of the posteriors, and e_kd the
    eigenvalues of B⁻¹ (B_k - c B), the components' own scatter in units of B. Diagonal covariances have the
    same with an n_kd for each column. Given the posteriors, the bound is greatest at
    s0 = K D / Σ_k (D/s_k + (m_k - m0)ᵀ E[Λ_k] (m_k - m0)).

    Args:
        prior: batch shape []. Its s0 is the largest: the prior mean counts for no more rows.
        means: s0 is learnt, too.
    """

    scale: Tensor
    mean_concentration: Tensor

    def __init__(self, prior: NormalWishart | ColumnNormalGamma, means: bool) -> None:
        super().__init__()
        self.given, self.means = prior, means
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("mean_concentration", prior.mean_concentration.double().clone())

    @property
    def _full(self) -> bool:
        return isinstance(self.given, NormalWishart)

    def distribution(self, device: torch.device) -> Any:
        """The prior of a component's mean and precision, batch shape [], in float64.

        Args:
            device: where it is to be.
        """
        loc, _, shape, rate = (part.to(device) for part in self.given.standard)
        scale, s0 = self.scale.to(device), self.mean_concentration.to(device)
        return type(self.given)(loc, s0, shape, rate * (scale.sqrt() if self._full else scale))

    @torch.no_grad()
    def update(self, posterior: NaturalDistribution) -> None:
        """Choose c and s0 given the posterior of the K components' parameters."""
        loc, s, shape, rate = posterior.standard
        loc0, _, shape0, rate0 = (part.to(rate) for part in self.given.standard)
        dim, gap = loc.shape[-1], loc - loc0
        if self._full:
            own = torch.linalg.svdvals(torch.linalg.solve_triangular(rate0, rate, upper=False)).square()
            half = (shape + (dim - 1) / 2).unsqueeze(-1).expand_as(own)
            most = len(rate) * dim * (shape0 + (dim - 1) / 2)
            white = torch.linalg.solve_triangular(rate, gap.unsqueeze(-1), upper=False).squeeze(-1)
            apart = (half * white.square()).sum() + dim * (1 / s).sum()
        else:
            own, half, most = rate / rate0, shape, len(rate) * shape0.sum()
            apart = (shape / rate * gap.square()).sum() + (1 / s).sum()
        others = (own - self.scale).clamp(min=0.0).flatten().cpu().numpy()
        weights, total = half.flatten().cpu().numpy(), float(most)

        def slope(scale: float) -> float:
            return float(weights @ (scale / (scale + others))) - total

        low, high = SCALES
        self.scale.fill_(
            scipy.optimize.brentq(slope, low, high, rtol=1e-12) if slope(low) < 0 < slope(high) else low
        )
        if self.means:
            s0 = self.given.mean_concentration
            self.mean_concentration.copy_((len(loc) * dim / apart).clamp(min=LEAST_ROWS).to(s0).minimum(s0))
