"""Outlier scores: four scores of two models, for digits against five kinds of other images.

    python examples/outliers.py [--seeds 3] [--steps 2500] [--samples 16]

The digits are scikit-learn's, 8x8 greys: 1,400 for training, 397 for testing. The outliers are altered test
digits (inverted, rotated by 90 degrees, or with permuted pixels) and artificial images (uniform noise, bars).
The models are a VAE with a N(0, I) prior and one with a factorial mixture prior, both with eight latent
dimensions, the same perceptrons and the same number of updates. The observation is Gaussian with one learnt
standard deviation.

The script prints the area under the ROC curve of each score, test digits against outliers. An area of 1 is
perfect and 0.5 is chance; below that, the score finds outliers less surprising than digits. Ranges are over
seeds.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

from pyro_fmvae import VAE, FactorialMixtureVAE, GaussianObservation, fit
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate import outlier_scores
from pyro_fmvae.learn import Budget, FMVAEOptions, Joint, Pretraining, PriorFitting, VAEJoint, VAEOptions
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

SHAPE = (8, 8)
TRAIN = 1400
LATENT = 8
HIDDEN = (128,)
FACTORS = (10, 10)  # components of two factors with four dimensions each
KINDS = ("kl", "reconstruction", "elbo", "iwae")


class OneScale(nn.Module):
    """A decoder of means, with one learnt number for the standard deviation of all pixels."""

    def __init__(self, mean):
        super().__init__()
        self.mean, self.logit = mean, nn.Parameter(torch.zeros(()))

    def forward(self, z):
        mean = self.mean(z)
        return torch.cat([mean, self.logit.expand_as(mean)], -3)


def networks():
    """Encoder, decoder and observation."""
    decoder = OneScale(MLPDecoder(LATENT, SHAPE, 1, HIDDEN))
    return MLPEncoder(SHAPE, LATENT, HIDDEN), decoder, GaussianObservation(2, 0.01, 1.0)


def plain(steps, _):
    """A VAE with a N(0, I) prior, and its phases of learning."""
    model = VAE(*networks(), LATENT, TRAIN)
    return model, [VAEJoint(model, VAEOptions(), Budget(iterations=steps))]


def mixture(steps, seed):
    """A factorial mixture VAE, and its phases, with as many updates of the networks."""
    model = FactorialMixtureVAE(*networks(), FACTORS, LATENT // len(FACTORS), TRAIN)
    learning, first = FMVAEOptions(), max(2 * steps // 5, 1)
    return model, [
        Pretraining(model, learning, Budget(iterations=first)),
        PriorFitting(model, learning, Budget(iterations=max(steps // 25, 1)), seed),
        Joint(model, learning, Budget(iterations=max(steps - first, 1))),
    ]


MODELS = {"VAE": plain, "factorial mixture VAE": mixture}


def digits(seed):
    """Training and test digits, greys in [0, 1], each [n, 8, 8]."""
    images = torch.from_numpy(load_digits().images).float() / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order].split([TRAIN, len(images) - TRAIN])


def outliers(test, seed):
    """Images that are not digits, as many of each kind as there are test digits."""
    generator = torch.Generator().manual_seed(seed)
    permutation = torch.randperm(SHAPE[0] * SHAPE[1], generator=generator)
    rows, columns = (torch.rand(2, len(test), SHAPE[0], generator=generator) < 0.2).unbind()
    return {
        "inverted": 1 - test,
        "rotated 90 degrees": test.rot90(1, (1, 2)),
        "pixels permuted": test.flatten(1)[:, permutation].reshape(test.shape),
        "uniform noise": torch.rand(test.shape, generator=generator),
        "bars": (rows[:, :, None] | columns[:, None, :]).float(),
    }


def areas(make, steps, samples, seed):
    """Area under the ROC curve: (kind of outliers, score) → number."""
    torch.manual_seed(seed)
    train, test = digits(seed)
    model, phases = make(steps, seed)
    for _ in fit(phases, Batches(Split(train), 100, seed=seed)):
        pass
    model.eval()

    def scores(x):
        return outlier_scores(model, Batches(Split(x), len(x), shuffle=False), samples, seed)

    usual, found = scores(test), {}
    for name, x in outliers(test, seed).items():
        unusual = scores(x)
        truth = [0] * len(test) + [1] * len(x)
        for kind in KINDS:
            found[name, kind] = roc_auc_score(truth, [*usual[kind], *unusual[kind]])
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2500, help="updates of the networks")
    parser.add_argument("--samples", type=int, default=16, help="draws of z per image")
    options = parser.parse_args()
    started = time.monotonic()
    print(f"| model | outliers | {' | '.join(KINDS)} |")
    print("| --- " * (2 + len(KINDS)) + "|")
    for name, make in MODELS.items():
        runs = [areas(make, options.steps, options.samples, seed) for seed in range(options.seeds)]
        for kind in dict.fromkeys(kind for kind, _ in runs[0]):
            values = [[run[kind, score] for run in runs] for score in KINDS]
            cells = (" to ".join(dict.fromkeys(f"{end(v):.3f}" for end in (min, max))) for v in values)
            print(f"| {name} | {kind} | {' | '.join(cells)} |")
    print(f"\n{options.seeds} seeds, {options.steps} steps each: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
