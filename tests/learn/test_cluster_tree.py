"""Clusters of components against paths on a grid, error exponents, and every way to cut a tree."""

import math

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.learn.cluster_tree import Clusters, cluster_tree, cut
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.table_sites import COUNTED, NUMBERS, WEIGHTS, column_site, parameter_of

MANY = 1e6  # rows behind each posterior, so that its means are the parameters


def mixture(weights, full=True, loc=None, covariance=None, rates=None, probs=None):
    """A mixture whose posterior is at these parameters."""
    weights = torch.as_tensor(weights, dtype=torch.float64)
    levels = [0] * (0 if loc is None else len(loc[0]))
    levels += [-1] * (0 if rates is None else len(rates[0])) + ([] if probs is None else [len(probs[0])])
    model = ObservedMixture(levels, len(weights), 100, full=full)
    sites = {WEIGHTS: torch.distributions.Dirichlet(MANY * weights)}
    if loc is not None:
        loc, covariance = (torch.as_tensor(np.array(part), dtype=torch.float64) for part in (loc, covariance))
        scale = torch.full((len(loc),), MANY, dtype=torch.float64)
        if full:
            factor = torch.linalg.cholesky(covariance * (scale + (loc.shape[1] - 1) / 2)[:, None, None])
            sites[parameter_of(NUMBERS)] = NormalWishart(loc, scale, scale, factor)
        else:
            each = scale[:, None].expand_as(loc)
            sites[parameter_of(NUMBERS)] = ColumnNormalGamma(loc, each, each, MANY * covariance)
    if rates is not None:
        rates = torch.as_tensor(rates, dtype=torch.float64)
        sites[parameter_of(COUNTED)] = torch.distributions.Gamma(MANY * rates, MANY)
    if probs is not None:
        name = parameter_of(column_site(len(levels) - 1))
        sites[name] = torch.distributions.Dirichlet(MANY * torch.as_tensor(probs, dtype=torch.float64))
    for name, posterior in sites.items():
        natural = natural_prior(posterior).natural
        model.posterior_of(name).natural.data.copy_(natural)
    return model


def highest_pass(density, one, other):
    """The greatest lowest density of a path between two points, by joining cells of a grid from the top."""
    side = np.linspace(-6, 6, 241)
    flat = density(np.stack(np.meshgrid(side, side, indexing="ij"), -1)).ravel()
    owner = np.full(len(flat), -1)

    def root(cell):
        while owner[cell] != cell:
            owner[cell] = owner[owner[cell]]
            cell = owner[cell]
        return cell

    ends = [int(np.abs(side - x).argmin() * 241 + np.abs(side - y).argmin()) for x, y in (one, other)]
    for cell in np.argsort(-flat):
        owner[cell] = cell
        row, column = divmod(int(cell), 241)
        for i, j in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= i < 241 and 0 <= j < 241 and owner[i * 241 + j] >= 0:
                owner[root(i * 241 + j)] = root(cell)
        if all(owner[end] >= 0 for end in ends) and root(ends[0]) == root(ends[1]):
            return float(flat[cell])
    raise AssertionError


CURVED = [[1.5, 1.2], [1.2, 1.4]], [[1.0, -0.7], [-0.7, 0.8]]


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.8, 0.2)])
@pytest.mark.parametrize("distance", [2.6, 4.0])
def test_depth_of_a_valley_is_that_of_the_highest_path(weights, distance):
    loc = [(-distance / 2, 0.3), (distance / 2, -0.4)]
    parts = [multivariate_normal(m, s) for m, s in zip(loc, CURVED, strict=True)]

    def density(x):
        return sum(weight * part.pdf(x) for weight, part in zip(weights, parts, strict=True))

    modes = [minimize(lambda x: -np.log(density(x)), start) for start in loc]
    passed = highest_pass(density, *(mode.x for mode in modes))
    (join,) = cluster_tree(mixture(weights, loc=loc, covariance=CURVED))
    assert join[2] == pytest.approx(1 - passed / min(density(mode.x) for mode in modes), abs=0.01)
    assert join[[0, 1, 3]].tolist() == [0, 1, 2]


def test_columns_that_are_independent_are_a_diagonal_covariance():
    loc, variances = [(0.0, 0.0), (2.5, 1.0), (-1.0, 4.0)], [(1.0, 0.5), (0.3, 1.0), (1.0, 1.0)]
    weights = (0.5, 0.3, 0.2)
    full = cluster_tree(mixture(weights, loc=loc, covariance=[np.diag(v) for v in variances]))
    np.testing.assert_allclose(
        cluster_tree(mixture(weights, False, loc=loc, covariance=variances)), full, atol=1e-5
    )


def test_one_gaussian_has_one_mode_however_it_is_divided():
    """Two Gaussians of one variance have two modes if their means are more than two deviations apart."""
    for distance, modes in ((0.0, 1), (1.9, 1), (2.4, 2), (4.0, 2)):
        (join,) = cluster_tree(mixture((0.5, 0.5), loc=[(0.0,), (distance,)], covariance=[[[1.0]], [[1.0]]]))
        side = np.linspace(-1, 5, 6001)
        density = np.exp(-(side**2) / 2) + np.exp(-((side - distance) ** 2) / 2)
        middle = 2 * np.exp(-(distance**2) / 8)
        assert join[2] == pytest.approx(1 - middle / density.max(), abs=2e-3)
        assert (join[2] > 0.05) == (modes == 2)


def test_a_wide_component_joins_one_cluster_and_does_not_tie_two():
    loc = [(-5.0, 0.0), (5.0, 0.0), (0.0, 0.0)]
    model = mixture((0.45, 0.45, 0.1), loc=loc, covariance=[np.eye(2), np.eye(2), 40 * np.eye(2)])
    tree = cluster_tree(model)
    assert tree[0, 2] < 0.1 and tree[1, 2] > 0.9
    assert len(set(cut(tree))) == 2 and cut(tree)[0] != cut(tree)[1]


def test_components_between_two_modes_join_them():
    """A ring of narrow components is one cluster, whose ends the density along one ridge does not tie."""
    angle = np.arange(12) * 2 * np.pi / 12
    ring = np.stack([4 * np.cos(angle), 4 * np.sin(angle)], 1)
    loc = np.concatenate([ring, [[0.0, 0.0]]])
    tree = cluster_tree(
        mixture(np.full(13, 1 / 13), loc=loc, covariance=[np.eye(2)] * 12 + [0.2 * np.eye(2)])
    )
    assert is_valid_linkage(tree)
    assert cut(tree).tolist() == [0] * 12 + [1]


def test_valleys_of_counts_and_categories_are_error_exponents():
    """With equal weights the lowest e^-KL along the path is e^-C, C the Chernoff information."""
    alpha = np.linspace(0, 1, 10001)[:, None]
    rates = np.array([[1.0, 6.0], [5.0, 2.0]])
    powers = (rates[0] ** (1 - alpha) * rates[1] ** alpha - (1 - alpha) * rates[0] - alpha * rates[1]).sum(1)
    (join,) = cluster_tree(mixture((0.5, 0.5), rates=rates))
    lowest = math.exp(powers.min())
    # at the valley both components add the same, at a peak one of them adds all but e^-KL of the other
    kl = min((a * np.log(a / b) - a + b).sum() for a, b in (rates, rates[::-1]))
    assert join[2] == pytest.approx(1 - 2 * lowest / (1 + math.exp(-kl)), rel=0.02)
    probs = np.array([[0.97, 0.02, 0.01], [0.01, 0.02, 0.97]])
    lowest = (probs[0] ** (1 - alpha) * probs[1] ** alpha).sum(1).min()
    kl = min((a * np.log(a / b)).sum() for a, b in (probs, probs[::-1]))
    (join,) = cluster_tree(mixture((0.5, 0.5), probs=probs))
    assert join[2] == pytest.approx(1 - 2 * lowest / (1 + math.exp(-kl)), rel=0.02)


def test_a_tree_is_cut_as_scipy_cuts_it():
    rng = np.random.default_rng(0)
    model = mixture(np.full(9, 1 / 9), loc=rng.normal(0, 3, (9, 2)), covariance=[np.eye(2)] * 9)
    tree = cluster_tree(model)
    assert is_valid_linkage(tree)
    for count in range(1, 10):
        found = cut(tree, count)
        theirs = fcluster(tree, count, "maxclust")
        assert len(set(found)) == count and len(set(zip(found, theirs, strict=True))) == count
    for depth in (0.5, *tree[:, 2]):
        found, theirs = cut(tree, depth=depth), fcluster(tree, depth, "distance")
        assert len(set(zip(found, theirs, strict=True))) == len(set(theirs))
    assert np.array_equal(cut(tree), cut(tree, depth=0.5))
    assert cut(tree)[0] == 0


def test_a_row_is_in_the_cluster_whose_components_have_most_of_it():
    """The most probable component may be in another one."""
    model = mixture((0.3, 0.4, 0.3), loc=[(0.0,), (9.0,), (1.0,)], covariance=[[[1.0]]] * 3)
    clusters = Clusters(model)
    assert clusters.number == 2 and clusters.of_components.tolist() == [0, 1, 0]
    cluster, probability = clusters.assign(torch.tensor([[0.3, 0.4, 0.3], [0.1, 0.8, 0.1]]))
    assert cluster.tolist() == [0, 1]
    torch.testing.assert_close(probability, torch.tensor([0.6, 0.8]))
    near = mixture((0.5, 0.5), loc=[(0.0,), (2.5,)], covariance=[[[1.0]]] * 2)  # a valley of an eighth
    assert [Clusters(near, depth).number for depth in (0.0, 0.1, 0.2, 0.5)] == [2, 2, 1, 1]
    assert Clusters(near).number == 1


def test_a_single_component_is_a_single_cluster():
    tree = cluster_tree(mixture((1.0,), loc=[(0.0,)], covariance=[[[1.0]]]))
    assert tree.shape == (0, 4) and cut(tree).tolist() == [0]


def test_neither_the_order_of_components_nor_how_sure_they_are_changes_heights(monkeypatch):
    rng = np.random.default_rng(0)
    weights, loc = rng.dirichlet(np.ones(6)), 3 * rng.normal(size=(6, 2))
    covariance = np.stack([np.diag(part) for part in rng.uniform(0.5, 2, (6, 2))])
    heights = cluster_tree(mixture(weights, loc=loc, covariance=covariance))[:, 2]
    assert heights[-1] > 0.1
    for order in (np.argsort(weights), np.argsort(-weights)):
        tree = cluster_tree(mixture(weights[order], loc=loc[order], covariance=covariance[order]))
        np.testing.assert_allclose(tree[:, 2], heights, atol=1e-9)
    monkeypatch.setitem(globals(), "MANY", 10.0)
    few = cluster_tree(mixture(weights, loc=loc, covariance=covariance))
    np.testing.assert_allclose(few[:, 2], heights, atol=1e-9)
