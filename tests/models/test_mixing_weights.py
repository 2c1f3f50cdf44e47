"""Priors of mixing weights against draws, and stick-breaking ones against scikit-learn's."""

import numpy as np
import pytest
import torch
from scipy.special import digamma
from sklearn.mixture import BayesianGaussianMixture
from torch.testing import assert_close

from pyro_fmvae.infer import natural_prior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING

COUNTS = torch.tensor([7.0, 4.5, 0.3, 2.2], dtype=torch.float64)


def posterior(weights):
    prior = natural_prior(weights.prior(0.8, 4))
    return type(prior)(prior.natural + weights.statistics(COUNTS)), weights.statistics(COUNTS)


@pytest.mark.parametrize("weights", [DIRICHLET_WEIGHTS, STICK_BREAKING])
def test_expectations_are_means_of_draws(weights):
    q, told = posterior(weights)
    assert_close(weights.counts(told), COUNTS)
    torch.manual_seed(0)
    draws = weights.assignment(q.sample((40_000,))).probs
    assert_close(draws.sum(-1), torch.ones(40_000, dtype=torch.float64))
    expected = {weights.weights(q): draws, weights.log_weights(q.expected_stats()): draws.log()}
    for mean, drawn in expected.items():
        assert ((drawn.mean(0) - mean).abs() < 4 * drawn.std(0) / len(drawn) ** 0.5).all()


def test_sticks_of_the_same_rows_are_scikit_learns():
    """But for the mass behind the last stick, which it leaves out and which is the last component's here."""
    theirs = BayesianGaussianMixture(n_components=4, weight_concentration_prior=0.8, covariance_type="diag")
    theirs.weight_concentration_prior_ = 0.8
    theirs._estimate_weights(COUNTS.numpy())
    q, _ = posterior(STICK_BREAKING)
    for ours, wanted in zip(q.standard, theirs.weight_concentration_, strict=True):
        np.testing.assert_allclose(ours, wanted[:-1])
    a, b = (part[-1] for part in theirs.weight_concentration_)
    wanted = theirs._estimate_log_weights()
    wanted[-1] -= digamma(a) - digamma(a + b)
    np.testing.assert_allclose(STICK_BREAKING.log_weights(q.expected_stats()), wanted)


def test_the_best_order_has_the_greatest_evidence():
    """Of all 24 orders: A(λ0 + T) - A(λ0), whose T is that of the counts in this order."""

    def evidence(order):
        prior = natural_prior(STICK_BREAKING.prior(0.8, 4))
        family = prior.family
        after = prior.natural + STICK_BREAKING.statistics(COUNTS[order])
        return float((family.log_normalizer(after) - family.log_normalizer(prior.natural)).sum())

    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[orders.sort(-1)[0].eq(torch.arange(4)).all(-1)]
    best = max(orders, key=evidence)
    assert torch.equal(best, STICK_BREAKING.order(COUNTS))
    assert torch.equal(DIRICHLET_WEIGHTS.order(COUNTS), torch.arange(4))
