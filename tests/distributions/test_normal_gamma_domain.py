"""Parameters that a NormalGamma accepts, and the transform to its support."""

import math

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch.distributions import biject_to, transform_to

from pyro_fmvae.distributions import NormalGamma

GOOD = {"loc": torch.zeros(2, 3), "mean_concentration": 1.0, "concentration": 2.0, "rate": 3.0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loc", torch.tensor([math.nan, 0.0, 0.0]), "loc"),
        ("mean_concentration", 0.0, "mean_concentration"),
        ("concentration", -1.0, "concentration"),
        ("rate", torch.tensor([1.0, 0.0, 1.0]), "rate"),
        ("loc", 0.0, "loc: expected a tensor"),
        ("loc", torch.tensor(0.0), "loc: expected a tensor"),
        ("rate", torch.ones(2), r"expected loc .*got \[2, 3\], \[\], \[\], \[2\]"),
        ("concentration", torch.ones(3), r"expected loc .*\[3\]"),
    ],
)
def test_wrong_parameters(name, value, message):
    NormalGamma(**GOOD)
    with pytest.raises(ValueError, match=message):
        NormalGamma(**{**GOOD, name: value})


def test_validation_of_values():
    fn = NormalGamma(**GOOD)
    value = fn.sample()
    value[0, 1, 1] *= -1
    assert fn.support.check(value).tolist() == [False, True]
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(value)
    value[0, 1, 1] *= -1
    value[0, 0, 1] *= -1  # a mean may be negative
    fn.log_prob(value)
    with pytest.raises(ValueError):
        fn.log_prob(torch.ones(2, 3, 2))


@pytest.mark.parametrize("registry", [biject_to, transform_to])
def test_transform_of_the_support(registry):
    transform = registry(NormalGamma(**GOOD).support)
    x = torch.randn(5, 2, 3)
    y = transform(x)
    assert (y[:, 1] > 0).all() and torch.equal(y[:, 0], x[:, 0])
    torch.testing.assert_close(transform.inv(y), x)


def test_log_determinant_of_the_transform():
    transform = biject_to(NormalGamma(**GOOD).support)
    x = torch.randn(4, 2, 3)
    jacobians = [torch.autograd.functional.jacobian(transform, one).reshape(6, 6) for one in x]
    expected = torch.stack([j.det().abs().log() for j in jacobians])
    torch.testing.assert_close(transform.log_abs_det_jacobian(x, transform(x)), expected)


@pytest.mark.parametrize("autoguide", [AutoDelta, AutoNormal])
def test_autoguides(autoguide):
    def model():
        with pyro.plate("factors", 2, dim=-2), pyro.plate("components", 3, dim=-1):
            pyro.sample("loc_precision", NormalGamma(torch.zeros(4), 5.0, 20.0, 10.0))

    guide = autoguide(model)
    particles = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=2)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), particles)
    losses = [svi.step() for _ in range(150)]
    assert losses[-1] < losses[0]
    loc, precision = guide.median()["loc_precision"].unbind(-2)
    assert loc.shape == (2, 3, 4)
    # Modes: α at (a - 1/2)/b of the joint density, or (a + 1/2)/b of that over log α; their means are near.
    torch.testing.assert_close(loc.mean(), torch.tensor(0.0), rtol=0, atol=0.1)
    torch.testing.assert_close(precision.mean(), torch.tensor(2.0), rtol=0, atol=0.2)
