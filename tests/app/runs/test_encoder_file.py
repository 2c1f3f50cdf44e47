"""The encoder on its own gives the arrays of ``encode``, in torch's format and in ONNX, for any batch."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pyro_fmvae
from pyro_fmvae.app.runs import export
from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.data.count_table import CountOptions, CountTable
from tests.small_runs import train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {  # kind → data, and options of its training
    "binary": ("binary", {"labels": 0.5, "factors": "2,2,3"}),
    "grey": ("grey", {"network": "conv", "width": 0.05, "factors": "3,2"}),
    "colour": ("colour", {"labels": 1, "factors": "2,4", "label_width": 0.05}),
    "table": ("units", {"labels": 1, "factors": "2,2"}),
    "vae": ("units", {"model": "vae"}),
    "vsc": ("grey", {"model": "vsc"}),
    "counts": ("cells", {"likelihood": "poisson", "batch_column": "donor", "factors": "3"}),
}
ROWS = 1, 7
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Raw data by name of the file, and the file."""
    folder = tmp_path_factory.mktemp("data")
    files = write_files(folder)
    found = {}
    for name in ("binary", "grey", "colour"):
        with np.load(files[name]) as archive:
            found[name] = files[name], archive["x"]
    with np.load(files["table"]) as archive:
        table = np.array([1e6, -3.0, 5e-4]) + archive["x"] * np.array([50.0, 1.0, 1e-5])
        np.savez(folder / "units.npz", x=table, labels=archive["labels"])
    found["units"] = folder / "units.npz", table
    cells = np.column_stack(
        [np.random.default_rng(0).poisson(4.0, (60, 2)) + 1, np.arange(60) % 2, np.ones(60)]
    )
    rows = [f"{a:g},{b:g},{('ann', 'bob')[int(donor)]},{c:g}" for a, b, donor, c in cells]
    (folder / "cells.csv").write_text("\n".join(["a,b,donor,c", *rows]) + "\n")
    found["cells"] = folder / "cells.csv", cells
    return found


@pytest.fixture(scope="module")
def runs(arrays, tmp_path_factory):
    places = {kind: arrays[data][0] for kind, (data, _) in KINDS.items()}
    options = {kind: given for kind, (_, given) in KINDS.items()}
    folders = train_all(tmp_path_factory.mktemp("runs"), places, options)
    return {kind: pyro_fmvae.load(folder, device="cpu") for kind, folder in folders.items()}


class Echo(torch.nn.Module):
    """What a program is given."""

    def forward(self, x):
        return {"x": x}


def as_input(x):
    """Pixels in [0, 1], or columns in their units."""
    if x.ndim == 2:
        return x.astype(np.float64)
    return x.astype(np.float32) / (255 if x.dtype == np.uint8 and x.max() > 1 else 1)


def assert_near(found, expected):
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=TOLERANCE, atol=TOLERANCE)
    if "codes" in expected:
        np.testing.assert_array_equal(found["codes"], expected["codes"])


def by_the_encoder(encoded):
    """Encodings without labels that the encoder has not learnt, and clusters of the codes."""
    beside = ("predicted", "cluster", "cluster_probability")
    return {name: array for name, array in encoded.items() if name not in beside}


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_torch_encodes_as_the_run_does(kind, runs, arrays, tmp_path):
    runs[kind].export(tmp_path / "encoder.pt2")
    program = torch.export.load(tmp_path / "encoder.pt2").module()
    x = arrays[KINDS[kind][0]][1]
    for rows in ROWS:
        expected = by_the_encoder(runs[kind].encode(x[:rows]))
        assert_near(program(torch.from_numpy(as_input(x[:rows]))), expected)


@pytest.mark.parametrize("kind", ["grey", "counts"])
def test_onnx_encodes_as_the_run_does(kind, runs, arrays, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="pip install 'pyro_fmvae[onnx]'")
    from onnxruntime import InferenceSession

    path = tmp_path / "encoder.onnx"
    runs[kind].export(path)
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    x = arrays[KINDS[kind][0]][1]
    for rows in ROWS:
        found = session.run(None, {"x": as_input(x[:rows])})
        expected = by_the_encoder(runs[kind].encode(x[:rows]))
        assert_near(dict(zip(outputs, found, strict=True)), expected)
    beside = session.get_modelmeta().custom_metadata_map
    assert list(json.loads(beside["names"])) == list(runs[kind].run.recipe.factor_names)
    assert json.loads(beside.get("batches", "[]")) == (["ann", "bob"] if kind == "counts" else [])
    assert str(Path(pyro_fmvae.__file__).parent).encode() not in path.read_bytes()
    assert [one.name for one in tmp_path.iterdir()] == ["encoder.onnx"]


def test_batches_are_found_by_their_numbers():
    """Those that float32 does not tell apart, too; a batch of no training row gives NaN."""
    raw = np.array([[20240102.0, 3, 1], [20240101.0, 0, 2]])
    counts = CountTable(CountOptions("day"), 3.0, 0, (20240101.0, 20240102.0))
    preprocessing = Preprocessing(Kind.COUNTS, (3,), counts=counts)
    encoder = export.RawEncoder(preprocessing, Echo())
    assert torch.equal(encoder(torch.from_numpy(raw))["x"], preprocessing(raw))
    raw[0, 0] += 1
    unknown, known = encoder(torch.from_numpy(raw))["x"]
    assert unknown[:2].isnan().all() and torch.equal(known, preprocessing(raw[1:])[0])


def test_a_program_names_no_place(runs, tmp_path):
    runs["binary"].export(tmp_path / "encoder.pt2")
    assert str(Path(pyro_fmvae.__file__).parent).encode() not in (tmp_path / "encoder.pt2").read_bytes()


def test_a_search_is_no_encoder(runs):
    run = runs["vae"].run
    recipe = replace(run.recipe, config=replace(run.recipe.config, posterior="free"))
    with pytest.raises(ValueError, match="run: expected a model with an encoder, but --model vae has none"):
        export.encoder_program(replace(run, recipe=recipe), runs["vae"].model)


def test_a_bad_ending_is_refused(runs, tmp_path):
    with pytest.raises(ValueError, match=r"path: expected a name that ends in \.fmvae"):
        runs["vae"].export(tmp_path / "encoder.bin")


def test_without_onnx_it_says_what_to_install(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match=r"ONNX needs onnxscript: pip install 'pyro_fmvae\[onnx\]'"):
        runs["vae"].export(tmp_path / "encoder.onnx")
    assert not list(tmp_path.iterdir())


def test_distributions_check_their_arguments_again(runs, tmp_path):
    runs["vae"].export(tmp_path / "encoder.pt2")
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(torch.zeros(()), torch.tensor(-1.0))
