"""Tiny runs of the command line, in this process."""

import contextlib
import io
import json
from functools import partial

import numpy as np
import pytest

from pyro_fmvae.app.cli import run_command
from pyro_fmvae.app.recipes.registry import DEFAULT, options_of
from pyro_fmvae.app.runs import report
from pyro_fmvae.app.runs import training as loop
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.models.free_encoder import FreeEncoder

TINY = {
    "--pretrain-iterations": "3",
    "--prior-iterations": "3",
    "--joint-iterations": "3",
    "--refine-iterations": "3",
    "--hidden": "6",
    "--factor-dim": "2",
    "--batch-size": "32",
    "--eager": "true",  # to capture steps takes longer than a few of them do
}
SIZE = 60
DRAW = report.draw
SMALLER = {  # what would take longer than all else in a tiny run
    "pyro_fmvae.learn.fmvae_phases.STARTS": 1,
    "pyro_fmvae.learn.stacking.STARTS": 1,
    "pyro_fmvae.learn.stacking.TREES": 10,
    "pyro_fmvae.app.recipes.table_mixture.STARTS": 1,
    "pyro_fmvae.app.recipes.table_mixture.STEPS": 20,
    "pyro_fmvae.app.recipes.vae.FreeEncoder": partial(FreeEncoder, steps=30),
}


def make_smaller(monkeypatch):
    """Let forests and searches be :data:`SMALLER`."""
    for place, number in SMALLER.items():
        monkeypatch.setattr(place, number)


def command(*arguments, figures=False):
    """Exit status, standard output and standard error of ``pyro-fmvae arguments``.

    Drawing takes most of the time of a tiny training: it leaves its figures out unless they are asked for.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        make_smaller(patch)
        if not figures and report.draw is DRAW:
            patch.setattr(report, "draw", lambda *_: None)
        status = run_command([str(argument) for argument in arguments])
    return status, out.getvalue(), err.getvalue()


def succeed(*arguments, figures=False):
    """Standard output of a command that must succeed."""
    status, out, err = command(*arguments, figures=figures)
    assert status == 0, err
    return out


def training(out, data, **changes):
    """The arguments that train a tiny model, as far as it has these options; others as given."""
    own = options_of(changes.get("model", DEFAULT))
    tiny = {flag: value for flag, value in TINY.items() if flag.strip("-").replace("-", "_") in own}
    options = tiny | {f"--{name.replace('_', '-')}": str(value) for name, value in changes.items()}
    return [
        "train",
        "--data",
        str(data),
        "--out",
        str(out),
        *(text for pair in options.items() for text in pair),
    ]


def train(out, data, figures=False, **changes):
    """Train a tiny model: exit status, standard output and standard error."""
    return command(*training(out, data, **changes), figures=figures)


def train_all(parent, files, kinds, drawn=()):
    """Train a tiny model per kind of data, with figures for those in ``drawn``: kind → folder of the run."""
    for kind, options in kinds.items():
        status, _, err = train(parent / kind, files[kind], kind in drawn, **options)
        assert status == 0, err
    return {kind: parent / kind for kind in kinds}


def write_files(folder):
    """A file of every kind, 60 rows each; labels are 0 or 1 and visible in the data. Returns name → path."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (SIZE, 2))
    binary = (rng.random((SIZE, 4, 3)) < np.where(labels[:, 0], 0.85, 0.15)[:, None, None]).astype(np.uint8)
    table = rng.normal(labels[:, :1] * 4.0, 1.0, (SIZE, 3))
    unknown = labels.copy()
    unknown[::3] = -1
    arrays = {
        "binary": {"x": binary, "labels": labels, "label_names": np.array(["side", "noise"])},
        "reversed": {"x": binary, "labels": labels[:, ::-1], "label_names": np.array(["noise", "side"])},
        "partly": {"x": binary, "labels": unknown},
        "unlabelled": {"x": binary},
        "grey": {"x": rng.integers(0, 256, (SIZE, 4, 3)).astype(np.uint8)},
        "colour": {"x": rng.random((SIZE, 4, 3, 3)), "labels": labels[:, 0]},
        "table": {"x": table, "labels": labels[:, 0]},
    }
    paths = {name: folder / f"{name}.npz" for name in arrays}
    for name, contents in arrays.items():
        np.savez(paths[name], **contents)
    rows = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(table, labels[:, 0], strict=True)]
    paths["csv"] = folder / "sheet.csv"
    paths["csv"].write_text("\n".join(["u,v,w,label:side", *rows]) + "\n")
    return paths


def state(run):
    """The bytes that equal runs share."""
    return (run / "checkpoint" / "state.safetensors").read_bytes()


def metrics(run):
    """The records of a run without their times."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(record.pop("seconds") >= 0 for record in records)
    return records


class Killed(BaseException):
    """What ends a run in the middle."""


def stop_at(monkeypatch, numbers, stop):
    """Call ``stop`` once in the place of each of these records of a run (counted from 0; one, or several)."""
    records, seen, left = Trainer.records, [], [*np.atleast_1d(numbers)]

    def stopping(self, resumed=False):
        for record in records(self, resumed):
            place = record.phase, record.step
            if place not in seen:
                seen.append(place)
            if left and seen.index(place) == left[0]:
                del left[0]
                stop()
            yield record

    monkeypatch.setattr(Trainer, "records", stopping)


def kill():
    """Stop as a crash does."""
    raise Killed


def kill_and_resume(run, data, numbers, every, **options):
    """Train, be killed in the place of each of these records, with checkpoints that often, and resume."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_EVERY", every)
        stop_at(patch, numbers, kill)
        with pytest.raises(Killed):
            train(run, data, **options)
        for _ in np.atleast_1d(numbers)[1:]:
            with pytest.raises(Killed):
                command("train", "--resume", run)
    broken_off = state(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_page", lambda *_: None)
        succeed("train", "--resume", run)
    assert state(run) != broken_off
