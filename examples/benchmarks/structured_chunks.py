"""A structured VAE of one long film: steps on minibatches of its chunks, beside a step on the whole.

    python examples/benchmarks/structured_chunks.py [--length 20000] [--chunk 100] [--batch 10] [--steps 300]

A bright spot moves to and fro in a row of 32 pixels with noise. One latent is its place, and another says how
it moves. A structured VAE learns from minibatches of chunks with a buffer of 20 steps. Printed are process
time of a step, and the peak of memory so far above that before: on such a minibatch, on all chunks side by
side and on the whole film. Then, for several lengths of the buffer, the gradients of the divergence from the
prior are summed over all chunks. Printed are their errors relative to those of the whole: of the natural ones
of the dynamics, and of the encoder's.
"""

import argparse
import json
import resource
import time
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_fmvae import (
    AutoConjugate,
    ConjugateSVI,
    LinearDynamics,
    LinearGaussianChain,
    NaturalGradient,
    TraceConjugate_ELBO,
)

D, PIXELS, NOISE, HIDDEN, BUFFER = 2, 32, 0.2, 32, 20


class StructuredVAE(nn.Module):
    """Linear dynamics as the prior of latents, of which one is decoded."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2))
        self.decoder = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, PIXELS))
        self.conjugate = AutoConjugate(self.model, fallback=None, structured=True)

    def dynamics(self, values, spans, duration):
        first = dist.Normal(torch.zeros(D), 2.0).to_event(1)
        noise = dist.Normal(0.0, values["moves"].rsqrt()).to_event(1)
        fn = LinearDynamics(first, values["a"], noise, duration)
        return fn if spans is None else fn.of_chunks(spans)

    def model(self, x, spans, number):  # [C, S, PIXELS], [C, 4] or None for the whole
        pyro.module("decoder", self.decoder)
        with pyro.plate("rows", D):
            moves = pyro.sample("moves", dist.Gamma(2.0, 0.02))
            precision = 10 * moves[:, None, None] * torch.eye(D)
            steady = torch.ones(D, D).triu()
            a = pyro.sample("a", dist.MultivariateNormal(steady, precision_matrix=precision))
        states = self.dynamics({"moves": moves, "a": a}, spans, x.shape[1])
        with pyro.plate("chunks", number, subsample=x):
            z = pyro.sample("z", states)
            pixels = dist.Normal(self.decoder(z[..., :1]), NOISE).to_event(1)
            counts = True if states.present is None else states.present
            pyro.sample("x", pixels.mask(counts).to_event(1), obs=x)

    def guide(self, x, spans, number):
        pyro.module("encoder", self.encoder)
        loc, scale = self.encoder(x).chunk(2, -1)
        noise = dist.Normal(0.0, scale.exp()).to_event(1)
        states = self.dynamics(self.conjugate(x, spans, number), spans, x.shape[1])
        with pyro.plate("chunks", number, subsample=x):
            pyro.sample("z", LinearGaussianChain(states, torch.eye(D)[:1], noise).states(loc))


def film(length):
    """A row of pixels over time, [1, length, PIXELS]."""
    turn = torch.tensor([[0.995, 0.1], [-0.1, 0.995]])
    moves = dist.Normal(torch.zeros(D), 0.05).to_event(1)
    states = LinearDynamics(dist.Normal(torch.zeros(D), 0.5).to_event(1), turn, moves, length)
    place = states.expand([1]).sample()[..., :1]
    clean = (-(torch.linspace(-2, 2, PIXELS) - place).square() / 0.1).exp()
    return clean + NOISE * torch.randn(clean.shape)


def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def gradients(vae, *batch):
    """Of the divergence from the prior: natural gradients, and those of the encoder, a vector each."""
    loss = TraceConjugate_ELBO().loss_per_site(vae.model, vae.guide, *batch)["z"]
    naturals = [posterior.natural for posterior in vae.conjugate.posteriors.values()]
    found = torch.autograd.grad(loss, [*naturals, *vae.encoder.parameters()])
    flat = [each.flatten() for each in found]
    return torch.cat(flat[: len(naturals)]), torch.cat(flat[len(naturals) :])


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("length", 20000), ("chunk", 100), ("batch", 10), ("steps", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(chosen.seed)
    x = film(chosen.length)
    values, spans = LinearDynamics.chunks(x, chosen.chunk, BUFFER)
    number, vae = len(values), StructuredVAE()
    optim = NaturalGradient(0.2, others=partial(torch.optim.Adam, lr=3e-3))
    svi = ConjugateSVI(vae.model, vae.guide, optim, TraceConjugate_ELBO())
    svi.step(values[:1, :5], spans[:1].clamp(max=5), number)
    base = megabytes()  # what the first step of all takes is not counted

    def minibatch():
        rows = torch.randperm(number)[: chosen.batch]
        return values[rows], spans[rows], number

    for method, steps, batch in (
        ("minibatches of chunks", chosen.steps, minibatch),
        ("all chunks", 3, lambda: (values, spans, number)),
        ("whole", 1, lambda: (x, None, 1)),
    ):
        begun = time.process_time()
        for _ in range(steps):
            loss = svi.step(*batch())
        spent = (time.process_time() - begun) / steps
        row = {"seconds": round(spent, 3), "megabytes": round(megabytes() - base), "bound": round(-loss)}
        print(json.dumps({"method": method, **row}))
    exact = gradients(vae, x, None, 1)
    for buffer in (0, 2, 5, 10, 20, 50):
        values, spans = LinearDynamics.chunks(x, chosen.chunk, buffer)
        gaps = zip(gradients(vae, values, spans, number), exact, strict=True)
        errors = [float(f"{((one - other).norm() / other.norm()).item():.1e}") for one, other in gaps]
        print(json.dumps({"buffer": buffer, "natural": errors[0], "encoder": errors[1]}))


if __name__ == "__main__":
    main()
