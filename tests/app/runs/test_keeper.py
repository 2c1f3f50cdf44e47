"""The best model is kept, and phases that no longer gain end early, by real trainings of tiny models."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.app.recipes.registry import configure
from pyro_fmvae.app.runs import training as keeper_module
from pyro_fmvae.app.runs.closing_table import Moment, SelectedModel
from pyro_fmvae.app.runs.run import CHECKPOINT, Run
from pyro_fmvae.app.runs.trainer import Best, Trainer, copied
from pyro_fmvae.app.runs.training import Ended, Journal, Keeper
from pyro_fmvae.data import load
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.learn.phase import Phase
from tests.small_runs import kill_and_resume, metrics, state, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

OVERFITTED = {  # 48 points, networks and steps that learn them by heart
    "model": "vae",
    "factors": "2",
    "hidden": "64",
    "min_scale": "0.001",
    "learning_rate": "0.01",
    "weight_decay": 0,
    "pretrain_iterations": 60,
    "factor_dim": 5,
    "joint_iterations": 200,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "noise.npz"
    np.savez(path, x=rng.normal(size=(60, 20)))
    return path


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run with patience that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record_every", 5)
        status, _, err = train(run, data, patience=20, **OVERFITTED)
    assert status == 0, err
    return run


def of_phase(run, name):
    return {record["step"]: record["elbo"] for record in metrics(run) if record["phase"] == name}


def validation_bound(run):
    return json.loads(succeed("evaluate", run, "--split", "valid"))["elbo"]


@pytest.mark.parametrize("patience", [0, 20])
def test_a_run_stands_for_its_best_model(data, tmp_path, monkeypatch, patience):
    monkeypatch.setattr(Phase, "record_every", 5)
    run = tmp_path / "run"
    status, out, err = train(run, data, patience=patience, **OVERFITTED)
    assert status == 0, err
    joint, kept = of_phase(run, "joint"), SelectedModel.read(run)
    first, last, best = min(joint), max(joint), max(joint, key=joint.get)
    assert joint[last] < joint[best] - 0.5
    assert (kept.kept.total_steps, kept.kept.value) == (best, joint[best])
    assert (kept.end.total_steps, kept.end.value) == (last, joint[last])
    assert validation_bound(run) == pytest.approx(joint[best], rel=1e-6)
    training = json.loads(succeed("evaluate", run, "--split", "train", "--points", kept.points))
    assert kept.points == 6 and np.isfinite(training["elbo"])
    assert f"kept: joint step {best - first:,}, validation ELBO {joint[best]:.2f}; at the end, joint" in out
    assert "memorise" in " ".join(out.split())
    if patience:
        assert kept.stopped and last - best == patience < 200 - (best - first)
        pretrained = of_phase(run, "pretrain")
        assert joint[first] == pytest.approx(max(pretrained.values()))  # handed over at its best
    else:
        assert not kept.stopped and last - first == 200


def test_without_patience_a_training_is_what_it_was_before_there_were_records(data, tmp_path, monkeypatch):
    """Watching draws nothing from the training's generator, and phases hand over the model of their end."""
    ends = []
    for every in (1, 1000):
        monkeypatch.setattr(Phase, "record_every", every)
        run = tmp_path / f"every{every}"
        assert train(run, data, patience=0, **OVERFITTED)[0] == 0
        ends.append({phase: list(of_phase(run, phase).values())[-1] for phase in ("pretrain", "joint")})
        random = checkpoint.load(run / CHECKPOINT)[0]["random"]["cpu"]
        ends[-1]["random"] = random.tolist()
    assert ends[0] == ends[1]


@pytest.mark.parametrize("every", [0.0, float("inf")], ids=["every step", "at phase starts"])
def test_killed_run_keeps_what_it_would_have_kept(data, whole, tmp_path, monkeypatch, every):
    monkeypatch.setattr(Phase, "record_every", 5)
    run = tmp_path / "run"
    kill_and_resume(run, data, (3, 40, 90), every, patience=20, **OVERFITTED)
    assert state(run) == state(whole)
    assert metrics(run) == metrics(whole)
    assert SelectedModel.read(run) == SelectedModel.read(whole)


def test_a_phase_whose_time_is_over_before_its_first_step_takes_one_and_keeps_a_model(data, tmp_path):
    run = tmp_path / "run"
    status, _, err = train(run, data, **OVERFITTED | {"max_minutes": 1e-6})
    assert status == 0, err
    assert [record["step"] for record in metrics(run)] == [0, 1, 1, 2]
    assert SelectedModel.read(run).end.total_steps == 2


def test_killed_between_the_end_of_a_phase_and_the_next_one(data, whole, tmp_path, monkeypatch):
    """The checkpoint at the very end of a phase holds the model that is handed over."""
    monkeypatch.setattr(Phase, "record_every", 5)
    steps, run = max(of_phase(whole, "pretrain")), tmp_path / "run"
    kill_and_resume(run, data, steps + 1, 0.0, patience=20, **OVERFITTED)  # at step 0 of joint
    assert state(run) == state(whole)


@pytest.mark.parametrize(("labelled", "per_value"), [(True, 1), (True, 2), (False, 1)])
def test_a_model_of_lower_bound_is_kept_if_it_alone_has_learnt_the_labels_in_use(
    tmp_path, labelled, per_value
):
    """Validation points have no labels at all, as where a person has few of them.

    Of several components for a value, points are in the last.
    """
    dataset = load(str(write_files(tmp_path)["binary"]))
    dataset = replace(dataset, valid=replace(dataset.valid, labels=dataset.valid.labels.fill_(-1)))
    options = {"factors": (2 * per_value, 2 * per_value)}
    if labelled:
        options |= {"labels": 1.0, "free_from": 0.0, "per_value": per_value}
    run = Run.new(tmp_path, configure("fmvae", "mine.npz", hidden=(4,), **options), dataset)
    trainer = Trainer(run, dataset, torch.device("cpu"))
    trainer.progress.phase = [phase.name for phase in trainer.phases].index("joint")
    journal = Journal(trainer, dataset, False)
    keeper, bounds = Keeper(trainer, dataset, journal), iter([-10.0, -12.0])

    def numbers(x):
        return tuple(x.flatten().tolist())

    points = zip(dataset.train.observations, dataset.train.labels, strict=True)
    truth = {numbers(x): y + 2 * (per_value - 1) for x, y in points}

    def follow(record, codes):
        trainer.model.codes = lambda x: torch.stack([codes(truth[numbers(one)]) for one in x])
        journal(record)
        journal.line["elbo"] = next(bounds)
        keeper(record)

    follow(Record("joint", 0, 5, 0.0, None, 0.0), lambda y: 1 - y % 2)
    follow(Record("joint", 250, 255, 0.5, 1.0, 0.0), lambda y: y)
    best = trainer.best.moment
    assert (best.step, best.known) == ((250, dataset.train.labels.numel()) if labelled else (0, 0))
    assert best.right > 0.9 if labelled else best.right is None  # equal pictures have different labels


def test_patience_counts_from_when_a_phase_is_settled(tmp_path):
    """Free factors open at step 100: the best before them is kept, and they have their time to gain."""
    dataset = load(str(write_files(tmp_path)["binary"]))
    options = {"labels": 1.0, "factors": (2, 2, 2), "free_from": 0.5, "patience": 100}
    run = Run.new(tmp_path, configure("fmvae", "mine.npz", hidden=(4,), **options), dataset)
    trainer = Trainer(run, dataset, torch.device("cpu"))
    trainer.progress.phase = [phase.name for phase in trainer.phases].index("joint")
    bounds = iter([-5.0, -10.0, -11.0, -12.0, -12.0])
    journal = SimpleNamespace(validation=dataset.valid, measure="elbo", left_out=(), line=None)
    keeper = Keeper(trainer, dataset, journal)

    def follow(record):
        journal.line = {"elbo": next(bounds)}
        keeper(record)

    follow(Record("joint", 0, 5, 0.0, None, 0.0))
    assert trainer.best is None
    phase, stopped = trainer.phases[trainer.progress.phase], []
    phase.enter()
    for step, fraction in ((50, 0.2), (150, 0.4), (200, 0.6), (250, 0.7)):
        phase.before_step(fraction)
        follow(Record("joint", step, step + 5, fraction, 1.0, 0.0))
        stopped.append(trainer.progress.stopped)
        trainer.best = Best.from_state(trainer.best.state_dict())
    assert trainer.best.moment.step == 50 and stopped == [False, False, False, True]


def test_both_models_are_measured_on_the_same_training_points(tmp_path, monkeypatch):
    """The model of the end has no finite bound at the first of them."""
    dataset = load(str(write_files(tmp_path)["binary"]))
    run = Run.new(tmp_path, configure("fmvae", "mine.npz", hidden=(4,), factors=(2,)), dataset)
    trainer = Trainer(run, dataset, torch.device("cpu"))
    keeper = Keeper(trainer, dataset, SimpleNamespace(validation=dataset.valid, measure="elbo", left_out=()))
    best, end = (copied(trainer.model) for _ in range(2))
    name = next(iter(end))
    end[name] += 1
    measured = []

    def finite(model, rows, device):
        at_end = torch.equal(model.state_dict()[name], end[name])
        near = torch.arange(int(at_end and len(rows) == number), len(rows))
        measured.append((at_end, len(near)))
        return {"elbo": -float(len(near))}, near

    monkeypatch.setattr(keeper_module, "finite_bound", finite)
    number = len(keeper.training)
    keeper.ended = Ended(Moment("joint", 1, 1, -1.0), Moment("joint", 2, 2, -3.0), end, False)
    keeper.finish()
    assert measured == [(False, number), (True, number - 1), (False, number - 1)]
    kept = SelectedModel.read(tmp_path)
    assert (kept.points, kept.training, kept.training_at_end) == (number - 1, 1.0 - number, 1.0 - number)
    assert torch.equal(trainer.model.state_dict()[name], best[name])
