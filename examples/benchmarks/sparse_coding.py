"""Cost of sparse coding by stepwise EM against the number of units H and of data points N.

    python examples/benchmarks/sparse_coding.py                  # up to 512 units, up to 100,000 patches
    python examples/benchmarks/sparse_coding.py --models bsc --units 8,32 --points 2000
    python examples/benchmarks/sparse_coding.py --device cuda --json

The data are whitened 12×12 patches of the photographs that scikit-learn ships, in batches of 500. The models
are binary sparse coding (three mean-field sweeps), and spike-and-slab sparse coding with the max and the
linear rule (four Gibbs sweeps over the five best units of each point). A step is an E-step, an update of
statistics and an M-step. H grows at the largest N, N at the largest H. Settings of a model take turns.
``ratio`` is the median over rounds of the ratio to its first setting, per step, with its quartiles. ``epoch``
is seconds for all N points, from the median step. ``held`` is the memory of data, latents and statistics in
10^6 bytes, and ``peak_mb`` the peak memory of a step above that.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from torch import Tensor

from pyro_fmvae.data import Batches, SparseOptions, Split, load
from pyro_fmvae.learn import Budget, StepwiseEM
from pyro_fmvae.models import BinarySparseCoding, SpikeAndSlabSparseCoding
from pyro_fmvae.models.em import BinaryEM, LinearRule, MaxRule, SpikeAndSlabEM

PATCH, BATCH, PRESELECT = 12, 500, 5
UNITS = {"bsc": [32, 128, 512], "max-sparse": [25, 50, 100], "linear-sparse": [25, 50, 100]}
POINTS = {"bsc": [25_000, 100_000], "max-sparse": [5_000, 20_000], "linear-sparse": [5_000, 20_000]}
ROW = "{model:14}{H:>6}{N:>9}{ms:>10}{ratio:>8}  {quartiles:15}{epoch:>9}{held:>9}{peak_mb:>9}"
COLUMNS = ("model", "H", "N", "ms", "ratio", "quartiles", "epoch", "held", "peak_mb")


class Setting(NamedTuple):
    model: str
    units: int
    points: int


def settings(name: str, units: Sequence[int], points: Sequence[int]) -> list[Setting]:
    """H grows at the largest N; N at the largest H."""
    growing = [Setting(name, number, points[-1]) for number in units]
    return growing + [Setting(name, units[-1], number) for number in points[:-1]]


def patches(number: int) -> Tensor:
    """Whitened patches, float32 [number, 12, 12], repeated if there are too few."""
    options = SparseOptions(patch_size=PATCH, patches=int(number / 0.8) + 10)
    x = load("scenes", sparse=options).train.x
    return x[torch.arange(number) % len(x)]


def begun(setting: Setting, x: Tensor, device: torch.device) -> StepwiseEM:
    """Set up a training before its first step."""
    shape = (PATCH, PATCH)
    if setting.model == "bsc":
        binary = BinaryEM(setting.units)
        phase = StepwiseEM(
            BinarySparseCoding(shape, setting.points, binary).to(device), binary, Budget(iterations=1)
        )
    else:
        rule = MaxRule() if setting.model == "max-sparse" else LinearRule()
        slabs = SpikeAndSlabEM(rule, setting.units, PRESELECT)
        model = SpikeAndSlabSparseCoding(shape, setting.points, slabs).to(device)
        phase = StepwiseEM(model, slabs, Budget(iterations=1))
    phase.enter()
    phase.prepare(Batches(Split(x), 10 * BATCH, indexed=True, device=device))
    phase.before_step(1.0)
    return phase


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per setting."""
    chosen = settings(name, options.units or UNITS[name], options.points or POINTS[name])
    data = patches(max(setting.points for setting in chosen))
    generator = torch.Generator().manual_seed(options.seed)
    least = min(setting.points for setting in chosen)
    rows = [torch.randperm(least, generator=generator)[:BATCH].to(options.device) for _ in range(8)]
    held, contestants = [], []
    for setting in chosen:
        torch.manual_seed(options.seed)
        phase, x = begun(setting, data[: setting.points], options.device), data[: setting.points]
        x = x.to(options.device)

        def step(batch: Tensor, phase: StepwiseEM = phase, x: Tensor = x) -> float:
            return phase.step(x[batch], batch)

        contestants.append(Contestant(str(setting), step, options.device))
        contestants[-1].run(rows[:1])
        assert phase.statistics is not None
        tensors = [x, phase.latents, *phase.statistics.values.values()]
        held.append(sum(t.numel() * t.element_size() for t in tensors) / 1e6)
    take_turns(contestants, rows, options.steps)
    records = []
    for setting, contestant, mb in zip(chosen, contestants, held, strict=True):
        low, ratio, high = contestant.ratio(contestants[0])
        records.append(
            {
                "model": name,
                "H": setting.units,
                "N": setting.points,
                "ms": round(contestant.ms, 2),
                "ratio": round(ratio, 2),
                "quartiles": f"{low:.2f} to {high:.2f}",
                "epoch": round(contestant.ms * setting.points / BATCH / 1e3, 2),
                "held": round(mb, 1),
                "peak_mb": round(contestant.peak_mb(rows[0]), 1),
            }
        )
    return records


def numbers(text: str) -> list[int]:
    """Parse ascending whole numbers >= 2."""
    values = [natural_number(part) for part in text.split(",")]
    if values != sorted(set(values)) or values[0] < 2:
        raise argparse.ArgumentTypeError(f"expected growing numbers >= 2, got '{text}'")
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, pictures=False)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(UNITS))
    parser.add_argument(
        "--units", type=numbers, metavar="H,H,...", help="numbers of units; default: by model"
    )
    parser.add_argument(
        "--points", type=numbers, metavar="N,N,...", help="numbers of data points; default: by model"
    )
    parser.add_argument("--steps", type=natural_number, default=20, help="timed steps of the fastest setting")
    options = parser.parse_args(arguments)
    if unknown := set(options.models) - set(UNITS):
        parser.error(f"--models: expected some of {', '.join(UNITS)}, got {', '.join(sorted(unknown))}")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device))
        print(ROW.format_map({name: name for name in COLUMNS}), flush=True)
    for name in options.models:
        for record in measure(name, options):
            print(json.dumps(record) if options.json else ROW.format_map(record), flush=True)


if __name__ == "__main__":
    main()
