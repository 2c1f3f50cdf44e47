"""One long sequence: steps on minibatches of its chunks, beside steps on the whole.

    python examples/benchmarks/chunks.py [--length 50000] [--chunk 100] [--batch 10] [--buffer 20] [--seed 0]

A hidden Markov model of five states that stay 98 times of 100, with Gaussian emissions. First, for several
lengths of the buffer, the sum of the natural gradients of all chunks is compared with that of the whole, at
posteriors that start at clusters and at those learnt from the whole. Both ways learn from that start for as
long, in process time. The log-densities of a new sequence are printed as time goes by, in nats per step.
"""

import argparse
import json
import time
from copy import deepcopy

import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import AutoConjugate, ConjugateSVI, HiddenMarkov, NaturalGradient, TraceConjugate_ELBO

K, STAYS = 5, 0.98


def model(values, spans, number):  # [C, S], [C, 4] or None for a whole sequence
    start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.0))
        locs = pyro.sample("locs", dist.Normal(0.0, (0.01 * precisions).rsqrt()))
    fn = HiddenMarkov(start, rows, dist.Normal(locs, precisions.rsqrt()), values.shape[1])
    with pyro.plate("chunks", number, subsample=values):
        pyro.sample("x", fn if spans is None else fn.of_chunks(spans), obs=values)


def sequence(length, locs):
    """A sequence [1, length]."""
    moves, drawn = torch.rand(length) > STAYS, torch.randint(K, (length,))
    last = torch.where(moves, torch.arange(length), 0).cummax(0).values
    return (locs[drawn[last]] + torch.randn(length)).unsqueeze(0)


def gradients(guide, *batch):
    """Natural gradients of the likelihood's term, all in one vector."""
    loss = TraceConjugate_ELBO().loss_per_site(model, guide, *batch)["x"]
    naturals = [guide.posterior(name).natural for name in guide.posteriors]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, naturals)])


@torch.no_grad()
def log_density(guide, x):
    """Nats per step at the posterior means."""
    start, rows, precisions, locs = (
        guide.marginal(name).mean for name in ("start", "rows", "precisions", "locs")
    )
    fn = HiddenMarkov(start, rows, dist.Normal(locs, precisions.rsqrt()), x.shape[1])
    return fn.log_prob(x).sum().item() / x.numel()


def learn(guide, batches, rate, new, seconds):
    """Take steps for some process time, and note the log-density of a new sequence now and then."""
    svi = ConjugateSVI(model, guide, NaturalGradient(rate), TraceConjugate_ELBO())
    spent, steps, curve, due = 0.0, 0, [], 0.5
    while spent < seconds:
        begun = time.process_time()
        svi.step(*next(batches))
        spent += time.process_time() - begun
        steps += 1
        if spent > due:
            curve.append((round(spent, 2), round(log_density(guide, new), 4)))
            due = 2 * spent
    return steps, curve


def whole(x):
    while True:
        yield x, None, 1


def minibatches(values, spans, size):
    while True:
        for rows in torch.randperm(len(values)).split(size):
            if len(rows) == size:
                yield values[rows], spans[rows], len(values)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("length", 50000), ("chunk", 100), ("batch", 10), ("buffer", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("seconds", 30.0), ("rate", 0.1)):
        parser.add_argument(f"--{name}", type=float, default=default)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(chosen.seed)
    locs = 1.5 * torch.randn(K)
    x, new = sequence(chosen.length, locs), sequence(chosen.length, locs)
    guide = AutoConjugate(model, structured=True)
    guide.setup(x, None, 1)
    guide.seed_clusters("x", x, x, None, 1)
    start = deepcopy(guide)
    steps, curve = learn(guide, whole(x), 1.0, new, chosen.seconds)
    print(json.dumps({"method": "whole", "steps": steps, "curve": curve}))
    for name, at in (("at the start", start), ("learnt", guide)):
        exact = gradients(at, x, None, 1)
        for buffer in (0, 5, 10, 20, 50):
            values, spans = HiddenMarkov.chunks(x, chosen.chunk, buffer)
            gap = gradients(at, values, spans, len(values)) - exact
            error = (gap.norm() / exact.norm()).item()
            print(json.dumps({"posterior": name, "buffer": buffer, "error": float(f"{error:.1e}")}))
    values, spans = HiddenMarkov.chunks(x, chosen.chunk, chosen.buffer)
    batches = minibatches(values, spans, min(chosen.batch, len(values)))
    steps, curve = learn(start, batches, chosen.rate, new, chosen.seconds)
    print(json.dumps({"method": "chunks", "steps": steps, "curve": curve}))


if __name__ == "__main__":
    main()
