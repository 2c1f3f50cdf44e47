"""What one training step costs, next to a plain VAE with the same networks in bare PyTorch.

    python examples/benchmarks/step.py                   # both pairs of networks, I,D,K,B = 1,64,512,64
    python examples/benchmarks/step.py --net mlp --setting 5,64,64,64 --setting 1,64,64,64 --json

All methods live in one process and take turns in short blocks of steps, so that whatever else the machine
does hits all of them alike. ``ms`` is the median over all rounds; ``ratio`` is the median of each round's
ratio to the plain VAE (with its quartiles), the number to compare between machines; ``peak_mb`` is the most
memory (10^6 bytes) that tensors take during one step, above what was allocated before it, from a step of its
own that is not timed. The data are random bits.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any, NoReturn

import pyro
import torch
from peak_memory import PeakMemory
from step_methods import IMAGE, METHODS, NETS, Method, Setting, Step
from torch import Tensor

ROUNDS = 50  # at most; more steps make longer blocks
WARM_UP = 3


@dataclass
class Contestant:
    """A method with its step, and the time per step of each of its blocks, in ms."""

    method: Method
    step: Step
    device: torch.device
    blocks: list[float] = field(default_factory=list)

    def run(self, batches: Sequence[Tensor]) -> float:
        """Take the steps; returns milliseconds per step."""
        with pyro.validation_enabled(self.method.validate):
            self._synchronize()
            start = time.perf_counter()
            for x in batches:
                self.step(x)
            self._synchronize()
            return 1e3 * (time.perf_counter() - start) / len(batches)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_mb(self, x: Tensor) -> float:
        """Most memory that one step takes above what was allocated before it, in 10^6 bytes."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self.run([x])
            return (torch.cuda.max_memory_allocated(self.device) - before) / 1e6
        with PeakMemory() as memory:
            self.run([x])
        return memory.peak / 1e6


def measure(
    net: str, setting: Setting, steps: int, seed: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """One record per method."""
    contestants = []
    for method in METHODS:
        torch.manual_seed(seed)  # the same start values for all
        contestants.append(Contestant(method, method.make(net, setting, device), device))
    bits = torch.rand(8, setting.B, *IMAGE, generator=torch.Generator().manual_seed(seed)).round()
    batches = cycle(bits.to(device))
    for contestant in contestants:
        contestant.run(list(islice(batches, min(WARM_UP, steps))))
    rounds = min(steps, ROUNDS)
    for number in range(rounds):
        block = list(islice(batches, math.ceil(steps / rounds)))
        for index in range(len(contestants)):  # another one begins each time
            contestant = contestants[(number + index) % len(contestants)]
            contestant.blocks.append(contestant.run(block))
    floor = contestants[0].blocks
    for contestant in contestants:
        ratios = [ms / floor_ms for ms, floor_ms in zip(contestant.blocks, floor, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive") if rounds > 1 else ratios * 3
        yield {
            "method": contestant.method.name,
            "net": net,
            **asdict(setting),
            "ms": round(statistics.median(contestant.blocks), 4),
            "ratio": round(ratio, 4),
            "ratio_quartiles": [round(low, 4), round(high, 4)],
            "peak_mb": round(contestant.peak_mb(bits[0].to(device)), 3),
            "rounds": rounds,
        }


ROW = "{method:34}{net:6}{I:>3}{D:>5}{K:>5}{B:>5}{ms:>10}{ratio:>8}  {quartiles:13}{peak_mb:>9}"
COLUMNS = ("method", "net", "I", "D", "K", "B", "ms", "ratio", "quartiles", "peak_mb")


def as_row(record: dict[str, Any]) -> str:
    """A record as a line of the table."""
    low, high = record["ratio_quartiles"]
    shown = {"quartiles": f"{low:.2f} - {high:.2f}", "ms": f"{record['ms']:.2f}"}
    shown |= {"ratio": f"{record['ratio']:.2f}", "peak_mb": f"{record['peak_mb']:.1f}"}
    return ROW.format_map(record | shown)


def machine(device: torch.device) -> str:
    """What the numbers depend on, in words."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return f"{kind} ({device}), {cores}, torch {torch.__version__}, pyro {pyro.__version__}"


class Parser(argparse.ArgumentParser):
    """A parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def natural_number(text: str) -> int:
    """A whole number >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got '{text}'")
    return int(text)


def usable_device(text: str) -> torch.device:
    """``cpu``, ``cuda`` or ``cuda:N``, if it is there."""
    try:
        device = torch.device(text)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise argparse.ArgumentTypeError(
            f"expected cpu or a CUDA device that is there, got '{text}'"
        ) from None
    return device


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, help="one pair of networks; default: both")
    parser.add_argument(
        "--setting", type=Setting.parse, action="append", metavar="I,D,K,B", help="may be repeated"
    )
    parser.add_argument(
        "--steps", type=natural_number, default=200, help="timed steps per method (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=natural_number, help="of torch; default: its own choice")
    parser.add_argument("--device", type=usable_device, default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    for setting in options.setting or [Setting(1, 64, 512, 64)]:
        for net in [options.net] if options.net else NETS:
            for record in measure(net, setting, options.steps, options.seed, options.device):
                print(json.dumps(record) if options.json else as_row(record), flush=True)


if __name__ == "__main__":
    main()
