"""How the steps of a run are taken."""

import pytest
import torch

from pyro_fmvae import training
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import load
from pyro_fmvae.models.vae_phases import FreeEM, HybridEM, VAEJoint
from pyro_fmvae.run import Run
from pyro_fmvae.training import Training
from tests.runs import write_files


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_files(tmp_path_factory.mktemp("data"))["binary"])


def stepping(path, folder, **options):
    dataset = load(path)
    run = Run.new(folder, TrainConfig(data=path, hidden=(4,), **options), dataset)
    return Training(run, dataset, torch.device("cpu")).stepping


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "captured"),
        ({"joint_iterations": 10_000}, "captured and compiled"),
        ({"joint_iterations": 10_000, "compile": False}, "captured"),
        ({"joint_iterations": 10_000, "eager": True}, "eager"),
        ({"max_minutes": 5.0}, "captured and compiled"),
        ({"max_minutes": 4.9}, "captured"),
        ({"compile": True}, "captured and compiled"),
        ({"autocast": True}, "captured, networks in bfloat16"),
    ],
)
def test_long_trainings_are_compiled_by_default(path, tmp_path, monkeypatch, options, expected):
    monkeypatch.setattr(training, "compiles", lambda device: "")
    assert stepping(path, tmp_path, **options) == expected


def test_without_a_compiler(path, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(training, "compiles", lambda device: "no compiler")
    with caplog.at_level("INFO"):
        assert stepping(path, tmp_path, max_minutes=5.0) == "captured"
    assert "not compiled: torch.compile does not work here (no compiler)" in caplog.text
    with pytest.raises(ValueError, match=r"^compile: .*\(no compiler\)"):
        stepping(path, tmp_path, compile=True)


def phases(path, folder, **options):
    dataset = load(path)
    run = Run.new(folder, TrainConfig(data=path, hidden=(4,), eager=True, **options), dataset)
    return Training(run, dataset, torch.device("cpu")).phases


def rate(phase):
    phase.enter()
    phase.before_step(0.0)
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
    options = {"posterior": posterior, "beta": 4.0, "total_correlation": 3.0, "pretrain_kl_weight": 0.5}
    first, joint = phases(path, tmp_path, model="vae", free_steps=7, free_learning_rate=0.3, **options)
    assert first.learning.pretrain_kl_weight == 2.0
    assert type(joint) is kind
    assert joint.beta == 4.0
    assert joint.weights == {"kl_weight": 4.0, "tc_weight": 3.0}
    if posterior in ("free", "hybrid"):
        assert (joint.free.steps, joint.free.learning_rate) == (7, 0.3)
    assert first.budget.empty == (posterior == "free")


def test_phases_of_sparse_codes_share_the_warm_up(path, tmp_path):
    options = {"pretrain_iterations": 30, "joint_iterations": 10, "warm_up": (0.25, 0.5), "kl_weight": 5.0}
    pretrain, joint = phases(path, tmp_path, model="vsc", **options)
    assert (pretrain.span, joint.span) == ((0.0, 0.75), (0.75, 1.0))
    assert pretrain.warm_up == joint.warm_up == (0.25, 0.5)
    assert (pretrain.kl_weight, joint.kl_weight) == (1.0, 5.0)
