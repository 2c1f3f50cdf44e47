import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation


def test_gaussian_features_give_mean_and_standard_deviation_back():
    observation = GaussianObservation(2, 0.1, 0.5)
    mean, std = torch.randn(7, 4, 3), torch.empty(7, 4, 3).uniform_(0.14, 0.46)
    features = observation.features(mean, std)
    assert features.shape == (7, 2, 4, 3)
    assert_close(observation.mean(features), mean)
    assert_close(observation.std(features), std)


@pytest.mark.parametrize(("std", "expected"), [(0.0, 0.14), (0.1, 0.14), (7.0, 0.46)])
def test_gaussian_features_keep_away_from_the_bounds(std, expected):
    observation = GaussianObservation(1, 0.1, 0.5)
    features = observation.features(torch.zeros(3), torch.full((3,), std))
    assert_close(observation.std(features), torch.full((3,), expected))


def test_bernoulli_features_give_the_mean_back():
    observation = BernoulliObservation(1)
    mean = torch.tensor([0.0, 0.2, 0.7, 1.0])
    features = observation.features(mean, torch.zeros(4))
    assert features.shape == (1, 4)
    assert_close(observation.mean(features), torch.tensor([0.01, 0.2, 0.7, 0.99]))


@pytest.mark.parametrize("shape", [(6,), (10, 6), (10, 3, 6)])
@pytest.mark.parametrize("kind", [BernoulliObservation, GaussianObservation])
def test_decoders_with_another_number_of_outputs(kind, shape):
    """Of which a batch of that many points would have looked like outputs."""
    expected = rf"features: expected shape \[\.\.\., {kind.outputs}, \?\], got "
    for function in (kind(1), kind(1).mean, kind(1).std):
        with pytest.raises(ValueError, match=expected):
            function(torch.zeros(shape))


def test_pixels_have_the_density_and_gradients_of_a_normal_distribution():
    observation, x = GaussianObservation(2, 0.1, 0.5), torch.randn(7, 4, 3, dtype=torch.float64)
    features = torch.randn(5, 7, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    mean, std = observation.mean(features), observation.std(features)
    plain = torch.distributions.Normal(mean, std).log_prob(x).sum((-2, -1))
    found = observation(features).log_prob(x)
    assert_close(found, plain)
    weights = torch.randn(5, 7, dtype=torch.float64)
    inputs = features, x
    assert_close(torch.autograd.grad(found, inputs, weights), torch.autograd.grad(plain, inputs, weights))


def test_binary_pixels_have_the_density_and_gradients_of_a_bernoulli_distribution():
    observation, x = BernoulliObservation(2), torch.rand(7, 4, 3, dtype=torch.float64).round()
    features = (30 * torch.randn(5, 7, 1, 4, 3, dtype=torch.float64)).requires_grad_()
    x.requires_grad_()
    plain = torch.distributions.Bernoulli(logits=features.squeeze(-3)).log_prob(x).sum((-2, -1))
    found = observation(features).log_prob(x)
    assert_close(found, plain)
    weights, inputs = torch.randn(5, 7, dtype=torch.float64), (features, x)
    assert_close(torch.autograd.grad(found, inputs, weights), torch.autograd.grad(plain, inputs, weights))


def test_the_density_of_binary_pixels_is_as_exact_as_float32():
    logits, x = torch.linspace(-100, 100, 801, dtype=torch.float32), torch.tensor([[0.0], [1.0]])
    found = BernoulliObservation(1)(logits.reshape(-1, 1, 1, 1)).log_prob(x.float()).double()
    exact = torch.distributions.Bernoulli(logits=logits.double()[:, None]).log_prob(x[:, 0].double())
    assert_close(found, exact, rtol=1e-6, atol=1e-7)
