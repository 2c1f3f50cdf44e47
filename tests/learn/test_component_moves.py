"""Merges, deletions and splits of components: what they gain is the difference in the bound."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.learn import mixture
from pyro_fmvae.learn.mixture import Sample, Splits, _padded, deletion_gain, fits, joined, pair_gains, parted
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING
from tests.learn.clusters import clusters, make


def bound_given(sample, gamma):
    """Of the exact posterior given γ: each Σ γ (table - log γ) less the divergence from the priors."""
    gamma = gamma[:, sample.model(1).prior.weights.order(gamma.sum(0))]
    model = sample.given(gamma)
    return float(
        sample.each * (gamma * (model.table(sample.observations) - gamma.log())).sum() - model.divergence()
    )


@pytest.fixture(params=[(True, (0, 0, 0)), (False, (0, 0, 3)), (False, (0, -1, -1))])
def columns(request):
    return request.param


@pytest.fixture(params=[DIRICHLET_WEIGHTS, STICK_BREAKING])
def sample(request, columns):
    """60 rows that stand for 180."""
    full, levels = columns
    torch.manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64)
    if levels[-1]:
        x[:, 1:] = (torch.arange(60) % 3).unsqueeze(-1)
    return Sample.of(lambda size, rows: make(size, rows, full, levels, request.param), x, 3.0)


@pytest.fixture
def gamma():
    drawn = torch.rand(60, 4, dtype=torch.float64).softmax(-1)
    return drawn[:, drawn.sum(0).argsort(descending=True)]


def test_the_gain_of_a_pair_is_the_difference_in_the_bound(sample, gamma):
    before, gains = bound_given(sample, gamma), pair_gains(sample, gamma, -torch.inf)
    assert len(gains) == 6 and gains == sorted(gains, reverse=True)
    for gain, first, second in gains:
        after = bound_given(sample, joined(gamma, [(first, second)]))
        assert gain == pytest.approx(after - before, abs=1e-6)
    most = gains[2][0]
    assert pair_gains(sample, gamma, most) == gains[:2]


def test_the_gain_of_a_deletion_is_the_difference_in_the_bound(sample, gamma):
    before, model = bound_given(sample, gamma), sample.given(gamma)
    for gone in 0, 3:
        left = [component for component in range(4) if component != gone]
        shared = model.table(sample.observations)[:, left].softmax(-1)
        after = bound_given(sample, shared)
        assert deletion_gain(sample, model, gamma, gone) == pytest.approx(after - before, abs=1e-6)


def test_a_fit_goes_on_where_another_ended(monkeypatch):
    """Where numbers are missing, they are filled in as that one expects them, and the bound does not fall."""
    x, kinds = clusters(2, 40)
    torch.manual_seed(0)
    sample = Sample.of(make, x.masked_fill(torch.rand(x.shape) < 0.4, torch.nan))
    ended = sample.fit(torch.nn.functional.one_hot(kinds, 2).double(), tolerance=1e-10)
    again = sample.fit(ended.gamma, 1, start=ended.model)
    assert again.bound == pytest.approx(ended.bound, abs=1e-6)
    assert sample.fit(ended.gamma, 1).bound < ended.bound - 1
    (found,) = pair_gains(sample, ended.gamma, -torch.inf, ended.model)
    monkeypatch.setattr(mixture, "FILLED", 200)
    (expected,) = pair_gains(sample, ended.gamma, -torch.inf)
    assert found == pytest.approx(expected, abs=1e-3)


def test_components_that_two_describe_better_are_split():
    x, kinds = clusters(4, 60)
    sample, first = Sample.of(make, x), torch.nn.functional.one_hot(kinds // 2, 2).double()
    gamma = torch.cat([first, torch.zeros(len(x), 1).double()], -1)
    splits = Splits(sample, torch.Generator().manual_seed(0))
    parts = splits.gains(gamma)
    assert sorted(parts) == [0, 1]
    for component, (gain, both) in parts.items():
        assert torch.equal(both.sum(-1), gamma[:, component])
        rows = kinds // 2 == component
        own = sample.part(rows.nonzero().squeeze(-1))
        one, two = (own.fit(columns[rows]) for columns in (gamma[:, [component]], both))
        assert gain == pytest.approx(two.bound - one.bound, abs=0.1)
    found = parted(gamma, parts).argmax(-1)
    assert (
        found.unique().tolist() == [0, 1, 3, 4]
        and len({*zip(found.tolist(), kinds.tolist(), strict=True)}) == 4
    )


def test_splits_that_failed_are_not_tried_again_for_nearly_the_same_rows(monkeypatch):
    x, kinds = clusters(2, 100)
    sample, tried = Sample.of(make, x), []
    splits, ascents = Splits(sample, torch.Generator().manual_seed(0)), Sample.ascents

    def counted(self, seen, known, gamma, *args):
        tried.extend(known.sum(-1).tolist())
        return ascents(self, seen, known, gamma, *args)

    monkeypatch.setattr(Sample, "ascents", counted)
    alone = torch.nn.functional.one_hot(kinds, 2).double()
    assert splits.gains(alone) == {} and len(tried) == 6
    few = alone.clone()
    few[kinds.nonzero()[:5].squeeze(-1)] = torch.tensor([1.0, 0.0]).double()
    assert splits.gains(few) == {} and len(tried) == 6
    assert splits.gains(torch.ones(200, 1).double()) != {} and len(tried) == 8


def test_candidates_side_by_side_end_where_each_would_alone(sample, gamma):
    """Of different numbers of rows, some of which end before others."""
    own = [torch.arange(60)[start::step] for start, step in ((0, 2), (1, 4), (3, 3))]
    rows, known = _padded(own, sample.x.device)
    starts = torch.stack([torch.nn.functional.one_hot(part % 2, 2) for part in rows]).double()
    for iterations, tolerance in (1, 1e-4), (30, 1e-3):
        found = sample.ascents(sample.taken(rows), known, starts, iterations, tolerance)
        for part, start, reached in zip(own, starts, found, strict=True):
            alone = sample.part(part).fit(start[: len(part)], iterations, tolerance=tolerance)
            assert reached.bound == pytest.approx(alone.bound, abs=1e-8)
            assert_close(reached.gamma[: len(part)], alone.gamma, rtol=0, atol=1e-8)
            assert not reached.gamma[len(part) :].any()
            for name, natural in reached.natural.items():
                assert_close(natural, alone.model.natural(name).natural)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("gaps", [False, True])
def test_starts_side_by_side_end_where_each_would_alone(full, gaps):
    """Each with a prior that it learns by itself, in one of them with the shape."""
    x, _ = clusters(4, 30)
    x = x.masked_fill(torch.rand(x.shape) < 0.1 * gaps, torch.nan)
    prior = TablePrior(numbers=make(1, 1, full).prior.numbers, learn_s0=True)

    def learning(components, rows):
        return ObservedMixture((0, 0, 0), components, rows, prior=prior, full=full, learn_prior=True)

    sample = Sample.of(learning, x, 2.0)
    for own in sample, sample.alike():
        gammas = [torch.rand(len(x), size).double().mul(8).softmax(-1) for size in (3, 3, 2, 3)]
        found = fits([own] * 4, gammas, 25, learn=True)
        for gamma, together in zip(gammas, found, strict=True):
            alone = own.fit(gamma, 25, learn=True)
            assert together.bound == pytest.approx(alone.bound, abs=1e-7)
            assert_close(together.model.state_dict(), alone.model.state_dict())
