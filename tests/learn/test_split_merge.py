"""Mixtures by moves that raise the bound: numbers of components are found, and swaps mend poor starts."""

import math
import time
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import one_hot

from pyro_fmvae.learn import mixture
from pyro_fmvae.learn.coordinate_ascent import Fitted
from pyro_fmvae.learn.mixture import (
    Sample,
    Splits,
    best_mixture,
    disjoint,
    label_means,
    labelled_first,
    merged,
    mixture_of_codes,
    mixture_of_rows,
    pair_gains,
    reduced,
    simplest,
    split_and_merge,
    swaps,
    thinned,
)
from pyro_fmvae.models import ObservedMixture
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
    monkeypatch.setattr(mixture, "_started", lambda *args: [stuck])
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
    kind = mixture.StartKind(False, True, torch.Generator().manual_seed(0))
    (found,) = mixture._started(sample, 6, [kind])
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


def test_components_that_add_little_evidence_are_merged():
    """Of two halves of a cluster, the evidence says that they are one; of two clusters, that they are not."""
    x, kinds = clusters(3, 60)
    sample = Sample.of(make, x)
    halves = sample.fit(one_hot(2 * kinds + (torch.arange(180) % 6 > 2), 6).double())
    found = simplest(sample, halves)
    assert found.model.components == 3 and adjusted_rand_score(kinds, found.gamma.argmax(-1)) == 1
    assert halves.evidence < found.evidence


@pytest.mark.parametrize(
    ("evidence", "number"),
    [
        ((0.0, -4.9, -5.1, -5.1), 3),
        ((0.0, -5.1, -4.9, -5.1), 2),
        ((0.0, -5.1, -5.1, 9.0), 4),  # two in a row have too little, and the next one is not tried
        ((0.0, 3.0, -1.9, -2.1), 2),
    ],
)
def test_fewest_components_within_half_an_error_of_the_greatest_evidence(evidence, number, monkeypatch):
    """Of four, three, two and one, with a standard error of ten nats."""
    monkeypatch.setattr(Fitted, "error", lambda one, other: 10.0)
    monkeypatch.setattr(Fitted, "evidence", property(lambda found: evidence[4 - found.model.components]))
    x, kinds = clusters(4, 10)
    sample = Sample.of(make, x)
    assert simplest(sample, sample.fit(one_hot(kinds).double(), 1)).model.components == number


@pytest.mark.parametrize("components", [3, None])
@pytest.mark.parametrize("full", [True, False])
def test_labelled_rows_name_their_components(components, full):
    """Also where a value has rows of two clusters: both are components of that value."""
    x, kinds = clusters(3, 50)
    truth = torch.where(kinds == 2, 0, kinds)
    labels = torch.where(torch.arange(150) < 30, truth, -1).unsqueeze(-1)

    def labelled(size, rows):
        return ObservedMixture((0, 0, 0), size, rows, (2,), full=full)

    model = mixture_of_rows(labelled, x, 0, components, labels=labels).model
    assert model.components == 3 and (model.codes(x)[:, 0] == truth).all()


def test_starts_are_around_labelled_rows():
    """Labels tell apart what k-means does not: two halves of each of two clusters."""
    torch.manual_seed(0)
    kinds, halves = torch.arange(80) % 2, torch.arange(80) // 2 % 2
    x = torch.stack([20.0 * kinds + torch.randn(80), 3.0 * halves + torch.randn(80)], -1).double()
    labels = torch.where(torch.arange(80) < 20, halves, -1).unsqueeze(-1)
    means = label_means(x, labels)
    assert means[0, 1] < 1 and means[1, 1] > 2
    assert label_means(x, torch.full((80, 1), -1)) is None

    def of_start(labels):
        sample = Sample.of(lambda size, rows: ObservedMixture((0, 0), size, rows, (2,)), x, labels=labels)
        return sample.clusters(2, False, torch.Generator().manual_seed(0), 3).argmax(-1)

    assert adjusted_rand_score(kinds, of_start(None)) == 1
    assert sorted(of_start(labels).bincount().tolist()) == [40, 40]


def test_labelled_rows_come_first():
    labels = torch.tensor([[-1, -1], [-1, 0], [-1, -1], [2, -1]])
    rows = torch.tensor([2, 3, 0, 1])
    assert labelled_first(rows, labels).tolist() == [3, 1, 2, 0]
    assert labelled_first(rows, None) is rows


def test_labelled_rows_come_first_into_the_sample(monkeypatch):
    monkeypatch.setattr(mixture, "STARTED", 60)
    monkeypatch.setattr(mixture, "PER_COMPONENT", 1)
    seen, best = [], mixture.best_mixture
    monkeypatch.setattr(
        mixture, "best_mixture", lambda sample, *others: seen.append(sample) or best(sample, *others)
    )
    x, kinds = clusters(3, 50)
    labels = torch.where(torch.arange(150) % 5 == 0, kinds, -1).unsqueeze(-1)
    mixture_of_rows(
        lambda size, rows: ObservedMixture((0, 0, 0), size, rows, (3,)), x, 0, 3, 1, labels=labels
    )
    (sample,) = seen
    assert len(sample.x) == 60 and (sample.labels >= 0).sum() == 30 and sample.model(3).num_data == 150


@pytest.mark.parametrize(
    ("components", "full", "gaps", "rows"),
    [
        (None, True, True, 40),
        (None, True, False, 60),
        (None, False, True, 60),
        (8, False, True, 80),  # so many for each component
        (3, True, False, 72),  # and for each of its columns
        (4, True, False, 75),  # as far as there is memory
    ],
)
def test_rows_that_mixtures_are_compared_by(components, full, gaps, rows, monkeypatch):
    for name, number in {
        "STARTED": 60,
        "STARTED_FULL_GAPS": 40,
        "PER_COMPONENT": 10,
        "LARGEST": 75 * 11,
        "best_mixture": lambda sample, *_: sample,
        "split_and_merge": lambda sample, *_: sample,
    }.items():
        monkeypatch.setattr(mixture, name, number)
    x = clusters(3, 100)[0]
    x[::5, 1] = torch.nan if gaps else 0.0
    for weights, total in (None, 300), (np.full(300, 0.5), 150):
        sample = mixture_of_rows(partial(make, full=full), x, 0, components, weights=weights)
        assert len(sample.x) == rows
        assert sample.each == (1.0 if components is None else min(total / rows, 3.0))


@pytest.mark.parametrize("components", [3, None])
@pytest.mark.parametrize("gaps", [False, True])
def test_no_move_is_begun_after_the_time_is_up(components, gaps, monkeypatch):
    x, _ = clusters(3, 40)
    x = x.masked_fill(torch.rand(x.shape) < 0.1 * gaps, torch.nan)
    monkeypatch.setattr(Splits, "gains", None)  # is not asked
    found = mixture_of_rows(make, x, 0, components, until=-math.inf)
    assert found.model.components == (components or 12) and math.isfinite(found.bound)
    monkeypatch.undo()
    longer = mixture_of_rows(make, x, 0, components, until=time.monotonic() + 60)
    assert longer.bound > found.bound - 1e-9
