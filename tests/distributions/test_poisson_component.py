"""Counts of mixture components against scipy, draws and updates by hand."""

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_fmvae.distributions import GAMMA, NaturalGamma, PoissonComponent, expected_log_prob
from pyro_fmvae.distributions.poisson_component import (
    counts_update,
    expected_log_counts,
    log_predictive_counts,
)

A = torch.tensor([[2.0, 0.7, 3.0], [5.0, 1.5, 0.4]], dtype=torch.float64)  # K = 2, D = 3
B = torch.tensor([[1.0, 2.0, 0.5], [0.8, 1.0, 3.0]], dtype=torch.float64)
X = torch.tensor([[3.0, 0.0, torch.nan], [0.0, 7.0, 2.0], [torch.nan] * 3], dtype=torch.float64)


def test_log_prob_is_that_of_the_counts_that_are_there():
    rates, assignment = A / B, torch.tensor([1, 0, 1])
    expected = [
        stats.poisson(rates[1, :2]).logpmf([3, 0]).sum(),
        stats.poisson(rates[0]).logpmf([0, 7, 2]).sum(),
        0.0,
    ]
    found = PoissonComponent(rates, assignment).log_prob(X)
    assert_close(found, torch.tensor(expected, dtype=torch.float64))
    torch.manual_seed(0)
    drawn = PoissonComponent(rates, assignment).sample((40_000,))
    error = (rates[assignment] / 40_000).sqrt()
    assert ((drawn.mean(0) - rates[assignment]).abs() < 4 * error).all()


def test_the_table_is_the_mean_over_the_posterior():
    q = NaturalGamma(GAMMA.natural(A, B)).to_event(1)
    component = PoissonComponent(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    found = expected_log_prob(dist.Delta(X, event_dim=1), component, {"rate": q})
    assert_close(found, expected_log_counts(X, GAMMA.mean_stats(GAMMA.natural(A, B))))
    torch.manual_seed(0)
    rates = dist.Gamma(A, B).sample((20_000,)).unsqueeze(1)  # [S, 1, K, D]
    parts = dist.Poisson(rates).log_prob(X.nan_to_num(0.0).unsqueeze(1))
    draws = parts.masked_fill(X.isnan().unsqueeze(1), 0.0).sum(-1)
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - found).abs() <= 4 * error).all()


def test_the_update_adds_weighted_counts_and_rows():
    weights = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]], dtype=torch.float64)
    a, b = GAMMA.unpack(counts_update(GAMMA.natural(A, B), weights, X, 2.0))
    assert a[0, 0].item() == pytest.approx(2.0 + 2 * 0.9 * 3)  # rows 0 and 1 have the first column
    assert b[0, 0].item() == pytest.approx(1.0 + 2 * (0.9 + 0.3))
    assert a[1, 2].item() == pytest.approx(0.4 + 2 * 0.7 * 2)  # row 1 alone has the third
    assert b[1, 2].item() == pytest.approx(3.0 + 2 * 0.7)


def test_the_predictive_probability_is_negative_binomial():
    found = log_predictive_counts(X, (A, B))
    by_scipy = stats.nbinom(A.numpy(), (B / (B + 1)).numpy())
    parts = torch.from_numpy(by_scipy.logpmf(X.nan_to_num(0.0).unsqueeze(1).numpy()))
    assert_close(found, parts.masked_fill(X.isnan().unsqueeze(1), 0.0).sum(-1))


def test_bad_rates_are_named():
    with pytest.raises(ValueError, match=r"rate: expected shape \[..., K, D\]"):
        PoissonComponent(torch.ones(3), torch.zeros(2, dtype=torch.long))
