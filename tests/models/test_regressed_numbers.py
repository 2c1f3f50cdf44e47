"""Numbers that are linear in covariates: against Monte Carlo, SciPy and the prior's own bound."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t
from torch.testing import assert_close

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.models.regressed_numbers import (
    LearntRegression,
    RegressedNumbers,
    at_zero,
    drawn,
    grouped,
    regression_prior,
)

D, P = 2, 3
RELEVANCE = torch.tensor([0.5, 2.0, 1.0])


@pytest.fixture(autouse=True, params=[torch.float32, torch.float64])
def default_dtype(request):
    torch.set_default_dtype(request.param)
    torch.manual_seed(0)


def numbers_prior(full):
    loc, ones = torch.tensor([0.3, -0.2]).double(), torch.ones(D).double()
    if full:
        return NormalWishart(loc, 0.7, 2.5, torch.tensor([[1.2, 0.0], [0.4, 0.8]]).double())
    return ColumnNormalGamma(loc, 0.7 * ones, 2.5 * ones, torch.tensor([1.2, 0.6]).double())


def rows(count=6):
    source = torch.Generator().manual_seed(1)
    shapes = (count, D), (count, P)
    return tuple(torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes)


def posterior(full, states=2):
    """λ of rows whose responsibilities differ, and the prior's."""
    prior = natural_prior(regression_prior(numbers_prior(full), RELEVANCE).expand([states]))
    y, u = rows()
    gamma = torch.linspace(0.1, 0.9, len(y), dtype=torch.float64)
    found = RegressedNumbers(y, u, full).update(prior.natural, torch.stack([gamma, 1 - gamma], -1), 1.0)
    return type(prior)(found), prior


@pytest.mark.parametrize("full", [True, False])
def test_expected_log_density_is_a_mean_over_draws(full):
    q, _ = posterior(full)
    y, u = rows()
    y[1] = math.nan
    found = RegressedNumbers(y, u, full)
    table = found.log_likelihoods(q.expected_stats())
    value = q.rsample(torch.Size([40_000])).double()  # [draws, K, groups, 1 + P + size, size]
    size = value.shape[-1]
    weights, factor = value[..., : 1 + P, :], value[..., 1 + P :, :]
    own, _ = grouped(y, full)
    features = torch.cat([torch.ones(len(u), 1), u], -1).double()
    gap = own.unsqueeze(1) - torch.einsum("nr,skgrd->snkgd", features, weights)
    white = torch.einsum("skgij,snkgj->snkgi", factor, gap)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    each = log_det.unsqueeze(1) - white.square().sum(-1) / 2 - size / 2 * math.log(2 * math.pi)
    expected = each.sum(-1).mean(0)
    expected[1] = 0.0
    assert_close(table, expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("full", [True, False])
def test_predictive_density_is_student_t(full):
    q, _ = posterior(full)
    y, u = rows()
    y[2] = math.nan
    table = RegressedNumbers(y, u, full).log_predictives(q.standard)
    features = np.column_stack([np.ones(len(u)), u.numpy()])
    for state in range(2):
        m, tril, a, rate = (part[state].numpy() for part in q.standard)
        for row in (0, 2, 5):
            total = 0.0
            for group in range(len(a) if row != 2 else 0):
                own = y[row].numpy() if full else y[row, group : group + 1].numpy()
                spread = 1 + np.square(features[row] @ tril[group]).sum()
                shape = spread * rate[group] @ rate[group].T / a[group]
                total += multivariate_t(features[row] @ m[group], shape, 2 * a[group]).logpdf(own)
            assert table[row, state].item() == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("full", [True, False])
def test_draws_have_the_predictive_moments(full):
    q, _ = posterior(full)
    _, u = rows()
    own = tuple(part[:1].expand(40_000, *part.shape[1:]) for part in q.standard)
    found = drawn(own, u[:1].expand(40_000, P))
    m, tril, a, rate = (part[0] for part in q.standard)
    features = torch.cat([torch.ones(1).double(), u[0]])
    assert_close(found.mean(0), (features @ m).flatten(), atol=0.03, rtol=0)
    spread = (1 + (features @ tril).square().sum(-1)) / (a - 1)
    squares = rate.square().sum(-1)  # the diagonals of B
    assert_close(found.var(0), (spread.unsqueeze(-1) * squares).flatten(), atol=0, rtol=0.1)


@pytest.mark.parametrize("full", [True, False])
def test_without_slopes_it_is_the_prior_of_numbers(full):
    """The first row of weights and the precision have the posterior of rows whose covariates are 0."""
    y, _ = rows()
    gamma = torch.linspace(0.1, 0.9, len(y), dtype=torch.float64).unsqueeze(-1)
    prior = natural_prior(regression_prior(numbers_prior(full), RELEVANCE).expand([1]))
    q = type(prior)(RegressedNumbers(y, torch.zeros(len(y), P), full).update(prior.natural, gamma, 1.0))
    plain = natural_prior(numbers_prior(full).expand([1]))
    assert_close(at_zero(prior, full).natural, plain.natural)
    zeros = torch.zeros_like(y)
    assert_close(at_zero(q, full).natural, plain.natural + gamma.mT @ plain.family.data_stats(y, zeros))


@pytest.mark.parametrize("full", [True, False])
def test_learnt_relevance_has_the_greatest_bound(full):
    """The derivative of the divergence from the prior is 0 in every learnt number."""
    q, _ = posterior(full)
    prior = LearntRegression(numbers_prior(full), False, True, P)
    prior._most.fill_(100.0)
    for _ in range(3):
        prior.update(q)

    def divergence(relevance, s0):
        prior.relevance.copy_(relevance)
        prior.mean_concentration.copy_(s0)
        before = natural_prior(prior.distribution(torch.device("cpu")).expand([2]))
        return q.family.relative_entropy(q.natural, before.natural, q.expected_stats()).sum().item()

    best, s0 = prior.relevance.clone(), prior.mean_concentration.clone()
    least = divergence(best, s0)
    for place in range(P):
        for factor in (0.9, 1.1):
            other = best.clone()
            other[place] *= factor
            assert divergence(other, s0) > least + 1e-6
    assert divergence(best, 0.9 * s0) > least + 1e-6 < divergence(best, 1.1 * s0)


def test_a_row_with_a_part_of_its_numbers_is_refused():
    y, u = rows()
    y[0, 0] = math.nan
    with pytest.raises(ValueError, match="X: expected all numbers of a row or none"):
        RegressedNumbers(y, u, True)
    assert RegressedNumbers(y, u, False).there.sum() == y.numel() - 1
