"""Numbers whose means are linear in known covariates: in each state, a regression with conjugate noise."""

import math
from collections.abc import Sequence
from typing import Any, Final

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import (
    COLUMN_NORMAL_GAMMA,
    MATRIX_NORMAL_WISHART,
    NORMAL_WISHART,
    ColumnNormalGamma,
    MatrixNormalWishart,
    NaturalColumnNormalGamma,
    NaturalDistribution,
    NaturalNormalWishart,
    NormalWishart,
)
from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.models.learnt_prior import LEAST_ROWS, LearntPrior

# y | k ~ N(W_kᵀu, Λ_k⁻¹) of u = (1, covariates). With full covariances y is one group of D numbers; else each
# number is a group of its own. Every group has a matrix-Normal-Wishart posterior, [K, groups].


LINES: Final = "lines"
"""Site of the weights in a plain Pyro program."""


def regression_prior(numbers: NormalWishart | ColumnNormalGamma, relevance: Tensor) -> Distribution:
    """Prior of the weights and the precision of each group, event [groups, ...].

    Args:
        numbers: prior of the numbers where all covariates are 0, batch shape [].
        relevance: rows that a slope of 0 counts for, of each covariate, [P].
    """
    loc, s0, shape, rate = numbers.standard
    if isinstance(numbers, NormalWishart):
        loc, s0, shape, rate = loc.unsqueeze(0), s0.unsqueeze(0), shape.unsqueeze(0), rate.unsqueeze(0)
    else:
        loc, rate = loc.unsqueeze(-1), rate.sqrt()[:, None, None]
    rows = torch.cat([s0.unsqueeze(-1), relevance.to(s0).expand(*s0.shape, -1)], -1)
    weights = torch.cat([loc.unsqueeze(-2), loc.new_zeros(len(loc), len(relevance), loc.shape[-1])], -2)
    prior = MatrixNormalWishart(weights, torch.diag_embed(rows.rsqrt()), shape, rate, validate_args=False)
    return dist.Independent(prior, 1, validate_args=False)


def at_zero(posterior: NaturalDistribution, full: bool) -> NaturalDistribution:
    """The posterior [..., groups] of the numbers where all covariates are 0."""
    m, tril, a, rate = posterior.standard
    s = tril[..., 0, 0] ** -2
    if full:
        natural = NORMAL_WISHART.natural(m[..., 0, 0, :], s[..., 0], a[..., 0], rate[..., 0, :, :])
        return NaturalNormalWishart(natural, validate_args=False)
    natural = COLUMN_NORMAL_GAMMA.natural(m[..., 0, 0], s, a, rate[..., 0, 0].square())
    return NaturalColumnNormalGamma(natural, validate_args=False)


class LearntRegression(LearntPrior):
    """A :class:`LearntPrior` where covariates are 0, and the relevance of each covariate.

    Given the posteriors, the bound is greatest at a relevance of K D / Σ_k E[w_pᵀ Λ_k w_p], w_p being the
    slopes of D numbers in covariate p.

    Args:
        given, axes, means: see :class:`LearntPrior`.
        covariates: P.

    Attributes:
        relevance: rows that a slope of 0 counts for, [P].
    """

    relevance: Tensor

    def __init__(
        self, given: NormalWishart | ColumnNormalGamma, axes: bool, means: bool, covariates: int
    ) -> None:
        super().__init__(given, axes, means)
        self.register_buffer("relevance", torch.ones(covariates, dtype=torch.float64))

    def distribution(self, device: torch.device) -> Any:
        """The prior of a state's weights and precisions, in float64: :func:`regression_prior`."""
        return regression_prior(super().distribution(device), self.relevance.to(device))

    @torch.no_grad()
    def update(self, posterior: NaturalDistribution) -> None:
        """See :class:`LearntPrior`."""
        super().update(at_zero(posterior, self.full))
        squares = packed.split_rows(posterior.expected_stats())[2]
        sizes = packed.diagonal(packed.unpack(squares, 1 + len(self.relevance)))[..., 1:].sum((0, 1))
        self.relevance.copy_((len(squares) * self.columns / sizes).clamp(min=LEAST_ROWS))

    def cost(self, posterior: NaturalDistribution) -> float:
        """See :class:`LearntPrior`."""
        return super().cost(at_zero(posterior, self.full))


class RegressedNumbers:
    """Rows whose sufficient statistics are computed once.

    Args:
        numbers: [N, D], NaN where missing.
        covariates: [N, P], NaN in rows without numbers alone.
        full: covariances are full.

    Raises:
        ValueError: a row misses some numbers, but not all, and covariances are full.
    """

    def __init__(self, numbers: Tensor, covariates: Tensor, full: bool) -> None:
        self.numbers, self.there = grouped(numbers, full)
        self.inputs = with_one(covariates.nan_to_num(0.0).double())
        y, u = self.numbers, self.inputs.unsqueeze(1)
        across, own = (
            -0.5 * packed.pack(packed.doubled(part.unsqueeze(-1) * part.unsqueeze(-2))) for part in (y, u)
        )
        half = torch.full_like(y[..., 0], 0.5)
        each = packed.join_rows(half, across, own, u.unsqueeze(-1) * y.unsqueeze(-2))
        self.statistics = (each * self.there.unsqueeze(-1)).flatten(1)
        self.constant = -0.5 * math.log(2 * math.pi) * y.shape[-1] * self.there.double().sum(-1, keepdim=True)

    def log_likelihoods(self, stats: Tensor) -> Tensor:
        """E[log p(y | W_k, Λ_k)] at E[t] [K, groups, S]: float64 [N, K]."""
        return self.constant + self.statistics @ stats.flatten(1).mT

    def update(self, prior: Tensor, gamma: Tensor, scale: Tensor | float) -> Tensor:
        """λ* [K, groups, S], given λ of the prior and responsibilities [N, K]."""
        return prior + scale * (gamma.mT @ self.statistics).view_as(prior)

    def log_predictives(self, standard: Sequence[Tensor]) -> Tensor:
        """Log of the predictive densities, Student-t, under posteriors [K, groups]: float64 [N, K]."""
        table = []
        dim = self.numbers.shape[-1]
        for m, tril, a, rate in zip(*standard, strict=True):
            off = (self.numbers - torch.einsum("np,gpd->ngd", self.inputs, m)).unsqueeze(-1)
            spread = 1 + torch.einsum("np,gpq->ngq", self.inputs, tril).square().sum(-1)
            far = torch.linalg.solve_triangular(rate, off, upper=False).square().sum((-2, -1))
            log_probs = (
                (a + dim / 2).lgamma()
                - a.lgamma()
                - dim / 2 * (2 * math.pi * spread).log()
                - packed.log_determinant(rate) / 2
                - (a + dim / 2) * (far / (2 * spread)).log1p()
            )
            table.append((log_probs * self.there).sum(-1))
        return torch.stack(table, -1)


def grouped(numbers: Tensor, full: bool) -> tuple[Tensor, Tensor]:
    """Numbers [..., D] by groups, 0 where missing: float64 [..., groups, size]; and which are there.

    Raises:
        ValueError: a row misses some numbers, but not all, and covariances are full.
    """
    gone = numbers.isnan()
    if full and (gone != gone[..., :1]).any():
        raise ValueError(
            "X: expected all numbers of a row or none with covariates and full covariances, got a part; "
            "use covariance_type='diag'"
        )
    y = numbers.double().masked_fill(gone, 0.0)
    return (y.unsqueeze(-2), ~gone[..., :1]) if full else (y.unsqueeze(-1), ~gone)


def with_one(covariates: Tensor) -> Tensor:
    """Covariates [..., P] behind a 1, [..., 1 + P]."""
    return torch.cat([torch.ones_like(covariates[..., :1]), covariates], -1)


def drawn(standard: Sequence[Tensor], covariates: Tensor) -> Tensor:
    """Draw numbers [n, D] from the predictive distributions of posteriors [n, groups].

    Args:
        standard: parameters of the posteriors.
        covariates: [n, P].
    """
    features = with_one(covariates.double()).unsqueeze(1)
    of_groups = MATRIX_NORMAL_WISHART.predictive_linear(tuple(standard), torch.float64, features)
    return of_groups.sample().flatten(1)


def regressed_emission(
    prior: Sequence[Tensor], full: bool, covariates: Tensor, there: Tensor
) -> Distribution:
    """Distribution of the numbers in each state, with sample statements of its parameters, in a plate.

    Args:
        prior: standard parameters of :func:`regression_prior`.
        full: covariances are full.
        covariates: [..., P].
        there: which numbers are there, bool [..., D].
    """
    m, tril, a, rate = prior
    features = with_one(covariates)[..., None, None, :]
    if full:
        loc, rows = m[0], torch.diagonal(tril[0]) ** -2
        df, rates = 2 * a[0] + loc.shape[-1] - 1, 2 * rate[0] @ rate[0].mT
        precision = pyro.sample("precisions", dist.Wishart(df, precision_matrix=rates))
        each = rows[:, None, None] * precision.unsqueeze(-3)
        lines = pyro.sample(LINES, dist.MultivariateNormal(loc, precision_matrix=each).to_event(1))
        mean = (features @ lines).squeeze(-2)
        return dist.MultivariateNormal(mean, precision_matrix=precision).mask(there[..., :1])
    loc, rows = m.squeeze(-1), torch.diagonal(tril, dim1=-2, dim2=-1) ** -2
    with pyro.plate("columns", len(loc), dim=-2):
        gamma = dist.Gamma(a.unsqueeze(-1), rate.squeeze(-1).square())
        precision = pyro.sample("precisions", gamma)
        scale = (precision.unsqueeze(-1) * rows.unsqueeze(-2)).rsqrt()
        lines = pyro.sample(LINES, dist.Normal(loc.unsqueeze(-2), scale).to_event(1))
    mean = (features * lines.transpose(0, 1)).sum(-1)
    return dist.Normal(mean, precision.mT.rsqrt()).mask(there.unsqueeze(-2)).to_event(1)
