"""Which columns matter? Regression with a spike and a slab for each weight, by Gibbs sampling.

    python examples/spike_and_slab.py [--rows 80] [--columns 12] [--draws 300] [--picture spike-and-slab.png]

Each weight is 0 or normal, and an indicator says which. Their posterior has 2^K modes that a mean-field
posterior cannot hold; the sampler integrates all weights out while it draws the indicators one by one. Two
of the columns are nearly the same: the posterior is not sure which of them it is, and says so. Printed are
the probabilities that columns are in, beside the exact ones by all 2^K subsets.
"""

import argparse
import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import ConjugateGibbs

SLAB, NOISE = 2.0, 0.7  # standard deviations of a weight that is in, and of the noise
SHARE = 0.3  # of the columns that are in


def model(x, y):  # [N, K], [N]
    with pyro.plate("columns", x.shape[-1]):
        is_in = pyro.sample("is_in", dist.Bernoulli(SHARE))
        weights = pyro.sample("weights", dist.Normal(0.0, SLAB))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ (is_in * weights), NOISE), obs=y)


def data(rows, columns):
    """Regressors [N, K], of which the second is nearly the first, and outcomes [N]."""
    x = torch.randn(rows, columns)
    x[:, 1] = x[:, 0] + 0.15 * torch.randn(rows)
    true = torch.zeros(columns)
    true[0], true[2], true[5] = 1.0, -1.5, 0.3
    return x, x @ true + NOISE * torch.randn(rows), true


def of_all_subsets(x, y):
    """Exact probabilities that columns are in, [K], by the evidence of every subset."""
    subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=x.shape[-1])))
    logs = []
    for inside in subsets:
        own = SLAB * x * inside
        covariance = own @ own.T + NOISE**2 * torch.eye(len(y))
        prior = dist.Bernoulli(SHARE).log_prob(inside).sum()
        logs.append(prior + dist.MultivariateNormal(torch.zeros(len(y)), covariance).log_prob(y))
    return torch.stack(logs).softmax(0) @ subsets


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--draws", type=int, default=300, help="of each of four chains")
    parser.add_argument("--picture", type=Path, help="file for a picture of the probabilities")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    x, y, true = data(options.rows, options.columns)
    kernel = ConjugateGibbs(model)
    print(kernel.plan(x, y))
    draws = kernel.draw(x, y, num_samples=options.draws, warmup_steps=options.draws // 5)
    found, exact = draws["is_in"].mean((0, 1)), of_all_subsets(x, y)
    print("column  true weight  P(in) by draws  by all subsets")
    for k in range(options.columns):
        print(f"{k:6}  {true[k]:11.1f}  {found[k]:14.2f}  {exact[k]:14.2f}")
    either = draws["is_in"][..., :2].amax(-1).mean()
    print(f"P(column 0 or its twin is in): {either:.2f}")
    if options.picture:
        fig, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
        axis.bar(torch.arange(options.columns) - 0.2, found, 0.4, label="draws", color="#3b6ea5")
        axis.bar(torch.arange(options.columns) + 0.2, exact, 0.4, label="all subsets", color="#e0a030")
        axis.set(xlabel="column", ylabel="probability that it is in", xticks=range(options.columns))
        axis.legend(frameon=False)
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(options.picture, dpi=100)


if __name__ == "__main__":
    main()
