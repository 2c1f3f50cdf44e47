"""Programs whose distributions look at tensors that are made out of plain numbers."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.capture import CapturedSVI, CaptureError
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO

D = 3


def wishart(x):
    precision = pyro.sample("precision", dist.Wishart(torch.tensor(4.0), torch.eye(D)))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(torch.zeros(D), precision_matrix=precision), obs=x)


def correlations(x):
    tril = pyro.sample("tril", dist.LKJCholesky(D, 2.0))
    scale = pyro.sample("scale", dist.HalfCauchy(torch.ones(D)).to_event(1))
    loc = pyro.sample("loc", dist.Normal(torch.zeros(D), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(loc, scale_tril=scale.unsqueeze(-1) * tril), obs=x)


def picked(mask):
    def model(x):
        loc = pyro.sample("loc", dist.Normal(torch.zeros(D), 3.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc[mask(x)].sum(), 1.0), obs=x[:, 0])

    return model


def losses(kind, model, x):
    pyro.set_rng_seed(1)
    guide = AutoConjugate(model)
    guide(x)
    svi = kind(model, guide, NaturalGradient(0.5, partial(torch.optim.Adam, lr=0.01)), TraceConjugate_ELBO())
    pyro.set_rng_seed(2)
    return [svi.step(x) for _ in range(3)]


@pytest.mark.parametrize("model", [wishart, correlations, picked(lambda x: torch.arange(D) != 1)])
def test_captured_steps_are_eager_ones(model):
    x = torch.randn(8, D)
    assert losses(ConjugateSVI, model, x) == losses(CapturedSVI, model, x)


def changed(x):
    """A mask that was fixed until data were written into it."""
    mask = torch.arange(D) != 1
    mask[0] = x[0, 0] > 0
    return mask


@pytest.mark.parametrize("mask", [changed, lambda x: x[0] < 100.0])
def test_masks_that_depend_on_data_are_refused(mask):
    with pytest.raises(CaptureError, match="the shape of nonzero's result depends on values"):
        losses(CapturedSVI, picked(mask), torch.randn(8, D))
