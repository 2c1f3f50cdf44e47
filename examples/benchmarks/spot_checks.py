"""Cost of a spot check of a captured step.

    python examples/benchmarks/spot_checks.py
    python examples/benchmarks/spot_checks.py --nets mlp --compile --steps 200 --json
    python examples/benchmarks/spot_checks.py --device cuda

Steps on 28×28 random bits, with the paper's convolutions or perceptrons of 200 units, batches of 64, and one
factor of 64 dimensions and 64 components. Of two copies of a model, one is checked at every step, the other
at none; they take turns in short blocks of steps in one process. ``ratio`` is the median over rounds of the
ratio to unchecked steps, with its quartiles. ``share`` is how much one check adds to 1,000 steps, in percent:
the first 1,000 contain one check, or none if compiled.
"""

import copy
import json
from collections.abc import Sequence
from typing import Any

import torch
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from start import NETS, Setting, Step, fused_adam, random_images, seeded_model
from torch import Tensor

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.models import FactorialMixtureVAE

PAPERS = Setting(1, 64, 64, 64)
CHECKED_STEP = 1024  # the number of a step that is checked, compiled or not
FLOOR, CHECKED = "unchecked", "checked at every step"
COLUMNS = ("net", "steps", "ms", "ratio", "quartiles", "share")
ROW = "{net:6}{steps:24}{ms:>10}{ratio:>9}  {quartiles:17}{share:>8}"


def captured(model: FactorialMixtureVAE, compile: bool, checked: bool) -> Step:
    """Captured steps; if ``checked``, each counts as one that is due for a check."""
    optim = NaturalGradient(0.01, fused_adam(1e-4), model.parameters())
    svi = CapturedSVI(
        model.model, model.guide, optim, TraceConjugate_ELBO(), compile=compile, spot_checks=checked
    )

    def step(x: Tensor) -> float:
        if checked:
            for each in svi._steps.values():
                each.spot_check.steps = CHECKED_STEP - 1
        return svi.step(x)

    return step


def measure(
    net: str, setting: Setting, compile: bool, steps: int, seed: int, device: torch.device
) -> list[dict[str, Any]]:
    """One record for unchecked steps, one for checked ones."""
    torch.compiler.reset()
    start = seeded_model(net, setting, seed, device)
    floor, checked = (
        Contestant(name, captured(copy.deepcopy(start), compile, name == CHECKED), device)
        for name in (FLOOR, CHECKED)
    )
    batches = list(random_images(8 * setting.B, seed).to(device).split(setting.B))
    take_turns([floor, checked], batches, steps)
    records = []
    for contestant in (floor, checked):
        low, ratio, high = contestant.ratio(floor)
        records.append(
            {
                "net": net,
                "steps": contestant.name,
                "compile": compile,
                "ms": round(contestant.ms, 4),
                "ratio": round(ratio, 4),
                "ratio_quartiles": [round(low, 4), round(high, 4)],
                "share": round((ratio - 1) / 10, 4),
            }
        )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, pictures=False)
    parser.add_argument(
        "--nets", type=lambda text: text.split(","), default=list(NETS), help="networks: mlp,conv"
    )
    parser.add_argument(
        "--setting", type=Setting.parse, default=PAPERS, metavar="I,D,K,B", help=f"sizes: {PAPERS}"
    )
    parser.add_argument("--compile", action="store_true", help="compile the steps")
    parser.add_argument("--steps", type=natural_number, default=200, help="timed steps of each")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.nets} - {*NETS}):
        parser.error(f"--nets: expected some of {', '.join(NETS)}, got {', '.join(unknown)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    for net in options.nets:
        how = options.setting, options.compile, options.steps, options.seed, options.device
        for record in measure(net, *how):
            low, high = record["ratio_quartiles"]
            row = record | {"quartiles": f"{low:.2f} - {high:.2f}", "share": f"{record['share']:.2f} %"}
            print(json.dumps(record) if options.json else ROW.format_map(row), flush=True)


if __name__ == "__main__":
    main()
