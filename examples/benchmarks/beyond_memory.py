"""Data beyond memory: the speed of training from disk, and the peak memory of commands as data grow.

    python examples/benchmarks/beyond_memory.py                        # both; needs 15 GB for temporary files
    python examples/benchmarks/beyond_memory.py --parts speed --limit 1500 --times 10
    python examples/benchmarks/beyond_memory.py --parts peaks --rows 20000,200000 --files .npy,.npz
    python examples/benchmarks/beyond_memory.py --parts peaks --rows 50000 --files sparse.h5ad,dense.h5ad

Speed: a file of ``--times`` times ``--limit`` (10^6 bytes) is written, random bits of 28×28. The process then
confines itself to that limit (``RLIMIT_DATA``: what it allocates, its libraries included), and takes captured
steps. Blocks of batches from the file take turns with blocks of batches from memory, where there are as many
rows as one window of the file has; a block goes once through a window. ``wall`` and ``cpu`` are milliseconds
of a step and its batch, ``cpu`` of all threads, in the median of all blocks. ``speed`` is the time from
memory divided by the time from disk, in the median of all pairs of blocks. The system keeps what it can of
the file in free memory, so this is the cost of reading and ordering rows, not that of a slow disk.

Peaks: train, evaluate, encode and score, each in a process of its own, on random tables of 100 columns, by
the most memory that the process held (maximum resident set size, 10^6 bytes). Files of cells have counts of
2,000 columns in two batches, of which an eighth is not 0.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import Parser, machine, natural_number
from pyro_methods import captured
from start import IMAGE, NETS, Rates, Setting, Step, seeded_model
from torch import Tensor

from pyro_fmvae.data import Batches, Kind, Preprocessing, Split, load_file
from pyro_fmvae.learn import endless

COLUMNS = 100
GENES, FILLED = 2000, 0.125
COUNTS = ("--likelihood", "negative-binomial", "--batch-column", "batch")
WINDOW = 64 << 20  # bytes of rows that are read at once
CHUNK = 10_000  # rows that are drawn at once
TRAINED = (  # a small model; how long it is trained does not matter here
    *("--model", "fmvae", "--factors", "8,8", "--hidden", "64", "--eager", "true"),
    *("--pretrain-iterations", "20", "--prior-iterations", "20", "--joint-iterations", "20"),
)


def write(path: Path, shape: tuple[int, ...], dtype: Any, draw: Callable[..., np.ndarray]) -> None:
    """Write rows that are drawn in a given shape to a .npy file, some after others."""
    rows = np.lib.format.open_memmap(path, "w+", dtype, shape)
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        part[:] = draw(part.shape)
    rows.flush()


def block(step: Step, batches: Iterator[tuple[Tensor, ...]], steps: int) -> tuple[float, float]:
    """Milliseconds of a step with its batch: on the wall, and of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step(next(batches)[0])
    return 1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps


def speed(folder: Path, net: str, limit: int, times: float, B: int, rounds: int, seed: int) -> dict[str, Any]:
    """Take turns between batches from disk and from memory."""
    rng, path = np.random.default_rng(seed), folder / "bits.npy"
    count = int(times * limit * 1e6) // (IMAGE[0] * IMAGE[1])
    write(path, (count, *IMAGE), np.uint8, lambda shape: rng.integers(0, 2, shape, np.uint8))
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit * 1e6),) * 2)
    disk, _ = load_file(path, Preprocessing(Kind.BINARY, IMAGE))
    held = min(count, WINDOW // (IMAGE[0] * IMAGE[1]))
    memory = Split(disk.x.read(torch.arange(held)))
    sources = {
        name: endless(Batches(split, B, seed=seed, full=True))
        for name, split in (("memory", memory), ("disk", Split(disk.x)))
    }
    step = captured(seeded_model(net, Setting(4, 10, 32, B), seed, torch.device("cpu")), Rates()).step
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
    for number in range(1 + rounds):
        for name, batches in sources.items():
            times_of_block = block(step, batches, max(held // B, 1))
            found[name] += [times_of_block] if number else []
    result: dict[str, Any] = {"part": "speed", "net": net, "B": B, "limit": limit}
    result["file"] = round(path.stat().st_size / 1e6)
    for place, kind in enumerate(("wall", "cpu")):
        for name, blocks in found.items():
            result[f"{kind}_{name}"] = round(statistics.median(one[place] for one in blocks), 3)
        pairs = zip(found["memory"], found["disk"], strict=True)
        result[f"speed_{kind}"] = round(statistics.median(a[place] / b[place] for a, b in pairs), 3)
    return result


def peak(*command: Any) -> int:
    """Run a command of the library: the most memory that it held, in 10^6 bytes."""
    with tempfile.TemporaryFile("w+") as said:
        arguments = [sys.executable, "-m", "pyro_fmvae", *map(str, command)]
        process = subprocess.Popen(arguments, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            said.seek(0)
            raise SystemExit(f"beyond_memory.py: error: pyro-fmvae {command[0]} failed: {said.read()}")
    return round(used.ru_maxrss * 1024 / 1e6)


def write_cells(path: Path, rows: int, seed: int) -> None:
    """Write counts to a .h5ad file, sparse unless its name says that they are dense."""
    from anndata import AnnData  # an extra
    from pandas import DataFrame
    from scipy.sparse import random_array

    rng = np.random.default_rng(seed)
    x = random_array(
        (rows, GENES),
        density=FILLED,
        format="csr",
        dtype=np.float32,
        rng=rng,
        data_sampler=lambda size: rng.geometric(0.5, size).astype(np.float32),
    )
    batch = DataFrame({"batch": rng.integers(2, size=rows)}, index=[str(row) for row in range(rows)])
    AnnData(x.toarray() if "dense" in path.name else x.tocsr(), obs=batch).write_h5ad(path)


def peaks(folder: Path, rows: int, suffix: str, seed: int) -> dict[str, Any]:
    """Peak memory of the commands on a table of so many rows."""
    rng, run = np.random.default_rng(seed), folder / f"run{rows}{suffix[1:]}"
    data, counts = folder / f"table{rows}.npy", ()
    if suffix.endswith(".h5ad"):
        data, counts = folder / f"{rows}{suffix}", COUNTS
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # a child begins with its parent's peak
            other.submit(write_cells, data, rows, seed).result()
    else:
        write(data, (rows, COLUMNS), np.float32, lambda shape: rng.normal(size=shape))
    if suffix == ".npz":
        np.savez(data.with_suffix(suffix), x=np.load(data))
        data = data.with_suffix(suffix)
    given = ("--data", data)
    return {
        "part": "peaks",
        "file": suffix,
        "rows": rows,
        "train": peak("train", *given, "--out", run, *TRAINED, *counts),
        "evaluate": peak("evaluate", run, *given),
        "encode": peak("encode", run, *given, "--out", folder / "codes.npz"),
        "score": peak("score", run, *given, "--out", folder / "scores.npz", "--num-samples", 1),
    }


def main() -> None:
    parser = Parser(__doc__, devices=False, pictures=False)
    parser.add_argument("--parts", default="peaks,speed")
    parser.add_argument("--net", choices=NETS, default="mlp")
    parser.add_argument("--limit", type=natural_number, default=1500, help="memory, in 10^6 bytes")
    parser.add_argument("--times", type=float, default=10, help="size of the file in limits")
    parser.add_argument("--batch-size", type=natural_number, default=128)
    parser.add_argument("--rounds", type=natural_number, default=9)
    parser.add_argument("--rows", default="20000,200000")
    parser.add_argument("--files", default=".npy")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    if not given.json:
        print(machine(torch.device("cpu")))
    with tempfile.TemporaryDirectory() as name:
        folder, parts = Path(name), given.parts.split(",")
        if "peaks" in parts:
            for suffix in given.files.split(","):
                for rows in given.rows.split(","):
                    print(json.dumps(peaks(folder, int(rows), suffix, given.seed)), flush=True)
        if "speed" in parts:
            sizes = given.limit, given.times, given.batch_size, given.rounds
            print(json.dumps(speed(folder, given.net, *sizes, given.seed)), flush=True)


if __name__ == "__main__":
    main()
