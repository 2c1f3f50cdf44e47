"""``report.html``: what it shows of a run, and that it needs nothing but itself."""

import html
import json
import re
import shutil

import numpy as np
import pytest

import pyro_fmvae
from pyro_fmvae.app.runs.pages import PAGE, markup, run_page, write_page
from pyro_fmvae.app.runs.pages.prototypes import Prototype
from pyro_fmvae.app.runs.run import Run
from tests.app.runs.pages.browser import BROWSER, opened
from tests.small_runs import succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

REPORT = {
    "split": "test",
    "splits": {
        "test": {
            "n": 1234,
            "elbo": -12.345,
            "reconstruction": -1.5,
            "kl_z": 9.0,
            "kl_r": 1.8,
            "left_out": 0,
            "classification": {
                "side <b>": {
                    "n": 1200,
                    "accuracy": 0.751,
                    "interval": [0.72, 0.78],
                    "balanced_accuracy": 0.7,
                    "macro_f1": 0.69,
                    "majority": 0.745,
                    "logistic_regression": None,
                }
            },
            "clustering": {"noise": {"n": 6, "factor": 1, "accuracy": 0.5, "ari": 0.1, "nmi": 0.2}},
        }
    },
    "labelled": {"used": 24, "of": 48},
    "summary": [],
    "warnings": ["side: 96 % are called 1, of the labels 52 % are"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """A run on pictures with labels, as its training leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "pictures"
    options = {"labels": 0.5, "factors": "2,2,3", "label_names": "side,noise"}
    status, _, err = train(folder, files["binary"], figures=True, **options)
    assert status == 0, err
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Run.open(shutil.copytree(trained, tmp_path / "pictures"))


def text_of(page):
    """The words of a page, without markup and pictures."""
    body = page.read_text(encoding="utf-8").partition("</head>")[2]
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", body)).split())


def test_training_ends_with_a_page(trained):
    text = text_of(trained / PAGE)
    assert (
        "Factorial mixture VAE, trained on 48 binary pictures of 4×3 pixels from binary.npz: 12 steps in"
        in text
    )
    for fact in ("--labels 0.5", "6 validation, 6 test", "CPU cores", f"pyro_fmvae {pyro_fmvae.__version__}"):
        assert fact in text
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"{last['used_components'][2]} of 3" in text
    for name in ("Reconstructions", "Components", "factor 2"):
        assert name in text
    page = (trained / PAGE).read_text()
    assert page.count("data:image/png") > len(list((trained / "figures").iterdir()))  # and training pictures


def test_small_shares_of_components_are_not_rounded_to_zero(run, monkeypatch):
    monkeypatch.setattr(run_page, "prototypes", lambda *_: [[(Prototype(0, "a", 0.004, np.zeros(0)), [])]])
    write_page(run, run.folder / PAGE, run.load_model("cpu"), run.load_data())
    assert "a: 0.4 %" in text_of(run.folder / PAGE)


def test_options_that_were_not_given_are_only_in_the_list_of_all(trained):
    given = re.search("options given (.*) seed", text_of(trained / PAGE))[1]
    assert given.startswith("--label-names side,noise --batch-size 32")
    assert "--factors 2,2,3" in given and "--weight-decay" not in given


def test_the_closing_table_and_its_warnings(run):
    (run.folder / "report.json").write_text(json.dumps(REPORT))
    write_page(run, run.folder / PAGE)
    text = text_of(run.folder / PAGE)
    assert "1,234 test points −12.35 −1.50 9.00 1.80" in text or "1,234 test points −12.34 −1.50" in text
    assert "side <b> 1,200 0.751 0.720 – 0.780 0.700 0.690 0.745" in text
    assert "noise 6 1 0.500 0.100 0.200" in text
    assert "labelled points used 24 of 48 (50 %)" in text
    assert "Warnings side: 96 % are called 1, of the labels 52 % are" in text
    assert "side <b> (0.75, the majority 0.74)" in text or "side <b> (0.75, the majority 0.75)" in text


def test_labels_of_training_points_do_not_hide_bounds(run):
    agreement = {
        "n": 15,
        "clustering": {"kind": {"n": 15, "factor": 0, "accuracy": 0.9, "ari": 0.8, "nmi": 0.7}},
    }
    report = {**REPORT, "splits": {**REPORT["splits"], "train": agreement}}
    (run.folder / "report.json").write_text(json.dumps(report))
    write_page(run, run.folder / PAGE)
    text = text_of(run.folder / PAGE)
    assert "1,234 test points −12.3" in text and "kind 15 0 0.900 0.800 0.700" in text


def test_what_a_folder_lacks_is_left_out(run):
    shutil.rmtree(run.folder / "figures")
    (run.folder / "metrics.jsonl").write_text('{"step": 3}\nhalf a li')
    write_page(run, run.folder / PAGE)
    text = text_of(run.folder / PAGE)
    assert "Factorial mixture VAE" in text and "Reconstructions" not in text and "Training" not in text


def test_the_command_makes_it_anew(run, files):
    before = (run.folder / PAGE).read_text()
    (run.folder / PAGE).unlink()
    assert succeed("report", run.folder) == f"wrote {run.folder / PAGE}\n"
    assert (run.folder / PAGE).read_text() == before


def test_without_its_data_the_page_says_so(run):
    config = json.loads((run.folder / "config.json").read_text()) | {"data": "gone.npz"}
    (run.folder / "config.json").write_text(json.dumps(config))
    succeed("report", run.folder)
    text = text_of(run.folder / PAGE)
    assert "There are no training pictures here: data: " in text
    assert "gone.npz does not exist; give the folder that now holds" in text


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_finds_nothing_to_request_or_to_complain_of(trained, tmp_path):
    name = "<script>broken()<script><img src='http:..example.test.x.png'>"
    folder = shutil.copytree(trained, tmp_path / name)
    (folder / "report.json").write_text(json.dumps(REPORT))
    write_page(Run.open(folder), folder / PAGE)
    found = opened(folder / PAGE, tmp_path)
    assert html.escape(name, quote=False) in found.text and "Components" in found.text
    assert (found.requested, found.console) == (set(), [])


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_tells_of_requests_and_of_errors(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><img src='http://example.test/x.png'><script>broken()</script>")
    found = opened(page, tmp_path)
    assert found.requested == {"http://example.test/x.png"}
    assert len(found.console) == 1 and "broken is not defined" in found.console[0]


def test_options_are_set_as_code_with_their_numbers():
    found = markup.bullets(["With --labels 1 they are.", "Give --weight-decay, say --starts 0.5."])
    assert re.findall("<code>(.*?)</code>", found) == ["--labels 1", "--weight-decay", "--starts 0.5"]
