"""What went wrong once on files and orders from outside: one clear line, the right status, nothing lost."""

import gzip
import json
import os
import re
import shutil
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from pyro_fmvae import checkpoint
from pyro_fmvae.app.commands import evaluation
from pyro_fmvae.app.runs import training
from pyro_fmvae.app.runs.run import CHECKPOINT, Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data.image_cache import decode, load_images
from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.data.sets.mnist import read_idx
from pyro_fmvae.files.memory import at_most
from tests.small_runs import command, state, stop_at, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(files, tmp_path_factory):
    """A run on images."""
    run = tmp_path_factory.mktemp("made") / "run"
    status, _, err = train(run, files["binary"], factors="2")
    assert status == 0, err
    return run


@pytest.fixture(scope="module")
def stopped(files, tmp_path_factory):
    """A run that was stopped while an Adam and natural gradients take the steps."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("stopped") / "run"
        stop_at(patch, 10, lambda: os.kill(os.getpid(), 2))
        assert train(folder, files["table"], factors="2")[0] == 130
    return folder


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def refusal(*arguments):
    """The message of a command that is refused."""
    status, _, err = command(*arguments)
    assert (status, err.count("\n")) == (2, 1), err
    return err.removeprefix("pyro-fmvae: error: ").strip()


# ------------------------------------------------------------------ orders

LAUGHS = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghi")]
)
"""Nine levels of nine aliases, which stand for 387 million words."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("factors: many", "--factors: expected sizes"),
        ("factors: {}", "--factors: expected sizes"),
        ("hidden: {a: 1}", "--hidden: expected sizes"),
        ("learning_rate: null", "learning_rate: expected a number, got None"),
        ("learning_rate: 1.0e+39", "learning_rate: expected a number that float32 holds"),
        ("learning_rate: 1" + "0" * 400, "expected numbers that float32 holds, got a larger one"),
        ("m0: 1.0e+39", "m0: expected a number that float32 holds"),
        ("data: null\nmodel: null", "data: expected text, got None"),
        ("derived: {given: 3}", "given: expected a list, each text, got 3"),
        ("derived: {given: [[1]]}", "given: expected a list, each text"),
        ("seed: &a [*a]", "config: mine.yaml: aliases are not allowed"),
        (LAUGHS, "config: mine.yaml: aliases are not allowed"),
        ("hidden: |\n  " + LAUGHS.replace("\n", "\n  "), "config: mine.yaml: aliases are not allowed"),
        ("seed: " + "[" * 200 + "]" * 200, "config: mine.yaml: nested more than 100 levels deep"),
        ("seed: '" + "[" * 200 + "]" * 200 + "'", "config: mine.yaml: nested more than 100 levels deep"),
        ("seed: " + "[" * 200_000, "nest"),
        ("- " * 200_000, "nest"),
        ("seed: 1\nseed: 2", "config: mine.yaml: seed is given twice"),
        ('{"hidden": [3, 3], "derived": {"a": 1, "b": "a", "a": 1}}', "config: mine.yaml: a is given twice"),
        ("seed: [1, 2\nfoo: }", "config: mine.yaml: while parsing a flow sequence at line 1, column 7"),
        ("# " + "x" * 2_000_000, "expected at most 1,048,576 characters"),
    ],
    ids=lambda value: value[:24],
)
def test_config_files(files, tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    data = () if "data" in text else ("--data", files["table"], "--model", "fmvae")
    assert message in refusal("train", "--config", tmp_path / "mine.yaml", *data, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_of_kinds_of_columns(files, tmp_path):
    (tmp_path / "kinds.yaml").write_text("a: &a {x: category}\nb: {<<: [*a, *a]}")
    given = "--data", files["table"], "--columns", tmp_path / "kinds.yaml"
    assert refusal("train", *given).endswith("kinds.yaml: aliases are not allowed")
    (tmp_path / "kinds.yaml").write_text("a: category\nb: number\na: number")
    assert refusal("train", *given).endswith("kinds.yaml: a is given twice")


@pytest.mark.parametrize("name", ["rows", "draws", "most"])
def test_a_figure_that_nobody_could_look_at(made, name):
    figure = {"rows": "spread", "draws": "clusters", "most": "clusters"}[name]
    assert f"{name}: expected at most" in refusal("draw", made, figure, f"--{name}", 10**8)


def test_an_unforeseen_error_is_one_line(made, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oh\x1b[2J")

    monkeypatch.setattr(evaluation.Run, "open", fail)
    status, _, err = command("evaluate", made)
    assert (status, err.count("\n")) == (1, 1)
    assert "please report it to https://" in err
    assert r"ZeroDivisionError: oh\x1b[2J" in err
    status, _, err = command("evaluate", made, "--debug")
    assert (status, err.splitlines()[0]) == (1, "Traceback (most recent call last):")


def test_an_unforeseen_error_names_the_run(files, tmp_path, monkeypatch):
    def fail():
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        stop_at(patch, 3, fail)
        status, _, err = train(tmp_path / "run", files["table"], factors="2")
    assert status == 1
    assert err.splitlines()[-1].endswith(f"; the run is {tmp_path / 'run'}")
    assert state(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory: nothing is left"),
        (PermissionError(13, "Permission denied", "mine.csv"), "mine.csv: permission denied"),
        (ValueError("label '\x1b[2J'"), r"label '\x1b[2J'"),
    ],
)
def test_errors_of_the_system(made, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(evaluation.Run, "open", fail)
    assert refusal("evaluate", made) == message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_at_the_first_line_of_the_log(files, tmp_path, monkeypatch):
    log = training._LogFile
    monkeypatch.setattr(training, "_LogFile", lambda path: log("/dev/full"))
    status, _, err = train(tmp_path / "run", files["table"], factors="2")
    assert (status, err) == (2, "pyro-fmvae: error: /dev/full: no space left on device\n")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ data


def npz(path, header, content=b"", name="x.npy"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        text = header.encode().ljust(117) + b"\n"
        file.write(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (True, 8, 8)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1 << 40,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000,)}",
        "{'descr': '|V9999999999', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -64)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8",
        "'''",
        "[" * 110,
    ],
)
def test_odd_headers(tmp_path, header):
    with pytest.raises(ValueError, match=r"'x.*' is damaged"):
        read_arrays(npz(tmp_path / "odd.npz", header, bytes(64)), ("x",))


def test_nothing_is_unpacked_beyond_the_limit(files, tmp_path):
    path = npz(
        tmp_path / "bomb.npz",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**20},)}}",
        bytes(2**20),
    )
    assert path.stat().st_size < 10_000
    message = refusal("train", "--data", path, "--max-memory", "1M")
    assert "bomb.npz: loading it would take 1.0 MiB of memory, above the limit of 1.0 MiB" in message
    Image.new("L", (2000, 2000)).save(tmp_path / "large.png")
    rows = b"\0\0\x08\x01" + (2**20).to_bytes(4, "big")
    (tmp_path / "idx.gz").write_bytes(gzip.compress(rows + bytes(2**20)))
    (tmp_path / "large.csv").write_text("1,2\n" * 50_000)
    with at_most(2**20 - 1):
        for read in (
            lambda: decode(tmp_path / "large.png", (8, 8)),
            lambda: read_idx(tmp_path / "idx"),
            lambda: read_csv(tmp_path / "large.csv"),
        ):
            with pytest.raises(ValueError, match="of memory, above the limit of"):
                read()
    assert len(read_idx(tmp_path / "idx")) == 2**20


def test_a_size_that_no_float_holds(tmp_path):
    (tmp_path / "idx").write_bytes(b"\0\0\x08\x64" + 100 * b"\x7f\xff\xff\xff")
    with pytest.raises(ValueError, match="more than an exbibyte of memory"):
        read_idx(tmp_path / "idx")


def test_large_pictures_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    names = [f"{number}.png" for number in range(4)]
    for name in names:
        Image.new("L", (100, 100), 7).save(tmp_path / name)
    with at_most(12 * 100 * 100):  # bytes of one
        images = load_images(tmp_path, names, (8, 8), (tmp_path / "cache",))
    assert (images == 7).all()


def test_a_compressed_file_is_not_read_beyond_its_header(tmp_path):
    (tmp_path / "idx.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05" + bytes(2**26)))
    with at_most(1000), pytest.raises(ValueError, match="not an idx file"):
        read_idx(tmp_path / "idx")


def test_pictures_in_formats_that_start_programs(tmp_path):
    (tmp_path / "page.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with pytest.raises(ValueError, match="not an image that can be read"):
        decode(tmp_path / "page.png", (8, 8))


def test_an_archive_in_the_place_of_decoded_images(tmp_path):
    Image.new("L", (8, 8), 7).save(tmp_path / "a.png")
    kept = load_images(tmp_path, ["a.png"], (8, 8), (tmp_path / "cache",)).copy()
    (path,) = (tmp_path / "cache").glob("*.npy")
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))
    assert np.array_equal(load_images(tmp_path, ["a.png"], (8, 8), (tmp_path / "cache",)), kept)


def test_names_that_a_terminal_would_obey(tmp_path):
    rows = "".join(f"{row},{row % 3}.5,a\n" for row in range(30))
    (tmp_path / "table.csv").write_text(f"u,v,label:\x1b[2J\n{rows}")
    message = refusal("train", "--data", tmp_path / "table.csv", "--out", tmp_path / "run")
    assert message.endswith(r"expected names of printable characters, got 'label:\x1b[2J'")


# ------------------------------------------------------------------ runs


def edited(run, **changes):
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        *({"factors": 3}, {"factors": ["x"]}, {"hidden": None}, {"hidden": [[6]]}, {"batch_size": "32"}),
        *({"learning_rate": None}, {"eager": 1}, {"data": 3}, {"label_names": "side"}, {"derived": []}),
        *({"seed": 0.5}, {"model": []}, {"network": {}}, {"m0": 1e39}, {"max_scale": True}),
    ],
    ids=str,
)
def test_wrong_types_in_a_configuration(run, changes):
    edited(run, **changes)
    assert re.search(r"config.json is damaged \(|does not fit config.json \(", refusal("evaluate", run))


def damage(path, *place, value):
    """Another value at a place of a JSON file, or of the last line of one with a value a line."""
    *lines, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    whole = inside = json.loads(last)
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    path.write_text("\n".join([*lines, json.dumps(whole)]))


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("report.json", ["columns"], -1),
        ("report.json", ["columns"], [None]),
        ("report.json", ["columns"], [dict.fromkeys(("name", "kind", "values", "treatment", "why"), 3)]),
        ("report.json", ["warnings"], None),
        ("report.json", ["summary"], [3]),
        ("report.json", ["splits", "test", "classification"], [1]),
        ("report.json", ["splits", "test", "elbo"], "x"),
        ("report.json", ["splits", "test", "elbo"], 10**400),
        ("report.json", ["splits", "test"], None),
        ("kept.json", ["kept", "value"], "x"),
        ("kept.json", ["kept", "right"], "x"),
        ("kept.json", ["kept", "step"], "x"),
        ("kept.json", ["end", "phase"], 5),
        ("kept.json", ["points"], None),
        ("config.json", ["derived", "machine"], 5),
        ("config.json", ["derived", "versions"], 5),
        ("config.json", ["derived", "versions", "torch"], 5),
    ],
)
def test_wrong_types_in_what_a_page_shows(run, name, place, value):
    damage(run / name, *place, value=value)
    assert re.match(rf"run: {run}(/{name})? is damaged \(", refusal("report", run))
    if name == "report.json":
        other = shutil.copytree(run, run.parent / "other")
        (other / name).unlink()
        status, _, err = command("report", run, "--compare", other)
        assert (status, err.count("\n")) in ((0, 0), (2, 1)), err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", "x"),
        ("step", "x"),
        ("used_components", "ab"),
        ("elbo", []),
        ("phase", 5),
        ("seconds", 1e999),
    ],
)
def test_damaged_lines_of_metrics_are_left_out(run, name, value):
    damage(run / "metrics.jsonl", name, value=value)
    succeed("report", run)
    whole = (run / "report.html").read_text()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    succeed("report", run)
    assert (run / "report.html").read_text() == whole


@pytest.mark.parametrize("name", ["config.json", "kept.json", "checkpoint/state.json"])
def test_pipes_do_not_stop_a_command(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    status, _, err = command("evaluate", run)
    assert (status, err.count("\n")) == ((2, 1) if name == "config.json" else (0, 0))


@pytest.mark.parametrize(
    "change",
    [
        *(
            lambda model, name, dtype=dtype: model | {name: model[name].to(dtype)}
            for dtype in (torch.complex64, torch.float16, torch.int64, torch.bool)
        ),
        lambda model, name: model | {name: model[name][None]},
        lambda model, name: model | {name: "x"},
        lambda model, name: list(model.values()),
    ],
)
def test_other_tensors_with_the_right_checksum(run, change):
    state, clock = checkpoint.load(run / CHECKPOINT)
    name = next(name for name, value in state["model"].items() if value.dim() == 2)
    checkpoint.save(run / CHECKPOINT, state | {"model": change(state["model"], name)}, clock)
    assert "does not fit config.json" in refusal("evaluate", run)


def test_a_checkpoint_without_its_digest(tmp_path):
    for header, message in (
        ({"state": "{}"}, "'sha256'"),
        ({"sha256": "0", "state": "{}"}, "its sha256 is another"),
        ({"sha256": "0", "state": []}, "no attribute 'encode'"),
        ("[" * 100_000, "nested too deeply"),
    ):
        text = header if isinstance(header, str) else json.dumps(header)
        save_file({}, tmp_path / checkpoint.TENSORS, {"state": text})
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path)


def test_a_configuration_says_nothing_of_where_a_home_is(files, tmp_path, monkeypatch):
    home = tmp_path / "home" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    shutil.copy(files["table"], home / "mine.npz")
    assert train(home / "runs" / "first", home / "mine.npz", factors="2")[0] == 0
    text = (home / "runs" / "first" / "config.json").read_text()
    assert json.loads(text)["data"] == os.path.join("..", "..", "mine.npz")
    assert "somebody" not in text
    moved = home.rename(tmp_path / "home" / "other")
    monkeypatch.setenv("HOME", str(moved))
    expected = succeed("evaluate", moved / "runs" / "first")
    again = succeed("train", "--config", moved / "runs" / "first" / "config.json", "--out", moved / "again")
    assert "test points" in again
    assert state(moved / "again") == state(moved / "runs" / "first")
    (moved / "data").mkdir()
    (moved / "mine.npz").rename(moved / "data" / "mine.npz")
    assert "give the folder that now holds 'mine.npz' with --data-root" in refusal(
        "evaluate", moved / "runs" / "first"
    )
    assert succeed("evaluate", moved / "runs" / "first", "--data-root", moved / "data") == expected
    assert "finished already" in succeed("train", "--resume", moved / "again", "--data-root", moved / "data")


PARTS = [
    (part, odd)
    for part in ("phase", "batches", "random", "progress")
    for odd in (None, 3, [], {"steps": "x"})
]


def adam_of(state):
    """The state of the first parameter that has one, and the settings of the first group."""
    others = state["phase"]["others"]
    return next(iter(others["state"].values())), others["param_groups"][0]


def best_of(state, change):
    """A best model whose tensors are those of the model, changed."""
    moment = {"phase": "joint", "step": 1, "total_steps": 3, "value": -3.0}
    model = {name: change(value) for name, value in state["model"].items()}
    return {"moment": moment, "model": model, "since": 1}


@pytest.mark.parametrize(
    "change",
    [
        *(lambda state, part=part, odd=odd: state.update({part: odd}) for part, odd in PARTS),
        lambda state: state["phase"].update(steps=-1),
        lambda state: adam_of(state)[0].update(exp_avg=torch.zeros(3, 1, 3)),
        lambda state: adam_of(state)[0].update(exp_avg_sq=None),
        lambda state: state.update(best=best_of(state, lambda value: value.long())),
        lambda state: state.update(best=best_of(state, lambda value: value[None])),
        lambda state: state.update(best=best_of(state, lambda value: None)),
        lambda state: adam_of(state)[0].update(step=torch.zeros(2)),
        lambda state: adam_of(state)[0].pop("exp_avg"),
        lambda state: adam_of(state)[1].update(lr="x"),
        lambda state: adam_of(state)[1].update(betas=[0.9, None]),
        lambda state: adam_of(state)[1].pop("eps"),
    ],
)
def test_the_state_of_a_training_of_another_form(stopped, tmp_path, change):
    run = Run.open(shutil.copytree(stopped, tmp_path / "run"))
    state, clock = checkpoint.load(run.folder / CHECKPOINT)
    change(state)
    checkpoint.save(run.folder / CHECKPOINT, state, clock)
    with pytest.raises(ValueError, match=r"does not fit config\.json"):
        Trainer(run, run.load_data(), torch.device("cpu")).restore()
