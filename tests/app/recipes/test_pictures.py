"""Pictures of a run show pixels in [0, 1] whatever the model sees, and tables as the model sees them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pyro_fmvae import figures
from pyro_fmvae.app.recipes import configure, factors_of, vsc
from pyro_fmvae.app.recipes.pictures import _pairs, factors_of_run
from pyro_fmvae.app.runs import report
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Dataset, Kind, PatchTransform, Preprocessing, Split
from tests.app.recipes.choices import recipe
from tests.figures.generator import Generator, grid
from tests.small_runs import Killed, kill, metrics, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

KINDS = {  # kind → options of its run, and the figures that it leaves behind
    "binary": ({"labels": 0.5, "factors": "2,2,3"}, True),
    "grey": ({"factors": "3,2"}, False),
    "colour": ({"labels": 1.0, "factors": "2,3"}, True),
    "table": ({"labels": 1.0, "factors": "2,2"}, None),
}
IMAGES = {"training", "factors", "components", "reconstructions", "samples", "spread"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    files = write_files(tmp_path_factory.mktemp("data"))
    parent = tmp_path_factory.mktemp("runs")
    for kind, (options, _) in KINDS.items():
        status, _, err = train(parent / kind, files[kind], figures=True, **options)
        assert status == 0, err
    return {kind: parent / kind for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("colour", {"model": "vae"}, {"training", "reconstructions", "samples"}),
        ("colour", {"model": "vae", "posterior": "point"}, {"training", "reconstructions"}),
        ("table", {"model": "vae"}, {"training"}),
        ("table", {"model": "vsc"}, {"training", "activity"}),
    ],
)
def test_figures_of_a_model_without_factors(tmp_path, monkeypatch, kind, options, expected):
    records = []
    curves = figures.training_curves
    monkeypatch.setattr(figures, "training_curves", lambda r, *names: records.extend(r) or curves(r, *names))
    status, _, err = train(tmp_path / "run", write_files(tmp_path)[kind], figures=True, **options)
    assert status == 0, err
    assert {path.stem for path in (tmp_path / "run" / "figures").iterdir()} == expected
    assert records and {record[name] for record in records for name in ("kl_r", "kl_global")} == {None}


def opened(folder: Path):
    run = Run.open(folder)
    return run, run.load_model(torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_figures_of_a_finished_run(folders, kind):
    labelled = KINDS[kind][1]
    names = IMAGES | ({"attributes"} if labelled else set())
    if kind == "grey":
        factors = factors_of_run(Run.open(folders[kind]).recipe, opened(folders[kind])[1])
        names |= {"pairs-0-1"} if all(factors.used(i).sum() > 1 for i in (0, 1)) else set()
    expected = {"training", "columns"} if labelled is None else names
    if Run.open(folders[kind]).recipe.labelled:
        expected |= {"confusion"}
    assert {path.stem for path in (folders[kind] / "figures").iterdir()} == expected


def test_without_trained_labels_confusion_is_that_of_the_clusters(tmp_path):
    status, _, err = train(tmp_path / "run", write_files(tmp_path)["table"], figures=True, factors="3")
    assert status == 0, err
    assert {path.stem for path in (tmp_path / "run" / "figures").iterdir()} == {
        *("training", "columns", "confusion")
    }


def test_confusion_is_that_of_trained_labels_or_of_those_that_agree_best_with_clusters():
    def cluster(ari):
        return {"ari": ari, "nmi": 1 - ari, "confusion": [[1]]}

    clustering = {str(number): cluster(number / 10) for number in range(6)}
    trained = {"classification": {"side": {"n": 3}}, "clustering": clustering}
    assert report._confused(trained) == {"side": {"n": 3}}
    assert list(report._confused({"classification": {}, "clustering": clustering})) == ["5", "4", "3", "2"]
    assert report._confused({"elbo": -3.0}) == {}


def test_figures_that_were_interrupted_are_made_up_for(tmp_path, monkeypatch):
    """The picture that tells of a complete set comes last."""
    run = tmp_path / "run"
    left = list(IMAGES)

    def interrupted(path, target):
        left.remove(target.stem)
        if not left:
            kill()
        return os.rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(Killed):
            train(run, write_files(tmp_path)["grey"], figures=True, factors="2")
    assert {path.stem for path in (run / "figures").iterdir()} == IMAGES - {"training"}
    assert "figures in" in succeed("train", "--resume", run, figures=True)
    assert {path.stem for path in (run / "figures").iterdir()} == IMAGES
    assert succeed("train", "--resume", run) == f"{run} is finished already.\n"


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_images_are_in_their_own_units(folders, kind):
    run, model = opened(folders[kind])
    factors = factors_of_run(run.recipe, model)
    z = model.sample_latent(5)
    with torch.no_grad():
        features = model.decoder(z)
        mean, std = model.observation.mean(features), model.observation.std(features)
    torch.testing.assert_close(factors.decode_all(z), (mean + 1) / 2)
    torch.testing.assert_close(factors.std_all(z), std / 2)
    draws = factors.draw_all(z[:1].expand(2000, -1))
    error = std[:1] / 2 / 2000**0.5
    assert ((draws.mean(0) - (mean[0] + 1) / 2).abs() < 5 * error).all()
    torch.testing.assert_close(draws.std(0), std[0] / 2, rtol=0.1, atol=0)


def test_binary_images(folders):
    run, model = opened(folders["binary"])
    factors = factors_of_run(run.recipe, model)
    z = model.sample_latent(5)
    p = factors.decode_all(z)
    torch.testing.assert_close(p, model.observation.mean(model.decoder(z)).detach())
    torch.testing.assert_close(factors.std_all(z).square(), p * (1 - p))
    assert set(factors.draw_all(z).unique().tolist()) == {0.0, 1.0}


def test_tables_stay_standardised(folders):
    run, model = opened(folders["table"])
    factors = factors_of_run(run.recipe, model)
    z = model.sample_latent(5)
    features = model.decoder(z).detach()
    torch.testing.assert_close(factors.decode_all(z), model.observation.mean(features))
    torch.testing.assert_close(factors.std_all(z), model.observation.std(features))


def test_names(folders):
    run, model = opened(folders["binary"])
    assert factors_of_run(run.recipe, model).names == ("side", "noise", "factor 2")
    assert factors_of_run(run.recipe, model).labelled == 2
    values = factors_of(model, ("side", "noise"), ((), ("soft", "loud")))
    assert values.value(1, 1) == "loud" and values.value(0, 1) == "side 1"
    run, model = opened(folders["grey"])
    assert factors_of_run(run.recipe, model).names == ("factor 0", "factor 1")
    assert factors_of_run(run.recipe, model).labelled == 0


def test_reconstructions_show_the_data(folders, monkeypatch):
    shown = []
    reconstructions = figures.reconstructions
    monkeypatch.setattr(figures, "reconstructions", lambda *x: shown.append(x) or reconstructions(*x))
    run, model = opened(folders["grey"])
    rows = run.load_data().split("test")
    report.draw(run, model, rows, "valid", {})
    ((x, mean),) = shown
    np.testing.assert_allclose(x, rows.x.numpy() / 255, atol=1e-6)
    with torch.no_grad():
        expected = (model.observation.mean(model.decoder(model.encoder(2 * x - 1)[0])) + 1) / 2
    torch.testing.assert_close(mean, expected)


def drawn_of_coder(folder, monkeypatch, preprocessing, x, records=()):
    """A binary sparse code as it starts, and what its figures are called with: figure → arguments."""
    split = Split(x)
    config = configure("bsc", "mine.npz", latent_dim=4)
    run = Run.new(folder, config, Dataset("mine", split, split, split, preprocessing)).write()
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    model, shown = run.recipe.build().eval(), {}
    for name in ("dictionary", "sample_grid", "reconstructions", "training_curves", "em_curves"):
        monkeypatch.setattr(figures, name, lambda *given, name=name, **_: shown.update({name: given}))
    monkeypatch.setattr(figures, "save", lambda *_: None)
    with torch.no_grad():
        model.logits.copy_(torch.arange(4.0))
    report.draw(run, model, split, "test", {})
    return model, shown


@pytest.mark.parametrize("on_off", [False, True])
def test_units_of_split_patches_are_shown_as_one(tmp_path, monkeypatch, on_off):
    transform = PatchTransform(2, 10, on_off, 0.3, None)
    preprocessing = Preprocessing(Kind.PATCHES, transform.event_shape, patches=transform)
    x = transform.apply(torch.rand(6, 2, 2))
    model, shown = drawn_of_coder(tmp_path / "run", monkeypatch, preprocessing, x)
    units = model.dictionary.detach()
    expected = units[..., :2] - units[..., 2:] if on_off else units
    torch.testing.assert_close(shown["dictionary"][0], expected)
    greys, means = shown["reconstructions"]
    torch.testing.assert_close(greys, (0.5 + transform.invert(x)).clamp(0, 1))
    assert means.shape == greys.shape == (6, 2, 2)
    assert shown["sample_grid"][0].shape == (64, 2, 2)
    assert "em_curves" not in shown


def test_numbers_that_are_no_pixels_are_shown_from_the_least_to_the_greatest(tmp_path, monkeypatch):
    x = 100 + 50 * torch.rand(6, 2, 3)
    x[0, 1, 2], x[3] = torch.nan, torch.nan
    model, shown = drawn_of_coder(tmp_path / "run", monkeypatch, Preprocessing(Kind.REAL, (2, 3)), x)
    mean = model.decode((model.posterior(x).mean > 0.5).float()).detach()
    low, high = mean.min(), x.nan_to_num().max()  # the model has not learnt yet how large data are
    assert mean.max() < 100
    actual, found = shown["reconstructions"]
    torch.testing.assert_close(actual, ((x - low) / (high - low)).nan_to_num(0.5))
    torch.testing.assert_close(found, (mean - low) / (high - low))
    drawn = shown["sample_grid"][0]
    assert (drawn.min(), drawn.max()) == (0, 1)


def test_starts_are_followed_to_the_end_of_the_joint_phase(tmp_path, monkeypatch):
    first = {"phase": "joint", "step": 0, "kl_r": 0.0, "kl_global": 0.0}
    joint = [{**first, "step": step, "objective": [1.0, 2.0], "start": step % 2} for step in (1, 2, 3)]
    records = [first, *joint, {**first, "phase": "refine", "objective": [3.0], "start": 0}]
    x = torch.rand(6, 2, 3)
    _, shown = drawn_of_coder(tmp_path / "run", monkeypatch, Preprocessing(Kind.REAL, (2, 3)), x, records)
    assert shown["em_curves"] == (joint, 1)


@pytest.mark.parametrize("columns", [1, 3])
def test_classes_that_nobody_knows_are_not_drawn(tmp_path, columns):
    paths = write_files(tmp_path)
    with np.load(paths["binary"]) as archive:
        x = archive["x"]
    np.savez(tmp_path / "unknown.npz", x=x, labels=np.full((len(x), columns), -1))
    status, _, err = train(tmp_path / "run", tmp_path / "unknown.npz", figures=True, model="vsc")
    assert status == 0, err
    drawn = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert {"training", "toggles"} <= drawn and "activity" not in drawn


def test_examples_without_an_active_latent_are_not_swept(folders, tmp_path, monkeypatch):
    """Those that come first are off, a later one is not."""
    status, _, err = train(tmp_path / "run", write_files(tmp_path)["binary"], model="vsc", latent_dim=3)
    assert status == 0, err
    run, model = opened(tmp_path / "run")
    swept = []
    monkeypatch.setattr(vsc, "first_codes", lambda *_: torch.eye(9)[:, [2, 5, 6]])
    monkeypatch.setattr(figures, "value_sweeps", lambda decode, z, codes: swept.append(z) or Figure())
    rows = run.load_data(None).valid.select(torch.arange(9) % 3)
    drawn = run.recipe.draw_figures(model, rows, "valid", metrics(tmp_path / "run"))
    assert "sweeps" in drawn
    assert (swept[0] != 0).any(1).all()


@pytest.mark.parametrize(("names", "expected"), [((), "1"), (((), ("no", "yes")), "yes"), (((), ()), "1")])
def test_values_of_every_label_have_their_names(names, expected):
    assert replace(recipe("vsc"), value_names=names).value_text(1, 1) == expected


def test_pairs_of_factors_without_labels_hold_all_others():
    shares = [torch.ones(2), torch.ones(3), torch.tensor([1.0, 0, 0, 0, 0]), torch.ones(2), torch.ones(3)]
    generator = Generator((2, 3, 5, 2, 3))
    factors = generator.factors(shares=shares, labelled=1)
    drawn = _pairs(factors)
    assert list(drawn) == ["pairs-1-3", "pairs-1-4", "pairs-3-4"]  # one of factor 2 alone is in use
    cells = grid(drawn["pairs-1-4"])
    assert cells.shape[:2] == (3, 3)
    np.testing.assert_allclose(cells[1, 2, 0], [0, 1 / 3, 0, 0, 2 / 3], atol=1e-7)
