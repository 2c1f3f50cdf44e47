"""Merges and splits by the bound: gains are those of the bound, and numbers of components are found."""

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.learn.mixture_search import climb
from pyro_fmvae.learn.split_merge import (
    gaining_pairs,
    merged,
    reduced,
    split,
    split_and_merge,
    thinned,
    union_gains,
)
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING


def make(components, rows, full=True, levels=(0, 0, 0), weights=DIRICHLET_WEIGHTS):
    numbers = levels.count(0)
    zero, one = torch.zeros(numbers), torch.ones(numbers)
    prior = NormalWishart(zero, 0.2, 1.0, 0.3) if full else ColumnNormalGamma(zero, 0.2 * one, one, 0.1 * one)
    of_table = TablePrior(c0=0.8, numbers=prior, weights=weights)
    return ObservedMixture(levels, components, rows, prior=of_table, full=full)


def clusters(number, each, seed=0):
    """Standardised rows of clusters around points of a grid, and the clusters."""
    torch.manual_seed(seed)
    kinds, steps = torch.arange(number * each) % number, 8 * torch.arange(3.0).double()
    grid = torch.cartesian_prod(steps, steps, steps)[torch.randperm(27)]
    x = grid[kinds] + torch.randn(len(kinds), 3).double()
    return (x - x.mean(0)) / x.std(0), kinds


@pytest.mark.parametrize("weights", [DIRICHLET_WEIGHTS, STICK_BREAKING])
@pytest.mark.parametrize(("full", "levels"), [(True, (0, 0, 0)), (False, (0, 0, 3)), (False, (0, -1, -1))])
def test_the_gain_of_a_union_is_the_difference_in_the_bound(full, levels, weights):
    """At given responsibilities, the bound is Σ γ (table - log γ) less the divergence from the priors."""
    torch.manual_seed(0)
    x, gamma = torch.randn(60, 3, dtype=torch.float64), torch.rand(60, 4, dtype=torch.float64).softmax(-1)
    if levels[-1]:
        x[:, 1:] = (torch.arange(60) % 3).unsqueeze(-1)
    gamma = gamma[:, gamma.sum(0).argsort(descending=True)]

    def bound_at(gamma):
        model = make(gamma.shape[1], 60, full, levels, weights)
        gamma = gamma[:, model.prior.weights.order(gamma.sum(0))]
        seen = model.observations(x)
        model.ascend(seen, gamma)
        bound = (gamma * (model.table(seen) - gamma.log())).sum() - model.divergence()
        return model, float(bound)

    model, before = bound_at(gamma)
    gains = union_gains(model)
    for first, second in (0, 1), (1, 3), (0, 2):
        union = gamma[:, first] + gamma[:, second]
        left = [column for column in range(4) if column not in (first, second)]
        _, after = bound_at(torch.cat([union.unsqueeze(-1), gamma[:, left]], -1))
        lost = torch.special.entr(gamma[:, [first, second]]).sum() - torch.special.entr(union).sum()
        assert float(gains[first, second] - lost) == pytest.approx(after - before, abs=1e-6)


def test_halves_of_a_cluster_are_merged_and_joint_clusters_split():
    x, kinds = clusters(4, 60)
    halves = torch.nn.functional.one_hot(2 * kinds + (torch.arange(240) % 8 > 3), 8).double()
    started = climb(make(8, 240), x, None, halves, 2)
    assert sorted(gaining_pairs(started)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    found = merged(make, x, started, 50)
    assert found.model.components == 4 and found.bound > started.bound
    assert gaining_pairs(found) == []
    joint = climb(make(2, 240), x, None, torch.nn.functional.one_hot(kinds // 2, 2).double(), 1)
    parted = split(make, x, joint, torch.Generator().manual_seed(0), 9)
    assert adjusted_rand_score(kinds, parted.gamma.argmax(-1)) == 1
    assert split(make, x, joint, torch.Generator().manual_seed(0), 3).model.components == 3
    assert split(make, x, found, torch.Generator().manual_seed(0), 9).model.components == 4


def test_components_at_the_edge_of_several_clusters_are_left_out():
    x, kinds = clusters(4, 60)
    assigned = torch.nn.functional.one_hot(kinds.index_fill(0, torch.arange(12), 4), 5).double()
    started = climb(make(5, 240), x, None, assigned, 1)
    for found in (thinned(make, x, started), reduced(make, x, started)):
        assert found.model.components == 4 and found.bound > started.bound
        assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) == 1
        assert thinned(make, x, found) is found


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("number", [1, 3, 20])  # with 20, starts are doubled
def test_the_number_of_components_is_found(full, number):
    x, kinds = clusters(number, 60, seed=1)
    x = x.masked_fill(torch.rand(x.shape) < 0.01, torch.nan)
    found = split_and_merge(
        lambda size, rows: make(size, rows, full), x, torch.Generator().manual_seed(0), 50, 2
    )
    assert abs(found.model.components - number) <= number // 10
    assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) > 0.9


def test_there_are_no_more_than_asked_for():
    x, _ = clusters(6, 30)
    assert split_and_merge(make, x, torch.Generator().manual_seed(0), 4).model.components <= 4
    assert split_and_merge(make, x[:12], torch.Generator().manual_seed(0), 4).model.components == 1
