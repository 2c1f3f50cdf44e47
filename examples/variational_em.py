"""From variational EM to the variational auto-encoder: one decoder, learnt with three kinds of E-step.

    python examples/variational_em.py [--steps 2000] [--seed 0]

The data are scikit-learn's handwritten digits, 8x8 pixels: 1,400 for training, 397 for testing. The model is
z ~ N(0, I) in 8 dimensions, x ~ N(decoder(z)). The decoder is learnt by equally many updates from the same
start, with three kinds of q(z) = N(m, diag(s²)):

* ``free``: every point keeps its own m and s, which take a few gradient steps at each visit;
* ``amortised``: an encoder, learnt along with the decoder, gives both;
* ``hybrid``: an encoder gives the start of a few free steps.

Columns are the bound on test points at the best q(z) of each point, found by 300 free steps; the bound at the
encoder's q(z); the amortisation gap between the two, with its standard error over points; and the seconds of
training. The last row is the limit s = 0, the auto-encoder. Its reconstruction term is no bound on log p(x)
and not comparable with bounds.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits

from pyro_fmvae import VAE, GaussianObservation, fit
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate import amortisation_gap, bound
from pyro_fmvae.learn import Budget, FreeEM, HybridEM, VAEJoint, VAEOptions
from pyro_fmvae.models import FreeEncoder, PointPosterior
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

TRAIN, SHAPE, J, HIDDEN, BATCH = 1400, (8, 8), 8, (128,), 100
FREE_STEPS = 5  # of q(z) at each visit
ROW = "{:12}{:>18}{:>18}{:>20}{:>10}"


def digits(seed):
    """Training and test digits, with pixels in [0, 1]."""
    x = torch.as_tensor(load_digits().images / 16, dtype=torch.float32)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    return x[:TRAIN], x[TRAIN:]


def untrained(seed, free=False, family=None):
    """An untrained model; its decoder depends on the seed only."""
    torch.manual_seed(seed)
    decoder, observation = MLPDecoder(J, SHAPE, 2, HIDDEN), GaussianObservation(2, 0.05, 0.5)
    encoder = FreeEncoder(decoder, observation, J) if free else MLPEncoder(SHAPE, J, HIDDEN)
    return VAE(encoder, decoder, observation, J, TRAIN, family=family)


def learn(phase, x, seed):
    """Run a phase; return its seconds, and the model in evaluation mode."""
    batches = Batches(Split(x), BATCH, seed=seed, indexed=isinstance(phase, FreeEM))
    started = time.perf_counter()
    for _ in fit([phase], batches):
        pass
    return time.perf_counter() - started, phase.model.eval()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000, help="updates of the decoder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train, test = digits(options.seed)
    learning = VAEOptions(learning_rate=2e-3, final_learning_rate=2e-4, free_steps=FREE_STEPS)
    budget = Budget(iterations=options.steps)
    phases = {
        "free": FreeEM(untrained(options.seed, free=True), learning, budget),
        "amortised": VAEJoint(untrained(options.seed), learning, budget),
        "hybrid": HybridEM(untrained(options.seed), learning, budget),
    }
    print(ROW.format("E-step", "test bound, free", "amortised", "gap", "seconds"))
    for name, phase in phases.items():
        seconds, model = learn(phase, train, options.seed)
        found = amortisation_gap(model, [(test,)], seed=options.seed)
        gap, error = found["amortisation_gap"], found["standard_error"]
        assert gap > -4 * error, f"free steps lowered the bound by {-gap:.3f} ± {error:.3f}"
        encoder = (
            (f"{found['elbo_amortised']:.2f}", f"{gap:.2f} ± {error:.2f}") if name != "free" else ("-", "-")
        )
        print(ROW.format(name, f"{found['elbo_free']:.2f}", *encoder, f"{seconds:.1f}"))
    limit = VAEJoint(untrained(options.seed, family=PointPosterior()), learning, budget)
    seconds, model = learn(limit, train, options.seed)
    reconstruction = bound(model, [(test,)])["reconstruction"]
    print(f"auto-encoder, s = 0: reconstruction {reconstruction:.2f} in {seconds:.1f} seconds, no bound")


if __name__ == "__main__":
    main()
