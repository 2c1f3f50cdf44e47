"""Runs side by side: what differs, what came out, and curves."""

import shutil
from pathlib import Path

import pytest

from pyro_fmvae.app.runs.pages.comparison import names_of
from pyro_fmvae.app.runs.run import Run
from tests.app.runs.pages.test_run_page import text_of
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    files, runs = write_files(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("runs")
    for name, options in (
        ("few", {"factors": "2", "kl_weight": 1 / 3}),
        ("plain", {"model": "vae", "latent_dim": 3}),
    ):
        status, _, err = train(runs / name, files["binary"], figures=True, seed=len(name), **options)
        assert status == 0, err
    return runs / "few", runs / "plain"


def test_two_models_side_by_side(folders, tmp_path):
    few, plain = folders
    succeed("report", few, "--compare", plain, "--out", tmp_path / "both.html")
    text = text_of(tmp_path / "both.html")
    assert text.startswith("few and plain 2 runs side by side.")
    for row in ("--model fmvae vae", "--seed 3 5", "steps 12 6", "components in use, factor 0 2 of 2"):
        assert row in text
    assert "--batch-size 32 32" not in text  # they are alike in it
    assert "--kl-weight 0.333333 1" in text and "null" not in text
    for heading in ("Training", "Drawn from the model"):
        assert heading in text


def test_the_page_goes_into_the_first_folder(folders):
    few, plain = folders
    assert succeed("report", few, "--compare", plain) == f"wrote {few / 'comparison.html'}\n"
    (few / "comparison.html").unlink()


def test_measures_of_training_points_are_called_so(tmp_path):
    data, run = write_files(tmp_path)["binary"], tmp_path / "all"
    status, _, err = train(run, data, model="vae", valid=0, test=0)
    assert status == 0, err
    assert "held out nothing" in text_of(run / "report.html")
    twin = shutil.copytree(run, tmp_path / "twin")
    succeed("report", run, "--compare", twin, "--out", tmp_path / "both.html")
    text = text_of(tmp_path / "both.html")
    assert "training ELBO" in text and "validation ELBO" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{few}", "--compare", "{few}"), "compare: expected different runs"),
        (("{few}", "--compare", "nowhere"), "run: nowhere is no run"),
        (("{few}", "--out", "page.txt"), "out: expected a name that ends in .html"),
        (("nowhere",), "run: nowhere is no run"),
    ],
)
def test_complaints(folders, arguments, message):
    status, _, err = command("report", *(text.format(few=folders[0]) for text in arguments))
    assert status == 2 and message in err


def test_names_tell_runs_apart(folders, tmp_path):
    few, plain = folders
    twin = Run.open(shutil.copytree(few, tmp_path / "other" / "few"))
    assert names_of([Run.open(few), Run.open(plain)]) == ["few", "plain"]
    assert names_of([Run.open(few), twin]) == [f"{Path(few).parent.name}/few", "other/few"]
