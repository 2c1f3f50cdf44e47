import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyro_fmvae.app.runs import by_batches
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate import Neighbours, outlier_scores, threshold
from tests.small_runs import SIZE, command, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

OF_ALL = ("kl", "reconstruction", "elbo", "iwae")
KINDS = (*OF_ALL, "nearest")
BATCH = 25


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """So that files are written in several parts."""
    monkeypatch.setattr(by_batches, "EVALUATION_BATCH", BATCH)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    paths = write_files(folder)
    with np.load(paths["table"]) as arrays:
        table = arrays["x"]
    paths["backwards"] = folder / "backwards.npz"
    np.savez(paths["backwards"], x=table[::-1])
    paths["far"] = folder / "far.npz"
    np.savez(paths["far"], x=np.concatenate([table[:5], np.full((1, 3), 1e9), table[5:]]))
    return paths


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    mixtures = {"binary": {"labels": 0.5, "factors": "2,2,3"}, "table": {"factors": "4"}}
    others = {
        "vae": {"model": "vae"},
        "point": {"model": "vae", "posterior": "point"},
        "vsc": {"model": "vsc"},
    }
    trained = train_all(parent, files, mixtures)
    for name, options in others.items():
        trained[name] = train_all(parent / name, files, {"binary": options})["binary"]
    return trained


def score(run, path, *arguments):
    """What ``score`` prints, on one line, and the arrays that it writes."""
    out = succeed("score", run, "--out", path, *arguments)
    assert out.count("\n") == 1
    with np.load(path) as archive:
        return json.loads(out), dict(archive)


def test_a_terminal_gets_lines_to_read(runs, tmp_path, monkeypatch):
    printed, arrays = score(runs["binary"], tmp_path / "one.npz")
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("pyro_fmvae.app.commands.scoring.sys", terminal)
    first, *lines = succeed("score", runs["binary"], "--out", tmp_path / "two.npz").splitlines()
    assert first == f"wrote {tmp_path / 'two.npz'}; threshold: above 95% of 48 training points"
    assert [line.split()[0] for line in lines] == list(KINDS)
    number, limit = int(arrays["elbo_outlying"].sum()), f"{printed['elbo']['threshold']:.4g}"
    (elbo,) = (line for line in lines if line.startswith("elbo "))
    assert f" {number} of {printed['n']} (" in elbo and f" above {limit}, mean " in elbo
    with np.load(tmp_path / "two.npz") as archive:
        np.testing.assert_array_equal(archive["elbo"], arrays["elbo"])


@pytest.mark.parametrize("kind", ["binary", "table", "vae", "vsc"])
def test_scores_of_every_row_with_thresholds(runs, files, tmp_path, kind):
    file = files["table" if kind == "table" else "binary"]
    kinds = OF_ALL if kind == "vsc" else KINDS
    printed, arrays = score(runs[kind], tmp_path / "new" / "scores.npz", "--data", file)
    wanted = {f"{kind}{suffix}" for kind in kinds for suffix in ("", "_threshold", "_outlying")}
    assert set(arrays) == wanted
    assert set(printed) == {"n", "train_points", "quantile", "num_samples", *kinds}
    assert (printed["n"], printed["train_points"]) == (SIZE, 48)
    assert (printed["quantile"], printed["num_samples"]) == (0.95, 16)
    for name in kinds:
        values, limit, outlying = (arrays[f"{name}{suffix}"] for suffix in ("", "_threshold", "_outlying"))
        assert (values.shape, values.dtype) == ((SIZE,), np.float64)
        assert (limit.shape, outlying.dtype) == ((), np.bool_)
        assert (outlying == (values > limit)).all()
        assert printed[name] == {
            "threshold": limit.item(),
            "outlying": outlying.mean(),
            "mean": pytest.approx(values.mean()),
        }


def test_a_table_of_scores_says_the_same(runs, files, tmp_path):
    arguments = ("--data", files["table"], "--points", 7)
    printed, arrays = score(runs["table"], tmp_path / "scores.npz", *arguments)
    out = succeed("score", runs["table"], "--out", tmp_path / "scores.csv", *arguments)
    assert json.loads(out) == printed
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(7))
    for kind in KINDS:
        assert [float(row[kind]) for row in rows] == arrays[kind].tolist()
        assert [row[f"{kind} outlying"] for row in rows] == [str(b) for b in arrays[f"{kind}_outlying"]]


def test_scores_are_those_of_the_library(runs, files, tmp_path):
    options = ("--num-samples", "3", "--seed", "5", "--quantile", "0.7")
    _, arrays = score(runs["binary"], tmp_path / "s.npz", "--data", files["binary"], *options)
    run = Run.open(runs["binary"])
    model, train = run.load_model(torch.device("cpu")), run.load_data().train
    with np.load(files["binary"]) as file:
        rows = Split(torch.from_numpy(file["x"]).bool())
    here, usual = (
        outlier_scores(model, Batches(split, BATCH, shuffle=False), 3, seed=5) for split in (rows, train)
    )
    neighbours = Neighbours(model, Batches(train, BATCH, shuffle=False))
    here["nearest"], usual["nearest"] = (
        neighbours.distances(Batches(rows, BATCH, shuffle=False)),
        neighbours.among_training_points(),
    )
    for name in KINDS:
        assert (arrays[name] == here[name]).all()
        assert arrays[f"{name}_threshold"] == threshold(usual[name], 0.7)


def test_training_rows_are_compared_with_the_other_ones(runs, tmp_path):
    """A quantile of 1 makes the threshold the largest of them."""
    printed, arrays = score(runs["table"], tmp_path / "s.npz", "--split", "train", "--quantile", "1")
    assert (arrays["nearest"] > 0).all()
    assert arrays["nearest"].max() == pytest.approx(printed["nearest"]["threshold"])


def test_an_auto_encoder_has_the_reconstruction_alone(runs, tmp_path):
    printed, arrays = score(runs["point"], tmp_path / "s.npz")
    assert set(arrays) == {"reconstruction", "reconstruction_threshold", "reconstruction_outlying"}
    assert set(printed) == {"n", "train_points", "quantile", "num_samples", "reconstruction"}


def test_rows_keep_their_order(runs, files, tmp_path):
    _, there = score(runs["table"], tmp_path / "there.npz", "--data", files["table"])
    _, back = score(runs["table"], tmp_path / "back.npz", "--data", files["backwards"])
    assert back["kl"][::-1] == pytest.approx(there["kl"], rel=1e-4)
    assert np.ptp(there["kl"]) > 0.1


def test_means_are_what_evaluate_prints(runs, tmp_path):
    """Of the test split, which is the default of both."""
    printed, _ = score(runs["vae"], tmp_path / "s.npz", "--num-samples", "4")
    measured = json.loads(succeed("evaluate", runs["vae"], "--num-samples", "4"))
    assert printed["n"] == measured["n"] < SIZE
    assert printed["kl"]["mean"] == pytest.approx(measured["kl_z"], rel=1e-4)
    assert printed["elbo"]["mean"] == pytest.approx(-measured["elbo"], rel=1e-4)
    assert printed["iwae"]["mean"] == pytest.approx(-measured["importance_weighted"], rel=1e-4)


def test_training_points_exceed_their_threshold_as_often_as_asked_for(runs, tmp_path):
    options = ("--split", "train", "--train-points", "30", "--points", "30", "--quantile", "0.9")
    printed, arrays = score(runs["binary"], tmp_path / "s.npz", *options)
    assert printed["n"] == printed["train_points"] == 30
    assert arrays["elbo"].shape == (30,)
    assert printed["elbo"]["outlying"] == pytest.approx(0.1)
    few, _ = score(runs["binary"], tmp_path / "f.npz", *options, "--train-points", "7")
    assert few["train_points"] == 7 and few["elbo"]["threshold"] != printed["elbo"]["threshold"]
    assert few["elbo"]["mean"] == printed["elbo"]["mean"]


def test_a_row_beyond_all_numbers_is_an_outlier(runs, files, tmp_path):
    """Its score is inf, of which JSON knows nothing."""
    printed, arrays = score(runs["table"], tmp_path / "s.npz", "--data", files["far"])
    assert arrays["elbo"][5] == np.inf and arrays["elbo_outlying"][5]
    assert np.isfinite(np.delete(arrays["elbo"], 5)).all()
    assert printed["elbo"]["mean"] is None and printed["elbo"]["outlying"] == arrays["elbo_outlying"].mean()


WRONG = [
    ("run", "required: --out"),
    ("run --out x.png", "out: expected a name that ends in .npz"),
    ("nowhere --out x.npz", "is no run"),
    ("run --out x.npz --quantile 1.5", "quantile: expected a number in [0, 1], got 1.5"),
    ("run --out x.npz --num-samples 0", "num_samples: expected a number >= 1, got 0"),
    ("run --out x.npz --points 0", "points: expected a number >= 1, got 0"),
    ("run --out x.npz --train-points -3", "train_points: expected a number >= 1, got -3"),
    ("run --out x.npz --seed -1", "seed: expected"),
    ("run --out x.npz --split nonsense", "--split: expected one of"),
    ("run --out x.npz --data table.npz", "expected observations of shape [4, 3]"),
]


@pytest.mark.parametrize(("arguments", "part"), WRONG, ids=[part for _, part in WRONG])
def test_complaints_come_before_any_work(runs, files, tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyro_fmvae.app.commands.scoring.outlier_scores", None)
    places = {"run": str(runs["binary"]), "table.npz": str(files["table"])}
    status, out, err = command("score", *(places.get(text, text) for text in arguments.split()))
    assert (status, out) == (2, "")
    assert part in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
