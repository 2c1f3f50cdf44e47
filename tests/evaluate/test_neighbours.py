import numpy as np
import pytest
import torch
from torch import nn

from pyro_fmvae.distributions import GaussianObservation
from pyro_fmvae.evaluate import Neighbours
from pyro_fmvae.models import VAE

TRAIN = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])


class Half(nn.Module):
    """q(z | x) = N(x_0, 0.5²): the first of two columns alone, with half a unit of doubt."""

    def forward(self, x):
        return x[..., :1], torch.full_like(x[..., :1], 0.5)


class Flat(nn.Module):
    """E[x | z] = (z, 0)."""

    def forward(self, z):
        mean = torch.cat([z, torch.zeros_like(z)], -1)
        return torch.stack([mean, torch.zeros_like(mean)], -2)


@pytest.fixture
def model():
    return VAE(Half(), Flat(), GaussianObservation(1, 0.1, 2.0), latent_dim=1, num_data=3).eval()


@pytest.fixture
def neighbours(model):
    return Neighbours(model, [(TRAIN[:2],), (TRAIN[2:], "labels")])


def test_distances_are_in_deviations_of_codes_and_residuals(neighbours):
    """Residuals (0, x_1) have the root mean square √(9 / 6) over all elements of the training points."""
    new = torch.tensor([[5.0, 0.0], [0.0, 1.0], [4.0, 3.0]])
    noise = np.sqrt(9 / 6)
    expected = [1 / 0.5, 1 / noise, min(3 / noise, 4 / 0.5)]
    np.testing.assert_allclose(neighbours.distances([(new,)]), expected, atol=1e-6)


def test_a_training_point_is_compared_with_the_others(neighbours):
    noise = np.sqrt(9 / 6)
    expected = [min(8, 3 / noise), 8, 3 / noise]
    np.testing.assert_allclose(neighbours.among_training_points(), expected, rtol=1e-6)
    beside = torch.cat([TRAIN.new_tensor([[5.0, 0.0]]), TRAIN])
    np.testing.assert_allclose(neighbours.distances([(beside,)]), [2, *expected], rtol=1e-6)


def test_points_that_are_there_twice_have_each_other(model):
    twice = Neighbours(model, [(torch.cat([TRAIN, TRAIN[:1]]),)])
    np.testing.assert_allclose(twice.distances([(TRAIN[:2],)]), [0, 8], atol=1e-6)
    np.testing.assert_allclose(twice.among_training_points()[[0, 1, 3]], [0, 8, 0], atol=1e-6)


def test_batches_make_no_difference(neighbours):
    new = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    whole, parts = neighbours.distances([(new,)]), neighbours.distances([(part,) for part in new.split(3)])
    np.testing.assert_array_equal(whole, parts)
    assert whole.dtype == np.float64


def test_points_without_finite_numbers_are_infinitely_far(model, neighbours):
    new = torch.tensor([[0.0, 0.0], [torch.inf, 0.0], [0.0, torch.nan]])
    found = neighbours.distances([(new,)])
    assert np.isfinite(found[0]) and (found[1:] == np.inf).all()
    again = Neighbours(model, [(torch.cat([TRAIN, new[1:]]),)])
    found, expected = again.among_training_points(), neighbours.among_training_points()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_one_training_point_is_too_few(model):
    with pytest.raises(ValueError, match="train: expected two points"):
        Neighbours(model, [(TRAIN[:1],)])
