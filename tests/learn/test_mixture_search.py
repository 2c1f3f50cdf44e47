import math
from functools import partial

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn.mixture_search import (
    FREQUENT,
    POSITIVE,
    _grown,
    _halved,
    best_start,
    climb,
    features_of,
    search,
)
from pyro_fmvae.models import ObservedMixture, TablePrior

N = 150


def rows(labelled=0):
    """Three clusters, standardised; labels of the first rows."""
    torch.manual_seed(0)
    kinds = torch.arange(N) % 3
    x = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])[kinds] + torch.randn(N, 2)
    labels = kinds.clone()
    labels[labelled:] = -1
    return (x - x.mean(0)) / x.std(0), kinds, labels.unsqueeze(-1)


def make(size, full=False, labels=(), learn_prior=True):
    return ObservedMixture((0, 0), size, N, labels, TablePrior(c0=4.0), full, learn_prior)


@pytest.mark.parametrize("full", [False, True])
def test_the_number_of_components_is_found(full):
    x, kinds, _ = rows()
    found = search(partial(make, full=full), x, None, range(1, 9), seed=0, starts=2)
    assert found.model.components == 3
    assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) > 0.9
    others = [search(partial(make, full=full), x, None, [size], seed=0, starts=2) for size in (2, 4)]
    assert all(found.evidence > other.evidence for other in others)


def test_a_rival_that_is_far_ahead_ends_the_search():
    x, _, _ = rows()
    asked = []

    def counting(size):
        asked.append(size)
        return make(size)

    search(counting, x, None, range(1, 9), seed=0, rival=1e6)
    assert set(asked) == {1, 2}  # of the first size alone nothing is gained yet


def test_no_size_is_begun_after_the_time_is_up(caplog):
    x, _, _ = rows()
    found = search(make, x, None, range(1, 9), seed=0, until=-math.inf)
    assert found.model.components == 1
    assert "at most 1 were tried, not from every start: the time is up" in caplog.text


def test_starts_are_left_out_and_cut_short_after_the_time_is_up():
    """One is left, of one update, and another one where it is improved to the end."""
    x, _, _ = rows()
    short = best_start(lambda: make(3), x, None, torch.Generator().manual_seed(0), until=-math.inf)
    clusters = kmeans(x, 3, torch.Generator().manual_seed(0))
    two_updates = climb(make(3), x, None, torch.nn.functional.one_hot(clusters).double(), iterations=2)
    assert short.bound == pytest.approx(two_updates.bound, rel=1e-12)


def test_evidence_counts_the_orders_of_components():
    x, _, _ = rows()
    found = best_start(lambda: make(3, learn_prior=False), x, None, torch.Generator().manual_seed(0))
    assert found.evidence == pytest.approx(found.bound + math.log(6))


def test_many_starts_are_at_least_as_good_as_one():
    x, _, _ = rows()
    bounds = [
        best_start(lambda: make(3), x, None, torch.Generator().manual_seed(0), starts).bound
        for starts in (1, 10)
    ]
    assert bounds[1] >= bounds[0]


def test_the_widest_clusters_are_halved():
    """Of one far wider than the others, every half."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(20, 2) + 50, torch.randn(20, 2) - 50, 10 * torch.randn(80, 2)])
    clusters = torch.tensor([0] * 20 + [3] * 20 + [7] * 80)
    found = _halved(x, clusters, 7, torch.Generator().manual_seed(0))
    assert found.unique().tolist() == list(range(7))
    assert found[:20].unique().tolist() == [0] and found[20:40].unique().tolist() == [1]


@pytest.mark.parametrize("size", [4, 7])
def test_a_mixture_that_grows_is_improved_before_its_components_are_halved(size):
    """A tight cluster in a wide one: k-means takes rows of the wide one, a mixture gives them back."""
    torch.manual_seed(0)
    tight, wide = 0.05 * torch.randn(75, 2) + torch.tensor([1.5, 0.0]), torch.randn(75, 2)
    x = torch.cat([tight, wide])

    def strangers(clusters):
        """Rows of the wide cluster that share one with the tight cluster's, which has to be whole."""
        assert clusters.unique().tolist() == list(range(len(clusters.unique())))
        (number,) = clusters[:75].unique()
        return int((clusters[75:] == number).sum())

    grown = _grown(make(size), x, x, None, torch.Generator().manual_seed(0))
    assert len(grown.unique()) == size and strangers(grown) == 0
    halved = _halved(x, kmeans(x, 2, torch.Generator().manual_seed(0)), 4, torch.Generator().manual_seed(0))
    assert strangers(halved) > 5


def test_clusters_that_differ_where_the_variance_is_small_are_found():
    """Two long strips side by side, that k-means of the rows themselves cuts across."""
    torch.manual_seed(0)
    kinds, along = torch.arange(N) % 2, torch.randn(N)
    x = torch.stack([along, along + 0.5 * kinds + 0.05 * torch.randn(N)], -1)
    x, generator = (x - x.mean(0)) / x.std(0), torch.Generator().manual_seed(0)
    found = best_start(lambda: make(2, full=True), x, None, generator, starts=4)
    assert adjusted_rand_score(kinds, found.gamma.argmax(-1)) == 1


def test_a_learnt_prior_is_paid_for():
    x, _, _ = rows()
    found = best_start(lambda: make(3), x, None, torch.Generator().manual_seed(0))
    assert found.evidence == pytest.approx(found.bound + math.log(6) - found.model.prior_cost())
    assert found.model.prior_cost() > 1


def test_a_gain_has_a_standard_error():
    x, _, _ = rows()
    two, three = (
        best_start(lambda size=size: make(size), x, None, torch.Generator().manual_seed(0)) for size in (2, 3)
    )
    rng = torch.Generator().manual_seed(1)
    gains = three.rows - two.rows
    drawn = torch.stack([gains[torch.randint(N, (N,), generator=rng)].sum() for _ in range(4000)])
    assert three.error(two) == pytest.approx(drawn.std().item(), rel=0.05)
    assert three.error(three) == 0 and three.evidence - two.evidence > max(POSITIVE, three.error(two))


def test_labelled_rows_name_their_components():
    """Also where a value has rows of two clusters: both are components of that value."""
    x, kinds, labels = rows(labelled=30)
    labels = torch.where(labels == 2, 0, labels)
    found = search(partial(make, labels=(2,)), x, labels, range(2, 6), seed=0)
    assert found.model.components == 3
    predicted = found.model.codes(x)[:, 0]
    assert (predicted == torch.where(kinds == 2, 0, kinds)).float().mean() > 0.95


def test_kmeans_sees_the_frequent_ones_of_many_words():
    """The 100 of 300 words that occur twice, and all of few words; none where a word is missing."""
    words = torch.cat([torch.arange(300), torch.arange(100, 200), torch.tensor([-1])]).double()
    words[-1] = torch.nan
    few = (torch.arange(401) % 3).double()
    features = features_of(torch.stack([words, few], -1), (300, 3))
    assert features.shape == (401, FREQUENT + 3) and not features[-1, :FREQUENT].any()
    expected = torch.nn.functional.one_hot(torch.cat([torch.arange(100), torch.arange(100)]), FREQUENT)
    assert torch.equal(
        features[torch.cat([torch.arange(100, 200), torch.arange(300, 400)]), :FREQUENT], expected.double()
    )
    assert features[:, :FREQUENT].sum() == 200
    assert torch.equal(features[:, FREQUENT:], torch.nn.functional.one_hot(few.long(), 3).double())
