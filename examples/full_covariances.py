"""A mixture of Gaussians with full covariances, as a plain Pyro program.

    python examples/full_covariances.py [--steps 50] [--seed 0] [--picture covariances.png]

Three long, thin clouds of points cross each other. Each component has a mean and a precision matrix of its
own; the posteriors are multivariate normal and Wishart, and Pyro's enumeration sums over the assignments.
They start where k-means clusters the points, since some random starts end in a lower optimum.
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from matplotlib.patches import Ellipse
from pyro.infer import SVI, config_enumerate

from pyro_fmvae import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.evaluate import matching_accuracy

N, K, D = 600, 3, 2  # points, components, dimensions


@config_enumerate
def model(x):  # [N, D]
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(D), 9.0 * torch.eye(D)))
        precisions = pyro.sample("precisions", dist.Wishart(torch.tensor(3.0), torch.eye(D)))
    with pyro.plate("data", len(x)):
        component = pyro.sample("component", dist.Categorical(weights))
        cloud = dist.MultivariateNormal(locs[component], precision_matrix=precisions[component])
        pyro.sample("x", cloud, obs=x)


def clouds():
    """Points [N, D] and their true components [N]."""
    component = torch.multinomial(torch.tensor([0.4, 0.35, 0.25]), N, replacement=True)
    angles = math.pi * torch.tensor([0.1, 0.45, 0.8])[component]
    centres = torch.tensor([[0.0, 0.0], [2.0, 1.0], [-1.5, 2.5]])[component]
    along, across = (
        torch.stack([angles.cos(), angles.sin()], -1),
        torch.stack([-angles.sin(), angles.cos()], -1),
    )
    x = centres + 1.5 * torch.randn(N, 1) * along + 0.25 * torch.randn(N, 1) * across
    return x, component


@torch.no_grad()
def plot(x, component, guide, path):
    """Plot the points by their likeliest component, with the ellipses of two standard deviations."""
    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    axes.scatter(*x.T, c=component, cmap="tab10", vmax=9, s=8)
    locs = guide.posterior("locs")().mean
    values, vectors = torch.linalg.eigh(torch.linalg.inv(guide.posterior("precisions")().mean))
    for k in range(K):
        height, width = (4 * values[k].sqrt()).tolist()
        angle = math.degrees(torch.atan2(vectors[k, 1, 1], vectors[k, 0, 1]))
        axes.add_patch(Ellipse(locs[k].tolist(), width, height, angle=angle, fill=False, color=f"C{k}", lw=2))
    axes.set(xlabel="first dimension", ylabel="second dimension", aspect="equal")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file of a picture to draw")
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    x, truth = clouds()
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    print(elbo.plan(model, guide, x))
    guide.seed_clusters("component", "x", x)
    svi = SVI(model, guide, NaturalGradient(1.0), elbo)
    for step in range(options.steps):
        loss = svi.step(x)
        if step % max(options.steps // 5, 1) == 0 or step + 1 == options.steps:
            print(f"step {step + 1:3}: ELBO {-loss:9.2f}")
    component = elbo.responsibilities(model, guide, x)["component"].argmax(-1)
    accuracy = matching_accuracy(truth.numpy(), component.numpy())
    print(f"matching accuracy with the true components {accuracy:.1%}")
    if options.picture:
        plot(x, component, guide, options.picture)


if __name__ == "__main__":
    main()
