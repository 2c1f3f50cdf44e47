"""Runs that earlier code left behind, with options of all models in `config.json`, and what it said of them.

``squares.npz`` holds the data of two of them; ``fmvae`` and ``max-sparse`` were interrupted. The file beside
a folder has what that code printed and wrote, about the run and about what it became once it was resumed.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_fmvae.app.runs import CONFIG, Run
from tests.small_runs import command, metrics, state, succeed

pytestmark = pytest.mark.usefixtures("single_precision")

FIXTURES = Path(__file__).parent / "fixtures"
CLOSE = {"rel": 2e-4, "abs": 2e-4}  # processors round float32 differently
INTERRUPTED = ("fmvae", "max-sparse")
ALL = (*INTERRUPTED, "vsc")


def opened(name, folder):
    """A copy of a run, with its data beside it, and what was said of the run."""
    shutil.copytree(FIXTURES / name, folder / name)
    shutil.copy(FIXTURES / "squares.npz", folder)
    config = json.loads((folder / name / CONFIG).read_text())
    if config["data"].endswith(".npz"):
        config["data"] = str(folder / config["data"])
    (folder / name / CONFIG).write_text(json.dumps(config))
    return folder / name, json.loads((FIXTURES / f"{name}.json").read_text())


def alike(found, expected):
    """Check that JSON values are the same, numbers approximately."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            alike(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, **CLOSE)
    else:
        assert found == expected


def evaluated(folder, names):
    """What ``evaluate`` prints under these names; it may print more than earlier code did."""
    torch.manual_seed(0)  # of Gibbs draws
    found = json.loads(succeed("evaluate", folder, "--device", "cpu"))
    return {name: found[name] for name in names}


@pytest.mark.parametrize("name", ALL)
def test_opens_and_evaluates(name, tmp_path):
    folder, expected = opened(name, tmp_path)
    assert Run.open(folder).recipe.name == name
    alike(evaluated(folder, expected["evaluate"]), expected["evaluate"])


@pytest.mark.parametrize("name", ALL)
def test_encodes_and_samples(name, tmp_path):
    folder, expected = opened(name, tmp_path)
    for written, options in (("encode", ()), ("sample", ("--grid", "1x2"))):
        torch.manual_seed(0)
        succeed(written, folder, "--device", "cpu", "--out", tmp_path / "out.npz", *options)
        with np.load(tmp_path / "out.npz") as found:
            rows = {name: array[: len(expected[written][name])].tolist() for name, array in found.items()}
        alike(rows, expected[written])


@pytest.mark.parametrize("name", INTERRUPTED)
def test_resumes(name, tmp_path):
    folder, expected = opened(name, tmp_path)
    before = state(folder)
    lines = succeed("train", "--resume", folder, "--device", "cpu").splitlines()
    assert state(folder) != before
    pairs = zip(metrics(folder), expected["metrics"], strict=True)  # records may say more than earlier ones
    alike([{name: record[name] for name in old} for record, old in pairs], expected["metrics"])
    alike(evaluated(folder, expected["resumed"]), expected["resumed"])
    assert set(expected["figures"]) <= {path.name for path in (folder / "figures").iterdir()}
    bound, summary = expected["report"][:2]
    assert any(line.split()[:3] == bound.split()[:3] for line in lines) and summary in lines


def test_a_finished_run_is_left_as_it_is(tmp_path):
    folder, _ = opened("vsc", tmp_path)
    before = state(folder)
    assert "is finished already" in succeed("train", "--resume", folder, "--device", "cpu")
    assert state(folder) == before


@pytest.mark.parametrize("name", ALL)
def test_trains_again_from_its_configuration(name, tmp_path):
    """Although the configuration lists options of other models."""
    folder, _ = opened(name, tmp_path)
    succeed("train", "--config", folder / CONFIG, "--out", tmp_path / "again", "--joint-iterations", 2)
    old, new = Run.open(folder).config, Run.open(tmp_path / "again").config
    changes = {"joint_iterations": 2, "test": None}  # a new run keeps rows with rare labels in training
    if name == "fmvae":
        changes |= {"spread": 0.95, "label_distance": 0.0, "independent_start": True}  # and spreads them
    assert new.to_dict() == {**old.to_dict(), **changes}
    assert Run.open(tmp_path / "again").load_model(torch.device("cpu")) is not None


@pytest.mark.parametrize("typed", ["--labels 0.5", "--labels=0.5", "--whiten false"])
def test_an_option_of_another_model_is_an_error_beside_its_configuration(typed, tmp_path):
    folder, _ = opened("vsc", tmp_path)
    arguments = ("--config", folder / CONFIG, "--out", tmp_path / "again", *typed.split())
    status, _, err = command("train", *arguments)
    assert (status, f"{typed[2:8]}: an option of " in err) == (2, True)
    assert err.endswith(", not of vsc\n") and not (tmp_path / "again").exists()
