"""Densities of counts, held against scipy's."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_fmvae.distributions import NegativeBinomialObservation, PoissonObservation

COLUMNS = 4


@pytest.fixture
def features():
    return torch.stack([torch.randn(3, COLUMNS), 0.5 * torch.randn(3, COLUMNS)], -2)


@pytest.fixture
def counts():
    return torch.tensor([[0.0, 1, 2, 30], [5, 0, 0, 1], [200, 7, 1, 0]])


def binomial(features):
    """scipy's negative binomial of n failures and success probability p."""
    mean, concentration = features.exp().unbind(-2)
    return stats.nbinom(n=concentration.numpy(), p=(concentration / (concentration + mean)).numpy())


def test_negative_binomial_is_scipys(features, counts):
    density = NegativeBinomialObservation(COLUMNS)(features)
    expected = binomial(features).logpmf(counts.numpy()).sum(-1)
    assert_close(density.log_prob(counts), torch.from_numpy(expected))


def test_poisson_is_scipys(features, counts):
    features = features[:, :1]
    expected = stats.poisson(features[:, 0].exp().numpy()).logpmf(counts.numpy()).sum(-1)
    assert_close(PoissonObservation(COLUMNS)(features).log_prob(counts), torch.from_numpy(expected))


def test_mean_and_deviation_are_scipys(features):
    observation, expected = NegativeBinomialObservation(COLUMNS), binomial(features)
    assert_close(observation.mean(features), torch.from_numpy(expected.mean()))
    assert_close(observation.std(features), torch.from_numpy(expected.std()))
    assert_close(observation(features).mean, observation.mean(features))
    poisson = PoissonObservation(COLUMNS)
    assert_close(poisson.std(features[:, :1]), features[:, 0].exp().sqrt())


def test_features_give_mean_and_deviation_back(features):
    observation = NegativeBinomialObservation(COLUMNS)
    mean, std = observation.mean(features), observation.std(features)
    assert_close(observation.features(mean, std), features)
    assert_close(PoissonObservation(COLUMNS).features(mean, std), mean.log().unsqueeze(-2))


def test_columns_of_zeros_have_features():
    features = NegativeBinomialObservation(2).features(torch.zeros(2), torch.zeros(2))
    assert features.isfinite().all()
    assert np.allclose(features[0].exp(), 1e-4)


@pytest.mark.parametrize("kind", [PoissonObservation, NegativeBinomialObservation])
def test_decoders_with_another_number_of_outputs(kind):
    with pytest.raises(ValueError, match=rf"features: expected shape \[\.\.\., {kind.outputs}, \?\], got "):
        kind(COLUMNS)(torch.zeros(5, 3, COLUMNS))
