"""What a training session records and reports."""

import json
import re

import pytest

from pyro_fmvae import session
from pyro_fmvae.run import Run
from tests.runs import metrics, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(session, "draw", lambda *_: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", ["binary", "grey", "colour", "table"])
def test_records_are_what_evaluate_says_of_validation_data(files, tmp_path, kind):
    assert train(tmp_path / "run", files[kind], factors="2,3")[0] == 0
    record = metrics(tmp_path / "run")[-1]
    measures = json.loads(succeed("evaluate", tmp_path / "run", "--split", "valid"))
    for name in ("elbo", "reconstruction", "kl_z", "kl_r", "kl_global"):
        assert record[name] == pytest.approx(measures[name], rel=1e-6)


def test_unseen_combinations_are_reported_beside_the_seen_ones(files, tmp_path):
    run = tmp_path / "run"
    status, out, err = train(run, files["binary"], labels=1, factors="2,2", hold_out=0.25)
    assert status == 0, err
    dataset = Run.open(run).load_data()
    assert dataset.unseen is not None
    (combination,) = dataset.unseen.labels.unique(dim=0)
    for seen in (dataset.train, dataset.valid, dataset.test):
        assert not (seen.labels == combination).all(-1).any()
    for name in ("test", "unseen"):
        measures = json.loads(succeed("evaluate", run, "--split", name))
        assert measures["n"] == len(dataset.split(name))
        assert f"{measures['n']} {name} points, nats per point: ELBO {measures['elbo']:.2f} = " in out
    accuracies = [
        json.loads(succeed("evaluate", run, "--split", name))["accuracy"] for name in ("test", "unseen")
    ]
    for label in ("side", "noise"):
        expected = "  ".join(f"{accuracy[label]:.4f}" for accuracy in accuracies)
        assert re.search(rf"^  {label} +{expected}$", out, re.MULTILINE)


def test_only_chosen_labels_are_trained_on(files, tmp_path):
    status, _, err = train(tmp_path / "run", files["binary"], labels=1, factors="2", label_names="noise")
    assert status == 0, err
    run = Run.open(tmp_path / "run")
    assert (run.label_names, run.labelled) == (("noise", "side"), (0,))
    measures = json.loads(succeed("evaluate", tmp_path / "run"))
    assert list(measures["accuracy"]) == ["noise"]
    assert list(measures["clustering"]) == ["side"]
