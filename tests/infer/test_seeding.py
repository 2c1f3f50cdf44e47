import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.infer.posteriors import natural_prior
from pyro_fmvae.infer.seeding import conjugate_update, kmeans
from tests.infer.programs import A0, B0, M0, S0, BruteForce, Toy, standard


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kmeans_finds_separated_clusters(dtype):
    truth = torch.arange(90) % 5
    points = (20 * torch.randn(5, 3)[truth] + 0.1 * torch.randn(90, 3)).to(dtype)
    found = kmeans(points, 5, generator())
    assert found.shape == (90,)
    pairs = set(zip(truth.tolist(), found.tolist(), strict=True))
    assert len(pairs) == 5
    assert len({k for _, k in pairs}) == 5


def test_kmeans_ends_at_nearest_centres():
    points = torch.randn(200, 2)
    found = kmeans(points, 4, generator(), iterations=200)
    centres = torch.stack([points[found == k].mean(0) for k in range(4)])
    assert torch.equal(torch.cdist(points, centres).argmin(-1), found)
    assert torch.equal(kmeans(points, 4, generator(), iterations=200), found)


def test_kmeans_plus_plus_spreads_its_seeds():
    """A far point is all but certain to become a seed, as its distance is squared."""
    points = torch.cat([torch.randn(99, 2), torch.tensor([[1e4, 1e4]])])
    for seed in range(20):
        found = kmeans(points, 2, generator(seed), iterations=0)
        assert (found == found[-1]).sum() == 1


@pytest.mark.parametrize("points", [torch.zeros(6, 2), torch.zeros(1, 2), torch.arange(4.0).reshape(2, 2)])
def test_kmeans_with_fewer_distinct_points_than_clusters(points):
    found = kmeans(points, 3, generator())
    assert found.shape == points.shape[:1]
    assert ((found >= 0) & (found < 3)).all()
    assert found.unique().numel() == points.unique(dim=0).shape[0]


def test_conjugate_update_equals_a_loop_in_numpy():
    prior = natural_prior(Toy(dim=2).prior())[1]
    gamma, mean, variance = torch.rand(7, 3), torch.randn(7, 2), torch.rand(7, 2)
    natural = conjugate_update(prior.expand(3, 6), gamma, mean, variance, scale=2.5)
    m, s, a, b = (t.numpy() for t in standard(natural))
    for k in range(3):
        weight = 2.5 * gamma[:, k].numpy()
        count = weight.sum()
        np.testing.assert_allclose(s[k], S0 + count, rtol=1e-13)
        np.testing.assert_allclose(a[k], A0 + count / 2, rtol=1e-13)
        for d in range(2):
            z, v = mean[:, d].numpy(), variance[:, d].numpy()
            expected = (S0 * M0 + (weight * z).sum()) / (S0 + count)
            np.testing.assert_allclose(m[k, d], expected, rtol=1e-12)
            centre = (weight * z).sum() / count
            spread = (weight * ((z - centre) ** 2 + v)).sum()
            shrink = S0 * count / (S0 + count) * (centre - M0) ** 2
            np.testing.assert_allclose(b[k, d], B0 + 0.5 * (spread + shrink), rtol=1e-12)


def test_conjugate_update_is_the_step_of_the_bound():
    toy = Toy()
    x = toy.data(5)
    brute = BruteForce(toy, x, torch.zeros(2, 5, 2))
    loc, scale = toy.encode(x)
    prior = natural_prior(toy.prior())[1]
    natural = conjugate_update(prior, brute.gamma, loc, scale**2, scale=4.0)
    assert natural.dtype == torch.float64
    assert_close(natural, brute.optimum(x, toy)[1], rtol=1e-12, atol=1e-12)
