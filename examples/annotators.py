"""Labels by annotators who make mistakes of their own kind: Dawid and Skene (1979), by Gibbs sampling.

    python examples/annotators.py [--items 200] [--annotators 6] [--draws 400] [--picture annotators.png]

Each annotator has a confusion matrix, and each item a true class that nobody knows. The posterior says how
sure one can be of an item, and how good an annotator is. Printed are the share of items whose most probable
class is the true one, beside that of the majority vote, and how often 90 % intervals of the annotators' hit
rates hold the true rates.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex

from pyro_fmvae import ConjugateGibbs

K = 3  # classes
USUALLY_RIGHT = 1.0 + 3.0 * torch.eye(K)  # pseudo-counts of each row of a confusion matrix


def model(labels, there):  # [A, N], numbers of classes where bool [A, N] says that there is a label
    number, items = labels.shape
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(K)))
    annotators = pyro.plate("annotators", number, dim=-2)
    with annotators:
        confusion = pyro.sample("confusion", dist.Dirichlet(USUALLY_RIGHT).to_event(1))  # [A, 1, K, K]
    with pyro.plate("items", items, dim=-1):
        truth = pyro.sample("truth", dist.Categorical(shares))
        with annotators:
            fn = dist.Categorical(Vindex(confusion)[..., truth, :])
            pyro.sample("label", fn.mask(there), obs=labels)


def data(items, annotators, per_item=4):
    """Labels, where there are any, and what is true: classes [N] and hit rates [A]."""
    quality = torch.linspace(0.45, 0.9, annotators)
    confusion = torch.stack([q * torch.eye(K) + (1 - q) / (K - 1) * (1 - torch.eye(K)) for q in quality])
    truth = dist.Categorical(torch.tensor([0.5, 0.3, 0.2])).sample([items])
    there = torch.rand(annotators, items).argsort(0) < per_item
    return dist.Categorical(confusion[:, truth]).sample(), there, truth, quality


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--annotators", type=int, default=6)
    parser.add_argument("--draws", type=int, default=400, help="of each of two chains")
    parser.add_argument("--picture", type=Path, help="file for a picture of the annotators' hit rates")
    options = parser.parse_args(argv)
    pyro.set_rng_seed(0)
    labels, there, truth, quality = data(options.items, options.annotators)
    kernel = ConjugateGibbs(model)
    print(kernel.plan(labels, there))
    draws = kernel.draw(
        labels, there, num_samples=options.draws, warmup_steps=options.draws // 4, num_chains=2
    )
    votes = (torch.nn.functional.one_hot(labels, K) * there.unsqueeze(-1)).sum(0)
    classes = torch.nn.functional.one_hot(draws["truth"], K).float().mean((0, 1))
    right, majority = ((each.argmax(-1) == truth).float().mean() for each in (classes, votes))
    print(f"items found: {right:.3f} (majority vote: {majority:.3f})")
    rates = draws["confusion"].squeeze(3).diagonal(dim1=-2, dim2=-1).flatten(0, 1)  # [S, A, K]
    low, middle, high = rates.quantile(torch.tensor([0.05, 0.5, 0.95]), 0)
    known = quality.unsqueeze(-1).expand(-1, K)
    print(f"true hit rates inside 90 % intervals: {((low < known) & (known < high)).float().mean():.2f}")
    if options.picture:
        fig, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
        for k in range(K):
            x = torch.arange(options.annotators) + 0.2 * (k - 1)
            errors = torch.stack([middle[:, k] - low[:, k], high[:, k] - middle[:, k]])
            axis.errorbar(x, middle[:, k], errors.numpy(), fmt="o", ms=4, label=f"class {k}")
            axis.plot(x, known[:, k], "k_", ms=9)
        axis.set(xlabel="annotator", ylabel="hit rate", xticks=range(options.annotators), ylim=(0, 1))
        axis.legend(frameon=False)
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(options.picture, dpi=100)


if __name__ == "__main__":
    main()
