"""Cost of a training step on a CPU if freed memory is kept, against the C library's default.

    python examples/benchmarks/freed_memory.py
    python examples/benchmarks/freed_memory.py --nets conv --steps 100 --json

Captured steps of a plain VAE on 28×28 random bits, with the paper's convolutions or perceptrons of 200
units, batches of 64 and 64 latents. The setting holds for a process, so there are two processes, which take
turns in short blocks of steps. ``ratio`` is the median over rounds of the ratio to the default, with its
quartiles. ``faults`` is the mean number of pages that a step requests from the kernel, and ``held`` the peak
memory of the process.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from start import NETS, NUM_DATA, fused_adam, make_networks, random_images

from pyro_fmvae import keep_freed_memory
from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.models import VAE

LATENTS, BATCH, RATE = 64, 64, 1e-4
WARM_UP = 5
STAT, STATUS = Path("/proc/self/stat"), Path("/proc/self/status")
METHODS = {"given back": False, "kept": True}
FLOOR = "given back"
COLUMNS = ("net", "memory", "ms", "ratio", "quartiles", "faults", "held_mb")
ROW = "{net:6}{memory:12}{ms:>10}{ratio:>9}  {quartiles:17}{faults:>9}{held_mb:>9}"
CPU = torch.device("cpu")


def work(connection: Connection, net: str, keep: bool, threads: int, seed: int) -> None:
    """Answer each True by the loss of a step; at the end send page faults per step and MB held."""
    if keep:
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = VAE(*make_networks(net, LATENTS), BernoulliObservation(2), LATENTS, NUM_DATA)
    optim = NaturalGradient(1.0, fused_adam(RATE), model.parameters())
    svi = CapturedSVI(model.model, model.guide, optim, TraceConjugate_ELBO())
    batches = cycle(random_images(8 * BATCH, seed).split(BATCH))
    for _ in range(WARM_UP):
        svi.step(next(batches))
    before, steps = page_faults(), 0
    while connection.recv():
        connection.send(svi.step(next(batches)))
        steps += 1
    connection.send(((page_faults() - before) / max(steps, 1), held_mb()))


def page_faults() -> int:
    """Minor page faults of this process so far, from Linux's /proc/self/stat."""
    return int(STAT.read_text().rpartition(")")[2].split()[7])


def held_mb() -> float:
    """Peak memory of this process, in 10^6 bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def worker(*arguments: Any) -> Iterator[Connection]:
    """A process that takes steps."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def remote_step(connection: Connection, _: object) -> float:
    """Let a worker take a step; return its loss."""
    connection.send(True)
    loss: float = connection.recv()
    return loss


def measure(net: str, steps: int, seed: int) -> list[dict[str, Any]]:
    """One record for each setting of memory."""
    threads = torch.get_num_threads()
    with worker(net, False, threads, seed) as default, worker(net, True, threads, seed) as keeping:
        connections = dict(zip(METHODS, (default, keeping), strict=True))
        contestants = {
            name: Contestant(name, partial(remote_step, connection), CPU)
            for name, connection in connections.items()
        }
        take_turns(list(contestants.values()), [torch.zeros(0)], steps)
        records = []
        for name, contestant in contestants.items():
            connections[name].send(False)
            faults, held = connections[name].recv()
            low, ratio, high = contestant.ratio(contestants[FLOOR])
            records.append(
                {
                    "net": net,
                    "memory": name,
                    "ms": round(contestant.ms, 3),
                    "ratio": round(ratio, 4),
                    "ratio_quartiles": [round(low, 4), round(high, 4)],
                    "faults": round(faults, 1),
                    "held_mb": round(held, 1),
                }
            )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, devices=False, pictures=False)
    parser.add_argument(
        "--nets", type=lambda text: text.split(","), default=list(NETS), help="networks: mlp,conv"
    )
    parser.add_argument("--steps", type=natural_number, default=50, help="timed steps of each")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.nets} - {*NETS}):
        parser.error(f"--nets: expected some of {', '.join(NETS)}, got {', '.join(unknown)}")
    if not keep_freed_memory():  # here as a trial: each contestant is a process of its own
        parser.error("expected Linux with glibc, and no settings of its memory in the environment")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(CPU), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    for net in options.nets:
        for record in measure(net, options.steps, options.seed):
            low, high = record["ratio_quartiles"]
            row = record | {"quartiles": f"{low:.2f} - {high:.2f}"}
            print(json.dumps(record) if options.json else ROW.format_map(row), flush=True)


if __name__ == "__main__":
    main()
