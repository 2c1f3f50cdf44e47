import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation, TableObservation
from pyro_fmvae.nn import TableEncoder


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


def test_rows_are_judged_by_the_entries_that_are_there():
    """Against Normal and Categorical, entry by entry; what is missing has no gradient."""
    observation, nan = TableObservation((0, 3, 0, 5, 2), 0.05, 2.0), torch.nan
    features = torch.randn(3, 1, observation.width, requires_grad=True)
    x = torch.tensor([[0.3, 2, nan, 4, 1], [nan] * 5, [1.0, nan, 2.0, 3, 0]])
    density = observation.density(lambda z: features, torch.zeros(3, 2), x)
    found = density.log_prob(observation.explained(x))
    flat, places = features[:, 0], {1: slice(4, 7), 3: slice(7, 12), 4: slice(12, 14)}
    scale = 0.05 + 1.95 * flat[:, 2:4].sigmoid()
    for row in range(3):
        expected = torch.zeros(())
        for number, column in enumerate((0, 2)):
            normal = torch.distributions.Normal(flat[row, number], scale[row, number])
            expected = expected + (0.0 if x[row, column].isnan() else normal.log_prob(x[row, column]))
        for column, part in places.items():
            words = torch.distributions.Categorical(logits=flat[row, part])
            known = not x[row, column].isnan()
            expected = expected + (words.log_prob(x[row, column].long()) if known else 0.0)
        assert_close(found[row], expected)
    found.sum().backward()
    assert features.grad.isfinite().all() and not features.grad[1].any()
    assert not features.grad[0, 0, [1, 3]].any() and features.grad[0, 0, [0, 2]].all()


def test_rows_are_drawn_with_the_means_and_shares_of_the_features():
    observation = TableObservation((0, 3), 0.05, 2.0)
    features = observation.features(torch.tensor([1.5, 0.0]), torch.tensor([0.5, 0.0]))
    features[..., 2:] = torch.tensor([0.2, 0.5, 0.3]).log()
    rows = observation(features).sample((4000,))
    assert observation.mean(features).tolist() == [1.5, 1.0] and observation.std(features)[1] == 0
    assert abs(rows[:, 0].mean() - 1.5) < 0.05 and abs(rows[:, 0].std() - 0.5) < 0.03
    shares = rows[:, 1].long().bincount() / 4000
    assert_close(shares, torch.tensor([0.2, 0.5, 0.3]), atol=0.03, rtol=0)


def test_an_encoder_of_rows_sees_what_is_there():
    encoder = TableEncoder((0, 3, 0), 2, ())
    x = torch.tensor([[0.5, 2.0, torch.nan], [0.5, torch.nan, 0.0]])
    seen = torch.tensor([[0.5, 0, 1, 0, 0, 0, 1], [0.5, 0, 1, 1, 0, 0, 0]])
    for part, expected in zip(encoder(x), encoder.head(seen), strict=True):
        assert_close(part, expected)
    with pytest.raises(ValueError, match=r"x must have shape"):
        encoder(torch.zeros(2, 4))
    numbers = TableEncoder((0, 0), 2, ())
    for part, expected in zip(
        numbers(x[:, ::2]), numbers.head(torch.tensor([[0.5, 0, 1, 0], [0.5, 0, 1, 1]])), strict=True
    ):
        assert_close(part, expected)
