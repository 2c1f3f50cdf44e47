"""Training, evaluating, encoding and scoring with rows that stay on disk."""

import json

import numpy as np
import pytest

from pyro_fmvae.data import windows
from pyro_fmvae.runs import report
from pyro_fmvae.runs.run import Run
from tests.small_runs import kill_and_resume, metrics, state, succeed, train

pytestmark = pytest.mark.usefixtures("single_precision", "small_windows")

N = 120
OPTIONS = {"factors": "2,3", "batch_size": 16, "joint_iterations": 15}


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 40 rows, in blocks of 5."""
    monkeypatch.setattr(windows.Windows.__init__, "__defaults__", (40 * 12, 5 * 12))
    monkeypatch.setattr(report, "draw", lambda *_: None)


@pytest.fixture
def table(tmp_path):
    """A table [120, 3] in a .npy file."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "table.npy", rng.normal(rng.integers(0, 2, (N, 1)) * 4.0, 1.0, (N, 3)))
    return tmp_path / "table.npy"


def test_a_killed_run_is_resumed_exactly(table, tmp_path):
    assert train(tmp_path / "whole", table, **OPTIONS)[0] == 0
    assert Run.open(tmp_path / "whole").config.in_memory is False
    kill_and_resume(tmp_path / "killed", table, 19, 0.0, **OPTIONS)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert state(tmp_path / "killed") == state(tmp_path / "whole")


def test_measures_are_those_of_rows_in_memory(table, tmp_path):
    assert train(tmp_path / "run", table, **OPTIONS)[0] == 0
    np.savez(tmp_path / "table.npz", x=np.load(table))
    found = {}
    for data in (table, tmp_path / "table.npz"):
        found[data.suffix] = json.loads(succeed("evaluate", tmp_path / "run", "--data", data))
        for command in ("encode", "score"):
            out = tmp_path / f"{command}{data.suffix}.npz"
            succeed(command, tmp_path / "run", "--data", data, "--out", out)
            with np.load(out) as arrays:
                found[data.suffix] |= {f"{command} {name}": arrays[name].tolist() for name in arrays}
    assert found[".npy"] == found[".npz"]
