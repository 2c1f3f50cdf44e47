"""A regression line with wild measurements, as a plain Pyro program.

    python examples/regression.py [--steps 100] [--seed 0] [--picture regression.png]

A curve is measured 120 times. One measurement in six has gone wrong, and is many times less precise than the
others; nobody knows which. The program says just that: the mean is linear in the weights, and each
measurement has one of two precisions.

The weights have a multivariate normal posterior, the precisions a Gamma each, and Pyro's enumeration sums
over which measurements are wild. Every step is exact: nothing is drawn.
"""

import argparse

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, config_enumerate

from pyro_fmvae import AutoConjugate, NaturalGradient, TraceConjugate_ELBO

N, P = 120, 6  # measurements, weights of the curve


@config_enumerate
def model(features, y):
    weights = pyro.sample("weights", dist.MultivariateNormal(torch.zeros(P), 4.0 * torch.eye(P)))
    wild = pyro.sample("wild", dist.Beta(1.0, 5.0))
    rates = torch.tensor([0.05, 5.0])  # a priori, the second kind is the less precise
    with pyro.plate("kinds", 2):
        precisions = pyro.sample("precisions", dist.Gamma(2.0, rates))
    with pyro.plate("data", len(y)):
        is_wild = pyro.sample("is_wild", dist.Bernoulli(wild))
        precision = precisions[is_wild.long()]
        pyro.sample("y", dist.Normal(features @ weights, precision.rsqrt()), obs=y)


def as_features(x):
    """Waves of growing frequency, [..., P], of x in [-1, 1]."""
    return torch.stack([torch.cos(0.5 * torch.pi * p * (x + 1)) for p in range(P)], -1)


def true_curve(x):
    return torch.sin(3 * x) + 0.5 * x


def measurements():
    """Points x and their values y, [N], and which of them are wild."""
    x = 2 * torch.rand(N) - 1
    is_wild = torch.rand(N) < 1 / 6
    return x, true_curve(x) + torch.where(is_wild, 2.0, 0.15) * torch.randn(N), is_wild


@torch.no_grad()
def plot(x, y, is_wild, guide, path):
    """Plot the curve with two standard deviations of it, and each point's probability of being wild."""
    grid = torch.linspace(-1, 1, 200)
    features = as_features(grid)
    weights = guide.posterior("weights")()
    mean = features @ weights.mean
    spread = 2 * (features @ weights.covariance_matrix * features).sum(-1).sqrt()
    least_squares = features @ torch.linalg.lstsq(as_features(x), y.unsqueeze(-1)).solution.squeeze(-1)
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    axes.plot(grid, true_curve(grid), color="black", lw=1, label="true curve")
    axes.plot(grid, least_squares, color="tab:grey", ls="--", lw=1, label="least squares")
    axes.plot(grid, mean, color="tab:blue", label="posterior mean, ± 2 standard deviations")
    axes.fill_between(grid, mean - spread, mean + spread, color="tab:blue", alpha=0.25, lw=0)
    points = axes.scatter(x, y, c=is_wild, cmap="coolwarm", vmin=0, vmax=1, s=16, edgecolor="black", lw=0.3)
    figure.colorbar(points, label="probability of being wild")
    axes.set(xlabel="x", ylabel="y")
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file of a picture to draw")
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    x, y, truth = measurements()
    features = as_features(x)
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    print(elbo.plan(model, guide, features, y))
    svi = SVI(model, guide, NaturalGradient(1.0), elbo)
    for step in range(options.steps):
        loss = svi.step(features, y)
        if step % max(options.steps // 5, 1) == 0 or step + 1 == options.steps:
            print(f"step {step + 1:3}: ELBO {-loss:9.3f}")
    is_wild = elbo.responsibilities(model, guide, features, y)["is_wild"][..., 1]
    scales = guide.posterior("precisions")().mean.rsqrt().tolist()
    print(f"standard deviations: {scales[0]:.2f} (true: 0.15), and {scales[1]:.2f} of wild ones (true: 2.00)")
    print(f"{int((is_wild > 0.5).sum())} measurements are found wild, {int(truth.sum())} are")
    if options.picture:
        plot(x, y, is_wild, guide, options.picture)


if __name__ == "__main__":
    main()
