"""The command line under torchrun."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pyro_fmvae import checkpoint
from pyro_fmvae.app.runs import launching
from pyro_fmvae.app.runs.launching import LAUNCH, is_restart_of, launch_name, launched, quiet_unless_first

SIGNALLED = Path(__file__).with_name("signalled.py")
STEPS = ("--pretrain-iterations", "6", "--prior-iterations", "4", "--joint-iterations", "20")
OPTIONS = ("--model", "fmvae", "--batch-size", "30", "--labels", "0.5", *STEPS, "--compile", "false")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """160 training points, so that the last batch of 30 is short."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    labels = generator.integers(0, 2, (200, 1))
    x = generator.random((200, 8, 8)) < 0.2 + 0.4 * labels[:, :, None]
    np.savez(folder / "pictures.npz", x=x.astype(np.uint8), labels=labels)
    return folder


def run(folder, *command, ranks=0, options=(), limit=1200):
    """Run a command in a folder: that of ``pyro-fmvae`` alone, or on several ranks."""
    start = [sys.executable]
    if ranks:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    program = [] if str(command[0]) == str(SIGNALLED) else ["-m", "pyro_fmvae"]
    return subprocess.run(
        [*start, *program, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit,
    )


def train(data, folder, out, ranks=0, options=(), before=(), more=()):
    given = ("--data", data / "pictures.npz", "--out", out, *OPTIONS, *more)
    return run(folder, *before, "train", *given, ranks=ranks, options=options)


def state(folder):
    return checkpoint.load(folder / "checkpoint")[0]


def assert_close(one, other, tolerance):
    one, other = one["model"], other["model"]
    assert one.keys() == other.keys()
    for name, value in one.items():
        spread = max(1.0, float(other[name].abs().max())) if other[name].numel() else 1.0
        assert float((value - other[name]).abs().max()) <= tolerance * spread, name


def errors(done):
    """Lines that the ranks themselves say, without torchrun's."""
    return [line for line in done.stderr.splitlines() if line.startswith("pyro-fmvae: ")]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(data, tmp_path):
    cut = train(data, tmp_path, "cut", 2, before=[SIGNALLED, 1, 17, "SIGTERM"])
    assert "Stopped. Continue with: pyro-fmvae train --resume cut" in cut.stderr
    assert (
        state(tmp_path / "cut")["progress"]["total_steps"] == 18
    )  # after step 17 one rank hears it, and all stop after the next
    resumed = run(tmp_path, "train", "--resume", "cut", ranks=3)
    assert resumed.returncode == 0, resumed.stderr
    assert state(tmp_path / "cut")["progress"]["total_steps"] == 30
    assert all(value.isfinite().all() for value in state(tmp_path / "cut")["model"].values())


@pytest.mark.slow
def test_ranks_start_from_the_same_independent_components(tmp_path):
    generator = np.random.default_rng(0)
    lit = np.where(generator.integers(0, 2, (250, 4)), 0.97, 0.03).repeat(16, 1).reshape(250, 8, 8)
    np.savez(tmp_path / "pictures.npz", x=(generator.random(lit.shape) < lit).astype(np.uint8))
    sizes = ("--factors", "2,2,2,2", "--factor-dim", "2", "--hidden", "20", "--learning-rate", "0.01")
    more = ("--labels", "0", *sizes, "--pretrain-iterations", "100", "--joint-iterations", "60", "--debug")
    done = train(tmp_path, tmp_path, "run", 2, more=more)  # --debug: all ranks are compared
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "train.log").read_text()
    assert re.search(r"independent components: (0\.9|1\.0)", log)


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(data, tmp_path):
    done = train(data, tmp_path, "killed", 2, before=[SIGNALLED, 1, 12, "SIGKILL"])
    assert done.returncode != 0
    # torchrun gives the others 30 s to end.
    assert time.time() - (tmp_path / "signalled").stat().st_mtime < 30
    (line,) = errors(done)
    assert re.fullmatch(
        r"pyro-fmvae: error: rank 1 \(.*, process \d+\) was killed or has crashed; the run is killed", line
    )


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(data, tmp_path):
    before = [SIGNALLED, 1, 12, "SIGSTOP"]
    done = train(data, tmp_path, "hung", 2, before=before, more=["--rank-timeout", 20])
    (line,) = errors(done)
    assert re.search(r"rank 1 \(.*\) has not answered for 20 s; the run is hung", line)


@pytest.mark.slow
def test_a_restart_goes_on_and_ends_equal_to_the_bit(data, tmp_path):
    whole = train(data, tmp_path, "whole", 2)
    before = [SIGNALLED, 1, 17, "SIGKILL"]
    done = train(data, tmp_path, "again", 2, options=["--max-restarts=2"], before=before)
    assert (whole.returncode, done.returncode) == (0, 0), done.stderr
    assert "resuming again on 2 ranks" in done.stderr
    one, other = state(tmp_path / "whole"), state(tmp_path / "again")
    assert_close(other, one, 0.0)
    assert bool((one["random"]["cpu"] == other["random"]["cpu"]).all())


@pytest.mark.slow
def test_the_first_rank_evaluates_encodes_and_scores_alone(data, tmp_path):
    assert train(data, tmp_path, "run").returncode == 0
    rows = ("--data", data / "pictures.npz")
    one, two = (run(tmp_path, "evaluate", "run", "--num-samples", 2, ranks=n).stdout for n in (0, 2))
    assert json.loads(one) == json.loads(two)
    for command in ("encode", "score"):
        files = []
        for ranks in (0, 2):
            done = run(tmp_path, command, "run", *rows, "--out", f"{command}{ranks}.npz", ranks=ranks)
            assert done.returncode == 0, done.stderr
            files.append(np.load(tmp_path / f"{command}{ranks}.npz"))
        for name in files[0].files:
            assert np.array_equal(files[0][name], files[1][name]), name


@pytest.mark.slow
def test_the_first_rank_learns_mixtures_alone(tmp_path):
    np.savez(tmp_path / "table.npz", x=np.random.default_rng(0).normal(size=(200, 4)))
    states = []
    for ranks in (0, 2):
        out = f"run-{ranks}"
        done = run(tmp_path, "train", "--data", "table.npz", "--model", "mixture", "--out", out, ranks=ranks)
        assert done.returncode == 0, done.stderr
        states.append(state(tmp_path / out))
    assert_close(*states, 0.0)


@pytest.mark.slow
def test_bad_input_is_one_line(data, tmp_path):
    done = run(tmp_path, "train", "--data", "nowhere.npz", ranks=2)
    (line,) = errors(done)
    assert line.startswith("pyro-fmvae: error: data: expected one of") and "nowhere.npz" in line


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of a process that torchrun has started."""

    def started(rank=0, restarts=0, name="abc"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", name)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        monkeypatch.setenv("RANK", str(rank))

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    return started


def test_without_torchrun_a_process_is_alone(torchrun, tmp_path):
    with launched() as ranks:
        assert ranks.alone and ranks.leads
    assert launch_name() == ""
    assert not is_restart_of(tmp_path)


def test_only_a_restart_of_the_same_launch_goes_on(torchrun, tmp_path):
    torchrun()
    launching.note_launch(tmp_path)
    assert (tmp_path / LAUNCH).read_text() == "abc"
    assert not is_restart_of(tmp_path)
    torchrun(restarts=1)
    assert is_restart_of(tmp_path) and not is_restart_of(tmp_path / "other")
    torchrun(restarts=1, name="another")
    assert not is_restart_of(tmp_path)
    torchrun(name="none")  # without a rendezvous of its own, the process that has started this one
    assert launch_name() == f"process {os.getppid()}"


def test_ranks_but_the_first_are_quiet(torchrun, capsys):
    for rank in (0, 1):
        torchrun(rank)
        with quiet_unless_first():
            print("printed by", rank)
            print("said by", rank, file=sys.stderr)
    assert capsys.readouterr() == ("printed by 0\n", "said by 0\n")


def test_a_timeout_is_a_positive_number():
    with pytest.raises(ValueError, match="rank_timeout: expected seconds > 0, got 0"), launched(0):
        pass
