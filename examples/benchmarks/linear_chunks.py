"""One long sequence of linear dynamics: all of its chunks side by side, beside the whole.

    python examples/benchmarks/linear_chunks.py [--length 20000] [--chunk 100] [--steps 40] [--seed 0]

A state of two numbers turns, and three sensors see it; both noises have full covariance matrices. Posteriors
are learnt from all chunks with a buffer of 20 steps, by steps of rate 1. Printed are the process time of such
a step and of one on the whole sequence, and, for several lengths of the buffer, the error of the sum of the
natural gradients of all chunks, relative to that of the whole.
"""

import argparse
import json
import time

import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import (
    AutoConjugate,
    ConjugateSVI,
    LinearDynamics,
    LinearGaussianChain,
    NaturalGradient,
    TraceConjugate_ELBO,
)

D, SENSORS, BUFFER = 2, 3, 20


def affine(name, rows, dim):
    """A matrix [dim, rows], and noise with a mean and a full covariance matrix."""
    prior = dist.Wishart(torch.tensor(dim + 1.0), precision_matrix=torch.eye(dim))
    precision = pyro.sample(f"precision of {name}", prior)
    wide = dist.MultivariateNormal(torch.zeros(rows + 1, dim), precision_matrix=0.1 * precision)
    w = pyro.sample(name, wide.to_event(1))
    return w[:-1].mT, dist.MultivariateNormal(w[-1], precision_matrix=precision)


def model(x, spans, number):  # [C, S, SENSORS], [C, 4] or None for a whole sequence
    (a, moves), (c, noise) = affine("a", D, D), affine("c", D, SENSORS)
    first = dist.Normal(torch.zeros(D), 1.0).to_event(1)
    fn = LinearGaussianChain(LinearDynamics(first, a, moves, x.shape[1]), c, noise)
    with pyro.plate("chunks", number, subsample=x):
        pyro.sample("x", fn if spans is None else fn.of_chunks(spans), obs=x)


def sequence(length):
    """A sequence [1, length, SENSORS]."""
    turn = 0.98 * torch.tensor([[0.9, 0.3], [-0.3, 0.9]])
    moves = dist.MultivariateNormal(torch.tensor([0.2, -0.1]), torch.tensor([[0.3, 0.2], [0.2, 0.25]]))
    noise = dist.MultivariateNormal(
        torch.ones(SENSORS), torch.tensor([[0.5, 0.3, 0.0], [0.3, 0.4, 0.1], [0.0, 0.1, 0.2]])
    )
    states = LinearDynamics(dist.Normal(torch.zeros(D), 1.0).to_event(1), turn, moves, length)
    return LinearGaussianChain(states, torch.randn(SENSORS, D), noise).expand([1]).sample()


def gradients(guide, *batch):
    """Natural gradients of the likelihood's term, all in one vector."""
    loss = TraceConjugate_ELBO().loss_per_site(model, guide, *batch)["x"]
    naturals = [guide.posterior(name).natural for name in guide.posteriors]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, naturals)])


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("length", 20000), ("chunk", 100), ("steps", 40), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(chosen.seed)
    x = sequence(chosen.length)
    values, spans = LinearGaussianChain.chunks(x, chosen.chunk, BUFFER)
    guide = AutoConjugate(model, structured=True)
    guide.setup(values, spans, len(values))
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    for method, steps, batch in (
        ("chunks", chosen.steps, (values, spans, len(values))),
        ("whole", 1, (x, None, 1)),
    ):
        begun = time.process_time()
        for _ in range(steps):
            loss = svi.step(*batch)
        spent = (time.process_time() - begun) / steps
        print(json.dumps({"method": method, "seconds": round(spent, 3), "bound": round(-loss, 1)}))
    exact = gradients(guide, x, None, 1)
    for buffer in (0, 2, 5, 10, 20):
        values, spans = LinearGaussianChain.chunks(x, chosen.chunk, buffer)
        gap = gradients(guide, values, spans, len(values)) - exact
        print(json.dumps({"buffer": buffer, "error": float(f"{(gap.norm() / exact.norm()).item():.1e}")}))


if __name__ == "__main__":
    main()
