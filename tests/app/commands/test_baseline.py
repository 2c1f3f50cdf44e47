"""What the commands make of a run whose model has no factors."""

import json

import numpy as np
import pytest
import torch

from pyro_fmvae.app.runs.run import Run
from tests.small_runs import SIZE, command, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

NEEDED = "run: {} needs factors, but this run's model (vae) has none"
OPTIONS = {"factors": "2,3", "pretrain_iterations": 40}  # z of 4 dimensions


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    kinds = {kind: {"model": "vae", **OPTIONS} for kind in ("binary", "table")}
    return train_all(tmp_path_factory.mktemp("runs"), files, kinds)


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.parametrize("kind", ["binary", "table"])
def test_evaluate(runs, files, kind):
    result = json.loads(succeed("evaluate", runs[kind], "--data", files[kind], "--num-samples", 200))
    assert list(result) == [
        *("n", "elbo", "reconstruction", "kl_z", "kl_r", "kl_global"),
        *("collapsed", "importance_weighted", "num_samples", "used_components"),
    ]
    assert (result["n"], result["kl_r"], result["kl_global"], result["used_components"]) == (SIZE, 0, 0, [])
    assert result["elbo"] == result["reconstruction"] - result["kl_z"]
    assert result["collapsed"] == pytest.approx(result["elbo"], abs=0.1)  # an estimate of the same
    assert result["importance_weighted"] > result["collapsed"]


@pytest.mark.parametrize("kind", ["binary", "table"])
def test_encode(runs, files, tmp_path, kind):
    succeed("encode", runs[kind], "--data", files[kind], "--out", tmp_path / "codes.npz")
    encoded = arrays(tmp_path / "codes.npz")
    assert {name: array.shape for name, array in encoded.items()} == {"mean": (SIZE, 4), "scale": (SIZE, 4)}
    assert (encoded["scale"] > 0).all()


@pytest.mark.parametrize("kind", ["binary", "table"])
def test_sample(runs, tmp_path, kind):
    succeed("sample", runs[kind], "--out", tmp_path / "a.npz", "--grid", "20x50", "--seed", 1)
    drawn = arrays(tmp_path / "a.npz")
    assert set(drawn) == {"x", "z"}
    assert drawn["z"].shape == (1000, 4)
    assert drawn["z"].mean(0) == pytest.approx(np.zeros(4), abs=0.2)
    assert drawn["z"].std(0) == pytest.approx(np.ones(4), abs=0.15)
    run = Run.open(runs[kind])
    model = run.load_model(torch.device("cpu"))
    with torch.no_grad():
        mean = run.preprocessing.undo(model.observation.mean(model.decoder(torch.from_numpy(drawn["z"]))))
    assert drawn["x"] == pytest.approx(mean.numpy(), abs=1e-4)
    succeed("sample", runs[kind], "--out", tmp_path / "b.npz", "--grid", "20x50", "--seed", 1)
    assert (arrays(tmp_path / "b.npz")["x"] == drawn["x"]).all()


def test_sample_as_a_picture(runs, tmp_path):
    succeed("sample", runs["binary"], "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize("kind", ["binary", "table"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate RUN --probes", NEEDED.format("--probes")),
        ("draw RUN spread --factors 99", NEEDED.format("draw")),
        (
            "edit RUN --image a.png --set 0=1 --out b.png",
            NEEDED.format("edit"),
        ),
        ("sample RUN --out x.npz --codes 0,*", "codes: a vae has no factors that codes could be given to"),
    ],
)
def test_what_needs_factors_is_refused(runs, tmp_path, monkeypatch, kind, arguments, message):
    monkeypatch.chdir(tmp_path)
    place = str(runs[kind])
    status, out, err = command(*arguments.replace("RUN", place).split())
    assert (status, out) == (2, "")
    assert err == f"pyro-fmvae: error: {message.replace('RUN', place)}\n"
    assert not any(tmp_path.iterdir())
