"""Mixtures by moves that raise the bound: numbers of components are found, and swaps mend poor starts."""

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import one_hot

from pyro_fmvae.learn import component_moves
from pyro_fmvae.learn.component_moves import (
    Sample,
    Splits,
    best_mixture,
    disjoint,
    merged,
    mixture_of_codes,
    pair_gains,
    reduced,
    split_and_merge,
    swaps,
    thinned,
)
from pyro_fmvae.learn.mixture_search import Fitted
from tests.learn.clusters import clusters, make


def test_halves_of_a_cluster_are_merged():
    x, kinds = clusters(4, 60)
    sample, halves = Sample.of(make, x), one_hot(2 * kinds + (torch.arange(240) % 8 > 3), 8).double()
    started = sample.fit(halves, 2)
    assert sorted(disjoint(pair_gains(sample, started.gamma))) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    gamma = merged(sample, started.gamma)
    assert gamma.shape[1] == 4 and sample.fit(gamma).bound > started.bound
    assert pair_gains(sample, gamma) == []


def test_components_at_the_edge_of_several_clusters_are_left_out():
    x, kinds = clusters(4, 60)
    sample = Sample.of(make, x)
    started = sample.fit(one_hot(kinds.index_fill(0, torch.arange(12), 4), 5).double(), 1)
    for gamma in (thinned(sample, started.gamma), reduced(sample, started).gamma):
        assert gamma.shape[1] == 4 and sample.fit(gamma).bound > started.bound
        assert adjusted_rand_score(kinds, gamma.argmax(-1)) == 1
        assert thinned(sample, gamma).shape == gamma.shape


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("number", [1, 3, 20])  # with 20, there are more than at the start
def test_the_number_of_components_is_found(full, number):
    x, kinds = clusters(number, 60, seed=1)
    x = x.masked_fill(torch.rand(x.shape) < 0.01, torch.nan)
    sample = Sample.of(lambda size, rows: make(size, rows, full), x)
    found = split_and_merge(sample, torch.Generator().manual_seed(0), 50, 2)
    assert abs(found.model.components - number) <= number // 10
    assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) > 0.9


@pytest.mark.parametrize("full", [True, False])
def test_swaps_of_rows_without_gaps_leave_the_rows_as_they_are(full):
    x, kinds = clusters(3, 20)
    x[0, 1] = 0.0 if full else torch.nan  # which is no gap under diagonal covariances
    sample = Sample.of(lambda size, rows: make(size, rows, full), x)
    assert not sample.gaps and sample.filled(sample.fit(one_hot(kinds, 3).double(), 1)) is sample


def test_there_are_no_more_than_asked_for():
    x, _ = clusters(20, 30)
    found = [
        split_and_merge(Sample.of(make, rows), torch.Generator().manual_seed(0), most).model.components
        for rows, most in ((x, 4), (x, 18), (x[:12], 4))
    ]
    assert found[0] <= 4 and 16 < found[1] <= 18 and found[2] == 1


def test_a_swap_merges_two_halves_and_splits_what_is_joint(monkeypatch):
    """Clusters 0 and 1 share a component, and 2 has two: no update of coordinate ascent mends that."""
    x, kinds = clusters(4, 60)
    sample = Sample.of(make, x, 2.0)
    poor = torch.tensor([0, 0, 1, 3])[kinds] + (kinds == 2) * (torch.arange(240) % 8 > 3)
    gamma, splits = one_hot(poor, 4).double(), Splits(sample, torch.Generator().manual_seed(0))
    poorly = Fitted(sample.given(gamma), gamma, 0.0, gamma[:, 0])
    assert swaps(sample, poorly, splits.gains(gamma)) == [(0, (1, 2))]
    stuck = sample.fit(gamma)
    assert adjusted_rand_score(kinds, stuck.gamma.argmax(-1)) < 0.8
    monkeypatch.setattr(component_moves, "_started", lambda *args: [stuck])
    found = best_mixture(sample, 4, torch.Generator().manual_seed(0))
    assert found.model.components == 4 and found.model.num_data == 480 and found.bound > stuck.bound
    assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) == 1


def test_more_starts_never_end_lower():
    """Of rows without clusters, which have many local maxima: the first start is the same one."""
    torch.manual_seed(0)
    sample = Sample.of(make, torch.rand(150, 3, dtype=torch.float64) * 3.46)
    gains = []
    for seed in range(4):
        bounds = [
            best_mixture(sample, 4, torch.Generator().manual_seed(seed), starts).bound for starts in (1, 2, 6)
        ]
        assert bounds[0] <= bounds[1] + 1e-9 and bounds[0] <= bounds[2] + 1e-9
        gains.append(bounds[2] - bounds[0])
    assert max(gains) > 1e-6


def test_a_start_of_twice_as_many_clusters_is_merged():
    x, kinds = clusters(6, 40)
    sample = Sample.of(make, x)
    kind = component_moves.StartKind(False, True, torch.Generator().manual_seed(0))
    (found,) = component_moves._started(sample, 6, [kind])
    assert found.model.components == 6 and adjusted_rand_score(kinds, found.gamma.argmax(-1)) == 1


def test_latents_that_say_nothing_leave_clusters_of_codes_alone():
    """Draws of q(z | x) of three kinds: two latents tell them apart, and three are noise."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(300) % 3
    z = torch.randn(300, 5, generator=generator)
    z[:, :2] = 0.3 * z[:, :2] + 2 * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[kinds]
    model = mixture_of_codes(z, 0)
    codes = model.codes(z.double())[:, 0]
    assert model.components == 3 and model.learnt is None
    assert all(len(codes[kinds == kind].unique()) == 1 for kind in range(3))


def test_few_codes_of_many_latents_have_a_mixture():
    model = mixture_of_codes(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), 0)
    assert model.components == 1 and model.log_predictive(torch.zeros(1, 8)).isfinite()
