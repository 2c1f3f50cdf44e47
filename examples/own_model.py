"""Write your own model: two kinds of pattern, a mixture for each, and a Gaussian decoder that you choose.

    python examples/own_model.py [--steps 1500]

The model and the guide below are plain Pyro. The globals (mixing weights, means and precisions) get their posterior from
``AutoConjugate``; only the amortised part of the guide is written by hand.
"""

import argparse
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch import nn

from pyro_fmvae import Assignment, AutoConjugate, Component, NaturalGradient, NormalGamma, RobbinsMonro, TraceConjugate_ELBO
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

N, B, I, K, D = 2000, 100, 2, 3, 2  # data points, batch, factors, components, dimensions of a factor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = MLPDecoder(I * D, (8,), hidden=(50,))

    def forward(self, x):
        pyro.module("decoder", self.decoder)
        data, factors, components = pyro.plate("data", N, subsample=x, dim=-1), pyro.plate("factors", I, dim=-2), None
        components = pyro.plate("components", K, dim=-1)
        with factors:
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
            with components:
                loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 0.01, 0.01))
        with data:
            with factors:
                assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
                z = pyro.sample("z", Component(loc_precision, assignment))
            mean = self.decoder(z.transpose(-3, -2).flatten(-2)).squeeze(-2)
            pyro.sample("x", dist.Normal(mean, 0.1).to_event(1), obs=x)


class Guide(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.conjugate = AutoConjugate(model)
        self.encoder = MLPEncoder((8,), I * D, hidden=(50,))

    def forward(self, x):
        pyro.module("encoder", self.encoder)
        self.conjugate(x)
        loc, scale = (t.unflatten(-1, (I, D)).transpose(-3, -2) for t in self.encoder(x))
        with pyro.plate("data", N, subsample=x, dim=-1), pyro.plate("factors", I, dim=-2):
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))
