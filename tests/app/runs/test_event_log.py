"""The event log has the numbers of the journal, for TensorBoard to read."""

import json

import pytest

from pyro_fmvae.app.runs import training
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.training import EVENTS
from tests.small_runs import kill_and_resume, metrics, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture
def scalars():
    """What TensorBoard shows of a run: name → its (step, value)."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    log = pytest.importorskip(name, reason="pip install 'pyro_fmvae[tensorboard]'")

    def read(run):
        events = log.EventAccumulator(str(run / EVENTS))
        events.Reload()
        return {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    return read


def journal(run, phase, *names):
    """One number of the journal's lines of a phase, as ``scalars`` has it."""
    found = []
    for line in metrics(run):
        value = line
        for name in names:
            value = value.get(name, {}) if isinstance(value, dict) else value[name]
        if line["phase"] == phase and value != {}:
            found.append((line["step"], pytest.approx(value, rel=1e-6)))
    assert found
    return found


def test_measures_are_those_of_the_journal_also_where_a_run_was_killed(files, tmp_path, scalars):
    run = tmp_path / "run"
    kill_and_resume(run, files["binary"], 11, 1000.0, labels=1, log="tensorboard", patience=10)
    shown = scalars(run)
    for phase in ("pretrain", "prior", "joint", "refine"):
        for name in ("elbo", "reconstruction", "kl_z", "kl_r", "kl_global"):
            assert shown[f"{phase}/{name}"] == journal(run, phase, name)
    factors = Run.open(run).recipe.factor_names
    assert factors[:2] == ("side", "noise")
    for number, name in enumerate(factors):
        assert shown[f"joint/used_components/{name}"] == journal(run, "joint", "used_components", number)
    assert shown["joint/accuracy/valid/side"] == journal(run, "joint", "accuracy", "valid", "side")


def test_starts_of_expectation_maximisation_have_numbers(files, tmp_path, scalars):
    run = tmp_path / "run"
    assert train(run, files["binary"], model="bsc", latent_dim=4, log="tensorboard")[0] == 0
    assert scalars(run)["joint/noise/0"] == journal(run, "joint", "noise", 0)


def test_without_the_option_nothing_is_written(files, tmp_path):
    assert train(tmp_path / "run", files["table"])[0] == 0
    assert not (tmp_path / "run" / EVENTS).exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["log"] is None


def test_tensorboard_that_is_not_installed_is_said_before_anything_is_done(files, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "find_spec", lambda _: None)
    status, _, err = train(tmp_path / "run", files["table"], log="tensorboard")
    assert status == 2
    assert err.splitlines()[-1].endswith(
        "log: TensorBoard needs tensorboard: pip install 'pyro_fmvae[tensorboard]'"
    )
    assert not (tmp_path / "run").exists()
