"""Starts of labelled factors, by clusters where these tell more of few labels, else by the labels alone."""

import pytest
import torch

from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer.seeding import coordinate_ascent, responsibilities
from pyro_fmvae.models.factor_group import FactorGroup
from pyro_fmvae.models.labelled_start import labelled_start

EACH = 100


def groups(centres, spread=0.1):
    """EACH points near each centre, shuffled: means and variances [M, D], and the centre of each, [M]."""
    generator = torch.Generator().manual_seed(1)
    members = torch.randperm(len(centres) * EACH, generator=generator) % len(centres)
    mean = torch.tensor(centres)[members] + spread * torch.randn(len(members), 2, generator=generator)
    return mean, torch.full_like(mean, 0.01), members


def some(labels, number):
    """The first labels of each value; all others are unknown."""
    known = torch.full_like(labels, -1)
    for value in labels.unique():
        known[(labels == value).nonzero().squeeze(-1)[:number]] = value
    return known


def priors(components):
    group = FactorGroup((0,), components, 2)
    return group.of_factor(0, *map(natural_prior, group.priors()))


def started(mean, variance, known, values):
    """The start, and the value of each point's most probable component."""
    generator = torch.Generator().manual_seed(0)
    n = 50 * len(mean)
    found = labelled_start(priors(len(values)), mean, variance, known, values, n, generator, restarts=3)
    return found, values[responsibilities(found.weights, found.components, mean, variance).argmax(-1)]


def of_labels(mean, variance, known):
    """Components [2, P] of the labelled points alone."""
    rows = known >= 0
    each = 50 * len(mean) / int(rows.sum())
    data = mean[rows], variance[rows], known[rows]
    return coordinate_ascent(*priors(2), *data, each, iterations=1).components.natural


@pytest.mark.parametrize("number", [1, 4])
def test_one_label_of_each_value_names_a_cluster(number):
    mean, variance, members = groups([[-6.0, 0.0], [6.0, 0.0], [0.0, 6.0], [0.0, -6.0]], spread=1.0)
    found, told = started(mean, variance, some(members, number), torch.arange(4))
    assert (told == members).double().mean() > 0.99
    assert (found.weights.natural - 1).tolist() == pytest.approx([50 * EACH] * 4, rel=0.05)


def test_a_value_may_have_several_clusters():
    mean, variance, members = groups([[-6.0, 0.0], [6.0, 0.0], [0.0, 6.0], [0.0, -6.0]])
    known = some(members, 2) % 2
    known[some(members, 2) < 0] = -1
    _, told = started(mean, variance, known, torch.arange(4) % 2)
    assert torch.equal(told, members % 2)


def test_clusters_of_something_else_are_left():
    """Clusters lie side by side, values one above the other."""
    mean, variance, members = groups([[-9.0, 1.0], [9.0, 1.0], [-9.0, -1.0], [9.0, -1.0]])
    known = some(members // 2, 20)
    found, told = started(mean, variance, known, torch.arange(2))
    assert (told == members // 2).double().mean() > 0.95
    torch.testing.assert_close(found.components.natural, of_labels(mean, variance, known))


def test_no_clusters_are_looked_for_where_most_labels_are_known():
    def refused(*_):
        raise AssertionError("clusters were looked for")

    mean, variance, members = groups([[-6.0, 0.0], [6.0, 0.0]])
    known, values = some(members, EACH // 2), torch.arange(2)
    labelled_start(priors(2), mean, variance, known, values, 400, torch.Generator(), 1, refused)


def test_clusters_that_agree_with_few_labels_are_left():
    """Of four labels, two lie in each cluster, so that no half of them tells the other, nor do clusters."""
    mean, variance, members = groups([[-6.0, 0.0], [6.0, 0.0]])
    known = torch.full_like(members, -1)
    for cluster in (0, 1):
        known[(members == cluster).nonzero().squeeze(-1)[:2]] = torch.tensor([0, 1])
    found, _ = started(mean, variance, known, torch.arange(2))
    torch.testing.assert_close(found.components.natural, of_labels(mean, variance, known))


def test_a_single_label_is_enough():
    mean, variance, members = groups([[-6.0, 0.0], [6.0, 0.0]])
    known = torch.full_like(members, -1)
    known[0] = 1 - members[0]
    _, told = started(mean, variance, known, torch.arange(2))
    assert torch.equal(told, 1 - members)
