"""Cost of a step on one rank, and on several that share its batch.

    python examples/benchmarks/ranks.py                                  # both pairs of networks, three ways
    python examples/benchmarks/ranks.py --net conv --ways captured --steps 20 --json

The ranks are processes on this machine, each with one thread. Rank 0 takes a block of steps on the whole
batch alone while the others wait; then all take a block together, each with its part of the same batch. The
blocks take turns. ``wall`` is the median time of a step over all blocks, ``least`` that of its fastest block;
``cpu`` is the processor time of a step on rank 0, in its least disturbed block. Where there are fewer free
cores than ranks, only ``cpu`` means something. ``gain`` is how many times less of it a rank takes together
than alone: the speed-up where every rank has a core and sums are free. ``sum`` is the least time of the sums
of a step by themselves, of ``MB`` (10^6 bytes). The data are random bits.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyro
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from command_line import Parser, machine, natural_number
from pyro_methods import optimiser
from start import NETS, Rates, Setting, random_images, seeded_model

from pyro_fmvae import CapturedSVI, TraceConjugate_ELBO

WAYS: dict[str, dict[str, bool]] = {"eager": {"eager": True}, "captured": {}, "compiled": {"compile": True}}
WARM_UP = 3
SUMS = 30  # of the flat vectors alone
PATIENCE = timedelta(minutes=20)  # compiling takes long where cores are shared
COLUMNS = ("net", "way", "ranks", "B", "wall", "least", "cpu", "gain", "sum", "MB", "images/s")
ROW = "{:6}{:10}{:>6}{:>6}{:>9}{:>9}{:>9}{:>7}{:>8}{:>7}{:>10}"


def timed(step: Callable[[torch.Tensor], Any], x: torch.Tensor, steps: int) -> tuple[float, float]:
    """Milliseconds of a step: on the wall, and of this process's processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step(x)
    return 1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps


def measure(net: str, way: str, setting: Setting, steps: int, rounds: int, seed: int) -> dict[str, Any]:
    """Take turns; to be called by all ranks."""
    x = random_images(setting.B, seed)
    start = seeded_model(net, setting, seed, torch.device("cpu"))
    svis = {}
    for name, group in (("alone", None), ("together", dist.group.WORLD)):
        model = deepcopy(start)
        optim = optimiser(model, Rates())
        svis[name] = CapturedSVI(
            model.model, model.guide, optim, TraceConjugate_ELBO(), group=group, **WAYS[way]
        )
    blocks: dict[str, list[tuple[float, float]]] = {name: [] for name in svis}
    for number in range(1 + rounds):
        for name, svi in svis.items():
            dist.barrier()
            torch.manual_seed(seed)  # together all draw the same
            if name == "together" or dist.get_rank() == 0:
                found = timed(svi.step, x, WARM_UP if number == 0 else steps)
                blocks[name] += [found] if number else []
    gradients = [p for p in start.parameters() if p.requires_grad]
    flats = [
        torch.zeros(sum(p.numel() for p in gradients if p.dtype == dtype), dtype=dtype)
        for dtype in dict.fromkeys(p.dtype for p in gradients)
    ]
    sums = []
    for _ in range(SUMS):
        dist.barrier()
        began = time.perf_counter()
        for flat in flats:
            dist.all_reduce(flat)
        sums.append(1e3 * (time.perf_counter() - began))
    return {"blocks": blocks, "sum": min(sums), "bytes": sum(flat.nbytes for flat in flats)}


def records(net: str, way: str, setting: Setting, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One record for a rank alone, one for all together."""
    least = {name: min(cpu for _, cpu in blocks) for name, blocks in found["blocks"].items()}
    for name, blocks in found["blocks"].items():
        ranks = dist.get_world_size() if name == "together" else 1
        wall = statistics.median(time for time, _ in blocks)
        yield {
            **{"net": net, "way": way, "ranks": ranks, "B": setting.B},
            **{"wall": round(wall, 2), "least": round(min(time for time, _ in blocks), 2)},
            **{"cpu": round(least[name], 2), "gain": round(least["alone"] / least[name], 2)},
            "sum": round(found["sum"], 2) if ranks > 1 else 0.0,
            "MB": round(found["bytes"] / 1e6, 2) if ranks > 1 else 0.0,
            "images/s": round(1e3 * setting.B / wall),
        }


def run(rank: int, folder: str, options: dict[str, Any]) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    pyro.enable_validation(False)
    store = dist.FileStore(str(Path(folder, "store")), options["ranks"])
    place = {"store": store, "rank": rank, "world_size": options["ranks"]}
    dist.init_process_group("gloo", timeout=PATIENCE, **place)
    if rank == 0 and not options["json"]:
        print(machine(torch.device("cpu")), ROW.format(*COLUMNS), sep="\n", flush=True)
    for net in options["nets"]:
        for way in options["ways"]:
            sizes = options["setting"], options["steps"], options["rounds"], options["seed"]
            found = measure(net, way, *sizes)
            for record in records(net, way, options["setting"], found) if rank == 0 else ():
                line = json.dumps(record) if options["json"] else ROW.format(*record.values())
                print(line, flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads abort some interpreters that are taken down in order


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, start the ranks."""
    parser = Parser(__doc__, devices=False, pictures=False)
    parser.add_argument("--net", choices=NETS, help="one pair of networks; default: both")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--setting", type=Setting.parse, default=Setting(4, 16, 32, 128), metavar="I,D,K,B")
    parser.add_argument("--ranks", type=natural_number, default=2)
    parser.add_argument("--steps", type=natural_number, default=10, help="of a block (default: 10)")
    parser.add_argument("--rounds", type=natural_number, default=5, help="blocks (default: 5)")
    options = vars(parser.parse_args(arguments))
    options["nets"] = [options["net"]] if options["net"] else list(NETS)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run, (folder, options), options["ranks"])


if __name__ == "__main__":
    main()
