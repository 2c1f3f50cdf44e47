"""Runs of the command line for ``gpu.sh``, each with one JSON object as its result.

    python examples/benchmarks/gpu_runs.py machine
    python examples/benchmarks/gpu_runs.py measured train --data smiley --device cuda --out runs/a
    python examples/benchmarks/gpu_runs.py resumed FOLDER --data smiley --device cuda

``machine`` describes the machine. ``measured`` runs a command in this process: its exit ``status``, its
``seconds``, and the most memory (``peak_mb``, 10^6 bytes), of tensors on the GPU or else of the process.
``resumed`` trains four times with the same options: ``whole``, ``again``, as ``one_rank`` of torchrun (NCCL
on a GPU, gloo on a CPU), and ``cut`` by SIGTERM after some records and resumed. It tells which of them ended
with the parameters of the first, to the bit.
"""

import contextlib
import hashlib
import json
import platform
import resource
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

RUNS = ("whole", "again", "one_rank", "resumed")
RECORDS = 3  # of the metrics, after which a training is stopped
WAIT = 0.05  # seconds between looks


def machine() -> dict[str, Any]:
    """Describe the machine, without a GPU too."""
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "gpu": gpu and gpu.name,
        "gpu_mb": gpu and round(gpu.total_memory / 1e6),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run a command; what it says goes to standard error."""
    sys.argv, status, began = ["pyro-fmvae", *arguments], 0, time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            runpy.run_module("pyro_fmvae", run_name="__main__")
        except SystemExit as ended:
            status = ended.code
    seconds = time.perf_counter() - began
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated() if on_gpu else used
    return {
        "command": arguments,
        "status": status,
        "seconds": round(seconds, 1),
        "peak_mb": round(peak / 1e6),
        "on_gpu": on_gpu,
    }


def start(arguments: list[str], launcher: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start a command of the library."""
    command = [sys.executable, *launcher, "-m", "pyro_fmvae", *arguments]
    return subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)


def resumed(folder: Path, options: list[str]) -> dict[str, Any]:
    """Compare trainings that ought to end alike."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    ways = {"whole": (), "again": (), "one_rank": torchrun}
    status = {
        name: start(["train", *options, "--out", str(folder / name)], launcher).wait()
        for name, launcher in ways.items()
    }
    cut = start(["train", *options, "--out", str(folder / "cut")])
    metrics = folder / "cut" / "metrics.jsonl"
    while cut.poll() is None and (not metrics.is_file() or metrics.read_text().count("\n") < RECORDS):
        time.sleep(WAIT)
    cut.send_signal(signal.SIGTERM)
    stopped = cut.wait()
    status["resumed"] = start(["train", "--resume", str(folder / "cut")]).wait()
    digests = {name: digest(folder / name) for name in (*ways, "cut")}
    return {
        "options": options,
        "stopped_with": stopped,
        "status": status,
        **{f"{name}_equal": found == digests["whole"] for name, found in digests.items() if name != "whole"},
    }


def digest(run: Path) -> str | None:
    """SHA-256 of all tensors of a run's last checkpoint; None if there is none."""
    state = run / "checkpoint" / "state.safetensors"
    return hashlib.sha256(state.read_bytes()).hexdigest() if state.is_file() else None


def main(arguments: list[str]) -> None:
    match arguments:
        case ["machine"]:
            found = machine()
        case ["measured", *command]:
            found = measured(command)
        case ["resumed", folder, *options]:
            found = resumed(Path(folder), options)
        case _:
            raise SystemExit("gpu_runs.py: error: expected machine, measured COMMAND or resumed FOLDER")
    print(json.dumps(found))
    if found.get("status", 0) not in (0, dict.fromkeys(RUNS, 0)):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
