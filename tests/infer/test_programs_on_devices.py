"""Plain programs of each kind on a GPU: the numbers of a CPU, and captured steps as graphs."""

import logging

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae import (
    AutoConjugate,
    CapturedSVI,
    ConjugateSVI,
    HiddenMarkov,
    NaturalGradient,
    TraceConjugate_ELBO,
)

K, D, N, T = 3, 2, 40, 60


def mixture(x):
    one = torch.ones(K, D).to(x)
    weights = pyro.sample("weights", dist.Dirichlet(one[:, 0]))
    with pyro.plate("components", K):
        loc = pyro.sample("loc", dist.Normal(0 * one, 3.0).to_event(1))
        precision = pyro.sample("precision", dist.Gamma(one, 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(loc[z], precision[z].rsqrt()).to_event(1), obs=x)


def regression(x):
    zero = torch.zeros(D).to(x)
    noise = pyro.sample("noise", dist.Gamma(zero[0] + 1, 1.0))
    slope = pyro.sample("slope", dist.MultivariateNormal(zero, torch.eye(D).to(x)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ slope, noise.rsqrt()), obs=x.sum(-1))


def topics(x):
    word, one = (x.abs() * 5).long().clamp(max=9), torch.ones(10).to(x)
    with pyro.plate("number", K):
        topic = pyro.sample("topics", dist.Dirichlet(one))
    with pyro.plate("documents", len(word)):
        shares = pyro.sample("shares", dist.Dirichlet(one[:K]))
        with pyro.plate("words", D, dim=-2):
            of_word = dist.Categorical(topic).expand([len(word), K])
            pyro.sample("word", dist.MixtureSameFamily(dist.Categorical(shares), of_word), obs=word.T)


def states(x):
    one = torch.ones(K).to(x)
    start = pyro.sample("start", dist.Dirichlet(one))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(one))
        rate = pyro.sample("rate", dist.Gamma(one[0], 1.0))
    with pyro.plate("sequences", len(x)):
        counts = torch.arange(T, device=x.device) * x[:, :1].abs() % 7
        pyro.sample("counts", HiddenMarkov(start, rows, dist.Poisson(rate), T), obs=counts.floor())


@pytest.mark.parametrize("program", [mixture, regression, topics, states])
@pytest.mark.parametrize("svi", [ConjugateSVI, CapturedSVI])
@pytest.mark.gpu
def test_equals_the_cpu(program, svi, caplog):
    caplog.set_level(logging.INFO, "pyro_fmvae")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    guide = AutoConjugate(program)
    guide(x)
    start = {name: value + 0.1 * value.abs() for name, value in guide.state_dict().items()}
    losses = {}
    for device in ("cpu", "cuda"):
        guide = AutoConjugate(program)
        guide(x.to(device))
        guide.load_state_dict(start)
        learner = svi(program, guide.to(device), NaturalGradient(0.5), TraceConjugate_ELBO())
        losses[device] = torch.tensor([learner.step(x.to(device)) for _ in range(8)])
    assert_close(losses["cuda"], losses["cpu"], rtol=1e-7, atol=1e-7)
    assert losses["cpu"][-1] < losses["cpu"][0]
    assert "not replayed as CUDA graphs" not in caplog.text
