import contextlib
import errno
import fcntl
import itertools
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from pyro_fmvae import __main__, __version__, checkpoint, load
from pyro_fmvae.app import cli, commands
from pyro_fmvae.app.commands.parser import translate
from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.runs import training
from pyro_fmvae.app.runs.run import CHECKPOINT, DERIVED, Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.learn import fitting
from tests.models.small import brute_force
from tests.small_runs import SIZE, TINY, Killed, command, state, succeed, train, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {  # kind → options of its run
    "binary": {"labels": 0.5, "factors": "2,2,3"},
    "grey": {"factors": "3,2"},
    "colour": {"labels": 1.0, "factors": "2"},
    "table": {"factors": "4"},
    "csv": {"labels": 0.5, "factors": "2,3"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    """Kind of data → folder of a run that was trained on it; figures only in that on binary images."""
    return train_all(tmp_path_factory.mktemp("runs"), files, KINDS, drawn=("binary",))


def evaluate(run, *arguments):
    """The object that ``evaluate`` prints, on one line."""
    out = succeed("evaluate", run, *arguments)
    assert out.count("\n") == 1
    return json.loads(out)


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


def encode(run, path, *arguments):
    succeed("encode", run, "--out", path, *arguments)
    return arrays(path)


# ------------------------------------------------------------------ what works


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate(runs, kind):
    result = evaluate(runs[kind])
    assert result["n"] == SIZE // 10
    assert result["elbo"] == result["reconstruction"] - result["kl_z"] - result["kl_r"]
    factors = json.loads((runs[kind] / "config.json").read_text())["factors"]
    assert all(0 <= used <= k for used, k in zip(result["used_components"], factors, strict=True))
    assert evaluate(runs[kind]) == result
    assert evaluate(runs[kind], "--seed", 1) != result


def test_evaluate_against_labels(runs, files):
    assert set(evaluate(runs["binary"])["accuracy"]) == {"side", "noise"}
    assert evaluate(runs["grey"]).keys() & {"accuracy", "clustering"} == set()
    unsupervised = evaluate(runs["table"], "--split", "train")
    assert unsupervised["accuracy"] == {}
    measures = {"n", "factor", "accuracy", "majority", "nmi", "ami", "ari"}
    found = unsupervised["clustering"]["label0"]
    assert set(found) == measures | {"values", "components", "named_after", "confusion", "clusters"}
    assert np.sum(found["confusion"]) == found["n"] and found["values"] == ["0", "1"]


def test_evaluate_a_file_goes_by_the_names_of_its_labels(runs, files):
    whole = evaluate(runs["binary"], "--data", files["binary"])
    assert whole["n"] == SIZE
    assert evaluate(runs["binary"], "--data", files["reversed"])["accuracy"] == whole["accuracy"]
    unlabelled = evaluate(runs["binary"], "--data", files["unlabelled"])
    assert unlabelled == {name: value for name, value in whole.items() if name in unlabelled}
    assert "accuracy" not in unlabelled


def test_evaluate_leaves_unknown_labels_out(runs, files):
    predicted = load(runs["binary"], "cpu").predict(arrays(files["partly"])["x"])
    labels = arrays(files["partly"])["labels"]
    accuracy = evaluate(runs["binary"], "--data", files["partly"])["accuracy"]
    for column, name in enumerate(("side", "noise")):
        known = labels[:, column] >= 0
        assert accuracy[name] == pytest.approx(np.mean(predicted[name][known] == labels[known, column]))


def test_evaluate_bounds(runs):
    result = evaluate(runs["binary"], "--num-samples", 50)
    assert result["num_samples"] == 50
    assert result["collapsed"] <= result["importance_weighted"]
    assert evaluate(runs["binary"]).keys() == result.keys() - {
        "num_samples",
        "collapsed",
        "importance_weighted",
    }


def test_evaluate_the_first_points(runs, files, tmp_path):
    whole = evaluate(runs["binary"], "--data", files["binary"])
    assert evaluate(runs["binary"], "--data", files["binary"], "--points", 10 * SIZE) == whole
    with np.load(files["binary"]) as archive:
        np.savez(tmp_path / "first.npz", **{name: archive[name][:7] for name in ("x", "labels")})
    names = {"label_names": arrays(files["binary"])["label_names"]}
    np.savez(tmp_path / "first.npz", **arrays(tmp_path / "first.npz"), **names)
    first = evaluate(runs["binary"], "--data", tmp_path / "first.npz")
    assert first["n"] == 7
    assert evaluate(runs["binary"], "--data", files["binary"], "--points", 7) == first


def test_evaluate_agrees_with_brute_force(runs, files):
    torch.set_default_dtype(torch.float64)
    model = Run.open(runs["binary"]).load_model(torch.device("cpu")).double()
    x = torch.from_numpy(arrays(files["binary"])["x"]).double()
    expected = {role.value: loss.item() / model.num_data for role, loss in brute_force(model, x).items()}
    torch.set_default_dtype(torch.float32)
    result = evaluate(runs["binary"], "--data", files["binary"])
    for name in ("kl_z", "kl_r", "kl_global"):
        assert result[name] == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_encode(runs, files, tmp_path, kind):
    encoded = encode(runs[kind], tmp_path / "new" / "codes.npz", "--data", files[kind])
    factors = json.loads((runs[kind] / "config.json").read_text())["factors"]
    assert encoded["codes"].shape == (SIZE, len(factors))
    assert encoded["mean"].shape == encoded["scale"].shape == (SIZE, 2 * len(factors))
    assert (encoded["scale"] > 0).all()
    for factor, components in enumerate(factors):
        gamma = encoded[f"responsibilities_{factor}"]
        assert gamma.shape == (SIZE, components)
        assert gamma.sum(-1) == pytest.approx(np.ones(SIZE), abs=1e-5)
        assert (gamma.argmax(-1) == encoded["codes"][:, factor]).all()
    gammas = {f"responsibilities_{factor}" for factor in range(len(factors))}
    predicted = {"predicted"} & encoded.keys()  # where the networks have not learnt a label
    labelled = json.loads((runs[kind] / "config.json").read_text())["labels"]
    clusters = {"cluster", "cluster_probability"} if len(factors) == 1 and not labelled else set()
    assert encoded.keys() == {"codes", "mean", "scale", *gammas, *predicted, *clusters}


def test_encode_keeps_the_order_of_rows(runs, files, tmp_path):
    contents = arrays(files["binary"])
    np.savez(tmp_path / "backwards.npz", x=contents["x"][::-1])
    there = encode(runs["binary"], tmp_path / "there.npz", "--data", files["binary"])
    back = encode(runs["binary"], tmp_path / "back.npz", "--data", tmp_path / "backwards.npz")
    for name, array in there.items():
        assert array == pytest.approx(back[name][::-1], abs=1e-5), name


def test_encode_and_evaluate_apply_the_runs_own_standardisation(runs, files, tmp_path):
    preprocessing = json.loads((runs["csv"] / "config.json").read_text())["derived"]["preprocessing"]
    rows = np.loadtxt(files["csv"], delimiter=",", skiprows=1)
    (tmp_path / "one.csv").write_text(",".join(map(str, rows[17, :3])) + "\n")
    everything = encode(runs["csv"], tmp_path / "all.npz", "--data", files["csv"])
    one = encode(runs["csv"], tmp_path / "one.npz", "--data", tmp_path / "one.csv")
    assert one["mean"][0] == pytest.approx(everything["mean"][17], rel=1e-4)
    model = Run.open(runs["csv"]).load_model(torch.device("cpu"))
    x = (rows[17, :3] - preprocessing["mean"]) / preprocessing["std"]
    expected = model.encoder(torch.tensor(x, dtype=torch.float32))[0]
    assert one["mean"][0] == pytest.approx(expected.detach().numpy(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sample(runs, tmp_path, kind):
    sizes = json.loads((runs[kind] / "config.json").read_text())
    preprocessing = sizes["derived"]["preprocessing"]
    shape = tuple(preprocessing["event_shape"])
    succeed("sample", runs[kind], "--out", tmp_path / "samples.npz", "--grid", "3x5")
    drawn = arrays(tmp_path / "samples.npz")
    assert drawn["x"].shape == (15, *shape)
    assert drawn["z"].shape == (15, 2 * len(sizes["factors"]))
    assert ((drawn["codes"] >= 0) & (drawn["codes"] < sizes["factors"])).all()
    model = Run.open(runs[kind]).load_model(torch.device("cpu"))
    with torch.no_grad():
        mean = model.observation.mean(model.decoder(torch.from_numpy(drawn["z"]))).numpy()
    if kind in ("table", "csv"):  # back in the units of the file, and near the range of its columns
        mean = mean * preprocessing["std"] + preprocessing["mean"]
        mean = mean.clip(preprocessing["lower"], preprocessing["upper"])
    if kind in ("grey", "colour"):  # from [-1, 1], and what pixels can be
        mean = ((mean + 1) / 2).clip(0, 1)
    assert drawn["x"] == pytest.approx(mean, abs=1e-4)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.run_command(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == ["pyro-fmvae", __version__]


def test_help_imports_no_more_than_it_needs():
    heavy = {"matplotlib.figure", "sklearn", "pandas"}
    code = f"import sys, pyro_fmvae.app.cli; print(*{heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "\n"


def test_without_arguments_there_is_help(capsys):
    printed = []
    for arguments in ([], ["--help"]):
        with pytest.raises(SystemExit) as stop:
            cli.run_command(arguments)
        assert stop.value.code == 0
        printed.append(capsys.readouterr().out)
    assert "subcommands:" in printed[0]
    assert printed[0] == printed[1]


def test_sample_with_codes(runs, tmp_path):
    succeed("sample", runs["binary"], "--out", tmp_path / "s.npz", "--codes", "1,*,2", "--grid", "4x4")
    codes = arrays(tmp_path / "s.npz")["codes"]
    assert (codes[:, 0] == 1).all()
    assert (codes[:, 2] == 2).all()
    assert set(codes[:, 1]) == {0, 1}


@pytest.mark.parametrize("ending", ["png", "npz"])
def test_samples_depend_on_the_seed_alone(runs, tmp_path, ending):
    contents = []
    for seed in (0, 0, 1):
        path = tmp_path / f"{len(contents)}.{ending}"
        succeed("sample", runs["binary"], "--out", path, "--grid", "2x2", "--seed", seed)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_a_run_keeps_what_it_promises(runs):
    run = runs["binary"]
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "metrics.jsonl", "checkpoint", "figures", "train.log"),
        *("report.json", "report.html", "kept.json"),
    }
    assert {path.name for path in (run / "checkpoint").iterdir()} == {"state.safetensors", "state.json"}
    assert all(path.suffix == ".png" for path in (run / "figures").iterdir())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = (
        "step",
        "phase",
        "elbo",
        "reconstruction",
        "kl_z",
        "kl_r",
        "kl_global",
        "used_components",
        "seconds",
    )
    for record in records:  # the factors of pretraining tell nothing of labels
        assert tuple(record) == (names if record["phase"] == "pretrain" else (*names, "accuracy"))
    assert [(record["phase"], record["step"]) for record in records] == [
        *(("pretrain", 0), ("pretrain", 3), ("prior", 3), ("prior", 6)),
        *(("joint", 6), ("joint", 9), ("refine", 9), ("refine", 12)),
    ]


def test_smiley_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {**TINY, "--batch-size": "512"}
    succeed("train", *(text for pair in small.items() for text in pair))
    assert os.listdir(tmp_path / "runs") == ["smiley-001"]
    result = evaluate("runs/smiley-001", "--split", "valid")
    assert set(result["accuracy"]) == {"eyes", "mouth", "hat", "bowtie"}
    assert evaluate("runs/smiley-001", "--data", "smiley", "--split", "valid") == result
    succeed("sample", "runs/smiley-001", "--out", "faces.png", "--codes", "0,1,*,*")


def test_options_of_a_run_in_a_config_file_give_an_equal_run(runs, tmp_path):
    values = json.loads((runs["binary"] / "config.json").read_text())
    options = {name: value for name, value in values.items() if name != DERIVED}
    options["data"] = Run.open(runs["binary"]).config.data  # a full path
    for name, dump in (("options.yaml", yaml.safe_dump), ("options.json", json.dumps)):
        (tmp_path / name).write_text(dump(options))
        succeed("train", "--config", tmp_path / name, "--out", tmp_path / f"{name}-run")
        assert state(tmp_path / f"{name}-run") == state(runs["binary"])


@pytest.mark.parametrize("kind", ["binary", "table"])
def test_configuration_of_a_run_gives_an_equal_run(runs, tmp_path, kind):
    succeed("train", "--config", runs[kind] / "config.json", "--out", tmp_path / "run")
    assert state(tmp_path / "run") == state(runs[kind])
    assert (tmp_path / "run/config.json").read_bytes() == (runs[kind] / "config.json").read_bytes()


def test_small_numbers_survive_a_configuration(files, tmp_path):
    options = {"learning_rate": "1e-05", "kl_annealing": "1e-7", "data_root": tmp_path}
    assert train(tmp_path / "run", files["grey"], **options)[0] == 0
    succeed("train", "--config", tmp_path / "run" / "config.json", "--out", tmp_path / "again")
    assert state(tmp_path / "again") == state(tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "written", "expected"),
    [
        ([], "", False),
        (["--recompute"], "", True),
        (["--recompute", "true"], "", True),
        (["--recompute", "false"], "", False),
        ([], "recompute: true", True),
        (["--recompute", "false"], "recompute: true", False),
        (["--recompute"], "recompute: false", True),
    ],
)
def test_recompute_needs_no_value(monkeypatch, tmp_path, given, written, expected):
    configs = []
    monkeypatch.setattr(commands.training, "train", lambda config, *_: (configs.append(config), 0))
    (tmp_path / "options.yaml").write_text(f"seed: 1\n{written}\n")
    succeed("train", "--config", tmp_path / "options.yaml", *given, "--seed", "2")
    assert [config.recompute for config in configs] == [expected]


def test_command_line_overrides_the_config_file(files, tmp_path):
    (tmp_path / "options.yaml").write_text(f"data: {files['grey']}\nfactors: [2, 2]\nseed: 3\n")
    arguments = [text for pair in TINY.items() for text in pair]
    succeed(
        "train", "--config", tmp_path / "options.yaml", *arguments, "--seed", 4, "--out", tmp_path / "run"
    )
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (values["factors"], values["seed"]) == ([2, 2], 4)


def test_minutes(files, tmp_path, monkeypatch):
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(ticks), perf_counter=lambda: 0.01 * next(ticks))
    monkeypatch.setattr(fitting, "time", clock)
    status, _, err = train(tmp_path / "run", files["grey"], max_minutes=0.03)
    assert status == 0, err
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["seconds"] == pytest.approx(1.8, abs=0.05)
    assert [*dict.fromkeys(record["phase"] for record in records)] == ["pretrain", "prior", "joint", "refine"]


def test_progress_bar_on_a_terminal(files, tmp_path, monkeypatch):
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    try:
        with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            arguments = ["train", "--data", str(files["grey"]), "--out", str(tmp_path / "run")]
            arguments += [text for pair in TINY.items() for text in pair]
            arguments += ["--joint-iterations", "12"]
            assert __main__.run_command(arguments) == 0
        parts = []
        with contextlib.suppress(OSError):  # at the end
            while part := os.read(master, 100_000):  # at most 4,095 bytes of them
                parts.append(part)
    finally:
        os.close(master)
    shown = b"".join(parts).decode()
    assert "pretrain   0%|" in shown
    assert "joint" in shown
    assert "100%|" in shown
    assert "validation ELBO -" in shown
    assert re.search(r"\| \d\d:\d\d, 00:00 left, validation ELBO -", shown)
    assert "step 3: elbo" not in shown  # the log would break the bar
    assert "step 3: elbo" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.parametrize(
    ("given", "then", "steps"),
    [
        ("false", "", "captured"),
        ("false", "--eager", "eager"),
        ("false", "--compile false", "captured"),
        ("true", "", "eager"),
        ("true", "--eager", "eager"),
    ],
)
def test_a_run_may_be_resumed_with_other_steps(files, tmp_path, monkeypatch, given, then, steps):
    """How steps are taken is no part of what a run is."""
    run, records = tmp_path / "run", Trainer.records
    options = {"factors": "2", "prior_iterations": 0, "refine_iterations": 0, "eager": given}

    def stopped(training, resumed=False):
        for record in records(training, resumed):
            if record.phase == "joint":
                raise Killed
            yield record

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "records", stopped)
        train(run, files["grey"], **options)
    succeed("train", "--resume", run, *then.split())
    log = (run / "train.log").read_text().splitlines()
    assert [line.rpartition("steps ")[2] for line in log if "points, steps" in line][1:] == [steps]
    assert evaluate(run)["n"] == SIZE // 10


def test_data_without_a_test_split(tmp_path):
    rng = np.random.default_rng(0)
    x = {f"x_{split}": rng.integers(0, 2, (20, 28, 28)).astype(np.uint8) for split in ("train", "valid")}
    np.savez(tmp_path / "mnist_static.npz", **x)
    status, _, err = train(tmp_path / "run", "mnist-static", data_root=tmp_path, network="mlp", factors="2")
    assert status == 0, err
    assert command("evaluate", tmp_path / "run", "--split", "test") == (
        2,
        "",
        "pyro-fmvae: error: split: the data set 'mnist-static' has no test split\n",
    )
    assert evaluate(tmp_path / "run", "--split", "valid") == evaluate(tmp_path / "run")


def test_exit_status_is_that_of_the_process(capsys):
    with pytest.raises(SystemExit) as exit_:
        __main__.main(["nonsense"])
    assert exit_.value.code == 2
    with pytest.raises(SystemExit) as exit_:
        __main__.main(["train", "--help"])
    assert exit_.value.code == 0
    assert "--factors" in capsys.readouterr().out


# ------------------------------------------------------------------ what does not


class Trap:
    def __reduce__(self):
        return os.abort, ()


@pytest.fixture(scope="module")
def place(files, runs, tmp_path_factory):
    """A folder with files and runs that are wrong in many ways, and ``run``, one that is right."""
    folder = tmp_path_factory.mktemp("place")
    for path in files.values():
        shutil.copy(path, folder / path.name)
    x = np.random.default_rng(0).random((20, 4, 3))
    bad = {
        "nan": {"x": np.where(x > 0.9, np.nan, x)},
        "range": {"x": 3 * x},
        "negative": {"x": x - 0.5},
        "label9": {"x": x, "labels": 9 * (np.arange(20)[:, None] % 2)},
        "label_length": {"x": x, "labels": np.zeros((19, 1), int)},
        "label_shape": {"x": x, "labels": np.arange(60).reshape(20, 3) % 2},
        "float_labels": {"x": x, "labels": np.zeros((20, 1))},
        "empty": {"x": np.zeros((0, 4, 3))},
        "two_rows": {"x": x[:2]},
        "no_x": {"y": x},
        "pickled": {"x": np.array([Trap(), 1], dtype=object)},
        "other_shape": {"x": x[:, :3]},
    }
    for name, contents in bad.items():
        np.savez(folder / f"{name}.npz", **contents)
    (folder / "text.npz").write_text("hello")
    (folder / "words.csv").write_text("a,b\n1,x\n")
    configs = {
        "broken": "factors: [1,\n: :",
        "unknown": "nonsense: 3\n",
        "list": "- 1\n",
        "types": "seed: hello\n",
    }
    for name, text in configs.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "no_run").mkdir()
    for name in ("run", "no_checkpoint", "pickled_checkpoint", "cut_checkpoint", "bad_config", "odd_config"):
        shutil.copytree(runs["binary"], folder / name)
    (folder / "no_checkpoint/checkpoint/state.safetensors").unlink()
    (folder / "pickled_checkpoint/checkpoint/state.safetensors").write_bytes(pickle.dumps(Trap()))
    cut = folder / "cut_checkpoint/checkpoint/state.safetensors"
    cut.write_bytes(cut.read_bytes()[:-9])
    checkpoint.save(folder / "no_model" / CHECKPOINT, {"progress": 1})
    checkpoint.save(folder / "bare" / CHECKPOINT, {"model": {}})
    networks = checkpoint.load(runs["binary"] / CHECKPOINT)[0]["model"]
    checkpoint.save(folder / "more" / CHECKPOINT, {"model": networks | {"decoder.more": torch.zeros(2, 3)}})
    (folder / "bad_config/config.json").write_text("{")
    (folder / "odd_config/config.json").write_text('{"seed": "x", "factors": null, "hidden": null}')
    return folder


TRAIN = [  # options, and a part of the message
    ("--nonsense 1", "unrecognized arguments: --nonsense"),
    ("--eager --compile", "compile: eager steps cannot be compiled"),
    ("--compile true --eager true", "compile: eager steps cannot be compiled"),
    ("--seed x", "seed"),
    ("--seed -1", "seed: expected an integer in 0.."),
    ("--seed 99999999999999999999", "seed: expected"),
    ("--labels 2.5", "labels: expected a share"),
    ("--labels nan", "labels"),
    ("--labels one", "--labels: expected one-per-value or a number"),
    ("--factors 0", "factors: expected sizes"),
    ("--factors a,b", "factors"),
    ("--factors 2.5", "factors"),
    ("--factors=", "factors"),
    ("--factors 99999999999", "factors: expected sizes"),
    ("--factor-dim 0", "factor_dim: expected"),
    ("--factor-dim 99999999999999999999", "factor_dim: expected"),
    ("--batch-size -1", "batch_size: expected"),
    ("--hidden 0", "hidden: expected"),
    ("--learning-rate nan", "learning-rate"),
    ("--learning-rate -1", "learning_rate: expected"),
    ("--joint-iterations 1.5", "joint-iterations"),
    ("--joint-iterations -1", "joint_iterations: expected"),
    (
        "--pretrain-iterations 0 --prior-iterations 0 --joint-iterations 0 --refine-iterations 0",
        "iterations: expected",
    ),
    ("--max-minutes -1", "max_minutes: expected"),
    ("--max-minutes soon", "max-minutes"),
    ("--label-weight -1", "label_weight: expected"),
    ("--kl-weight 0", "kl_weight: expected"),
    ("--c0 inf", "c0"),
    ("--delay inf", "delay"),
    ("--forgetting 0.3", "forgetting: expected"),
    ("--model foo", "model"),
    ("--model vae --labels 0.5", "labels: an option of fmvae and mixture, not of vae"),
    ("--pretrained no_run", "no_run is no run with a checkpoint"),
    ("--pretrained nowhere", "pretrained: "),
    ("--pretrained text.npz", "text.npz is no run with a checkpoint"),
    ("--pretrained no_checkpoint", "no_checkpoint is no run with a checkpoint"),
    ("--pretrained pickled_checkpoint", "pretrained: "),
    ("--pretrained cut_checkpoint", "cut_checkpoint/checkpoint/state.safetensors: not a checkpoint"),
    ("--pretrained no_model", "pretrained: the checkpoint of"),
    ("--pretrained run", "run has other networks: encoder."),
    ("--pretrained bare --factors 2,2,3", "is missing there, ("),
    ("--pretrained run --factors 2,2,3 --hidden 6,6", "is missing there, ("),
    ("--pretrained more --factors 2,2,3 --data binary.npz", "decoder.more is (2, 3) there, missing here"),
    ("--network foo", "network"),
    ("--network conv28", "network: conv28 takes 28x28"),
    ("--network conv64", "network: conv64 takes 64x64x3"),
    ("--width 0", "width: expected a number > 0"),
    ("--min-scale -1", "min_scale: expected a number > 0"),
    ("--distortion 1 --data sheet.csv", "distortion: expected images, the data are of shape (3,)"),
    ("--augmentation 1 --data sheet.csv", "augmentation: expected images"),
    ("--views 0", "views: expected an integer in 1..64, got 0"),
    ("--views 2", "views: expected a --view-strength or --distortion above 0, by which they differ"),
    ("--view-strength 2 --views 2", "view_strength: expected a share in [0, 1], got 2"),
    ("--views 2 --distortion 1 --per-view x", "expected numbers separated by commas, such as 1,2, got 'x'"),
    ("--views 2 --distortion 1 --per-view 7", "per_view: expected factors without labels"),
    ("--model vae --views 2", "views: an option of fmvae, not of vae"),
    ("--per-value 2", "per_value: an option of --labels, without effect here"),
    ("--hold-out 1", "hold_out: expected a share in [0, 1)"),
    ("--hold-out 0.2", "has no labels to combine"),
    ("--label-names hat", "label_names: the data set has no labels, got hat"),
    ("--image-size 3 --data .", "image_size"),
    ("--binarization foo", "binarization"),
    ("--device cuda:99", "device: 'cuda:99' cannot be used"),
    ("--device nonsense", "device: 'nonsense' cannot be used"),
    ("--data foo", "data: expected one of smiley"),
    ("--data .", "expected one table"),
    ("--data missing.npz", "data: expected one of smiley"),
    ("--data nan.npz", "finite"),
    ("--data range.npz", "values in [0, 1]"),
    ("--data negative.npz", "values in [0, 1]"),
    ("--data label9.npz --labels 1 --factors 2", "its factor needs 10 components"),
    ("--data label_length.npz", "'labels' must have shape"),
    ("--data label_shape.npz --labels 1 --factors 2", "factors: expected at least one for each of the 3"),
    ("--data float_labels.npz", "must hold integers"),
    ("--data empty.npz", "'x' is empty"),
    ("--data two_rows.npz", "at least 3 rows"),
    ("--data no_x.npz", "expected an array 'x'"),
    ("--data pickled.npz", "pickles are refused"),
    ("--data text.npz", "not a .npz file"),
    ("--data grey.npz --labels 1", "has no labels to train on"),
    ("--data mnist-static --data-root text.npz", "data_root"),
    ("--config broken.yaml", "config: broken.yaml: "),
    ("--config unknown.yaml", "nonsense"),
    ("--config list.yaml", "config"),
    ("--config types.yaml", "seed"),
    ("--config binary.yaml", "config: binary.yaml is not UTF-8 text; save it as UTF-8"),
    ("--config missing.yaml", "File does not exist"),
    ("--out run", "out: run exists already"),
    ("--out text.npz", "out: text.npz exists already"),
    ("--out text.npz/run", "out: text.npz is no folder"),
    ("--out /proc/run", "/proc/run"),
]
OTHERS = [
    ("nonsense", "invalid choice: 'nonsense'"),
    ("train --resume no_run", "is no run"),
    ("train --resume nowhere", "is no run"),
    ("train --resume text.npz", "run: text.npz is no run"),
    ("train --resume run --seed 3 --out x", "--seed, --out can't be changed"),
    ("train --resume run --pretrained run", "--pretrained can't be changed"),
    ("train --resume run --eager --compile", "compile: eager steps cannot be compiled"),
    ("train --resume no_checkpoint", "no checkpoint"),
    ("train --resume pickled_checkpoint", "not a checkpoint"),
    ("train --resume cut_checkpoint", "not a checkpoint"),
    ("train --resume bad_config", "is damaged"),
    ("train --resume odd_config", "is damaged"),
    ("evaluate", "required"),
    ("evaluate nowhere", "is no run"),
    ("evaluate no_checkpoint", "no checkpoint"),
    ("evaluate pickled_checkpoint", "not a checkpoint"),
    ("evaluate cut_checkpoint", "not a checkpoint"),
    ("evaluate bad_config", "is damaged"),
    ("evaluate run --split nonsense", "split"),
    ("evaluate run --split nonsense --data binary.npz", "split"),
    ("evaluate run --num-samples -1", "num_samples: expected"),
    ("evaluate run --num-samples x", "num-samples"),
    ("evaluate run --points 0", "points: expected a number >= 1, got 0"),
    ("evaluate run --seed -1", "seed: expected"),
    ("evaluate run --data other_shape.npz", "expected observations of shape [4, 3]"),
    ("evaluate run --data grey.npz", "expected binary values"),
    ("evaluate run --data sheet.csv", "expected observations of shape [4, 3]"),
    ("evaluate run --data nan.npz", "finite"),
    ("evaluate run --data foo", "data: expected one of smiley"),
    ("evaluate run --data missing.npz", "no such file"),
    ("evaluate run --data smiley", "is binary data of shape (32, 32)"),
    ("evaluate run --device cuda:99", "device"),
    ("sample run", "required"),
    ("sample nowhere --out x.png", "is no run"),
    ("sample run --out x.gif", "out: expected a name that ends in .npz or .png"),
    ("sample table --out x.png", "is no run"),
    ("sample run --out text.npz/x.png", "text.npz"),
    ("sample run --out x.png --grid 3", "grid: expected"),
    ("sample run --out x.png --grid 0x3", "grid: expected"),
    ("sample run --out x.png --grid 9999999x9999999", "grid: expected"),
    ("sample run --out x.png --codes 1", "codes: expected 3 of them"),
    ("sample run --out x.png --codes 2,0,0", "codes: expected * or 0..1 for factor 0"),
    ("sample run --out x.png --codes a,0,0", "codes: expected"),
    ("sample run --out x.png --codes=-1,0,0", "codes: expected"),
    ("sample run --out x.png --seed -1", "seed: expected"),
    ("encode run", "required"),
    ("encode run --out x.png", "out: expected a name that ends in .npz"),
    ("encode run --out text.npz/x.npz", "text.npz"),
    ("encode run --out x.npz --data nan.npz", "finite"),
    ("encode run --out x.npz --split nonsense", "split"),
    ("encode cut_checkpoint --out x.npz", "not a checkpoint"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --labels ten", "--labels: expected one-per-value or a number, got 'ten'"),
        ("train --labels true", "--labels: expected one-per-value or a number, got 'true'"),
        (
            "train --model foo",
            "--model: expected one of fmvae, vae, vsc, bsc, max-sparse, linear-sparse, mixture, "
            "hidden-markov, topics, got 'foo'",
        ),
        ("train --network foo", "--network: expected one of mlp, conv, conv28, conv64, got 'foo'"),
        (
            "train --factors 2,x",
            "--factors: expected sizes separated by commas, such as 2,2,64, or auto, got '2,x'",
        ),
        ("train --kl-weight nan", "--kl-weight: expected a number, got 'nan'"),
        ("train --factor-dim 1.5", "--factor-dim: expected an integer, got '1.5'"),
        ("train --seed", "--seed: expected one argument"),
        ("train --recompute maybe", "--recompute: expected true or false, got 'maybe'"),
        ("train --config types.yaml", "--seed: expected an integer, got 'hello'"),
        ("train --config missing.yaml", "--config: File does not exist: "),
        ("evaluate", "required: run (see pyro-fmvae evaluate --help)"),
        ("sample", "required: run, --out"),
        ("evaluate run --split foo", "--split: expected one of train, valid, test, unseen, got 'foo'"),
        ("nonsense", "argument command: invalid choice: 'nonsense'"),
    ],
)
def test_complaints_speak_of_options(place, monkeypatch, arguments, message):
    check_complaint(place, monkeypatch, arguments.split(), f"pyro-fmvae: error: {message}")


def test_complaints_that_are_not_recognised_pass():
    for message in ("anything", 'Parser "x" is odd', "value: 3"):
        assert translate(message) == message
    odd = 'Parser key "a.b_c": odd\nin two lines'
    assert translate(odd) == "--b-c: odd in two lines"
    assert translate(odd, {"b_c"}) == "b_c: odd in two lines"


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def check_complaint(folder, monkeypatch, arguments, part):
    """One line on standard error, status 2, nothing on standard output, no file touched."""
    monkeypatch.chdir(folder)
    before = contents(folder)
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("pyro-fmvae: error: ")
    assert part in err
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize(("options", "part"), TRAIN, ids=lambda value: str(value) if value else "")
def test_train_complains(place, monkeypatch, options, part):
    given = options.split()
    defaults = {"--data": "grey.npz", "--out": "new", **TINY}
    flat = [text for pair in defaults.items() if pair[0] not in options for text in pair]
    check_complaint(place, monkeypatch, ["train", *given, *flat], part)


@pytest.mark.parametrize(("arguments", "part"), OTHERS, ids=str)
def test_others_complain(place, monkeypatch, arguments, part):
    check_complaint(place, monkeypatch, arguments.split(), part)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate\nmany"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."),
        MemoryError("Unable to allocate 20 GiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_large_a_model(files, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(FMVAE, "build", fail)
    arguments = ["train", "--data", str(files["grey"]), "--out", "new"]
    check_complaint(tmp_path, monkeypatch, arguments, "allocate")


def test_a_model_that_no_memory_could_hold(files, tmp_path, monkeypatch):
    """Its size in bytes is beyond int64."""
    monkeypatch.setattr(FMVAE, "build", lambda *_: torch.nn.Linear(2**31 - 1, 2**31 - 1))
    arguments = ["train", "--data", str(files["grey"]), "--out", "new"]
    check_complaint(
        tmp_path, monkeypatch, arguments, "not enough memory: Storage size calculation overflowed"
    )


def test_errors_of_the_program_itself_are_not_hidden(files, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(FMVAE, "build", fail)
    status, _, err = train(tmp_path / "run", files["grey"])
    assert status == 1
    assert "unforeseen, please report it" in err and "RuntimeError: a mistake of ours" in err


@pytest.mark.parametrize("saved", [True, False])
def test_a_full_disk_is_told_with_the_run_that_is_left(files, tmp_path, monkeypatch, saved):
    def fail(*_, **__):
        if saved:
            (tmp_path / "run" / CHECKPOINT).mkdir()
            (tmp_path / "run" / CHECKPOINT / checkpoint.READABLE).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(training, "follow", fail)
    status, _, err = train(tmp_path / "run", files["grey"])
    assert status == 2
    left = f"; the run is {tmp_path / 'run'}" if saved else ""
    assert err.endswith(f"pyro-fmvae: error: no space left on device{left}\n")
    assert (tmp_path / "run").exists() == saved


def test_tables_are_no_pictures(runs, tmp_path, monkeypatch):
    arguments = ["sample", str(runs["table"]), "--out", "x.png"]
    check_complaint(tmp_path, monkeypatch, arguments, "out: expected a name that ends in .npz or .csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("encode run --data other.npz --out other.npz", "data, out: expected different files"),
        ("score run --data other.npz --out other.npz", "data, out: expected different files"),
        *((f"{name} run --out mine.npz", "out: ") for name in ("encode", "score", "sample")),
        ("encode run --data other.npz --out mine.npz", "out: "),
        ("sample pictures --out photos/a.png", "out: "),
        ("draw pictures components --out photos/a.png", "out: "),
        ("edit pictures --image x.png --set side=1 --out photos/a.png", "out: "),
        ("edit pictures --image x.png --set side=1 --out e.png --compare photos/a.png", "compare: "),
    ],
)
def test_data_are_never_overwritten(runs, files, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("image")
    shutil.copy(files["binary"], "mine.npz")
    shutil.copy(files["binary"], "other.npz")
    for folder, data in (("run", "mine.npz"), ("pictures", "photos")):
        shutil.copytree(runs["binary"], folder)
        config = json.loads((tmp_path / folder / "config.json").read_text())
        (tmp_path / folder / "config.json").write_text(json.dumps(config | {"data": str(tmp_path / data)}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, out, err = command(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"pyro-fmvae: error: {message}") and err.count("\n") == 1
    assert "different" in message or err.endswith(" holds data that the run was trained on\n")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_nothing_is_left_of_an_output_that_fails(runs, files, tmp_path, monkeypatch):
    def half(file, *_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", half)
    (tmp_path / "x.npz").write_text("old")
    assert command("sample", runs["grey"], "--out", tmp_path / "x.npz") == (
        2,
        "",
        "pyro-fmvae: error: disk full\n",
    )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
