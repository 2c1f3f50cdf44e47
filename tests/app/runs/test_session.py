"""What a training session records and reports."""

import json
import re
import time

import numpy as np
import pytest
import torch

from pyro_fmvae import load
from pyro_fmvae.app.recipes.labelling import labelled_points
from pyro_fmvae.app.runs import by_batches
from pyro_fmvae.app.runs.closing_table import METRICS, REPORT, SelectedModel
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import FactorialMixtureVAE
from tests.small_runs import metrics, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", ["binary", "grey", "colour", "table"])
def test_records_are_what_evaluate_says_of_validation_data(files, tmp_path, kind):
    assert train(tmp_path / "run", files[kind], factors="2,3")[0] == 0
    kept = SelectedModel.read(tmp_path / "run").kept
    (record,) = (
        record
        for record in metrics(tmp_path / "run")
        if (record["phase"], record["step"]) == (kept.phase, kept.total_steps)
    )
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
        classified = measures["classification"]
        assert json.loads((run / REPORT).read_text())["splits"][name]["classification"] == classified
        for label in ("side", "noise"):
            number = f"{classified[label]['accuracy']:.3f}"
            assert re.search(rf"^  {label} +{measures['n']} +{number} ", out, re.MULTILINE)


def test_records_have_the_accuracy_on_labels_in_use_and_on_validation_labels(files, tmp_path):
    status, _, err = train(tmp_path / "run", files["binary"], labels=0.5, factors="2,2")
    assert status == 0, err
    records = metrics(tmp_path / "run")
    assert all(("accuracy" in record) == (record["phase"] != "pretrain") for record in records)
    run = Run.open(tmp_path / "run")
    dataset, model = run.load_data(), run.load_model(torch.device("cpu")).eval()
    used = labelled_points(run.recipe, dataset.train).labels
    expected = {"train": (dataset.train, used), "valid": (dataset.valid, dataset.valid.labels)}
    for name, (split, labels) in expected.items():
        right = (model.codes(split.observations)[:, :2] == labels).double()
        known = (labels >= 0).double()
        shares = ((right * known).sum(0) / known.sum(0)).tolist()
        assert records[-1]["accuracy"][name] == pytest.approx(
            dict(zip(("side", "noise"), shares, strict=True))
        )
    log = (tmp_path / "run" / "train.log").read_text()
    assert f", train accuracy side {records[-1]['accuracy']['train']['side']:.3f}, noise " in log


def test_a_run_without_labels_has_no_accuracies(files, tmp_path):
    assert train(tmp_path / "run", files["binary"], factors="2")[0] == 0
    assert not any("accuracy" in record for record in metrics(tmp_path / "run"))


def test_a_factor_that_has_collapsed_is_named_in_the_closing_table(files, tmp_path, monkeypatch):
    def one_value(self, x):
        return torch.zeros(len(x), len(self.num_components), dtype=torch.int64)

    monkeypatch.setattr(FactorialMixtureVAE, "codes", one_value)
    status, out, err = train(tmp_path / "run", files["binary"], labels=0.5, factors="2,2", spread=0)
    assert status == 0, err
    run = Run.open(tmp_path / "run")
    used = labelled_points(run.recipe, run.load_data().train).labels
    share = (used[used[:, 0] >= 0, 0] == 0).double().mean().item()
    called = "side: 100% of the training points without this label are called 0"
    assert f"warning: {called}, of the labels {share:.0%} are; either" in " ".join(out.split())


def test_labels_that_the_network_has_not_learnt_are_predicted_without_it(files, tmp_path, monkeypatch):
    """Labels that nothing tells are still the network's."""
    monkeypatch.setattr(FactorialMixtureVAE, "codes", lambda self, x: torch.zeros(len(x), 2).long())
    status, out, err = train(tmp_path / "run", files["binary"], labels=0.5, factors="2,2")
    assert status == 0, err
    said = "side predicted by: logistic regression and random forest; accuracies by cross-validation on the"
    assert f"{said} 24 labelled points" in " ".join(out.split()) and "noise predicted by" not in out
    run, data = load(tmp_path / "run", "cpu"), np.load(files["binary"])
    found = run.predict(data["x"])
    assert (found["side"] == data["labels"][:, 0]).mean() > 0.9 and not found["noise"].any()


def test_the_choice_of_options_counts_as_time_of_the_training(files, tmp_path, monkeypatch):
    """It may be a long search for components."""

    def slow(*arguments, new=Run.new):
        time.sleep(0.5)
        return new(*arguments)

    monkeypatch.setattr(Run, "new", slow)
    assert train(tmp_path / "run", files["table"], model="mixture", max_minutes=0.005)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert records[0]["seconds"] >= 0.5
    assert records[-1]["step"] == 1  # one step although no time is left


def test_only_chosen_labels_are_trained_on(files, tmp_path):
    status, _, err = train(tmp_path / "run", files["binary"], labels=1, factors="2", label_names="noise")
    assert status == 0, err
    run = Run.open(tmp_path / "run")
    assert (run.recipe.label_names, run.recipe.labelled) == (("noise", "side"), (0,))
    measures = json.loads(succeed("evaluate", tmp_path / "run"))
    assert list(measures["accuracy"]) == ["noise"]
    assert list(measures["clustering"]) == ["side"]


@pytest.mark.parametrize("model", ["fmvae", "vae"])
def test_programs_are_measured_in_evaluation_mode_and_trained_in_the_other(
    files, tmp_path, monkeypatch, model
):
    measured, stepped = [], []
    bound, records = by_batches.bound, Trainer.records

    def modes(program):
        return {module.training for module in program.modules()}

    def measuring(program, *arguments, **options):
        measured.append(modes(program))
        return bound(program, *arguments, **options)

    def watched(self, resumed=False):
        for record in records(self, resumed):
            yield record
            for program in (self.model, *(phase.program for phase in self.phases)):
                stepped.append(modes(program))

    monkeypatch.setattr(by_batches, "bound", measuring)
    monkeypatch.setattr(Phase, "record_every", 1)
    monkeypatch.setattr(Trainer, "records", watched)
    assert train(tmp_path / "run", files["grey"], factors="2,3", model=model)[0] == 0
    assert len(measured) > 6 and all(mode == {False} for mode in measured)
    assert len(stepped) > 6 and all(mode == {True} for mode in stepped)


def test_modes_come_back_as_they_were():
    trained, evaluated = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).eval()
    with pytest.raises(ArithmeticError), by_batches.evaluating(trained, evaluated):
        assert not trained.training and not evaluated.training
        raise ArithmeticError
    assert trained.training and not evaluated.training


def test_report_on_a_baseline_speaks_of_no_components(files, tmp_path):
    status, out, err = train(tmp_path / "run", files["binary"], model="vae")
    assert status == 0, err
    measures = json.loads(succeed("evaluate", tmp_path / "run"))
    assert f"ELBO {measures['elbo']:.2f} = reconstruction" in out
    assert f"- KL[z] {measures['kl_z']:.2f}\n" in out
    assert "component" not in out + err and "KL[r]" not in out and "label" not in out


def test_cudnn_adds_in_a_fixed_order_while_a_run_trains(files, tmp_path, monkeypatch):
    """On a GPU its fastest kernels do not, and no two trainings of convolutions are equal."""
    seen, records = [], Trainer.records

    def watched(self, resumed=False):
        seen.append(torch.backends.cudnn.deterministic)
        return records(self, resumed)

    monkeypatch.setattr(Trainer, "records", watched)
    before = torch.backends.cudnn.deterministic
    assert train(tmp_path / "run", files["unlabelled"])[0] == 0
    assert (before, seen, torch.backends.cudnn.deterministic) == (False, [True], False)
