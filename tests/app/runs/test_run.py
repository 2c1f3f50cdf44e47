import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae import checkpoint
from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.recipes.registry import configure, read_config
from pyro_fmvae.app.runs import report
from pyro_fmvae.app.runs import training as loop
from pyro_fmvae.app.runs.run import CHECKPOINT, Run, with_full_paths
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import load
from pyro_fmvae.data.splitting import split_rows
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import VAE, FactorialMixtureVAE
from tests.small_runs import (
    Killed,
    command,
    kill,
    kill_and_resume,
    metrics,
    state,
    stop_at,
    succeed,
    train,
    training,
    write_files,
)

pytestmark = pytest.mark.usefixtures("single_precision")

LABELLED = {"labels": 0.5, "factors": "2,2,3"}
BASELINE = {"model": "vae", "factors": "2,2,3"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """A record every other step."""
    monkeypatch.setattr(Phase, "record_every", 2)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A run that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record_every", 2)
        folder = tmp_path_factory.mktemp("whole") / "run"
        status, _, err = train(folder, files["binary"], **LABELLED)
    assert status == 0, err
    return folder


def test_equal_runs_are_equal_to_the_bit(files, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY", 0.0)  # neither does it matter when checkpoints are written
    assert train(tmp_path / "run", files["binary"], **LABELLED)[0] == 0
    assert state(tmp_path / "run") == state(whole)
    assert metrics(tmp_path / "run") == metrics(whole)


def test_another_seed_is_another_run(files, whole, tmp_path):
    assert train(tmp_path / "run", files["binary"], seed=1, **LABELLED)[0] == 0
    assert state(tmp_path / "run") != state(whole)


@pytest.mark.parametrize("every", [0.0, math.inf], ids=["every step", "at phase starts"])
def test_killed_run_is_resumed_exactly(files, whole, tmp_path, every):
    run, numbers = tmp_path / "run", (1, 4, 6, 10, 15)  # each phase has four records
    kill_and_resume(run, files["binary"], numbers, every, **LABELLED)
    assert state(run) == state(whole)
    assert metrics(run) == metrics(whole)


def test_factors_that_start_from_independent_components_are_resumed_exactly(tmp_path, monkeypatch, caplog):
    """Also where components start anew between steps, of a factor whose components coincide, too."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 2, (200, 3))
    lit = np.where(values, 0.97, 0.03)[:, :, None, None].repeat(3, 2).reshape(200, 9, 1).repeat(4, 2)
    np.savez(tmp_path / "three.npz", x=(generator.random(lit.shape) < lit).astype(np.uint8))
    monkeypatch.setattr("pyro_fmvae.learn.fmvae_phases.FIRST_REVIVAL", 1)
    monkeypatch.setattr("pyro_fmvae.learn.revival.GAIN", -1e3)  # every start is taken
    iterations = {"pretrain_iterations": 100, "prior_iterations": 2, "joint_iterations": 6}
    options = {"factors": "2,2,2", "hidden": 20, "learning_rate": 0.01, "patience": 0, **iterations}
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(whole, tmp_path / "three.npz", **options)[0] == 0
    log = (whole / "train.log").read_text()
    assert "independent components: 0.9" in log or "independent components: 1.0" in log
    assert {f"joint step {step}: factor 0 started anew" in log for step in (1, 2, 4)} == {True}
    kill_and_resume(run, tmp_path / "three.npz", (50, 53, 55, 57), math.inf, **options)
    assert state(run) == state(whole)
    assert metrics(run) == metrics(whole)


@pytest.mark.slow
def test_captured_steps_are_the_same_run_resumed_or_not(files, whole, tmp_path, monkeypatch):
    captured, run = tmp_path / "captured", tmp_path / "run"
    assert train(captured, files["binary"], eager="false", **LABELLED)[0] == 0
    log = (captured / "train.log").read_text()
    assert "steps captured" in log and "captured the step on [32, 4, 3]" in log
    for record, other in zip(metrics(captured), metrics(whole), strict=True):
        assert record["elbo"] == pytest.approx(other["elbo"], rel=1e-5)
    with monkeypatch.context() as patch:
        stop_at(patch, 10, kill)
        with pytest.raises(Killed):
            train(run, files["binary"], eager="false", **LABELLED)
    succeed("train", "--resume", run)
    assert state(run) == state(captured)


def test_ctrl_c_saves_and_says_how_to_go_on(files, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments, numbers = training(run, files["binary"], **LABELLED), (0, 2, 7, 9, 15)
    with monkeypatch.context() as patch:
        stop_at(patch, numbers, lambda: os.kill(os.getpid(), signal.SIGINT))
        for _ in numbers:
            status, _, err = command(*arguments)
            assert status == 130
            assert err.splitlines()[-1] == f"Stopped. Continue with: pyro-fmvae train --resume {run}"
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            arguments = ["train", "--resume", run]
    succeed(*arguments)
    assert state(run) == state(whole)
    assert metrics(run) == metrics(whole)


@pytest.fixture(scope="module")
def baseline(files, tmp_path_factory):
    """A plain VAE that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record_every", 2)
        folder = tmp_path_factory.mktemp("baseline") / "run"
        status, _, err = train(folder, files["binary"], **BASELINE)
    assert status == 0, err
    return folder


def test_baseline_is_a_vae_with_as_many_latents_as_the_mixture(baseline, whole):
    run = Run.open(baseline)
    model = run.load_model(torch.device("cpu"))
    assert isinstance(model, VAE)
    assert not model.training
    assert model.latent_dim == 6
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    stored = checkpoint.load(whole / CHECKPOINT)[0]["model"]
    own = ("groups", "predictors")  # of the mixture
    assert shapes == {name: value.shape for name, value in stored.items() if not name.startswith(own)}
    assert (run.recipe.labelled, run.recipe.labels, run.recipe.factorial) == ((), 0, False)
    assert [(record["phase"], record["step"]) for record in metrics(baseline)] == [
        *(("pretrain", 0), ("pretrain", 2), ("pretrain", 3), ("joint", 3), ("joint", 5), ("joint", 6))
    ]
    assert all(record["used_components"] == [] and record["kl_r"] == 0 for record in metrics(baseline))


def test_baseline_starts_from_the_networks_that_the_mixture_starts_from(whole, baseline):
    runs = Run.open(whole), Run.open(baseline)
    models = (Trainer(run, run.load_data(), torch.device("cpu")).model for run in runs)
    mixture, vae = (networks_of(model.state_dict()) for model in models)
    assert mixture.keys() == vae.keys()
    assert all(torch.equal(value, vae[name]) for name, value in mixture.items())


def networks_of(state_dict):
    return {name: value.clone() for name, value in state_dict.items() if name.startswith(("enc", "dec"))}


@pytest.mark.parametrize("source", ["baseline", "whole"])
@pytest.mark.parametrize("model", ["vae", "fmvae"])
def test_pretrained_networks_are_where_a_run_starts(files, tmp_path, monkeypatch, request, source, model):
    other = tmp_path / "other"
    shutil.copytree(request.getfixturevalue(source), other)
    (other / "config.json").unlink()  # nothing but the checkpoint counts
    started, records = [], Trainer.records

    def watched(self, resumed=False):
        started.append(networks_of(self.model.state_dict()))
        return records(self, resumed)

    monkeypatch.setattr(Trainer, "records", watched)
    monkeypatch.chdir(tmp_path)
    options = {"model": model, "factors": "2,2,3", "pretrained": "other"}
    arguments = training("run", files["binary"], **options)
    place = arguments.index("--pretrain-iterations")
    succeed(*arguments[:place], *arguments[place + 2 :])
    expected = networks_of(checkpoint.load(other / CHECKPOINT)[0]["model"])
    assert started[0].keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in started[0].items())
    config = Run.open(tmp_path / "run").config
    assert (config.pretrained, config.pretrain_iterations) == (str(other), 0)
    phases = [*dict.fromkeys(record["phase"] for record in metrics(tmp_path / "run"))]
    assert phases == {"vae": ["joint"], "fmvae": ["prior", "joint", "refine"]}[model]


def test_pretrained_run_is_not_read_again(files, baseline, tmp_path, monkeypatch):
    shutil.copytree(baseline, tmp_path / "other")
    options = {"factors": "2,2,3", "pretrained": tmp_path / "other"}
    assert train(tmp_path / "whole", files["binary"], **options)[0] == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 6, kill)
        with pytest.raises(Killed):
            train(tmp_path / "run", files["binary"], **options)
    shutil.rmtree(tmp_path / "other")
    succeed("train", "--resume", tmp_path / "run")
    assert state(tmp_path / "run") == state(tmp_path / "whole")
    assert json.loads(succeed("evaluate", tmp_path / "run"))["n"] == 6
    again = training(tmp_path / "again", files["binary"], **options)
    assert f"pretrained: {tmp_path / 'other'} is no run with a checkpoint" in error_of(*again)


def test_pretraining_leaves_all_else_to_the_seed(files, baseline, tmp_path):
    """Batches and draws are those of a run that starts from its own networks."""
    run = Run.open(baseline)
    fresh = Trainer(run, run.load_data(), torch.device("cpu"))
    before = torch.get_rng_state()
    given = Trainer(run.with_options(pretrained=str(baseline)), run.load_data(), torch.device("cpu"))
    given.start()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, next(iter(fresh.batches)), next(iter(given.batches))))


def test_run_from_before_an_option(baseline, tmp_path):
    shutil.copytree(baseline, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    values = json.loads(path.read_text())
    del values["pretrained"]
    path.write_text(json.dumps(values))
    assert Run.open(tmp_path / "run").config == Run.open(baseline).config


def test_ctrl_c_outside_of_training_stops_at_once(whole, monkeypatch):
    monkeypatch.setattr(Run, "load_data", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert command("evaluate", whole) == (130, "", "pyro-fmvae: stopped\n")


def test_finished_run_is_left_as_it_is(whole):
    (whole / "report.html").touch()
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert succeed("train", "--resume", whole) == f"{whole} is finished already.\n"
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


WRONG = (b"{}", b"garbage", b"", b"3", b"[]", b"null", b'{"step": "3", "phase": "prior"}', b"\xff\x00", b"")


UNENDED = b'{"step": 0, "phase": "pretrain"}'


@pytest.mark.parametrize(
    ("before", "behind"), [(b"", b'{"step": 4, "pha'), (b"\n".join(WRONG), b""), (b"", UNENDED)]
)
def test_lines_that_are_no_records_are_forgotten(files, whole, tmp_path, monkeypatch, before, behind):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 6, kill)
        with pytest.raises(Killed):
            train(run, files["binary"], **LABELLED)
    path = run / "metrics.jsonl"
    path.write_bytes(before + path.read_bytes() + behind)
    succeed("train", "--resume", run)
    assert metrics(run) == metrics(whole)


@pytest.mark.slow
def test_process_that_is_killed(files, tmp_path):
    options = LABELLED | {"joint_iterations": 300}
    assert train(tmp_path / "whole", files["binary"], **options)[0] == 0
    run = tmp_path / "killed"
    arguments = training(run, files["binary"], **options)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-m", "pyro_fmvae", *arguments], env=environment) as process:
        try:
            deadline = time.monotonic() + 300
            while not in_joint_phase(run):
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert state(run) != state(tmp_path / "whole")
    succeed("train", "--resume", run)
    assert state(run) == state(tmp_path / "whole")


def in_joint_phase(run):
    """Whether the joint phase's first checkpoint is there."""
    with contextlib.suppress(FileNotFoundError):
        return checkpoint.load(run / CHECKPOINT)[0]["progress"]["phase"] == 2
    return False


def test_resumed_data_must_be_what_they_were(files, tmp_path, monkeypatch):
    run, data = tmp_path / "run", tmp_path / "data.npz"
    shutil.copy(files["table"], data)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, kill)
        with pytest.raises(Killed):
            train(run, data)
    shutil.copy(files["binary"], data)
    labels = "were label0 when the run was started; they are side, noise now"
    assert labels in error_of("train", "--resume", run)
    np.savez(data, x=np.zeros((9, 3)))
    assert "48 training points were expected, but there are 7 now" in error_of("train", "--resume", run)
    with np.load(files["table"]) as arrays:
        np.savez(data, **{name: arrays[name][::-1] for name in arrays})
    assert "has changed since this run was started" in error_of("train", "--resume", run)
    data.unlink()
    assert "give the folder that now holds 'data.npz' with --data-root" in error_of("train", "--resume", run)


@pytest.mark.parametrize("change", ["another order", "other rows"])
def test_rows_must_be_those_that_were_split(files, tmp_path, change):
    """Of binary data, nothing else tells that the test split holds what was trained on."""
    run, data = tmp_path / "run", tmp_path / "data.npz"
    shutil.copy(files["unlabelled"], data)
    train(run, data)
    with np.load(data) as arrays:
        x = arrays["x"]
    np.savez(data, x=x[::-1] if change == "another order" else 1 - x)
    assert "has other rows than when the run was started" in error_of("evaluate", run)
    np.savez(data, x=x)  # the file is another one, the rows are not
    succeed("evaluate", run)


def test_images_must_be_those_that_were_split(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(12):
        pixels = np.full((8, 8, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    train(tmp_path / "run", folder, image_size=8)
    succeed("evaluate", tmp_path / "run")
    (folder / "0.png").rename(folder / "z.png")
    assert "has other rows than when the run was started" in error_of("evaluate", tmp_path / "run")


def test_labels_must_be_those_by_which_rows_were_held_out(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((80, 4, 3)) < 0.5, "labels": rng.integers(0, 2, (80, 2))}
    data, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, **arrays)
    train(run, data, hold_out=0.25)
    succeed("evaluate", run, "--split", "unseen")
    arrays["labels"][[0, 2]] = arrays["labels"][[2, 0]]
    assert (arrays["labels"][0] != arrays["labels"][2]).any()
    np.savez(data, **arrays)
    assert "held out by other labels" in error_of("evaluate", run)


def far_file(path, valid, test, shape, rows=300):
    """Numbers with one far beyond the others in the first row of the validation and of the test split."""
    x = np.random.default_rng(0).normal(size=(rows, *shape))
    for value, split in zip((valid, test), split_rows(rows, 0, "rows")[1:3], strict=True):
        x[split[0]].flat[1] = value
    np.savez(path, x=x, labels=np.arange(rows) % 2)
    return path


NO_NETWORKS = {"pretrain_iterations": 0, "latent_dim": 3}
FAR = {
    "fmvae": ({}, (3,)),
    "vae": ({"factors": "2,2"}, (3,)),
    "vsc": ({}, (3,)),
    "bsc": (NO_NETWORKS, (4, 4)),
    "linear-sparse": (NO_NETWORKS, (4, 4)),
}


@pytest.mark.parametrize(("valid", "test"), [(1e10, -1e10), (-1e10, 1e20), (1e20, 1e10)])
@pytest.mark.parametrize("model", FAR)
def test_a_row_beyond_all_numbers_is_left_out(tmp_path, monkeypatch, valid, test, model):
    if model in ("bsc", "linear-sparse"):  # there is no network that would exaggerate
        valid, test = 1e15 * valid, 1e15 * test
    options, shape = FAR[model]
    drawn = []
    monkeypatch.setattr(report, "draw", lambda run, model, rows, *others: drawn.append(len(rows)))
    data = far_file(tmp_path / "far.npz", valid, test, shape)
    status, out, err = train(tmp_path / "run", data, model=model, **options)
    assert status == 0, err
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("validation points that are left out: 1, so far") == 1
    assert f"\n29 test points (1 left out: {loop.BEYOND}), nats per point: ELBO" in out
    assert drawn == [29]
    assert all(math.isfinite(record["elbo"]) for record in metrics(tmp_path / "run"))
    for name in ("valid", "test"):
        assert "data: row 0 is so far from" in error_of("evaluate", tmp_path / "run", "--split", name)
        status, _, err = command("encode", tmp_path / "run", "--split", name, "--out", tmp_path / "codes.npz")
        assert (status, err) == (0, "") or "data: row 0 is so far from" in err


def test_a_report_that_was_interrupted_is_made_up_for(files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(report, "write_page", lambda *_: kill())
        with pytest.raises(Killed):
            train(run, files["table"])
    trained = state(run)
    first, *printed = succeed("train", "--resume", run).splitlines()
    assert first == f"{run} is finished already."
    assert any(line.startswith("6 test points, nats per point: ELBO") for line in printed)
    assert succeed("train", "--resume", run) == f"{run} is finished already.\n"
    assert state(run) == trained


def test_a_run_that_was_killed_before_anything_was_saved(files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 0, kill)
        patch.setattr(shutil, "rmtree", lambda _: None)  # as there is no time to clean up
        with pytest.raises(Killed):
            train(run, files["table"])
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / ".state.safetensors.1.tmp").write_text("half of it")
    before = sorted(run.rglob("*"))
    expected = f"run: {run} was stopped before anything was saved; delete the folder and train again"
    assert error_of("train", "--resume", run) == f"pyro-fmvae: error: {expected}\n"
    assert sorted(run.rglob("*")) == before


def test_what_a_killed_process_left_half_written_goes(files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 6, kill)
        with pytest.raises(Killed):
            train(run, files["table"])
    for leftover in (run / ".config.json.1.tmp", run / CHECKPOINT / ".state.safetensors.1.tmp"):
        leftover.write_text("half of it")
    succeed("train", "--resume", run)
    assert not [path for path in run.rglob("*") if path.suffix == ".tmp"]


def test_values_of_labels_must_be_what_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    photos, run = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    for row in range(12):
        Image.new("L", (8, 8), 20 * row).save(photos / f"{row:02d}.png")

    def label(*hair):
        rows = (f"{row:02d}.png,{row % 2},{hair[row % len(hair)]}\n" for row in range(12))
        (photos / "labels.csv").write_text("file,hat,hair\n" + "".join(rows))

    label("blond", "dark")
    with monkeypatch.context() as patch:
        stop_at(patch, 3, kill)
        with pytest.raises(Killed):
            train(run, photos, labels=1, image_size=8)
    for hair, now in ((("blond", "dark", "black"), "black, blond, dark"), (("0", "1"), "numbers")):
        label(*hair)
        for arguments in (("evaluate", run), ("train", "--resume", run)):
            expected = f"data: the values of 'hair' were blond, dark; they are {now} now\n"
            assert error_of(*arguments) == f"pyro-fmvae: error: {expected}"
    label("dark", "blond")
    succeed("evaluate", run)


def error_of(*arguments):
    """The one line that a command complains in."""
    status, out, err = command(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    return err


def test_run_that_fails_before_its_first_checkpoint_leaves_nothing(files, tmp_path, monkeypatch):
    stop_at(monkeypatch, 0, kill)
    with pytest.raises(Killed):
        train(tmp_path / "deep" / "run", files["binary"])
    assert not (tmp_path / "deep" / "run").exists()


def test_second_ctrl_c_before_the_first_checkpoint_leaves_nothing(files, tmp_path, monkeypatch):
    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    stop_at(monkeypatch, 0, twice)
    status, _, err = train(tmp_path / "run", files["binary"])
    assert (status, err.splitlines()[-1]) == (130, "pyro-fmvae: stopped")
    assert list(tmp_path.iterdir()) == []


def test_run_that_fails_while_its_first_checkpoint_is_written_leaves_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "write_atomically", failing(checkpoint.write_atomically))
    with pytest.raises(Killed):
        train(tmp_path / "run", files["binary"])
    assert list(tmp_path.iterdir()) == []


def failing(write):
    """What writes files, but dies of a checkpoint's."""
    return lambda path, content: kill() if path.name == checkpoint.TENSORS else write(path, content)


def test_second_ctrl_c_after_the_first_checkpoint_leaves_a_run(files, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
        assert train(run, files["binary"], **LABELLED)[0] == 130
    succeed("train", "--resume", run)
    assert state(run) == state(whole)


def test_restored_training_continues_where_it_was(files, whole):
    run = Run.open(whole)
    restored = Trainer(run, run.load_data(), torch.device("cpu"))
    assert not restored.finished
    restored.restore()
    assert restored.finished
    assert restored.progress.total_steps == 12
    assert restored.progress.total_seconds > 0


def test_loaded_model_is_the_trained_one(whole):
    run = Run.open(whole)
    model = run.load_model(torch.device("cpu"))
    stored = checkpoint.load(whole / CHECKPOINT)[0]["model"]
    assert set(stored) == set(model.state_dict())
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert run.recipe.labelled == model.labelled == (0, 1)


def test_configuration_is_kept(files, whole):
    run = Run.open(whole)
    assert run.config.data == str(files["binary"])
    assert (run.recipe.num_data, run.recipe.label_names, run.recipe.image) == (48, ("side", "noise"), True)
    written = json.loads((whole / "config.json").read_text())
    assert {"python", "pyro_fmvae", "torch", "pyro-ppl", "numpy"} == set(written["derived"]["versions"])
    assert with_full_paths(read_config(written), whole) == run.config


@pytest.mark.parametrize(
    "changes", [{"hidden": [7]}, {"factors": [2, 2]}, {"factors": [2, 2, 4]}, {"factor_dim": 3}], ids=str
)
def test_checkpoint_of_another_model(whole, tmp_path, changes):
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))
    for arguments in (("evaluate", tmp_path / "run"), ("train", "--resume", tmp_path / "run")):
        assert "does not fit config.json" in error_of(*arguments)


def test_factors_of_labels_go_by_name(whole):
    run = Run.open(whole)
    assert run.recipe.factors_of(("noise", "side", "other")) == [1, 0, None]
    assert run.with_options(labels=0.0).recipe.factors_of(("side",)) == [None]


def test_new_folders_are_numbered(tmp_path):
    data = load("smiley")
    for number in ("001", "002"):  # both made before either folder is there, as by two processes at once
        run = Run.new(tmp_path / "runs" / "faces", configure(), data)
        written = run.write(numbered=True)
        assert written.folder == tmp_path / "runs" / f"faces-{number}"
        assert Run.open(written.folder) == written


def test_runs_started_at_once_get_folders_of_their_own(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build = FMVAE.build
    arguments = training("", files["binary"])
    del arguments[arguments.index("--out") : arguments.index("--out") + 2]

    def overtaken(self):
        """Another run takes the first number while this one is being prepared."""
        (tmp_path / "runs" / "binary-001").mkdir(parents=True, exist_ok=True)
        return build(self)

    monkeypatch.setattr(FMVAE, "build", overtaken)
    assert "everything else in runs/binary-002" in succeed(*arguments)
    assert sorted(os.listdir("runs")) == ["binary-001", "binary-002"]
    monkeypatch.setattr(Trainer, "records", lambda *_: kill())
    with pytest.raises(Killed):
        command(*arguments)
    assert sorted(os.listdir("runs")) == ["binary-001", "binary-002"]


@pytest.mark.parametrize("fails", [False, True])
def test_record_at_the_start_of_a_phase_is_neither_lost_nor_doubled(
    files, whole, tmp_path, monkeypatch, fails
):
    """Killed after the record of the joint phase's start, before or after its checkpoint."""
    run, save = tmp_path / "run", Trainer.save

    def dying(self):
        starting = (self.progress.phase, self.progress.step) == (2, 0)
        if not (starting and fails):
            save(self)
        if starting:
            kill()

    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
        patch.setattr(Trainer, "save", dying)
        with pytest.raises(Killed):
            train(run, files["binary"], **LABELLED)
    assert metrics(run)[-1]["phase"] == "joint"
    succeed("train", "--resume", run)
    assert state(run) == state(whole)
    assert metrics(run) == metrics(whole)


@pytest.mark.parametrize("options", [{}, {"joint_iterations": 0}], ids=["joint", "refine"])
def test_without_prior_phase_components_are_seeded_once(files, tmp_path, monkeypatch, options):
    options = LABELLED | {"prior_iterations": 0} | options
    seeded, seed = [], FactorialMixtureVAE.seed

    def counting(self, *arguments):
        seeded.append(self)
        seed(self, *arguments)

    monkeypatch.setattr(FactorialMixtureVAE, "seed", counting)
    assert train(tmp_path / "whole", files["binary"], **options)[0] == 0
    assert len(seeded) == 1
    run = tmp_path / "run"
    kill_and_resume(run, files["binary"], (5, 6), 0.0, **options)
    assert len(seeded) == 2
    assert state(run) == state(tmp_path / "whole")
    assert metrics(run) == metrics(tmp_path / "whole")


def test_with_a_prior_phase_nothing_else_seeds(whole):
    run = Run.open(whole)
    phases = Trainer(run, run.load_data(), torch.device("cpu")).phases
    assert [phase.seed for phase in phases[1:]] == [0, None, None]


def test_run_is_never_overwritten(files, whole):
    run = Run.new(whole, configure(), load("smiley"))
    with pytest.raises(ValueError, match="exists already"):
        run.write()


@pytest.mark.parametrize("name", ["", "nonsense", "meta", "cuda:99", "cpu:x"])
def test_device_that_cannot_be_used(name):
    with pytest.raises(ValueError, match=f"^device: '{name}' cannot be used"):
        resolve_device(name)


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_run_of_another_version(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": "fmvae", "derived": {}}))
    with pytest.raises(ValueError, match=r"^run: .*config.json is damaged \(.*without .*width"):
        Run.open(tmp_path)


def test_run_without_sizes_of_factors(whole, tmp_path):
    values = json.loads((whole / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"factors": None}))
    with pytest.raises(ValueError, match=r"config.json is damaged \(factors: expected a size"):
        Run.open(tmp_path)
