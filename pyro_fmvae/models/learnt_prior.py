"""The prior of a mixture's covariances, chosen by the data: type II maximum likelihood."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import (
    COLUMN_NORMAL_GAMMA,
    NORMAL_WISHART,
    ColumnNormalGamma,
    ExponentialFamily,
    NaturalDistribution,
    NormalWishart,
)
from pyro_fmvae.distributions import packed_matrices as packed

LEAST_VARIANCE: Final = 1e-3
"""Smallest variance that the prior expects in any direction, as a share of the data's."""
SHAPES: Final = (0.5, 1000.0)
"""Range of the shape a. At the upper end, all components have nearly the same covariance."""
LEAST_ROWS: Final = 1e-3
"""Rows that the prior mean of a component's mean counts for, at least."""


class LearntPrior(nn.Module):
    """Rate matrix B and shape a of the Wishart prior of K components, and s0 of their means, by the bound.

    Given the posteriors of the precisions Λ_k, the bound depends on the prior through

        Σ_k E[log Wishart(Λ_k; n, B)] = Σ_k n log det B - log Γ_D(n) - tr(B E[Λ_k]) + n E[log det Λ_k]

    but for a constant, where n = a + (D - 1)/2 is half of the degrees of freedom. Its maximum over B is
    B = K n (Σ_k E[Λ_k])⁻¹, n times the harmonic mean of the covariances; what is left is a function of n
    alone. So the prior of a component is what the components have in common, and a says how alike they
    are (MacKay, 1992, Bayesian interpolation; Bishop, 2006, Section 3.5). Diagonal covariances have a rate
    for each column, and share a.

    Where the given B follows the data, ``axes`` leaves its eigenvectors as they are. The maximum over
    each eigenvalue is K n / Σ_k v_dᵀ E[Λ_k] v_d. If the given B expects the covariance of the rows, it is
    the best one for a single component.

    Given the posteriors, the bound is greatest at
    s0 = K D / Σ_k (D/s_k + (m_k - m0)ᵀ E[Λ_k] (m_k - m0)).

    Args:
        given: the prior to start with, batch shape []. It expects the data's variances if ``axes``, else the
            data are standardised.
        axes: the eigenvectors of B stay as they are, and so does a unless :attr:`shapes` is set.
        means: s0 is learnt, up to that of ``given``.

    Attributes:
        shapes: a is learnt; False at first if ``axes``.
    """

    shape: Tensor
    rate: Tensor
    mean_concentration: Tensor
    _loc: Tensor
    _variances: Tensor
    _axes: Tensor | None

    def __init__(
        self,
        given: NormalWishart | ColumnNormalGamma,
        axes: bool = False,
        means: bool = False,
    ) -> None:
        super().__init__()
        self.full, self.means, self.shapes = isinstance(given, NormalWishart), means, not axes
        loc, s0, shape, rate = (part.double().clone() for part in given.standard)
        self.columns, self._most, eigenvectors = len(loc), s0.clone(), None
        variances = torch.ones_like(loc)
        if self.full:
            rate = rate @ rate.mT
        if axes:
            variances, eigenvectors = torch.linalg.eigh(rate) if self.full else (rate, None)
            variances = variances / self._half(shape)
        for name, part in (("shape", shape), ("rate", rate), ("mean_concentration", s0)):
            self.register_buffer(name, part)
        for name, fixed in (("_loc", loc), ("_variances", variances), ("_axes", eigenvectors)):
            self.register_buffer(name, fixed, persistent=False)

    def _half(self, shape: Any) -> Any:
        """Half of the degrees of freedom, n."""
        return shape + (self.columns - 1) / 2 if self.full else shape

    def distribution(self, device: torch.device) -> Any:
        """The prior of a component's mean and precision, batch shape [], in float64.

        Args:
            device: where it is to be.
        """
        loc, s0 = self._loc.to(device), self.mean_concentration.to(device)
        shape, rate = self.shape.to(device), self.rate.to(device)
        if self.full:
            return NormalWishart(loc, s0, shape, torch.linalg.cholesky(rate), validate_args=False)
        return ColumnNormalGamma(loc, s0, shape, rate, validate_args=False)

    @staticmethod
    def together(priors: "Sequence[LearntPrior]") -> "LearntPrior":
        """Priors of S mixtures in one, whose buffers and posteriors have S in front."""
        found = deepcopy(priors[0])
        for name in found.state_dict():
            setattr(found, name, torch.stack([getattr(prior, name) for prior in priors]))
        return found

    def only(self, chosen: Sequence[int]) -> None:
        """Leave the others of :meth:`together` out."""
        for name, value in self.state_dict().items():
            setattr(self, name, value[list(chosen)])

    @torch.no_grad()
    def natural(self, device: torch.device) -> Tensor:
        """λ of :meth:`distribution`, float64 [..., P].

        Args:
            device: where it is to be.
        """
        prior = self.distribution(device)
        family: ExponentialFamily = NORMAL_WISHART if self.full else COLUMN_NORMAL_GAMMA
        return family.natural(*prior.standard)

    @torch.no_grad()
    def update(self, posterior: NaturalDistribution) -> None:
        """Choose the prior given the posterior of the K components' parameters, batch shape [..., K]."""
        precision, log_precision = self._expectations(posterior)
        count, axes = log_precision.shape[-1], self._axes
        total = precision.sum(-3 if self.full else -2)
        if axes is not None:
            sizes = (axes * (total @ axes)).sum(-2)
        else:
            sizes, axes = torch.linalg.eigh(total) if self.full else (total, None)
        variances = (count / sizes).maximum(LEAST_VARIANCE * self._variances)
        if self.shapes:
            fixed = (variances.log() - variances * sizes / count).sum(-1) + log_precision.mean(-1)
            likeliest = [self._likeliest(each) - self._half(0.0) for each in fixed.flatten().tolist()]
            self.shape.copy_(self._each(torch.tensor(likeliest, dtype=fixed.dtype).view(fixed.shape)))
        half = self._half(self.shape)
        rates = (half.unsqueeze(-1) if self.full else half) * variances
        self.rate.copy_(rates if axes is None else (axes * rates.unsqueeze(-2)) @ axes.mT)
        if self.means:
            self._update_means(posterior, precision)

    def _each(self, numbers: Tensor) -> Tensor:
        """One number for each prior [...] as for the columns, where these have their own."""
        return numbers if self.full else numbers.unsqueeze(-1)

    def _update_means(self, posterior: NaturalDistribution, precision: Tensor) -> None:
        if self.full:  # without B, which takes a factorisation
            _, fourth, _, third = packed.split(posterior.natural)
            s = (-2 * fourth).unsqueeze(-1)
            gap = third / s - self._loc
            apart = ((gap.unsqueeze(-2) @ precision).squeeze(-2) * gap).sum((-2, -1))
            apart = apart + self.columns * (1 / s).sum((-2, -1))
        else:
            loc, s = posterior.standard[:2]
            apart = (precision * (loc - self._loc).square()).sum((-2, -1)) + (1 / s).sum((-2, -1))
        count = posterior.natural.shape[-2]
        s0 = self._each((count * self.columns / apart).clamp(min=LEAST_ROWS))
        self.mean_concentration.copy_(s0.minimum(self._most.to(s0)))

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
        information = (half * counts / (half + counts)).sum(0).log1p()
        parameters = self.columns * (self.columns + 1) / 2
        return 0.5 * float(parameters * information if self.full else information.sum())

    def _expectations(self, posterior: NaturalDistribution) -> tuple[Tensor, Tensor]:
        """E[Λ_k] [..., K, D, D], or its diagonal [..., K, D], and E[log det Λ_k] [..., K]."""
        if not self.full:
            _, _, shape, rate = posterior.standard
            return shape / rate, (shape.digamma() - rate.log()).sum(-1)
        log_precision, _, lower, _ = packed.split(posterior.expected_stats())
        return packed.halved(packed.unpack(lower, self.columns)), log_precision
