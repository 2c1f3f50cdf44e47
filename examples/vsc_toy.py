"""Sources that a sparse code separates and a VAE mixes.

    python examples/vsc_toy.py [--steps 2500] [--seeds 3] [--spikes concrete]

Every data point is a sum of some of six patterns, which are orthogonal and of norm 3 in 20 dimensions. Each
pattern is present with probability 1/4, scaled by a number from N(1.5, 0.5²). Noise has deviation 0.3.
Variational sparse coding and a plain VAE have 15 latents, a linear decoder, the same encoder, and the same
number of steps.

For each seed (data, start and noise) and model, the script prints

* the number of latents correlated with any source (|s| with |z|, on fresh data, at least 0.07): 6 is right;
* the correlation of the best latent of each source, averaged over sources;
* the contrast, the margin of the best latent over the second best: 1 if each source has its own latent;
* the ELBO on fresh data, in nats per point.

A VAE has no reason to separate sources: a N(0, I) prior is invariant to rotations of the codes.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyro
import torch
from torch import Tensor, nn

from pyro_fmvae import VAE, GaussianObservation, fit
from pyro_fmvae.distributions import Concrete, ShiftedSigmoid, StraightThrough
from pyro_fmvae.evaluate import active_latents, best_correlation, bound, contrast, correlation_matrix
from pyro_fmvae.learn import Budget, SparsePhase, VAEJoint, VAEOptions, VSCOptions
from pyro_fmvae.models import MixtureSparsePrior, PseudoInputs, VariationalSparseCoding
from pyro_fmvae.nn import MLPEncoder, SpikeHead

SOURCES, X, NORM, NOISE = 6, 20, 3.0, 0.3
J = 15  # latents
TRAIN, TEST, BATCH = 20_000, 5_000, 200
PSEUDO_INPUTS, SPARSITY = 10, 0.1
OBSERVATION = GaussianObservation(1, min_scale=0.01, max_scale=2.0)
SPIKES = {"concrete": Concrete, "shifted": ShiftedSigmoid, "straight-through": StraightThrough}


class LinearDecoder(nn.Module):
    """Means linear in z, and one learnt scale of the noise: features [..., 2, X]."""

    def __init__(self):
        super().__init__()
        self.mean, self.noise = nn.Linear(J, X), nn.Parameter(torch.zeros(()))

    def forward(self, z):
        mean = self.mean(z)
        return torch.stack([mean, self.noise.expand_as(mean)], -2)


class Data:
    """A training set in reshuffled batches, and fresh points."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        patterns = NORM * torch.linalg.qr(torch.randn(X, SOURCES, generator=self.generator))[0].T
        self.train, _ = self.draw(TRAIN, patterns)
        self.test, self.sources = self.draw(TEST, patterns)

    def draw(self, n: int, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """Draw data [n, X] and their sources [n, SOURCES]."""
        present = torch.rand(n, SOURCES, generator=self.generator) < 0.25
        sources = present * (1.5 + 0.5 * torch.randn(n, SOURCES, generator=self.generator))
        return sources @ patterns + NOISE * torch.randn(n, X, generator=self.generator), sources

    def __iter__(self) -> Iterator[Tensor]:
        for rows in torch.randperm(TRAIN, generator=self.generator).split(BATCH):
            yield self.train[rows]


def sparse_coding(learning, budget, spikes=Concrete):
    prior = MixtureSparsePrior(PseudoInputs(PSEUDO_INPUTS, (X,)))
    encoder, decoder = MLPEncoder((X,), J, (100,), SpikeHead), LinearDecoder()
    networks = encoder, decoder, OBSERVATION
    model = VariationalSparseCoding(*networks, J, TRAIN, prior, spikes(), SPARSITY)
    return model, SparsePhase("joint", model, VSCOptions(warm_up=(0.0, 0.1), **learning), budget)


def plain(learning, budget):
    model = VAE(MLPEncoder((X,), J, (100,)), LinearDecoder(), OBSERVATION, J, TRAIN)
    return model, VAEJoint(model, VAEOptions(**learning), budget)


class Result(NamedTuple):
    active: int
    correlation: float
    contrast: float
    elbo: float


def learn(make, seed: int, steps: int) -> Result:
    """Train a model on the data of a seed, and measure its codes of fresh points."""
    data = Data(seed)
    pyro.set_rng_seed(seed)
    learning = {"learning_rate": 3e-3, "final_learning_rate": 6e-4}
    model, phase = make(learning, Budget(iterations=steps))
    for _ in fit([phase], data):
        pass
    model.eval()
    with torch.no_grad():
        codes = model.posterior(data.test).sample()  # those of a sparse code have exact zeros
    found = correlation_matrix(data.sources.numpy(), codes.numpy())
    elbo = bound(model, [(data.test,)])["elbo"]
    return Result(int(active_latents(found).sum()), best_correlation(found), contrast(found), elbo)


MODELS = {"sparse coding": sparse_coding, "VAE": plain}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--spikes", choices=SPIKES, default="concrete", help="relaxation of spikes in training"
    )
    options = parser.parse_args()
    models = MODELS | {"sparse coding": partial(sparse_coding, spikes=SPIKES[options.spikes])}
    print(f"{'':22}{'active':>8}{'correlation':>13}{'contrast':>10}{'ELBO':>9}{'seconds':>9}")
    for seed in range(options.seeds):
        for name, make in models.items():
            start = time.perf_counter()
            result = learn(make, seed, options.steps)
            seconds = time.perf_counter() - start
            measures = f"{result.correlation:13.3f}{result.contrast:10.3f}{result.elbo:9.2f}{seconds:9.1f}"
            print(f"seed {seed}, {name:14}{result.active:8}{measures}")


if __name__ == "__main__":
    main()
