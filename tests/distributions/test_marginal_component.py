import pyro.distributions as dist
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    NORMAL_WISHART,
    MarginalComponent,
    NaturalNormalWishart,
    expected_log_prob,
)
from pyro_fmvae.distributions.marginal_component import (
    expected_numbers,
    marginal_log_predictive,
    marginal_table,
)
from tests.distributions.family_case import assert_mean

NAN = torch.nan
X = torch.tensor(
    [[0.3, -1.0, 2.0], [NAN, 0.5, -1.0], [NAN, NAN, 1.5], [NAN, NAN, NAN], [0.1, NAN, 0.2]]
).double()


def standard():
    """Of two posteriors."""
    torch.manual_seed(0)
    root = torch.randn(2, 3, 6).double()
    tril = torch.linalg.cholesky(root @ root.mT)
    return (
        torch.randn(2, 3).double(),
        torch.tensor([2.0, 9.0]).double(),
        torch.tensor([3.0, 8.0]).double(),
        tril,
    )


def log_likelihoods(draws):
    """Log N(x_o; μ_o, Σ_oo) of draws [S, 2, 4, 3] of (μ, T): [S, 5, 2]."""
    loc, factor = draws[..., 0, :], draws[..., 1:, :]
    covariance = torch.linalg.inv(factor.mT @ factor)
    parts = []
    for row in X:
        known = (~row.isnan()).nonzero().squeeze(-1)
        if not len(known):
            parts.append(torch.zeros(loc.shape[:-1]).double())
            continue
        own = MultivariateNormal(loc[..., known], covariance[..., known, :][..., known])
        parts.append(own.log_prob(row[known]))
    return torch.stack(parts, 1)


def test_expectations_and_densities_by_draws():
    q = NaturalNormalWishart(NORMAL_WISHART.natural(*standard()))
    likelihoods = log_likelihoods(q.sample((40_000,)).double())
    assert_mean(likelihoods, marginal_table(X, standard()))
    assert_mean(likelihoods.exp(), marginal_log_predictive(X, standard()).exp())


def test_complete_rows_are_as_ever_and_carry_the_gradient():
    natural = NORMAL_WISHART.natural(*standard()).requires_grad_()
    q = NaturalNormalWishart(natural)
    child = MarginalComponent(torch.zeros(2, 4, 3).double(), torch.zeros(5).long())
    table = expected_log_prob(dist.Delta(X, event_dim=1), child, {"loc_precision": q})
    assert_close(table, marginal_table(X, standard()))
    table.sum().backward()
    stats = NORMAL_WISHART.data_stats(X[:1], torch.zeros(1, 3).double())
    assert_close(natural.grad, stats.expand(2, -1))


def test_rows_are_scored_by_what_is_there():
    draws = NaturalNormalWishart(NORMAL_WISHART.natural(*standard())).sample().double()
    assignment = torch.tensor([0, 1, 1, 0, 1])
    expected = log_likelihoods(draws.unsqueeze(0))[0].gather(-1, assignment.unsqueeze(-1)).squeeze(-1)
    assert_close(MarginalComponent(draws, assignment).log_prob(X), expected)


def test_missing_numbers_are_expected_given_the_others():
    m, s, a, tril = standard()
    one = m[:1], s[:1], a[:1], tril[:1]
    filled = expected_numbers(X, torch.ones(5, 1), one)
    covariance = tril[0] @ tril[0].mT
    assert torch.equal(filled[0], X[0]) and torch.equal(filled[~X.isnan()], X[~X.isnan()])
    assert_close(filled[3], m[0])
    precision = torch.linalg.inv(covariance)  # E[x_0 | x_1, x_2] = m_0 - sum of P_0j (x_j - m_j) / P_00
    gap = (X[1, 1:] - m[0, 1:]) @ precision[0, 1:]
    assert_close(filled[1, 0], m[0, 0] - gap / precision[0, 0])
