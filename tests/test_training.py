"""How the steps of a run are taken."""

import pytest
import torch

from pyro_fmvae import training
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import load
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
