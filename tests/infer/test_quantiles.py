"""Quantiles against distribution functions, and against draws."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch.testing import assert_close

from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.infer.autoguide import quantiles_of
from pyro_fmvae.infer.posteriors import to_standard
from tests.infer.programs import Toy

LEVELS = [0.05, 0.5, 0.95]
SHAPES = torch.tensor([0.02, 1.0, 3.5, 1e6], dtype=torch.float64)


@pytest.mark.parametrize(
    "q",
    [dist.Gamma(SHAPES, 2.0), dist.InverseGamma(SHAPES, 3.0)],
    ids=["Gamma", "InverseGamma"],
)
def test_quantiles_of_positive_numbers_invert_the_distribution_function(q):
    found = quantiles_of(q, LEVELS)
    expected = torch.tensor(LEVELS, dtype=torch.float64).unsqueeze(-1).expand(3, 4)
    assert_close(q.cdf(found), expected, rtol=1e-6, atol=1e-6)


def test_natural_parameters_make_no_difference():
    prior = dist.Gamma(SHAPES[1:], 2.0)
    assert_close(quantiles_of(natural_prior(prior), LEVELS), quantiles_of(prior, LEVELS), check_dtype=False)


def test_an_exponential_has_quantiles_in_closed_form():
    found = quantiles_of(dist.Gamma(1.0, torch.tensor([0.5, 2e3])), LEVELS)
    expected = -(1 - torch.tensor(LEVELS)).log().unsqueeze(-1) / torch.tensor([0.5, 2e3])
    assert_close(found, expected, check_dtype=False)


def test_normals_and_the_marginals_of_vectors():
    covariance = torch.tensor([[4.0, 1.0], [1.0, 9.0]])
    vector = quantiles_of(dist.MultivariateNormal(torch.zeros(2), covariance), LEVELS)
    number = quantiles_of(natural_prior(dist.Normal(0.0, 1.0)), LEVELS)
    assert_close(number.unsqueeze(-1) * torch.tensor([2.0, 3.0]), vector)
    assert math.isclose(number[2].item(), 1.6448536, rel_tol=1e-6)


@pytest.mark.parametrize(
    "q, function",
    [
        (natural_prior(dist.Beta(3.0, 1.0)), lambda x: x**3),
        (natural_prior(dist.Dirichlet(torch.tensor([1.0, 1.0, 2.0]))), lambda x: 1 - (1 - x) ** 3),
    ],
    ids=["Beta", "Dirichlet"],
)
def test_other_quantiles_are_of_draws(q, function):
    """Within 4 standard errors of 4,096 draws, by the distribution functions of Beta(3, 1) and Beta(1, 3)."""
    pyro.set_rng_seed(0)
    found = quantiles_of(q, LEVELS)
    first = found if found.dim() == 1 else found[:, 0]
    levels = torch.tensor(LEVELS)
    assert ((function(first) - levels).abs() < 4 * (levels * (1 - levels) / 4096).sqrt() + 1 / 4096).all()


@pytest.mark.parametrize("levels", [[0.0], [0.5, 1.0], [-1.0], [math.nan]])
def test_levels_out_of_range(levels):
    with pytest.raises(ValueError, match="quantiles: expected numbers between 0 and 1"):
        quantiles_of(dist.Normal(0.0, 1.0), levels)


def model(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], scale), obs=x)


@pytest.mark.parametrize("levels", [LEVELS, torch.tensor(LEVELS)], ids=["list", "tensor"])
def test_a_guide_has_the_quantiles_of_all_its_sites(levels):
    guide, x = AutoConjugate(model), torch.linspace(-2.0, 3.0, 7)
    found, medians = guide.quantiles(levels, x), guide.median(x)
    shapes = {"weights": (2,), "scale": (), "locs": (2,)}
    assert {name: value.shape for name, value in medians.items()} == shapes
    assert {name: value.shape[1:] for name, value in found.items()} == shapes
    assert isinstance(guide.fallback, AutoNormal)
    assert_close(found["scale"], guide.fallback.quantiles(LEVELS)["scale"])
    posterior = guide.posterior("locs")()
    assert_close(medians["locs"], posterior.mean)
    assert_close(found["locs"][2] - found["locs"][1], 1.6448536 * posterior.stddev)
    assert_close(found["scale"][1], medians["scale"])
    assert not any(value.requires_grad for value in (*found.values(), *medians.values()))


def test_a_fallback_without_quantiles():
    guide, x = AutoConjugate(model, fallback=AutoDelta), torch.linspace(-2.0, 3.0, 7)
    assert guide.median(x).keys() == {"weights", "scale", "locs"}
    with pytest.raises(ValueError, match="fallback: AutoDelta has no quantiles"):
        guide.quantiles(LEVELS, x)


def test_quantiles_of_the_posteriors_of_shorthands():
    """Those of the standard form of a Normal-Gamma are of draws too."""
    toy = Toy()
    guide, x = AutoConjugate(toy.model), toy.data(6)
    guide.setup(x)
    medians = guide.median(x)
    means = guide.posterior("loc_precision")().mean
    assert medians["loc_precision"].shape == means.shape
    guide.posteriors["weights"] = to_standard(guide.posterior("weights"))
    pyro.set_rng_seed(0)
    assert_close(guide.median(x)["weights"], medians["weights"], rtol=0.05, atol=0.05)
