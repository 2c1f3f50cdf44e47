import math

import pytest
import torch
from torch.nn.functional import one_hot

from pyro_fmvae.learn.mixture import FREQUENT, Sample, features_of
from pyro_fmvae.models import ObservedMixture, TablePrior

N = 150


def reached(size, learn_prior=True):
    """A mixture of the first clusters out of three, which the others join."""
    torch.manual_seed(0)
    kinds = torch.arange(N) % 3
    x = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])[kinds] + torch.randn(N, 2)

    def make(components, rows):
        return ObservedMixture((0, 0), components, rows, (), TablePrior(c0=4.0), False, learn_prior)

    sample = Sample.of(make, (x - x.mean(0)) / x.std(0))
    return sample.fit(one_hot(kinds.clamp(max=size - 1), size).double(), learn=True)


def test_evidence_counts_the_orders_of_components():
    found = reached(3, learn_prior=False)
    assert found.evidence == pytest.approx(found.bound + math.log(6))


def test_a_learnt_prior_is_paid_for():
    found = reached(3)
    assert found.evidence == pytest.approx(found.bound + math.log(6) - found.model.prior_cost())
    assert found.model.prior_cost() > 1


def test_a_gain_has_a_standard_error():
    two, three = reached(2), reached(3)
    rng = torch.Generator().manual_seed(1)
    gains = three.rows - two.rows
    drawn = torch.stack([gains[torch.randint(N, (N,), generator=rng)].sum() for _ in range(4000)])
    assert three.error(two) == pytest.approx(drawn.std().item(), rel=0.05)
    assert three.error(three) == 0 and three.evidence - two.evidence > three.error(two)


def test_kmeans_sees_the_frequent_ones_of_many_words():
    """The 100 of 300 words that occur twice, and all of few words; none where a word is missing."""
    words = torch.cat([torch.arange(300), torch.arange(100, 200), torch.tensor([-1])]).double()
    words[-1] = torch.nan
    few = (torch.arange(401) % 3).double()
    features = features_of(torch.stack([words, few], -1), (300, 3))
    assert features.shape == (401, FREQUENT + 3) and not features[-1, :FREQUENT].any()
    expected = one_hot(torch.cat([torch.arange(100), torch.arange(100)]), FREQUENT)
    assert torch.equal(
        features[torch.cat([torch.arange(100, 200), torch.arange(300, 400)]), :FREQUENT], expected.double()
    )
    assert features[:, :FREQUENT].sum() == 200
    assert torch.equal(features[:, FREQUENT:], one_hot(few.long(), 3).double())
