from itertools import pairwise

import pytest
import torch
from pyro.distributions import Dirichlet
from torch.testing import assert_close

from pyro_fmvae.distributions import NORMAL_GAMMA
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer.seeding import (
    LEAST_GAIN,
    better_mixture,
    coordinate_ascent,
    kmeans,
    kmeans_draws,
    kmeans_mixture,
    kmeans_together,
)
from tests.infer.programs import BruteForce, Toy


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


def test_kmeans_of_several_sets_side_by_side_is_that_of_each():
    """Of different numbers of points; what fills up does not count, whatever it is."""
    torch.manual_seed(0)
    sets, sizes = [torch.randn(size, 3).double() for size in (40, 25, 33)], (40, 25, 33)
    points = torch.full((3, 40, 3), 1e3, dtype=torch.float64)
    for place, own in enumerate(sets):
        points[place, : len(own)] = own
    known = (torch.arange(40) < torch.tensor(sizes).unsqueeze(-1)).double()
    draws = [kmeans_draws(size, 4, generator(place)) for place, size in enumerate(sizes)]
    first, others = (torch.stack(part) for part in zip(*draws, strict=True))
    found = kmeans_together(points, 4, first, others, known=known)
    for place, own in enumerate(sets):
        assert torch.equal(found[place, : len(own)], kmeans(own, 4, generator(place)))


def test_kmeans_finds_clusters_far_from_zero():
    truth = torch.arange(1000) % 2
    points = (truth[:, None] + 0.1 * torch.randn(1000, 2) + 3000).float()
    found = kmeans(points, 2, generator())
    assert torch.equal(found == found[0], truth == truth[0])


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


def test_conjugate_update_is_the_step_of_the_bound():
    toy = Toy()
    x = toy.data(5)
    brute = BruteForce(toy, x, torch.zeros(2, 5, 2))
    loc, scale = toy.encode(x)
    prior = natural_prior(toy.prior()).natural
    natural = NORMAL_GAMMA.conjugate_update(prior, brute.gamma, loc, scale**2, scale=4.0)
    assert natural.dtype == torch.float64
    assert_close(natural, brute.optimum(x, toy)[1], rtol=1e-12, atol=1e-12)


def priors_of(components, dim):
    return natural_prior(Dirichlet(torch.ones(components))), natural_prior(
        Toy(dim=dim).prior().expand([components])
    )


def encoded(centres=6, size=120, dim=2, spread=0.5):
    """Priors of weights and K components, and mean and variance [M, D] of points around some centres."""
    mean = 3 * torch.randn(centres, dim)[torch.arange(size) % centres] + spread * torch.randn(size, dim)
    return *priors_of(centres, dim), mean, 0.05 + 0.1 * torch.rand(size, dim)


def test_coordinate_ascent_never_lowers_the_bound():
    torch.manual_seed(0)
    data = encoded()
    clusters = torch.randint(6, (120,))
    bounds = [
        coordinate_ascent(*data, clusters, 2.5, iterations=n, tolerance=0.0).bound for n in range(1, 30)
    ]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(bounds))
    assert bounds[-1] > bounds[0] + 1


def test_coordinate_ascent_ends_where_another_update_changes_nothing():
    torch.manual_seed(0)
    data = encoded()
    clusters = kmeans(data[2], 6, generator())
    found = coordinate_ascent(*data, clusters, iterations=10_000, tolerance=1e-14)
    longer = coordinate_ascent(*data, clusters, iterations=20_000, tolerance=1e-15)
    assert_close(found.weights.natural, longer.weights.natural, rtol=1e-4, atol=1e-4)
    assert found.bound == pytest.approx(longer.bound, abs=1e-8)
    assert found.weights.natural.sum().item() == pytest.approx(6 + 120)


def test_a_single_update_starts_from_the_clusters():
    data = encoded()
    clusters = kmeans(data[2], 6, generator())
    found = coordinate_ascent(*data, clusters, 2.5, iterations=1)
    gamma = torch.nn.functional.one_hot(clusters, 6)
    update = NORMAL_GAMMA.conjugate_update(data[1].natural, gamma, *data[2:], 2.5)
    assert_close(found.components.natural, update)
    assert_close(found.weights.natural, 1.0 + 2.5 * gamma.sum(0))


def test_best_of_several_starts_is_kept():
    torch.manual_seed(1)
    data = encoded(centres=12, size=240, spread=0.8)
    source = generator(3)
    each = [coordinate_ascent(*data, kmeans(data[2], 12, source, iterations=10)).bound for _ in range(6)]
    assert max(each) - min(each) > 1  # so that there is something to choose
    best = kmeans_mixture(*data, generator(3), restarts=6)
    assert best.bound == max(each)
    single = kmeans_mixture(*data, generator(3))
    assert single.bound == coordinate_ascent(*data, kmeans(data[2], 12, generator(3)), iterations=1).bound


@pytest.mark.parametrize("restarts", [0, -1])
def test_restarts_are_counted_from_one(restarts):
    with pytest.raises(ValueError, match=rf"restarts: expected a number >= 1, got {restarts}"):
        kmeans_mixture(*encoded(), generator(), restarts=restarts)


def crowded(scale=2.5, centres=4):
    """Priors, encoded points of far clusters, and a mixture with two of them in a component, one empty."""
    priors, data = encoded(centres)[:2], encoded(centres, spread=0.2)[2:]
    data = data[0] + 20 * torch.randn(centres, 2)[torch.arange(120) % centres], data[1]
    clusters = (torch.arange(120) % centres).clamp(max=centres - 2)
    return priors, data, coordinate_ascent(*priors, *data, clusters, scale)


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_component_without_points_is_started_where_one_has_too_many(scale, dtype):
    torch.manual_seed(2)
    priors, data, present = crowded(scale)
    assert (present.weights.natural < 1.5).sum() == 1
    given = *priors, present.weights, present.components, *(value.to(dtype) for value in data)
    found, gain = better_mixture(*given, generator(), restarts=10, scale=scale)
    assert_close(found.weights.natural, torch.full((4,), 1 + scale * 30), rtol=1e-4, atol=1e-4)
    assert gain > 0.5
    truth = torch.arange(120) % 4
    best = coordinate_ascent(*priors, *data, truth, scale).bound
    assert found.bound == pytest.approx(best, rel=1e-6)
    assert gain == pytest.approx((best - present.bound) / (scale * 120), rel=1e-4)


def test_what_starts_do_not_improve_is_kept():
    torch.manual_seed(2)
    priors, data, _ = crowded()
    present = coordinate_ascent(*priors, *data, torch.arange(120) % 4)
    assert better_mixture(*priors, present.weights, present.components, *data, generator(), 5) is None


def test_bounds_that_hardly_differ_are_one():
    torch.manual_seed(2)
    priors, data, present = crowded()
    given = *priors, present.weights, present.components, *data
    gain = better_mixture(*given, generator(), 10)[1]
    assert gain > LEAST_GAIN
    assert better_mixture(*given, generator(), 10, least=0.999 * gain)[1] == gain
    assert better_mixture(*given, generator(), 10, least=1.001 * gain) is None


def overlapping(seed):
    """Priors and 200 points on a line around two centres that are as near as they are wide."""
    torch.manual_seed(seed)
    mean = torch.randint(2, (200, 1)) + torch.randn(200, 1)
    return priors_of(2, 1), (mean, torch.full((200, 1), 0.01))


def test_coordinate_ascent_goes_on_from_responsibilities():
    priors, data = overlapping(0)
    clusters = kmeans(data[0], 2, generator())
    hard = coordinate_ascent(*priors, *data, clusters, iterations=5, tolerance=0.0)
    gamma = torch.nn.functional.one_hot(clusters, 2).double()
    soft = coordinate_ascent(*priors, *data, gamma, iterations=5, tolerance=0.0)
    assert (hard.bound, hard.weights.natural.tolist()) == (soft.bound, soft.weights.natural.tolist())


@pytest.mark.parametrize(("seed", "better"), [(3, True), (10, False)])
def test_the_present_mixture_is_compared_as_it_is(seed, better):
    """With seed 10 each point's likeliest component alone would lower its bound, below that of the starts."""
    priors, data = overlapping(seed)
    present = coordinate_ascent(*priors, *data, torch.randint(2, (200,)), iterations=300, tolerance=1e-7)
    found = better_mixture(*priors, present.weights, present.components, *data, generator(seed), 3)
    assert (found is not None) == better
    if found is not None:
        mixture, gain = found
        assert gain == pytest.approx((mixture.bound - present.bound) / 200, rel=0.01)


def test_the_present_mixture_is_improved_before_it_is_compared():
    """λ behind its data, as under small steps, is no reason to start anew."""
    torch.manual_seed(1)
    data = encoded(centres=12, size=240, spread=0.8)
    clusters = kmeans(data[2], 12, generator(3))
    behind = coordinate_ascent(*data, clusters, iterations=1)
    ahead = coordinate_ascent(*data, clusters)
    assert (ahead.bound - behind.bound) / 240 > 5 * LEAST_GAIN
    given = *data[:2], behind.weights, behind.components, *data[2:]
    assert better_mixture(*given, generator(3)) is None  # the same clusters


def test_as_many_new_starts_are_tried_as_were_asked_for():
    torch.manual_seed(1)
    data = encoded(centres=12, size=240, spread=0.8)
    poor = coordinate_ascent(*data, torch.arange(240) % 2)
    first, second = generator(3), generator(3)
    for source in (first, second):
        kmeans(data[2], 12, source)  # so that a poor start comes first
    each = [coordinate_ascent(*data, kmeans(data[2], 12, first)).bound for _ in range(6)]
    assert max(each) > each[0] + 1
    found, _ = better_mixture(*data[:2], poor.weights, poor.components, *data[2:], second, 6)
    assert found.bound == max(each)


def test_a_single_new_start_is_improved_too():
    torch.manual_seed(1)
    data = encoded(centres=12, size=240, spread=0.8)
    poor = coordinate_ascent(*data, torch.arange(240) % 2)
    found, _ = better_mixture(*data[:2], poor.weights, poor.components, *data[2:], generator(3))
    single = coordinate_ascent(*data, kmeans(data[2], 12, generator(3)))
    assert found.bound == single.bound
    with pytest.raises(ValueError, match="restarts: expected a number >= 1, got 0"):
        better_mixture(*data[:2], poor.weights, poor.components, *data[2:], generator(), restarts=0)
