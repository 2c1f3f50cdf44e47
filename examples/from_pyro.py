"""A mixture as in Pyro's tutorials, trained by Pyro's ELBO and by this library's: bounds, times, a picture.

    python examples/from_pyro.py [--steps 1500] [--natural-steps 60] [--seed 1] [--picture from-pyro.png]

The page docs/start/from-pyro.md explains the program. Both runs start from the
same seed. Seconds are processor time, and exclude the first step, which builds the guide. The bound of a step
is that of its own draw; Pyro's is also averaged at the end, over 500 draws.
"""

import argparse
from pathlib import Path
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam

from pyro_fmvae import AutoConjugate, NaturalGradient, TraceConjugate_ELBO

K, N = 3, 500


def points():
    """Numbers [N] from three Gaussians."""
    kinds = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), N, replacement=True)
    return torch.tensor([-3.0, 0.0, 5.0])[kinds] + torch.tensor([0.5, 1.0, 1.5])[kinds] * torch.randn(N)


@config_enumerate
def model(data):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        precisions = pyro.sample("precisions", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], precisions[assignment].rsqrt()), obs=data)


def train(svi, data, steps):
    """Return seconds and bounds of the steps, [2, steps]. The first step is at 0 seconds."""
    curve = []
    for step in range(steps):
        bound = -svi.step(data)
        if step == 0:
            start = process_time()
        curve.append((process_time() - start, bound))
    return np.array(curve).T


def by_pyro(data, steps):
    """Train by Pyro's own ELBO. Returns the curve, and the final bound over 500 draws."""
    guide = AutoNormal(poutine.block(model, hide=["assignment"]))
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    curve = train(SVI(model, guide, Adam({"lr": 0.02}), elbo), data, steps)
    with torch.no_grad():
        return curve, -np.mean([elbo.loss(model, guide, data) for _ in range(500)])


def by_conjugacy(data, steps):
    """Train by this library. Returns the curve, the final bound and the guide."""
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    curve = train(SVI(model, guide, NaturalGradient(1.0), elbo), data, steps)
    print(elbo.plan(model, guide, data))
    return curve, -elbo.loss(model, guide, data), guide


def first_within(curve, bound, margin=1.0):
    """Return step and seconds at which a curve's mean over 20 steps comes within some nats of the bound."""
    means = np.convolve(curve[1], np.ones(20) / 20)[: len(curve[1])]
    means[:19] = -np.inf
    return first(curve[0], means >= bound - margin)


def first(seconds, there):
    return f"step {there.argmax() + 1}, {seconds[there.argmax()]:.2f} s" if there.any() else "not reached"


@torch.no_grad()
def plot(data, curves, guide, path):
    """Plot both bounds against seconds, and the mixture found over a histogram of the data."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for (name, curve), colour in zip(curves.items(), ("tab:grey", "tab:blue"), strict=True):
        left.plot(curve[0, 1:], curve[1, 1:], label=name, color=colour)
    best = max(curve[1].max() for curve in curves.values())
    left.set(
        xscale="log", xlabel="seconds of processor time", ylabel="bound, nats", ylim=(best - 900, best + 50)
    )
    figure.legend(frameon=False, fontsize="small", loc="outside upper left", ncols=2)
    weights, locs, precisions = (guide.posterior(name)().mean for name in ("weights", "locs", "precisions"))
    grid = torch.linspace(data.min(), data.max(), 300)
    densities = weights * dist.Normal(locs, precisions.rsqrt()).log_prob(grid.unsqueeze(-1)).exp()
    right.hist(data, bins=50, density=True, color="lightgrey")
    right.plot(grid, densities)
    right.set(xlabel="data", ylabel="density")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500, help="of Adam")
    parser.add_argument("--natural-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", help="file of a picture to draw")
    options = parser.parse_args()
    pyro.set_rng_seed(0)
    data = points()
    pyro.set_rng_seed(options.seed)
    sampled, enumerated = by_pyro(data, options.steps)
    pyro.set_rng_seed(options.seed)
    exact, conjugate, guide = by_conjugacy(data, options.natural_steps)
    for name, curve, bound, reached in (
        ("TraceEnum_ELBO, AutoNormal", sampled, enumerated, first_within(sampled, enumerated)),
        ("TraceConjugate_ELBO", exact, conjugate, first(exact[0], exact[1] >= conjugate - 1)),
    ):
        ms = 1000 * curve[0, -1] / max(len(curve[0]) - 1, 1)
        print(f"{name}: ELBO {bound:.2f}, within 1 nat at {reached}; {ms:.1f} ms a step")
    if options.picture:
        plot(
            data,
            {"TraceEnum_ELBO, AutoNormal": sampled, "TraceConjugate_ELBO": exact},
            guide,
            options.picture,
        )


if __name__ == "__main__":
    main()
