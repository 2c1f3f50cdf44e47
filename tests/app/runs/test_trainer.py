"""How the steps of a run are taken."""

import numpy as np
import pytest
import torch

from pyro_fmvae.app.recipes.registry import configure, options_of
from pyro_fmvae.app.runs import trainer
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import load
from pyro_fmvae.learn import fitting, label_spreading
from pyro_fmvae.learn.gradient_em import GradientEM
from pyro_fmvae.learn.stepwise_em import StepwiseEM
from pyro_fmvae.learn.vae_phases import FreeEM, HybridEM, VAEJoint
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule
from tests.small_runs import write_files


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_files(tmp_path_factory.mktemp("data"))["binary"])


def small(path, model="fmvae", **options):
    """Options of a model, with a small hidden layer if it has any."""
    return configure(model, path, **({"hidden": (4,)} if "hidden" in options_of(model) else {}), **options)


def stepping(path, folder, **options):
    dataset = load(path)
    run = Run.new(folder, small(path, **options), dataset)
    return Trainer(run, dataset, torch.device("cpu")).stepping


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "captured, or compiled, where that pays"),
        ({"joint_iterations": 5_000}, "captured"),
        ({"joint_iterations": 10_000}, "captured and compiled"),
        ({"joint_iterations": 10_000, "compile": False}, "captured"),
        ({"joint_iterations": 10_000, "eager": True}, "eager"),
        ({"max_minutes": 50.0}, "captured, or compiled, where that pays"),
        ({"max_minutes": 50.0, "compile": False}, "captured where that pays"),
        ({"max_minutes": 1.0, "compile": True}, "captured and compiled"),
        ({"joint_iterations": 10_000, "time_limit": 5.0}, "captured, or compiled, where that pays"),
        ({"compile": True}, "captured and compiled"),
        ({"autocast": True, "time_limit": 0.0}, "captured, networks in bfloat16"),
        ({"model": "bsc"}, "in closed form"),
        ({"model": "bsc", "m_step": "gradient", "joint_iterations": 9}, "captured"),
    ],
)
def test_long_trainings_are_compiled_by_default(path, tmp_path, monkeypatch, options, expected):
    monkeypatch.setattr(fitting, "compiles", lambda device: "")
    assert stepping(path, tmp_path, **options) == expected


@pytest.mark.parametrize(("batch_size", "fewest"), [(1, 1), (2, 2), (3, 1), (1000, 1)])
def test_the_last_batch_of_a_long_epoch_is_not_compiled_for(path, tmp_path, batch_size, fewest):
    dataset = load(path)
    assert 2 * trainer.SPARED <= len(dataset.train) < 3 * trainer.SPARED
    config = configure(data=path, hidden=(4,), batch_size=batch_size, joint_iterations=1)
    learnt = Trainer(Run.new(tmp_path, config, dataset), dataset, torch.device("cpu"))
    first = learnt.phases[0]
    first.enter()
    assert first.svi.compile_from == fewest


def test_without_a_compiler(path, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fitting, "compiles", lambda device: "no compiler")
    with caplog.at_level("INFO"):
        assert stepping(path, tmp_path, joint_iterations=10_000) == "captured"
    assert "not compiled: torch.compile does not work here (no compiler)" in caplog.text
    with pytest.raises(ValueError, match=r"^compile: .*\(no compiler\)"):
        stepping(path, tmp_path, compile=True)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("kind", ["binary", "grey"])
def test_divergence_says_what_to_change(tmp_path, kind):
    path = str(write_files(tmp_path)[kind])
    dataset = load(path)
    config = small(path, eager=True, learning_rate=1e30, prior_iterations=0)
    trainer = Trainer(Run.new(tmp_path / "run", config, dataset), dataset, torch.device("cpu"))
    advice = r"Train with a lower --learning-rate, such as 2\.5e\+29"
    if kind == "grey":
        advice += r", or with a higher --min-scale, such as 0\.01"
    with pytest.raises(ValueError, match=rf"^pretrain diverged at step \d+: .*(finite|scale).*\. {advice}$"):
        list(trainer.records())


def test_labels_are_spread_for_the_phases_alone(tmp_path, caplog, monkeypatch):
    """Labels spread to what the phases see; what is measured is right by the given labels."""
    truth = np.arange(200) % 2
    pictures = (200 * truth[:, None, None] + np.random.default_rng(0).integers(0, 50, (200, 3, 3))).astype(
        "u1"
    )
    path = tmp_path / "two.npz"
    np.savez(path, x=pictures, labels=np.where(np.arange(200) < 60, truth, -1)[:, None], label_names=["kind"])
    dataset = load(str(path))
    run = Run.new(tmp_path / "run", configure(data=str(path), labels=1.0), dataset)
    with caplog.at_level("INFO"):
        learnt = Trainer(run, dataset, torch.device("cpu"))
    unknown = (learnt.training.labels < 0).sum()
    assert unknown > 50 and torch.equal(learnt.training.labels, dataset.train.labels)
    assert f"kind: labels spread to {unknown} more training points" in caplog.text
    assert "labels are not spread" not in caplog.text
    for x, labels in learnt.batches:
        assert torch.equal(labels[:, 0], (x.mean((1, 2)) > 0).long())
    monkeypatch.setattr(label_spreading, "MOST_POINTS", 100)
    with caplog.at_level("INFO"):
        untaught = Trainer(run, dataset, torch.device("cpu"))
    assert "labels are not spread: that takes 8 to 5,000 points without missing numbers" in caplog.text
    assert any((labels < 0).any() for _, labels in untaught.batches)


def phases(path, folder, **options):
    dataset = load(path)
    run = Run.new(folder, small(path, eager=True, **options), dataset)
    return Trainer(run, dataset, torch.device("cpu")).phases


def rate(phase):
    phase.enter()
    phase.before_step(0.25)  # warm, and not yet falling
    return phase.svi.optim.others.param_groups[0]["lr"]


@pytest.mark.parametrize("model", ["fmvae", "vae", "vsc"])
def test_joint_phase_has_its_own_learning_rate(path, tmp_path, model):
    options = {"model": model, "learning_rate": 1e-2, "final_learning_rate": 1e-4}
    by_name = {phase.name: phase for phase in phases(path, tmp_path, joint_learning_rate=1e-3, **options)}
    assert rate(by_name["pretrain"]) == pytest.approx(1e-2)
    assert rate(by_name["joint"]) == pytest.approx(1e-3)
    by_name = {phase.name: phase for phase in phases(path, tmp_path, **options)}
    assert rate(by_name["joint"]) == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("posterior", "kind"),
    [("encoder", VAEJoint), ("point", VAEJoint), ("free", FreeEM), ("hybrid", HybridEM)],
)
def test_weights_and_steps_of_a_vae(path, tmp_path, posterior, kind):
    free, point = posterior in ("free", "hybrid"), posterior == "point"
    options = {} if point else {"beta": 4.0, "total_correlation": 3.0, "pretrain_kl_weight": 0.5}
    options |= {"free_steps": 7, "free_learning_rate": 0.3} if free else {}
    first, joint = phases(path, tmp_path, model="vae", posterior=posterior, **options)
    assert first.options.pretrain_kl_weight == (1.0 if point else 2.0)
    assert type(joint) is kind
    assert joint.beta == (1.0 if point else 4.0)
    assert joint.weights == {"kl_weight": joint.beta, "tc_weight": 1.0 if point else 3.0}
    if free:
        assert (joint.free.steps, joint.free.learning_rate) == (7, 0.3)
    assert first.budget.empty == (posterior == "free")


def test_phases_of_sparse_codes_share_the_warm_up(path, tmp_path):
    options = {"pretrain_iterations": 30, "joint_iterations": 10, "warm_up": (0.25, 0.5), "kl_weight": 5.0}
    pretrain, joint = phases(path, tmp_path, model="vsc", **options)
    assert (pretrain.span, joint.span) == ((0.0, 0.75), (0.75, 1.0))
    assert pretrain.options.warm_up == joint.options.warm_up == (0.25, 0.5)
    assert (pretrain.kl_weight, joint.kl_weight) == (1.0, 5.0)


def test_em_of_binary_codes_is_one_phase(path, tmp_path):
    options = {"model": "bsc", "sweeps": 7, "group_size": 3, "nonnegative": True}
    (joint,) = phases(path, tmp_path, temperature=2.0, starts=4, reseed_every=6, **options)
    assert type(joint) is StepwiseEM
    assert (joint.name, joint.budget.iterations, joint.starts, joint.hottest) == ("joint", 80, 4, 2)
    assert joint.reseed_every == 6
    assert joint.em is joint.model.em
    assert (joint.em.sweeps, joint.em.group_size, joint.em.nonnegative) == (7, 3, True)
    assert joint.record_every == 8


def test_gradients_of_binary_codes_are_one_phase(path, tmp_path):
    options = {"model": "bsc", "m_step": "gradient", "joint_iterations": 9, "learning_rate": 0.5}
    (joint,) = phases(path, tmp_path, final_learning_rate=0.25, **options)
    assert type(joint) is GradientEM
    assert (joint.name, joint.budget.iterations) == ("joint", 9)
    assert rate(joint) == 0.5
    joint.before_step(1.0)
    assert joint.svi.optim.others.param_groups[0]["lr"] == pytest.approx(0.25)
    (joint,) = phases(path, tmp_path, joint_learning_rate=0.75, **options)
    assert rate(joint) == 0.75


@pytest.mark.parametrize("model", ["bsc", "max-sparse", "linear-sparse"])
def test_steps_of_batches_of_a_coder(path, tmp_path, model):
    options = {"em_forgetting": 0.75, "batch_size": 8, "latent_dim": 6}
    options |= {"refine_iterations": 2} if "refine_iterations" in options_of(model) else {}
    for phase in phases(path, tmp_path, model=model, **options):
        assert phase.rate(14) == pytest.approx(1 / 8)


@pytest.mark.parametrize(("model", "rule"), [("max-sparse", MaxRule), ("linear-sparse", LinearRule)])
def test_em_of_slabs_ends_with_all_units(path, tmp_path, model, rule):
    options = {"model": model, "preselect": 3, "latent_dim": 6, "sweeps": 5}
    joint, refine = phases(path, tmp_path, shared=False, **options)
    assert [(phase.name, phase.budget.iterations) for phase in (joint, refine)] == [
        ("joint", 50),
        ("refine", 5),
    ]
    assert (joint.starts, joint.hottest, joint.reseed_every) == (2, 3, 0)
    assert (refine.starts, refine.hottest, refine.reseed_every) == (0, 1, 0)
    assert joint.em is joint.model.em
    assert (joint.em.gibbs.preselect, refine.em.gibbs.preselect) == (3, None)
    for phase in (joint, refine):
        assert type(phase) is StepwiseEM
        assert type(phase.em.rule) is rule
        assert (phase.em.units, phase.em.sweeps, phase.em.kept, phase.em.shared) == (6, 5, 2, False)


@pytest.mark.parametrize(("preselect", "expected"), [(0, None), (5, 5), (6, None), (9, None), (1, 1)])
def test_preselection_of_all_units_is_none(path, tmp_path, preselect, expected):
    joint, _ = phases(path, tmp_path, model="max-sparse", latent_dim=6, preselect=preselect, sweeps=1)
    assert joint.em.gibbs.preselect == expected
    assert joint.em.kept == 1


@pytest.mark.parametrize("model", ["bsc", "linear-sparse", "vae", "vsc"])
def test_batches_tell_their_rows_where_points_keep_something(path, tmp_path, model):
    dataset = load(path)
    run = Run.new(tmp_path, small(path, model=model, eager=True), dataset)
    *_, last = next(iter(Trainer(run, dataset, torch.device("cpu")).batches))
    assert (last.dtype == torch.int64 and last.dim() == 1) == (model in ("bsc", "linear-sparse"))


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"joint_iterations": 3}, {20, 8}),
        ({"max_minutes": 3.0}, {20}),
        ({}, {20}),
        ({"model": "vae", "posterior": "free", "max_minutes": 3.0}, {20, 8}),
    ],
)
def test_by_the_clock_all_batches_have_one_shape_unless_points_keep_something(
    path, tmp_path, options, lengths
):
    dataset = load(path)
    assert len(dataset.train) == 48
    run = Run.new(tmp_path, small(path, batch_size=20, **options), dataset)
    batches = Trainer(run, dataset, torch.device("cpu")).batches
    assert {len(batch[0]) for batch in batches} == lengths
