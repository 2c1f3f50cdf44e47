"""Cost of ragged factors, against that of factors with the largest K_i.

    python examples/benchmarks/ragged.py                 # 2,2,2,64,64 and eight times 2 with 512
    python examples/benchmarks/ragged.py --factors 2,2,16,128 --batch-size 100 --compile --plot ragged.png
    python examples/benchmarks/ragged.py --json --device cuda

A captured step on factors with different numbers of components takes turns with the same step on factors that
all have the largest number, with one on factors that all have the smallest, and with a plain VAE in bare
PyTorch. All have the same perceptrons (784-200), D latent dimensions for each factor, and the same initial
weights. ``ms`` is a median, and ``ratio`` the median of each round's ratio to the plain VAE. ``ragged`` is
that of the ragged factors' time to this row's, with its quartiles: below 1, ragged factors are cheaper.
``peak_mb`` is the peak memory (10^6 bytes) of tensors during a step, above that before it. ``--compile``
compiles all methods. The data are random bits.
"""

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from bare_methods import vae, vae_compiled
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from pyro_methods import captured
from start import IMAGE, NUM_DATA, Learner, Rates, make_networks, random_images

from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.models import FactorialMixtureVAE

Sizes = tuple[int, ...]
FACTORS: list[Sizes] = [(2, 2, 2, 64, 64), (2,) * 8 + (512,)]
BATCH_SIZES = [64, 512]
RAGGED, LARGEST, SMALLEST, PLAIN = "ragged", "all largest", "all smallest", "plain VAE"
COLOURS = {RAGGED: "#c44e52", LARGEST: "#8c8c8c", SMALLEST: "#b8b8b8", PLAIN: "#4c72b0"}


def seeded(
    networks: tuple[torch.nn.Module, torch.nn.Module], factors: Sizes, dim: int, seed: int
) -> FactorialMixtureVAE:
    """A model with copies of these networks, and components from k-means on encoded random images."""
    model = FactorialMixtureVAE(
        *copy.deepcopy(networks), BernoulliObservation(2), factors, dim, num_data=NUM_DATA
    )
    images = random_images(max(2 * max(factors), 1000), seed)
    with torch.no_grad():
        model.seed(*model.encoder(images), None, torch.Generator().manual_seed(seed))
    return model


def learners(
    factors: Sizes, dim: int, compiled: bool, seed: int, device: torch.device
) -> dict[str, tuple[Sizes, Learner]]:
    """Name of each contestant → the sizes of its factors, and its learner."""
    torch.manual_seed(seed)
    networks = make_networks("mlp", len(factors) * dim, IMAGE)
    count = len(factors)
    sizes = {RAGGED: factors, LARGEST: (max(factors),) * count, SMALLEST: (min(factors),) * count}
    found = {
        name: (each, captured(seeded(networks, each, dim, seed).to(device), Rates(), compiled))
        for name, each in sizes.items()
    }
    plain = vae_compiled if compiled else vae
    return found | {PLAIN: ((), plain(seeded(networks, (1,) * count, dim, seed).to(device), Rates()))}


def measure(
    factors: Sizes, dim: int, batch_size: int, compiled: bool, steps: int, seed: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """One record for each contestant."""
    torch.compiler.reset()  # drop code compiled for other sizes
    found = learners(factors, dim, compiled, seed, device)
    contestants = {name: Contestant(name, learner.step, device) for name, (_, learner) in found.items()}
    batches = list(random_images(8 * batch_size, seed).to(device).split(batch_size))
    take_turns(list(contestants.values()), batches, steps)
    for name, contestant in contestants.items():
        low, ratio, high = contestants[RAGGED].ratio(contestant)
        yield {
            "set": list(factors),
            "method": name,
            "factors": list(found[name][0]),
            "D": dim,
            "B": batch_size,
            "compiled": compiled,
            "ms": round(contestant.ms, 4),
            "ratio": round(contestant.ratio(contestants[PLAIN])[1], 4),
            "ragged": round(ratio, 4),
            "ragged_quartiles": [round(low, 4), round(high, 4)],
            "peak_mb": round(contestant.peak_mb(batches[0]), 3),
            "rounds": len(contestant.blocks),
        }


ROW = "{method:14}{factors:22}{D:>4}{B:>5}{ms:>10}{ratio:>8}{ragged:>8}  {quartiles:14}{peak_mb:>9}"
COLUMNS = ("method", "factors", "D", "B", "ms", "ratio", "ragged", "quartiles", "peak_mb")


def in_words(factors: Sequence[int]) -> str:
    """Format runs of equal sizes, such as ``3x2 2x64``."""
    runs: list[list[int]] = []
    for size in factors:
        if runs and runs[-1][1] == size:
            runs[-1][0] += 1
        else:
            runs.append([1, size])
    return " ".join(f"{count}x{size}" for count, size in runs)


def as_row(record: dict[str, Any]) -> str:
    """Format a record as a line of the table."""
    low, high = record["ragged_quartiles"]
    shown = {"factors": in_words(record["factors"]), "quartiles": f"{low:.2f} - {high:.2f}"}
    shown |= {name: f"{record[name]:.2f}" for name in ("ms", "ratio", "ragged")}
    return ROW.format_map(record | shown | {"peak_mb": f"{record['peak_mb']:.1f}"})


def draw(records: Sequence[dict[str, Any]], path: str) -> None:
    """Draw bars of each contestant's time in units of the plain VAE's, by set of factors and batch."""
    places = list(dict.fromkeys((tuple(record["set"]), record["B"]) for record in records))
    figure, axis = plt.subplots(figsize=(7, 1 + 0.9 * len(places)), layout="constrained")
    for row, name in enumerate(COLOURS):
        bars = [record["ratio"] for record in records if record["method"] == name]
        heights = [place + 0.2 * (row - 1.5) for place in range(len(places))]
        axis.barh(heights, bars, height=0.18, color=COLOURS[name], label=name)
    axis.set_yticks(range(len(places)), [f"{in_words(sizes)}, B = {batch}" for sizes, batch in places])
    axis.invert_yaxis()
    axis.set_xlabel("time of a step / plain VAE's")
    axis.grid(axis="x", lw=0.4, alpha=0.7)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def sizes(text: str) -> Sizes:
    """Parse whole numbers >= 1, at least two of them different."""
    factors = tuple(natural_number(part) for part in text.split(","))
    if len(set(factors)) < 2:
        raise argparse.ArgumentTypeError(f"expected sizes that are not all equal, got '{text}'")
    return factors


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--factors",
        type=sizes,
        action="append",
        metavar="K,K,...",
        help="components of ragged factors; may be repeated",
    )
    parser.add_argument("--dim", type=natural_number, default=64, help="dimensions of each factor")
    parser.add_argument(
        "--batch-size",
        type=natural_number,
        action="append",
        help="points in a batch; may be repeated; default: 64 and 512",
    )
    parser.add_argument(
        "--steps",
        type=natural_number,
        default=100,
        help="timed steps of the fastest contestant (default: 100)",
    )
    parser.add_argument("--compile", action="store_true", help="compile the steps")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    records = []
    how = options.compile, options.steps, options.seed, options.device
    for factors in options.factors or FACTORS:
        for batch_size in options.batch_size or BATCH_SIZES:
            for record in measure(factors, options.dim, batch_size, *how):
                records.append(record)
                print(json.dumps(record) if options.json else as_row(record), flush=True)
    if options.plot:
        draw(records, options.plot)


if __name__ == "__main__":
    main()
