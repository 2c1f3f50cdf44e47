"""Damaged and hostile files: an error in one line, and nothing executed, written elsewhere or swollen."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings

from pyro_fmvae import checkpoint
from pyro_fmvae.app.commands import training
from pyro_fmvae.app.runs.run import CHECKPOINT, Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data.image_cache import decode, load_images, read_header
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.data.own.folder import read_folder
from pyro_fmvae.data.own.npz_file import read_npz
from pyro_fmvae.data.own.zarr_store import decode_store
from pyro_fmvae.data.sets.mnist import read_idx
from pyro_fmvae.files.memory import at_most, most_used
from tests.fuzz.mutations import bytewise, mutated, nested, replaced
from tests.small_runs import command, stop_at, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

MEMORY = 64 << 20  # bytes that a file may take
GROWTH = 512 << 20  # bytes that the process may grow by, all cases together
PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
seen: list[str] = []  # what the hook below noticed
watched: list[Path] = []  # the folder that may be written to, while there is one


def _notice(event, arguments):
    if not watched:
        return
    if event in PROGRAMS:
        seen.append(f"{event} {arguments[:1]}")
    if event == "open" and isinstance(arguments[0], str) and (arguments[2] or 0) & WRITING:
        path = os.path.abspath(arguments[0])
        if not path.startswith((str(watched[0]), "/dev/null")) and ".hypothesis" not in path:
            seen.append(f"writes {path}")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run on a table, and a file of each kind."""
    sys.addaudithook(_notice)  # for good: processes that run other files need not have it
    folder = tmp_path_factory.mktemp("originals")
    files = write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        status, _, err = train(folder / "run", files["csv"], labels=0.5, factors="2,3")
        assert status == 0, err
        stop_at(patch, 9, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert train(folder / "stopped", files["csv"], labels=0.5, factors="2,3")[0] == 130
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    for name in ("a.png", "b.jpg", "c.webp", "d.bmp"):
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(folder / "images" / name)
    (folder / "images" / "labels.csv").write_text("file,kind,year\na.png,cat,1990\nb.jpg,dog,2000\n")
    (folder / "idx").write_bytes(b"\0\0\x08\x03" + np.array([5, 4, 3], ">i4").tobytes() + bytes(60))
    options = "factors: 2,3\nlearning_rate: 0.01\nhidden: [6, 7]\nmodel: fmvae\n"
    (folder / "mine.yaml").write_text(f"data: {files['csv']}\n{options}")
    return folder


@pytest.fixture
def place(originals, tmp_path, monkeypatch):
    """A copy of the files, the only folder that may be written to."""
    folder = tmp_path / "place"
    shutil.copytree(originals, folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    seen.clear()
    before = most_used()
    watched.append(tmp_path)
    with at_most(MEMORY):
        yield folder
    watched.clear()
    assert seen == []
    assert most_used() - before < GROWTH


def fuzz(cases, strategy, check):
    """Check that many mutations are read, or refused with a message."""

    options = {"derandomize": True, "database": None, "deadline": None}

    @settings(max_examples=cases, suppress_health_check=list(HealthCheck), **options)
    @given(strategy)
    def run(mutation):
        try:
            check(mutation)
        except (ValueError, FileNotFoundError) as error:
            assert str(error)

    run()


MANY = pytest.mark.parametrize("cases", [30, pytest.param(1000, marks=pytest.mark.slow)])


def bytes_of(path):
    """A function that writes mutated bytes of a file in its place."""
    content = path.read_bytes()
    return lambda edits: path.write_bytes(mutated(content, edits))


def read_images(folder):
    names = read_folder(folder).names
    for name in names:
        read_header(folder / name)
        decode(folder / name, (8, 8, 3))
    load_images(folder, names, (8, 8), (folder / "cache",))


READERS = {
    "binary.npz": read_npz,
    "table.npz": read_npz,
    "sheet.csv": lambda path: read_csv(path),
    "images/labels.csv": lambda path: read_folder(path.parent),
    "images/a.png": lambda path: read_images(path.parent),
    "images/b.jpg": lambda path: read_images(path.parent),
    "images/c.webp": lambda path: read_images(path.parent),
    "images/d.bmp": lambda path: read_images(path.parent),
    "idx": read_idx,
}


@MANY
@pytest.mark.parametrize("name", READERS)
def test_bytes_of_data(place, name, cases):
    path, write = place / name, bytes_of(place / name)

    def check(edits):
        write(edits)
        READERS[name](path)

    fuzz(cases, bytewise, check)


@MANY
@pytest.mark.parametrize("name", ["zarr.json", "c/0/0", "c/1/0"])
def test_bytes_of_a_zarr_store(place, name, cases):
    zarr = pytest.importorskip("zarr", minversion="3")
    store = place / "cells.zarr"
    zarr.create_array(store, data=np.arange(60.0).reshape(20, 3), chunks=(10, 3))
    write = bytes_of(store / name)

    def check(edits):
        write(edits)
        decode_store(store)

    fuzz(cases, bytewise, check)


@MANY
def test_bytes_of_a_compressed_idx_file(place, cases):
    content = gzip.compress((place / "idx").read_bytes())
    (place / "idx").unlink()

    def check(edits):
        (place / "idx.gz").write_bytes(mutated(content, edits))
        read_idx(place / "idx")

    fuzz(cases, bytewise, check)


@MANY
def test_bytes_of_a_checkpoint(place, cases):
    folder = place / "run" / CHECKPOINT
    whole, _ = checkpoint.load(folder)
    for name in (checkpoint.TENSORS, checkpoint.READABLE):
        write = bytes_of(folder / name)

        def check(edits, write=write):
            write(edits)
            state, times = checkpoint.load(folder)
            assert list(state) == list(whole)
            assert all(isinstance(time, int | float | None) for time in times.values())

        fuzz(cases, bytewise, check)
        write([])


@MANY
def test_bytes_of_a_configuration(place, cases):
    write = bytes_of(place / "run" / "config.json")

    def check(edits):
        write(edits)
        Run.open(place / "run")

    fuzz(cases, bytewise, check)


@MANY
def test_values_in_a_configuration(place, cases):
    path = place / "run" / "config.json"
    whole = json.loads(path.read_text())

    def check(choice):
        path.write_text(json.dumps(replaced(whole, choice)))
        run = Run.open(place / "run")
        run.load_model(torch.device("cpu"))

    fuzz(cases, nested, check)


@MANY
@pytest.mark.parametrize("name", ["run", "stopped"])
def test_values_in_a_checkpoint_with_the_right_checksum(place, name, cases):
    run, device = Run.open(place / name), torch.device("cpu")
    dataset = run.load_data()
    state, clock = checkpoint.load(place / name / CHECKPOINT)

    def check(choice):
        checkpoint.save(place / name / CHECKPOINT, *replaced([state, clock], choice))
        run.load_model(device)
        Trainer(run, dataset, device).restore()

    fuzz(cases, nested, check)


@MANY
def test_bytes_of_a_config_file(place, cases, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_: (None, 0))
    write = bytes_of(place / "mine.yaml")

    def check(edits):
        write(edits)
        status, _, err = command("train", "--config", place / "mine.yaml")
        assert status in (0, 2), err
        assert err.count("\n") == (status == 2)

    fuzz(cases, bytewise, check)


DEADLY = """
import json, pathlib, sys, zipfile
import numpy as np
from pyro_fmvae import checkpoint
from pyro_fmvae.app.cli import run_command
from pyro_fmvae.files.memory import most_used

folder, before = pathlib.Path(sys.argv[1]), most_used()
for name, text in {"flow": "[" * 100_000, "block": "- " * 100_000, "json": '{"a":' * 100_000}.items():
    (folder / "deep.yaml").write_text(text)
    assert run_command(["train", "--config", str(folder / "deep.yaml")]) == 2, name
    assert run_command(["train", "--image-size", text]) == 2, name
    assert run_command(["train", "--image-size=" + text]) == 2, name
    (folder / "deep.yaml").write_text("image_size: '" + text + "'")
    assert run_command(["train", "--config", str(folder / "deep.yaml")]) == 2, name
    (folder / "run" / "config.json").write_text(text)
    assert run_command(["evaluate", str(folder / "run")]) == 2, name
shape = (1 << 9, 1 << 20)
bomb = zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
with bomb, bomb.open("x.npy", "w", force_zip64=True) as file:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    for _ in range(1 << 3):
        file.write(bytes(1 << 26))
assert run_command(["train", "--data", str(folder / "bomb.npz"), "--max-memory", "256M"]) == 2
assert most_used() - before < 300 << 20, most_used() - before
"""


def test_what_would_end_the_process(place, tmp_path):
    watched.clear()
    root = str(Path(checkpoint.__file__).parents[2])
    arguments = [sys.executable, "-c", DEADLY, str(place)]
    done = subprocess.run(
        arguments, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 16, done.stderr
