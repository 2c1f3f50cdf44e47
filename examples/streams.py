"""A mixture whose centres move: yesterday's posterior is today's prior, and the past fades.

    python examples/streams.py [--batches 25] [--seed 0] [--picture streams.png]

Three clouds of points circle the origin. Each batch is seen once. Every method predicts a batch before it
learns from it; printed is the mean log-density of its points at the posterior means.
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import config_enumerate

from pyro_fmvae import AutoConjugate, CapturedSVI, NaturalGradient, TraceConjugate_ELBO, posterior_as_prior

N, K, STEPS = 150, 3, 15  # points of a batch, clouds, steps on a batch
POWERS = {"nothing fades": 1.0, "power 0.5": 0.5}


@config_enumerate
def model(x):  # [N, 2]
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("clouds", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        cloud = pyro.sample("cloud", dist.Categorical(weights))
        scale = precision[cloud].rsqrt().unsqueeze(-1)
        pyro.sample("x", dist.Normal(locs[cloud], scale).to_event(1), obs=x)


def centres(batch):
    """Where the clouds are at a time, [K, 2]."""
    angles = 0.06 * batch + 2 * math.pi * torch.arange(K) / K
    return 4 * torch.stack([angles.cos(), angles.sin()], -1)


def stream(batches):
    """Points of each batch, [N, 2]."""
    for batch in range(batches):
        yield centres(batch)[torch.randint(K, (N,))] + 0.7 * torch.randn(N, 2)


@torch.no_grad()
def log_density(guide, x):
    """Mean log-density of points at the posterior means, in nats."""
    weights, locs, precision = (guide.posterior(name)().mean for name in ("weights", "locs", "precision"))
    clouds = dist.Normal(locs, precision.rsqrt().unsqueeze(-1)).to_event(1)
    return (weights.log() + clouds.log_prob(x.unsqueeze(1))).logsumexp(-1).mean().item()


def follow(data, power):
    """Log-densities of all batches but the first, and the centres after each batch, [batches, K, 2]."""
    guide = AutoConjugate(model)
    guide.seed_clusters("cloud", "x", data[0])
    optim, elbo = NaturalGradient(0.5), TraceConjugate_ELBO()
    svi = CapturedSVI(model, guide, optim, elbo)
    for _ in range(STEPS):
        svi.step(data[0])
    prior = posterior_as_prior(guide, power=power)
    svi = CapturedSVI(prior(model), guide, optim, elbo)
    densities, found = [], [guide.posterior("locs")().mean.detach()]
    for x in data[1:]:
        densities.append(log_density(guide, x))
        for _ in range(STEPS):
            svi.step(x)
        prior.update()
        found.append(guide.posterior("locs")().mean.detach())
    return densities, torch.stack(found)


def plot(truth, results, path):
    """Plot the paths of the clouds and the log-densities of the batches."""
    figure, (paths, densities) = plt.subplots(1, 2, figsize=(9.0, 4.0), layout="constrained")
    paths.plot(*truth.permute(2, 0, 1), color="0.75", lw=5, solid_capstyle="round")
    for number, (name, (values, found)) in enumerate(results.items()):
        paths.plot(*found.permute(2, 0, 1), color=f"C{number}", marker=".")
        densities.plot(range(1, len(values) + 1), values, color=f"C{number}", label=name)
    paths.set(aspect="equal", title="centres: grey the true ones")
    densities.set(xlabel="batch", ylabel="log-density of a point before it is learnt")
    densities.legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    data = list(stream(chosen.batches))
    truth = torch.stack([centres(batch) for batch in range(chosen.batches)])
    results = {name: follow(data, power) for name, power in POWERS.items()}
    for name, (densities, found) in results.items():
        gap = torch.cdist(truth[-1], found[-1]).amin(-1).mean()  # components have no order
        mean = sum(densities) / len(densities)
        print(f"{name}: log-density {mean:.3f} on average; centres off by {gap:.2f} in the end")
    if chosen.picture:
        plot(truth, results, chosen.picture)


if __name__ == "__main__":
    main()
