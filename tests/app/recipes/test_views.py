"""Runs whose images are seen as several views, and runs with several components for each value of a label."""

import json

import numpy as np
import pytest
import torch

import pyro_fmvae
from pyro_fmvae.app.recipes.networks import view_of
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Batches, Kind, Preprocessing, RandomPhoto
from pyro_fmvae.evaluate import bound
from pyro_fmvae.learn.fmvae_phases import draw_views
from pyro_fmvae.learn.phase import Phase
from tests.small_runs import kill_and_resume, metrics, state, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

VIEWS = {"views": 2, "view_strength": 0.5, "factors": "2,3", "per_view": 1}
SETS = {
    "labels": 1,
    "label_names": "side",
    "factors": "4",
    "per_value": 2,
    "joint_iterations": 100,
    "learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    """A run of each kind, with a record every other step."""
    parent = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record_every", 2)
        for name, data, options in (
            ("binary", "binary", VIEWS),
            ("labelled", "binary", {**VIEWS, "labels": 0.5, "factors": "2,2,3", "per_view": 2}),
            ("colour", "colour", VIEWS),
            ("distorted", "grey", {"views": 3, "distortion": 1.0, "factors": "2"}),
            ("sets", "binary", SETS),
        ):
            status, _, err = train(parent / name, files[data], **options)
            assert status == 0, err
    return parent


@pytest.mark.parametrize(
    ("name", "number"), [("binary", 2), ("labelled", 2), ("colour", 2), ("distorted", 3)]
)
def test_the_bound_of_the_program_stands_beside_that_of_one_view(runs, name, number):
    found = json.loads(succeed("evaluate", runs / name))
    views = found["views"]
    assert views["number"] == number
    assert views["elbo"] == pytest.approx(views["reconstruction"] - views["kl_z"] - views["kl_r"], abs=1e-4)
    run = Run.open(runs / name)
    model, test = run.load_model(torch.device("cpu")), run.load_data().test
    view = view_of(run.config.view_strength, run.recipe.preprocessing)
    batches = list(Batches(test, len(test), shuffle=False))
    again = bound(model.train(), batches, views=lambda x: draw_views(x, number, view))
    assert views["kl_z"] == pytest.approx(again["kl_z"] / number)
    plain = bound(model.eval(), list(Batches(test, len(test), shuffle=False)))
    assert found["elbo"] == pytest.approx(plain["elbo"])


def test_runs_without_views_have_no_such_bound(runs):
    assert "views" not in json.loads(succeed("evaluate", runs / "sets"))


def test_a_killed_run_is_resumed_to_the_bit(runs, files, tmp_path, monkeypatch):
    monkeypatch.setattr(Phase, "record_every", 2)
    run = tmp_path / "run"
    kill_and_resume(run, files["binary"], (5, 9), 0.0, **VIEWS)
    assert state(run) == state(runs / "binary")
    assert metrics(run) == metrics(runs / "binary")


def test_codes_have_a_component_of_each_factor_from_one_view(runs, files):
    run = pyro_fmvae.load(runs / "binary")
    with np.load(files["binary"]) as arrays:
        found = run.encode(arrays["x"])
    assert found["codes"].shape == (60, 2)
    assert (found["codes"] == np.stack([found[f"responsibilities_{i}"].argmax(-1) for i in (0, 1)], -1)).all()


def test_a_component_is_called_by_its_value(runs, files, tmp_path):
    run = pyro_fmvae.load(runs / "sets")
    with np.load(files["binary"]) as arrays:
        x, labels = arrays["x"], arrays["labels"][:, 0]
    called, codes = run.predict(x)["side"], run.encode(x)["codes"][:, 0]
    assert (called == codes % 2).all()
    assert set(codes.tolist()) - {0, 1}, "no component beyond the first two is in use"
    assert (called == labels).mean() > 0.8
    found = json.loads(succeed("evaluate", runs / "sets", "--data", files["binary"]))
    assert found["accuracy"]["side"] == pytest.approx((called == labels).mean())
    tested = json.loads(succeed("evaluate", runs / "sets"))["classification"]["side"]
    printed = json.loads((runs / "sets" / "report.json").read_text())["splits"]["test"]
    assert printed["classification"]["side"] == tested and tested["values"] == ["0", "1"]
    other = tmp_path / "other.npz"  # components go up to 3, values to 1
    np.savez(other, x=x, labels=np.where(np.arange(60) < 7, 3, labels), label_names=["side"])
    assert json.loads(succeed("evaluate", runs / "sets", "--data", other))["left_out"] == {"side": {"3": 7}}


@pytest.mark.parametrize(
    ("kind", "shape", "low"),
    [(Kind.BINARY, (9, 7), 0.0), (Kind.IMAGE, (9, 7), -1.0), (Kind.IMAGE, (12, 10, 3), -1.0)],
)
def test_views_are_images_of_the_same_kind(kind, shape, low):
    view = view_of(0.8, Preprocessing(kind, shape))
    x = torch.rand(6, *shape)
    x = (x > 0.5).float() if kind is Kind.BINARY else 2 * x - 1
    seen = view(x)
    assert seen.shape == x.shape and not torch.equal(seen, x)
    assert low <= seen.min() and seen.max() <= 1
    assert kind is not Kind.BINARY or set(seen.unique().tolist()) == {0.0, 1.0}
    assert isinstance(view, RandomPhoto) == (len(shape) == 3)


def test_no_strength_is_no_change():
    assert view_of(0.0, Preprocessing(Kind.BINARY, (4, 4))) is None
