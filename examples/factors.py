"""Factor analysis and probabilistic PCA of digits, half of whose pixels are missing.

    python examples/factors.py [--steps 600] [--seed 0] [--picture half-digits.png]

Each digit has coordinates of its own. Their posteriors are found anew for each minibatch, so that nothing has
the size of the data. Probabilistic PCA has one variance of the noise, factor analysis one for each pixel. The
prior of the centre is about the means of the pixels: from elsewhere, the centre and the coordinates of all
digits could only move together, in many small steps. Printed is the log-density of new, complete digits,
beside that of scikit-learn, which cannot leave pixels out: it gets the mean of the pixel in place of a
missing one.
"""

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, FactorAnalysis

from pyro_fmvae import AutoConjugate, CapturedSVI, NaturalGradient, TraceConjugate_ELBO

PIXELS, FACTORS, TRAIN, BATCH = 64, 10, 1400, 350


def model(x, present, means, variances):  # [B, PIXELS]
    centre = pyro.sample("centre", dist.Normal(means, 0.1).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(1.0, 0.1).expand([variances]).to_event(1))
    with pyro.plate("pixels", PIXELS):
        loadings = pyro.sample("loadings", dist.MultivariateNormal(torch.zeros(FACTORS), torch.eye(FACTORS)))
    with pyro.plate("digits", TRAIN, subsample=x):
        z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(FACTORS), torch.eye(FACTORS)))
        pixels = dist.Normal(centre + z @ loadings.T, precision.rsqrt())
        pyro.sample("x", pixels.mask(present).to_event(1), obs=x)


def digits():
    """Training and test digits, standardised by one number for all pixels, with noise between grey levels."""
    x = torch.tensor(load_digits().data, dtype=torch.get_default_dtype())
    x = (x + torch.rand_like(x) - 8) / 6
    x = x[torch.randperm(len(x))]
    return x[:TRAIN], x[TRAIN:]


def learn(x, present, means, variances, steps):
    """Train on minibatches; returns the guide."""
    program = partial(model, variances=variances)
    guide = AutoConjugate(program, local=["digits"], local_steps=1)
    svi = CapturedSVI(program, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
    for step in range(steps):
        rows = torch.arange(step % 4, TRAIN, 4)
        svi.step(x[rows], present[rows], means)
    return guide


@torch.no_grad()
def log_density(guide, x):
    """Mean log-density of complete digits at the posterior means, in nats."""
    centre, precision, loadings = (
        guide.posterior(name)().mean for name in ("centre", "precision", "loadings")
    )
    noise = (1 / precision).expand(PIXELS)
    return dist.LowRankMultivariateNormal(centre, loadings, noise).log_prob(x).mean().item()


def plot(x, present, filled, path):
    """Plot a few digits: whole, with what is missing in red, and filled in."""
    figure, panels = plt.subplots(3, 10, figsize=(6.4, 2.2), layout="constrained")
    shown = {"true": x, "given": x.where(present, torch.nan), "filled in": filled}
    greys = plt.get_cmap("Greys").copy()
    greys.set_bad("#e8b0a8")
    for row, (name, images) in zip(panels, shown.items(), strict=True):
        row[0].set_ylabel(name)
        for axes, image in zip(row, images, strict=False):
            axes.imshow(image.view(8, 8), cmap=greys, vmin=-1.4, vmax=1.4)
            axes.set(xticks=[], yticks=[])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    torch.set_default_dtype(torch.float64)
    train, test = digits()
    half = torch.rand(train.shape) < 0.5
    for name, variances, peer in (
        ("probabilistic PCA", 1, PCA(FACTORS)),
        ("factor analysis", PIXELS, FactorAnalysis(FACTORS, random_state=0)),
    ):
        for present in (torch.ones_like(half), half):
            means = (train * present).sum(0) / present.sum(0)
            guide = learn(train, present, means, variances, chosen.steps)
            theirs = peer.fit(train.where(present, means).numpy()).score(test.numpy())
            what = f"{name}, {100 * present.double().mean():.0f} % of the pixels"
            print(f"{what}: log-density {log_density(guide, test):.2f}, scikit-learn {theirs:.2f}")
    if chosen.picture:
        there = torch.rand(10, PIXELS) < 0.5
        z = guide.infer(test[:10], there, means)["z"].mean  # of new digits, in which other pixels are missing
        mean = guide.posterior("centre")().mean + z @ guide.posterior("loadings")().mean.T
        plot(test[:10], there, test[:10].where(there, mean).detach(), chosen.picture)


if __name__ == "__main__":
    main()
