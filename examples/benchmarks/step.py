"""Cost of one training step, against a plain VAE with the same networks in bare PyTorch.

    python examples/benchmarks/step.py                   # both pairs of networks, six settings, all methods
    python examples/benchmarks/step.py --net mlp --setting 5,64,64,64 --setting 1,64,64,64 --json
    python examples/benchmarks/step.py --methods=vae,captured,TraceEnum --plot step.png
    python examples/benchmarks/step.py --methods=-compiled            # all but those with it in their names

All methods run in one process, start from the same networks and components, and take turns in short blocks of
steps. ``ms`` is the median over all rounds. ``ratio`` is the median of each round's ratio to the floor, with
its quartiles; compare it between machines. The floor is the fastest plain VAE among the methods. ``peak_mb``
is the peak memory (10^6 bytes) of tensors during one step above that before it, from a separate step that is
not timed. On a machine with other work take ``--threads 1 --clock cpu``. The data are random bits. Pyro's
validation is off, except for the one method that says so.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from command_line import Parser, machine, natural_number
from contest import CLOCKS, Contestant, take_turns
from start import NETS, Rates, Setting, random_images, seeded_model
from step_methods import METHODS, Method, choose
from step_plot import draw

SETTINGS = [
    Setting(1, 64, 64, 64),
    Setting(1, 64, 512, 64),
    Setting(5, 64, 64, 64),
    Setting(2, 128, 64, 64),
    Setting(1, 64, 512, 512),
    Setting(1, 64, 4096, 64),
]


def measure(
    net: str,
    setting: Setting,
    methods: Sequence[Method],
    steps: int,
    seed: int,
    device: torch.device,
    limit_mb: float,
    clock: Callable[[], float],
) -> Iterator[dict[str, Any]]:
    """One record per method."""
    torch.compiler.reset()  # drop code compiled for other sizes
    start = seeded_model(net, setting, seed, device)
    contestants, skipped = {}, {}
    for method in methods:
        foretold = 4 * method.numbers(setting) / 1e6
        if foretold > limit_mb:
            skipped[method] = f"would take about {foretold:.0f} MB, more than {limit_mb:.0f}"
            continue
        step = method.make(copy.deepcopy(start), Rates()).step
        contestants[method] = Contestant(method.name, step, device, method.validate, clock)
    batches = list(random_images(8 * setting.B, seed).to(device).split(setting.B))
    take_turns(list(contestants.values()), batches, steps)
    floor = min((contestants[method] for method in methods if method.floor), key=lambda c: c.ms)
    for method in methods:
        record = {"method": method.name, "net": net, **asdict(setting)}
        if method in contestants and not math.isfinite(contestants[method].loss):
            skipped[method] = "its loss became infinite"
        if method in skipped:
            yield record | {"skipped": skipped[method]}
            continue
        contestant = contestants[method]
        low, ratio, high = contestant.ratio(floor)
        yield record | {
            "ms": round(contestant.ms, 4),
            "ratio": round(ratio, 4),
            "ratio_quartiles": [round(low, 4), round(high, 4)],
            "peak_mb": round(contestant.peak_mb(batches[0]), 3),
            "rounds": len(contestant.blocks),
            "floor": floor.name,
        }


WIDTH = max(len(method.name) for method in METHODS) + 2
PLACE = f"{{method:{WIDTH}}}" + "{net:6}{I:>3}{D:>5}{K:>6}{B:>5}"
ROW = PLACE + "{ms:>10}{ratio:>9}  {quartiles:17}{peak_mb:>9}"
COLUMNS = ("method", "net", "I", "D", "K", "B", "ms", "ratio", "quartiles", "peak_mb")


def as_row(record: dict[str, Any]) -> str:
    """Format a record as a line of the table."""
    if "skipped" in record:
        return (PLACE + "  skipped: {skipped}").format_map(record)
    low, high = record["ratio_quartiles"]
    shown = {"quartiles": f"{low:.2f} - {high:.2f}", "ms": f"{record['ms']:.2f}"}
    shown |= {"ratio": f"{record['ratio']:.2f}", "peak_mb": f"{record['peak_mb']:.1f}"}
    return ROW.format_map(record | shown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__)
    parser.add_argument("--net", choices=NETS, help="one pair of networks; default: both")
    parser.add_argument(
        "--setting", type=Setting.parse, action="append", metavar="I,D,K,B", help="sizes; may be repeated"
    )
    parser.add_argument(
        "--methods", type=choose, default=list(METHODS), help="substrings of names, separated by commas"
    )
    parser.add_argument(
        "--steps", type=natural_number, default=200, help="timed steps of the fastest method (default: 200)"
    )
    parser.add_argument(
        "--limit-mb", type=natural_number, default=4000, help="skip methods that would take more memory"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: total time of all threads")
    options = parser.parse_args(arguments)
    methods = [each for each in options.methods if options.device.type == "cuda" or not each.on_gpu]
    if not any(method.floor for method in methods):
        parser.error("--methods: expected a plain VAE among them, for the ratios")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    records = []
    for setting in options.setting or SETTINGS:
        for net in [options.net] if options.net else NETS:
            for record in measure(
                net,
                setting,
                methods,
                options.steps,
                options.seed,
                options.device,
                options.limit_mb,
                CLOCKS[options.clock],
            ):
                records.append(record)
                print(json.dumps(record) if options.json else as_row(record), flush=True)
    if options.plot:
        draw(records, options.plot)


if __name__ == "__main__":
    main()
