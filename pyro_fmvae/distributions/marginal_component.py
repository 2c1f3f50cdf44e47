"""Gaussian components with full covariances, of rows with missing numbers.

A Normal-Wishart over (μ, Λ) gives the mean and the precision of some of the columns, the others integrated
out, a Normal-Wishart again: with m_o, s, a and B_oo (Eaton, 2007, Multivariate statistics, Section 8.2). So
E[log N(x_o; μ_o, Σ_oo)] is exact for every pattern of columns that are there.
"""

from collections.abc import Iterator

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob, unwrap
from pyro_fmvae.distributions.full_component import FullComponent
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution
from pyro_fmvae.distributions.normal_wishart import NORMAL_WISHART
from pyro_fmvae.distributions.superposition import RealOrMissing

Standard = tuple[Tensor, ...]


class MarginalComponent(FullComponent):
    """A :class:`FullComponent` whose rows may have missing numbers, NaN, which are marginalised.

    The posterior of (μ, Λ) is conjugate for complete rows alone.
    """

    support = RealOrMissing()  # type: ignore[assignment]

    def log_prob(self, value: Tensor) -> Tensor:
        """Of x [..., D], by the covariance of the columns that are there."""
        if self._validate_args:
            self._validate_sample(value)
        selected = self._selected()
        shape = torch.broadcast_shapes(selected.shape[:-2], value.shape[:-1])
        known = ~value.expand(*shape, -1).isnan()
        normal = self.given(selected)
        gap = torch.where(known, value - normal.loc, 0.0)
        both = known.unsqueeze(-1) & known.unsqueeze(-2)
        identity = torch.eye(known.shape[-1], dtype=gap.dtype, device=gap.device)
        covariance = torch.where(both, normal.covariance_matrix, identity)
        joint = dist.MultivariateNormal(torch.zeros_like(gap), covariance).log_prob(gap)
        surplus = dist.Normal(torch.zeros_like(gap), 1.0).log_prob(torch.zeros_like(gap))
        return joint - torch.where(known, 0.0, surplus).sum(-1)


def patterns(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows int64 [n] that have the same columns int64 [o], for each such set of columns in x [N, D]."""
    kinds, member = (~x.isnan()).unique(dim=0, return_inverse=True)
    for number, known in enumerate(kinds):
        yield (member == number).nonzero().squeeze(-1), known.nonzero().squeeze(-1)


def marginal(standard: Standard, columns: Tensor) -> Standard:
    """(m, s, a, lower factor of B) of some of the columns.

    Args:
        standard: of all columns D: [..., D], [...], [...], [..., D, D].
        columns: int64 [o], at least one.
    """
    m, s, a, tril = standard
    rows = tril[..., columns, :]
    return m[..., columns], s, a, torch.linalg.cholesky(rows @ rows.mT)


def marginal_table(x: Tensor, standard: Standard) -> Tensor:
    """E[log N(x_o; μ_o, Σ_oo)] of what is not missing in rows [N, D] under K posteriors: float64 [N, K]."""
    x = x.double()
    table = x.new_zeros(len(x), len(standard[0]))
    for rows, columns in patterns(x):
        if len(columns):
            stats = NORMAL_WISHART.stats_from_standard(*marginal(standard, columns))
            seen = x[rows][:, columns]
            table[rows] = NORMAL_WISHART.expected_log_likelihood(seen, torch.zeros_like(seen), stats)
    return table


def marginal_log_predictive(x: Tensor, standard: Standard) -> Tensor:
    """Log p(x_o) of what is not missing in rows [N, D], parameters integrated out: float64 [N, K]."""
    x = x.double()
    table = x.new_zeros(len(x), len(standard[0]))
    for rows, columns in patterns(x):
        if len(columns):
            student = NORMAL_WISHART.predictive(marginal(standard, columns), torch.float64)
            table[rows] = student.log_prob(x[rows][:, columns].unsqueeze(-2))
    return table


def expected_numbers(x: Tensor, gamma: Tensor, standard: Standard) -> Tensor:
    """Rows with their missing numbers at E[x_m | x_o]: float64 [N, D].

    Args:
        x: rows [N, D].
        gamma: responsibilities given what is there, [N, K].
        standard: of the K posteriors.
    """
    x, (m, _, _, tril) = x.double(), standard
    filled, covariance = x.clone(), tril @ tril.mT
    for rows, columns in patterns(x):
        others = x[rows[0]].isnan().nonzero().squeeze(-1)
        if not len(others):
            continue
        across = covariance[:, others][:, :, columns]
        slope = torch.linalg.solve(covariance[:, columns][:, :, columns], across.mT)  # [K, o, m]
        gap = x[rows][:, columns] - m[:, None, columns]  # [K, n, o]
        means = m[:, None, others] + gap @ slope
        filled[rows[:, None], others] = torch.einsum("nk,knm->nm", gamma[rows].double(), means)
    return filled


@register_expected_log_prob(dist.Delta, MarginalComponent)
def _marginal(q: dist.Delta, p: MarginalComponent, posteriors: Posteriors) -> Tensor:
    """Complete rows as for a :class:`FullComponent`, so that natural gradients are those of its posterior."""
    posterior: Distribution = unwrap(posteriors["loc_precision"])
    if not isinstance(posterior, NaturalDistribution):
        raise NotImplementedError(f"no closed form of E[log p] under {type(posterior).__name__}")
    complete = ~q.v.isnan().any(-1, keepdim=True)
    seen = q.v.where(complete, 0.0)
    table = NORMAL_WISHART.expected_log_likelihood(seen, torch.zeros_like(seen), posterior.expected_stats())
    if complete.all():
        return table
    standard = tuple(part.detach() for part in posterior.standard)
    return torch.where(complete, table, marginal_table(q.v, standard).to(table))
