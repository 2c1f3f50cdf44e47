"""Eager and captured runs of the same program from the same seeds, for the tests of captured steps."""

from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.posteriors import param_statements
from tests.infer.programs import Toy

RATE = 0.3
EXACT = {"rtol": 0, "atol": 0}
# A replay on a CPU runs the kernels of the eager step. Formulas by hand, compilers and GPUs round otherwise.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}

adam = partial(torch.optim.Adam, lr=1e-2)


def svi_for(program, optimizer=adam, rate=RATE, elbo=None, **settings):
    """A captured SVI over a program with ``model`` and ``guide``, and an optimiser of its own."""
    optim = NaturalGradient(rate, optimizer)
    return CapturedSVI(program.model, program.guide, optim, elbo or TraceConjugate_ELBO(), **settings)


def numbers(program):
    """Parameters and buffers of a program, by name."""
    state = {**program.state_dict(), **dict(pyro.get_param_store().named_parameters())}
    return {name: value.detach().clone() for name, value in state.items()}


def trained(make, batches, between=None, elbo=TraceConjugate_ELBO, **settings):
    """Losses, program and SVI after one step per batch (a tuple of arguments), from a fixed seed."""
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    program = make()
    svi = svi_for(program, elbo=elbo(), **settings)
    losses = []
    for number, batch in enumerate(batches):
        if between is not None:
            between(number, svi, program)
        losses.append(svi.step(*batch))
    return losses, numbers(program), svi


def assert_twins(make, batches, tolerance=None, **settings):
    """Assert that eager and captured runs agree; returns the captured SVI."""
    (losses, state, _), (captured, others, svi) = (
        trained(make, batches, eager=eager, **settings) for eager in (True, False)
    )
    tolerance = tolerance or EXACT
    assert svi._steps, "nothing was captured"
    assert_close(torch.tensor(captured), torch.tensor(losses), **tolerance)
    assert len(set(losses)) > len(losses) // 2
    assert state.keys() == others.keys()
    for name, value in state.items():
        assert_close(others[name], value, **tolerance, msg=lambda text, n=name: f"{n}: {text}")
    return svi


def batches_of(data, size, steps):
    """Consecutive batches of the data; the last one of an epoch may be short."""
    epoch = list(zip(*(tensor.split(size) for tensor in data), strict=True))
    return [epoch[step % len(epoch)] for step in range(steps)]


class Plain(nn.Module):
    """z ~ N(0, I) in 2 dimensions, x of 3: ``body(program, z, x, *more)`` gives the mean of x.

    Model and guide are plain functions over two networks that ``pyro.module`` registers, as in Pyro's
    tutorials.
    """

    def __init__(self, body, decoder=None, scale=False):
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.decoder = nn.Linear(2, 3) if decoder is None else decoder

        def model(x, *more, **named):
            pyro.module("decoder", self.decoder)
            sd = pyro.param("sd", torch.ones(3), constraint=dist.constraints.positive) if scale else 1.0
            with pyro.plate("data", 20, subsample=x, dim=-1):
                z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
                mean = body(self, z, x, *more, **named)
                pyro.sample("x", dist.Normal(mean, sd).to_event(1), obs=x)

        def guide(x, *more, **named):
            pyro.module("encoder", self.encoder)
            loc, log_scale = self.encoder(x).chunk(2, -1)
            with pyro.plate("data", 20, subsample=x, dim=-1):
                pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))

        self.model, self.guide = model, guide


def plainly(program, z, *_):
    """The body of an ordinary decoder."""
    return program.decoder(z)


def a_toy(**settings):
    return lambda: Toy(**settings)


class Methods(nn.Module):
    """The program without a param store: model and guide are methods of the module with the networks."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Linear(2, 3)

    def model(self, x):
        """z ~ N(0, I), x ~ N(decoder(z), I)."""
        param_statements("decoder", self.decoder)
        with pyro.plate("data", 20, subsample=x, dim=-1):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

    def guide(self, x):
        """q(z | x) = N(encoder(x))."""
        param_statements("encoder", self.encoder)
        loc, log_scale = self.encoder(x).chunk(2, -1)
        with pyro.plate("data", 20, subsample=x, dim=-1):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


class SpoiltGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, y, factor):
        ctx.factor = factor
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
