"""Rows of a table of results: each has a training from the command line, its evaluations and a JSON file.

A row with a file is not run again, and an interrupted row is resumed. The file lists the commands, so that
each row can be reproduced by itself.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.app.runs import CONFIG, saved

PROGRAM = "pyro-fmvae"
INTERRUPTED = 130
OF_NETWORKS = ("pretrain_iterations", "joint_iterations", "refine_iterations")
LEAST = {"_iterations": 1, "_every": 0}  # endings of options that count iterations
RUNS = "runs"  # folder of the trainings, beside the rows
ROOT = "DIR"  # stands for the data's folder in the commands that a row shows


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        name: name of its file and of the folder of its run.
        train: options of ``pyro-fmvae train``, by name.
        evaluate: entries of the row's ``result``: name → options of ``pyro-fmvae evaluate``, or of the
            command that :meth:`Sweep.evaluations` calls instead. A row without evaluations has no file; other
            rows start from its run.
        pretrained: name of the row whose networks this one starts from.
        about: further entries of the file, for tables and figures.
    """

    name: str
    train: Mapping[str, Any]
    evaluate: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pretrained: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


class Sweep:
    """Rows and their folders.

    Args:
        rows: in the order in which they run; a row that others start from comes first.
        out: folder of the files, created if needed.
        runs: folder of the trainings; ``out/runs`` by default.
    """

    def __init__(self, rows: Sequence[Row], out: Path, runs: Path | None = None) -> None:
        self.rows, self.out, self.runs = {row.name: row for row in rows}, out, runs or out / RUNS
        self._trained: set[str] = set()

    def run(self, names: Sequence[str] = ()) -> None:
        """Run the rows of these names, or all; finished rows are left as they are.

        Raises:
            SystemExit: an unknown name, files that do not match a row, or a command that failed (its message
                was printed).
        """
        if unknown := sorted(set(names) - set(self.rows)):
            raise SystemExit(f"rows: expected some of {', '.join(self.rows)}, got {', '.join(unknown)}")
        for name in names or self.rows:
            self._run(self.rows[name])

    def results(self) -> list[dict[str, Any]]:
        """Contents of the files of finished rows, in the order of the rows."""
        paths = [self.out / f"{name}.json" for name in self.rows]
        return [json.loads(path.read_text()) for path in paths if path.is_file()]

    def evaluations(self, row: Row, folder: Path) -> dict[str, list[str]]:
        """Commands that evaluate the run of a row in a folder, by name; each prints a JSON object."""
        return {name: ["evaluate", str(folder), *options(given)] for name, given in row.evaluate.items()}

    def result(self, row: Row, folder: Path) -> dict[str, Any]:
        """The row's ``result``: the output of these commands, run with the row's folder of data."""
        given = {name: {**asked, **_root(row)} for name, asked in row.evaluate.items()}
        commands = self.evaluations(replace(row, evaluate=given), folder)
        return {name: json.loads(call(*command)) for name, command in commands.items()}

    def _run(self, row: Row) -> None:
        path = self.out / f"{row.name}.json"
        if path.is_file():
            self._check(row, json.loads(path.read_text())["commands"], path)
            return
        if row.name in self._trained:
            return
        if row.pretrained is not None:
            self._run(self.rows[row.pretrained])
        print(f"{row.name}: {' '.join(self._shown(row))}", flush=True)
        folder = self.runs / row.name
        if folder.exists() and not _removed(folder):
            self._check_run(row, folder)
            call("train", "--resume", str(folder), *options(_root(row)))
        else:
            call(*self._training(row, self.runs))
        self._trained.add(row.name)
        if not row.evaluate:
            return
        content = json.dumps(self._content(row, folder, self.result(row, folder)), indent=1) + "\n"
        self.out.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(path, lambda temporary: temporary.write_text(content))

    def _check(self, row: Row, commands: Sequence[str], path: Path) -> None:
        """Check that a file is that of this row; the networks it started from may differ."""
        wanted = self._commands(row)[-1 - len(row.evaluate) :]
        found = [*commands[-len(wanted) :], "nothing"]  # the file may have fewer
        for here, there in zip(wanted, found, strict=False):
            if here != there:
                raise SystemExit(f"rows: {path} was made with other options, by `{there}`, not by `{here}`")

    def _check_run(self, row: Row, folder: Path) -> None:
        """Check that an unfinished run is that of the row."""
        found = json.loads((folder / CONFIG).read_text())
        found["pretrained"] = Path(found["pretrained"]).name if found.get("pretrained") else None
        for name, value in {**row.train, "pretrained": row.pretrained}.items():
            wanted = list(value) if isinstance(value, tuple) else value
            if name != "data_root" and found.get(name) != wanted:
                raise SystemExit(f"rows: {folder} was begun with {name} {found.get(name)}, not {wanted}")

    def _training(self, row: Row, runs: Path) -> list[str]:
        start = {} if row.pretrained is None else {"pretrained": runs / row.pretrained}
        return ["train", *options({**row.train, **start, "out": runs / row.name})]

    def _shown(self, row: Row) -> list[str]:
        """A row's command without the folders of this machine."""
        return [PROGRAM, *self._training(replace(row, train=_rooted(row.train)), Path(RUNS))]

    def _trainings(self, row: Row) -> list[str]:
        """Commands that train a row, after those of the rows that it starts from."""
        before = [] if row.pretrained is None else self._trainings(self.rows[row.pretrained])
        return [*before, shlex.join(self._shown(row))]

    def _commands(self, row: Row) -> list[str]:
        shown = replace(row, evaluate={name: _rooted(given) for name, given in row.evaluate.items()})
        evaluations = self.evaluations(shown, Path(RUNS) / row.name).values()
        return [*self._trainings(row), *(shlex.join([PROGRAM, *command]) for command in evaluations)]

    def _content(self, row: Row, folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
        config = json.loads((folder / CONFIG).read_text())
        iterations = {name: value for name, value in config.items() if name.endswith("_iterations")}
        seconds, start = trained_seconds(folder), row.pretrained
        while start is not None:
            before = json.loads((self.runs / start / CONFIG).read_text())
            iterations["pretrain_iterations"] += sum(before.get(name, 0) for name in OF_NETWORKS)
            seconds += trained_seconds(self.runs / start)
            start = self.rows[start].pretrained
        return {
            "name": row.name,
            **row.about,
            "seed": config["seed"],
            "factors": config["factors"],
            "factor_dim": config["factor_dim"],
            **iterations,
            "seconds": seconds,
            "machine": machine(config["device"]),
            "versions": config["derived"]["versions"],
            "commands": self._commands(row),
            "result": result,
        }


def _removed(folder: Path) -> bool:
    """Remove a run's folder if the run was killed before its first checkpoint; return True if so."""
    try:
        with checkpoint.alone(folder):
            if not (folder / CONFIG).exists() and any(path.suffix != ".tmp" for path in folder.iterdir()):
                raise ValueError(f"{folder} is no run (it has no {CONFIG})")
            if unsaved := not saved(folder):
                shutil.rmtree(folder)
    except ValueError as error:  # also during its training
        raise SystemExit(f"rows: {error}") from None
    return unsaved


def _root(row: Row) -> dict[str, Any]:
    """The option for the folder of the row's data, if it is given."""
    return {name: value for name, value in row.train.items() if name == "data_root"}


def _rooted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options without this machine's folder of data."""
    return {**given, "data_root": ROOT} if "data_root" in given else dict(given)


def trained_seconds(folder: Path) -> float:
    """Seconds that the training of a run took."""
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["seconds"]


def options(values: Mapping[str, Any]) -> list[str]:
    """Format options such as ``{"learning_rate": 0.1, "factors": (2, 3)}`` for the command line."""
    flags: list[str] = []
    for name, value in values.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += ["--" + name.replace("_", "-"), text.lower() if isinstance(value, bool) else text]
    return flags


def scaled(train: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Scale all numbers of iterations; those of phases stay at least 1.

    Options ``…_every`` that would fall below 1 become 0, which switches them off.
    """
    result = dict(train)
    for name, value in train.items():
        for ending, least in LEAST.items():
            if value and name.endswith(ending):
                result[name] = max(round(scale * value), least)
    return result


def where(chosen: argparse.Namespace) -> dict[str, Any]:
    """The options of every training that say where: the folder of data, if it was given, and the device."""
    return {name: value for name in ("data_root", "device") if (value := getattr(chosen, name))}


def call(*arguments: str) -> str:
    """Run a command of the program, show its messages, and return its output.

    Raises:
        SystemExit: the command failed or was interrupted; with its exit status.
    """
    pressed: list[bool] = []  # Ctrl-C reaches the command too, which needs time to save its checkpoint
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        command = [sys.executable, "-m", "pyro_fmvae", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode or pressed:
        raise SystemExit(done.returncode or INTERRUPTED)
    return done.stdout


def machine(device: str) -> str:
    """The kind of machine, in words."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {threads} of them used"


def arguments(
    description: str, out: str, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Parse the options that all sweeps share, and those that ``add`` adds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", help="folder of data sets; default: ~/.cache/pyro_fmvae")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the rows' files")
    parser.add_argument("--runs", type=Path, help="folder of the trainings; default: runs in --out")
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), default=(), help="names of rows; default: all"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and stop")
    parser.add_argument("--report", action="store_true", help="report finished rows; run nothing")
    parser.add_argument("--figure", type=Path, help="picture of the rows, a .png file")
    split = {"choices": ("train", "valid", "test"), "default": "valid"}
    parser.add_argument("--split", **split, help="split to report; test for final results")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... or auto: a GPU if there is one")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of all numbers of iterations, for trials"
    )
    if add is not None:
        add(parser)
    return parser.parse_args()


def main(
    description: str,
    out: str,
    rows: Callable[[argparse.Namespace], Iterable[Row]],
    report: Callable[[Sequence[Mapping[str, Any]], Path | None], str],
    kind: type[Sweep] = Sweep,
    add: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Run rows and report all that are there.

    Args:
        description: description of the script.
        out: default folder of the rows' files.
        rows: makes the rows from the options.
        report: makes the text that is printed at the end, and a picture if it is given a path.
        kind: class of the sweep.
        add: adds options of this script to the parser.
    """
    chosen = arguments(description, out, add)
    sweep = kind(list(rows(chosen)), chosen.out, chosen.runs)
    if chosen.list:
        print("\n".join(sweep.rows))
        return
    if not chosen.report:
        sweep.run(chosen.rows)
    print(report(sweep.results(), chosen.figure))
