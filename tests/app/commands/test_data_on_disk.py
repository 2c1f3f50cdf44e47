"""Training, evaluating, encoding and scoring with rows that stay on disk."""

import csv
import json

import numpy as np
import pytest

from pyro_fmvae.app.commands import encoding, row_tables, scoring
from pyro_fmvae.app.runs import by_batches
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import batches
from tests.small_runs import command, kill_and_resume, metrics, state, succeed, train

pytestmark = pytest.mark.usefixtures("single_precision", "small_windows")

N = 120
OPTIONS = {"factors": "2,3", "batch_size": 16, "joint_iterations": 15}


def shrink(patch):
    """Windows of 40 rows, in blocks of 5."""
    patch.setattr(batches.Windows.__init__, "__defaults__", (40 * 12, 5 * 12))


@pytest.fixture
def small_windows(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table [120, 3] in a .npy file."""
    path, rng = tmp_path_factory.mktemp("data") / "table.npy", np.random.default_rng(0)
    np.save(path, rng.normal(rng.integers(0, 2, (N, 1)) * 4.0, 1.0, (N, 3)))
    return path


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert train(folder, table, **OPTIONS)[0] == 0
    return folder


def test_a_killed_run_is_resumed_exactly(table, run, tmp_path):
    assert Run.open(run).config.in_memory is False
    kill_and_resume(tmp_path / "killed", table, 19, 0.0, **OPTIONS)
    assert metrics(tmp_path / "killed") == metrics(run)
    assert state(tmp_path / "killed") == state(run)


def test_measures_are_those_of_rows_in_memory(table, run, tmp_path):
    np.savez(tmp_path / "table.npz", x=np.load(table))
    found = {}
    for data in (table, tmp_path / "table.npz"):
        found[data.suffix] = json.loads(succeed("evaluate", run, "--data", data))
        for name in ("encode", "score"):
            out = tmp_path / f"{name}{data.suffix}.npz"
            succeed(name, run, "--data", data, "--out", out)
            with np.load(out) as arrays:
                found[data.suffix] |= {f"{name} {key}": arrays[key].tolist() for key in arrays}
    assert found[".npy"] == found[".npz"]


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_parts_make_the_file_that_a_single_one_makes(table, run, tmp_path, monkeypatch, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(row_tables, "GROUP", 1000)
    found = []
    for size in (50, 1000):
        monkeypatch.setattr(by_batches, "EVALUATION_BATCH", size)
        out = tmp_path / f"{size}{suffix}"
        printed = succeed("encode", run, "--data", table, "--out", out)
        found.append((contents(out), printed.replace(out.name, "")))
    assert found[0][1] == found[1][1]
    assert found[0][0].keys() == found[1][0].keys()
    for one, other in zip(found[0][0].values(), found[1][0].values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)  # products round by the size of a batch


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("name", ["encode", "score"])
def test_nothing_is_left_of_an_output_that_fails(table, run, tmp_path, monkeypatch, name, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")

    def failing(*arguments, **options):
        for number, part in enumerate(parts(*arguments, **options)):
            if number == 1:
                raise OSError("disk full")
            yield part

    module, function = {"encode": (encoding, "encoded_parts"), "score": (scoring, "scored_parts")}[name]
    parts = getattr(module, function)
    monkeypatch.setattr(module, function, failing)
    monkeypatch.setattr(by_batches, "EVALUATION_BATCH", 50)
    out = tmp_path / "there" / f"old{suffix}"
    out.parent.mkdir()
    out.write_text("old")
    status, printed, err = command(name, run, "--data", table, "--out", out)
    assert (status, printed, err) == (2, "", "pyro-fmvae: error: disk full\n")
    assert [path.read_text() for path in out.parent.iterdir()] == ["old"]


def contents(path):
    """Columns of a file, each a list."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {name: archive[name].tolist() for name in archive}
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        return {name: [float(row[column]) for row in rows] for column, name in enumerate(header)}
    from pyarrow import parquet

    return parquet.read_table(path).to_pydict()
