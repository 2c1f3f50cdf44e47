"""Bars found by binary sparse coding, by the max rule and by its linear twin, without labels or networks.

    python examples/bars.py [--data-sets 3] [--out bars]
    python examples/bars.py --data-sets 20 --models binary

Every data set has 500 images of 4×4 pixels. Each image has two of eight bars (four rows, four columns) on
average. Binary sparse coding learns from sums of bars of height 1 with noise of deviation 0.1. It is started
five times, and the start with the best bound is kept. The max rule learns from bars of height 10 s,
s from N(1, 0.2²), the largest of which wins at each pixel, with noise of deviation 1. Its linear twin learns
from their sums. Both are started twice, and the start with less noise is kept. The last line applies the
linear twin to the data of the max rule, as an example of a wrong rule.

The script prints the number of data sets that were recovered completely (each bar has its own unit with a
cosine above 0.95), the mean number of bars found, the noise found, and seconds per data set. Pictures show
the first data set: learnt bars below the true ones, and values of s under the max rule against its prior.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch

from pyro_fmvae import figures, fit
from pyro_fmvae.data import Bars, BarsTruth, Batches, Split, bars, bars_truth
from pyro_fmvae.evaluate import UnitMatch, match_units
from pyro_fmvae.learn import Budget, StepwiseEM
from pyro_fmvae.models import BinarySparseCoding, SpikeAndSlabSparseCoding
from pyro_fmvae.models.em import BinaryEM, LinearRule, MaxRule, SpikeAndSlabEM

UNITS, POINTS, SHAPE = 8, 500, (4, 4)
BINARY_ITERATIONS, SLAB_ITERATIONS = 80, 50


class Found(NamedTuple):
    model: Any
    match: UnitMatch
    noise: float
    seconds: float

    @property
    def complete(self) -> bool:
        return self.match.recovered == UNITS


def binary(iterations: int | None) -> tuple[Any, StepwiseEM]:
    em = BinaryEM(UNITS, nonnegative=True)
    model = BinarySparseCoding(SHAPE, POINTS, em)
    budget = Budget(iterations=iterations or BINARY_ITERATIONS)
    return model, StepwiseEM(model, em, budget, starts=5, reseed_every=5)


def slabs(rule: Any, iterations: int | None) -> tuple[Any, StepwiseEM]:
    em = SpikeAndSlabEM(rule, UNITS, preselect=5)
    model = SpikeAndSlabSparseCoding(SHAPE, POINTS, em)
    budget = Budget(iterations=iterations or SLAB_ITERATIONS)
    return model, StepwiseEM(model, em, budget, starts=2, temperature=3.0)


MODELS = {
    "binary": ("binary", binary),
    "max": ("max", lambda iterations: slabs(MaxRule(), iterations)),
    "linear": ("linear", lambda iterations: slabs(LinearRule(), iterations)),
    "linear-on-max": ("max", lambda iterations: slabs(LinearRule(), iterations)),
}


def truth_of(kind: str) -> BarsTruth:
    truth = bars_truth(f"bars-{kind}")
    assert truth is not None
    return truth


def learn(name: str, data: Bars, seed: int, iterations: int | None) -> Found:
    """Train one model on one data set."""
    kind, make = MODELS[name]
    pyro.set_rng_seed(seed)
    model, phase = make(iterations)
    batches = Batches(Split(data.x.float()), POINTS, indexed=True)
    start = time.monotonic()
    for _ in fit([phase], batches):
        pass
    seconds = time.monotonic() - start
    match = match_units(model.dictionary.detach().double().numpy(), truth_of(kind).dictionary.numpy())
    return Found(model, match, model.log_scale.exp().item(), seconds)


def row(name: str, results: list[Found]) -> str:
    noise = sorted(result.noise for result in results)
    return (
        f"{name:14}{sum(result.complete for result in results):>4} of {len(results):<4}"
        f"{statistics.mean(result.match.recovered for result in results):>10.2f}"
        f"{statistics.median(noise):>10.3f}  {noise[0]:.3f} to {noise[-1]:.3f}"
        f"{statistics.mean(result.seconds for result in results):>10.2f}"
    )


def draw(name: str, found: Found, data: Bars, folder: Path) -> None:
    """Draw one model's first data set."""
    truth, model = truth_of(MODELS[name][0]), found.model
    dictionary = model.dictionary.detach()
    shown = figures.recovered_units(truth.dictionary, dictionary, found.match)
    figures.save(shown, folder / f"{name}.png")
    if name != "max":
        return
    assert truth.loc is not None and truth.scale is not None
    probs, scale = model.logits.detach().sigmoid(), (0.5 * model.log_variance.detach()).exp()
    draws = model.gibbs(data.x.float())
    figures.save(figures.slab_histogram(draws, probs, model.loc.detach(), scale), folder / "max-causes.png")
    height = dictionary.amax((1, 2)).mean().item()
    print(f"{'max':16}{'true':>10}{'learnt':>10}")
    for parameter, true, learnt in (
        ("probability", truth.probs, probs.mean().item()),
        ("height of a bar", truth.dictionary.max().item() * truth.loc, height),
        ("deviation of s", truth.scale / truth.loc, scale.mean().item()),
        ("noise", truth.noise, found.noise),
    ):
        print(f"{parameter:16}{true:10.4f}{learnt:10.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-sets", type=int, default=3, help="data sets for each model")
    parser.add_argument(
        "--models", default=",".join(MODELS), help="models to learn, out of " + ",".join(MODELS)
    )
    parser.add_argument("--iterations", type=int, help="EM iterations; default: 80 for binary, 50 for others")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first data set; the next ones have the next seeds"
    )
    parser.add_argument("--out", type=Path, help="folder for pictures; default: no pictures")
    chosen = parser.parse_args()
    names = chosen.models.split(",")
    if unknown := set(names) - set(MODELS):
        parser.error(f"models: expected some of {', '.join(MODELS)}, got {', '.join(unknown)}")
    if chosen.data_sets < 1:
        parser.error(f"data-sets: expected a number >= 1, got {chosen.data_sets}")
    print(f"{'model':14}{'complete':12}{'bars':>6}{'noise':>10}  {'range':14}{'seconds':>10}")
    for name in names:
        seeds = range(chosen.seed, chosen.seed + chosen.data_sets)
        sets = [bars(MODELS[name][0], seed=seed) for seed in seeds]
        results = [learn(name, *pair, chosen.iterations) for pair in zip(sets, seeds, strict=True)]
        print(row(name, results), flush=True)
        if chosen.out is not None:
            chosen.out.mkdir(parents=True, exist_ok=True)
            with torch.no_grad():
                draw(name, results[0], sets[0], chosen.out)
    if chosen.out is not None:
        print(f"pictures in {chosen.out}")


if __name__ == "__main__":
    main()
