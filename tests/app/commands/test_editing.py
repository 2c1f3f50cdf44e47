import re

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.app.commands import editing
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.evaluate import edit_latent
from tests.app.commands.labelled_run import RUN
from tests.small_runs import command, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    files = write_files(tmp_path_factory.mktemp("data"))
    kinds = {"binary": {"labels": 0.5, "factors": "2,2,3"}, "colour": {}, "table": {}}
    return train_all(tmp_path_factory.mktemp("runs"), files, kinds)


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2, (4, 3)).astype(np.uint8) * 255
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image)


def expected(run, picture, changes):
    """The edited picture, pixels in [0, 1], and the code of the original."""
    opened = Run.open(run)
    model = opened.load_model(torch.device("cpu"))
    x = read_image(picture, opened.recipe.preprocessing).observations
    with torch.no_grad():
        z, codes = model.encoder(x)[0], model.codes(x)
        features = model.decoder(edit_latent(model, z, changes, codes))
        return opened.recipe.preprocessing.undo(model.observation.mean(features))[0].clamp(
            0, 1
        ).numpy(), codes[0]


@pytest.mark.parametrize(
    ("kind", "text", "changes"),
    [
        ("binary", "side=1", {0: 1}),
        ("binary", "side=0,noise=1,2=2", {0: 0, 1: 1, 2: 2}),
        ("colour", "0=5", {0: 5}),
    ],
)
def test_edit(runs, picture, tmp_path, kind, text, changes):
    out = succeed("edit", runs[kind], "--image", picture, "--set", text, "--out", tmp_path / "new" / "e.png")
    pixels, codes = expected(runs[kind], picture, changes)
    written = pixels_of(tmp_path / "new" / "e.png")
    assert written.dtype == np.uint8
    assert written.shape == pixels.shape
    assert np.abs(written / 255 - pixels).max() <= 0.5 / 255 + 1e-6
    names = Run.open(runs[kind]).recipe.factor_names
    for factor, component in changes.items():
        before = codes[factor]
        change = f"{component} already" if before == component else f"{before} became {component}"
        assert f"{names[factor]}: {change}" in out
    moved = np.abs(pixels - expected(runs[kind], picture, {})[0]).mean()
    assert float(re.search(r"; pixels moved by ([\d.]+)% of", out)[1]) == pytest.approx(
        100 * moved, abs=0.051
    )


def test_an_edit_says_if_the_image_has_what_was_asked_for(runs, picture, tmp_path):
    _, codes = expected(runs["binary"], picture, {})
    asked = ",".join(f"{factor}={code}" for factor, code in enumerate(codes.tolist()))
    out = succeed("edit", runs["binary"], "--image", picture, "--set", asked, "--out", tmp_path / "e.png")
    side, noise, *_ = codes.tolist()
    assert f"e.png: nothing changed, side: {side} already, noise: {noise} already, factor 2: " in out


def test_comparison(runs, picture, tmp_path, monkeypatch):
    shown = []
    grid = editing.figures.sample_grid
    monkeypatch.setattr(editing.figures, "sample_grid", lambda *args: shown.append(args) or grid(*args))
    options = ["--set", "side=1", "--out", tmp_path / "e.png", "--compare", tmp_path / "all.png"]
    succeed("edit", runs["binary"], "--image", picture, *options)
    assert (tmp_path / "all.png").exists()
    ((pictures, rows, columns, titles),) = shown
    assert (rows, columns, titles) == (1, 3, ("image", "redrawn", "edited"))
    original, unchanged, edited = pictures.numpy()
    assert (original == pixels_of(picture) / 255).all()
    assert unchanged == pytest.approx(expected(runs["binary"], picture, {})[0], abs=1e-6)
    assert edited == pytest.approx(expected(runs["binary"], picture, {0: 1})[0], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "changes", "part"),
    [
        ("binary", {"--set": "hat=1"}, "set: expected a factor, 0..2 or one of side, noise, got 'hat'"),
        ("binary", {"--set": "side=2"}, "set: expected 0..1 for factor 0, got '2'"),
        ("binary", {"--image": "missing.png"}, "missing.png"),
        ("binary", {"--out": "e.jpg"}, "out: expected a name that ends in .png"),
        ("binary", {"--compare": "e.gif"}, "compare: expected a name that ends in .png"),
        ("binary", {"--compare": "picture.png/x.png"}, "picture.png is no folder"),
        ("binary", {"--compare": "e.png"}, "out, compare: expected different files"),
        ("binary", {"--out": "picture.png"}, "image, out: expected different files"),
        ("table", {}, "run: only images can be edited"),
    ],
)
def test_complaints(runs, picture, tmp_path, monkeypatch, kind, changes, part):
    monkeypatch.chdir(tmp_path)
    options = {"--image": "picture.png", "--set": "side=1", "--out": "e.png"} | changes
    status, out, err = command("edit", runs[kind], *(text for pair in options.items() for text in pair))
    assert (status, out) == (2, "")
    assert part in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["picture.png"]


def test_changes_are_told_by_name():
    told = editing._change(RUN, [1, 0, 4], {0: 0, 1: 1, 2: 4})
    assert told == "eyes: 1 became 0, hair: blond became dark, factor 2: 4 already"
