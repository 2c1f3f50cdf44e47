"""The page in a real browser: every tab is used, and no request leaves the machine."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest
from PIL import Image

from tests.app.explorer.explored_runs import POISON, SIDE
from tests.app.runs.pages.browser import BROWSER

LACKING = [name for name in ("gradio", "playwright") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("single_precision"),
    pytest.mark.skipif(bool(LACKING), reason=f"needs {' and '.join(LACKING)}"),
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium"),
]
PATIENCE = 120  # seconds, on a busy machine
# gradio writes a picture that it has already once more, which disturbs a request for it at that moment.
REWRITTEN = "Too much data for declared Content-Length"
SHOTS = os.environ.get("EXPLORER_SCREENSHOTS")  # a folder: keep a picture of each tab in use


@contextlib.contextmanager
def served(folder, *options):
    """The command on a copy of a run: the address that it prints, until it is interrupted."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    arguments = [sys.executable, "-m", "pyro_fmvae", "explore", str(folder), "--device", "cpu", *options]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("http://"), process.stderr.read()
            yield line.split()[0]
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors or REWRITTEN in errors, errors
    assert process.returncode == 130 and errors.strip().endswith("stopped")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visitor:
    """A visitor of the page, who notes where requests go and what the console says."""

    def __init__(self, browser, address):
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.set_default_timeout(1000 * PATIENCE)
        self.urls, self.complaints = set(), []
        self.page.on("request", lambda request: self.urls.add(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = address
        self.page.goto(address)
        self.sees(":is([id^=factor-], #draws) :is(img, [role=gridcell])")

    @property
    def hosts(self):
        return {urlsplit(url).hostname for url in self.urls}

    def sees(self, selector, text=None):
        """Wait for an element, with a text if one is given."""
        found = self.page.locator(selector)
        (found.filter(has_text=text) if text else found).locator("visible=true").first.wait_for()

    def count(self, selector):
        return self.page.locator(selector).count()

    def open(self, tab):
        self.page.get_by_role("tab", name=tab).click()

    def click(self, selector):
        self.page.locator(selector).locator("visible=true").first.click()

    def write(self, selector, text):
        self.page.locator(f"{selector} input, {selector} textarea").first.fill(text)

    def error(self):
        """The line of the error that is shown, which is then closed."""
        toast = self.page.locator(".toast-body").first
        toast.wait_for()
        text = toast.inner_text()
        self.page.locator(".toast-close").first.click()
        toast.wait_for(state="detached")
        return text

    def asked_nothing_of_others(self, address):
        """No text became a picture, a link or a formula, and every request went to the page's own server."""
        assert self.count("[src*='/pixel.png'], [href*='127.0.0.1:9/'], math, .katex") == 0
        assert {urlsplit(url).netloc for url in self.urls} <= {urlsplit(address).netloc, ""}
        self.page.close()

    def keep(self, name):
        if SHOTS:
            self.page.wait_for_timeout(500)
            self.page.screenshot(path=f"{SHOTS}/{name}.png")


def copied(folders, kind, tmp_path_factory):
    return Path(shutil.copytree(folders[kind], tmp_path_factory.mktemp("copy") / kind))


@pytest.fixture(scope="module")
def pictures(folders, tmp_path_factory):
    folder = copied(folders, "pictures", tmp_path_factory)
    with served(folder) as address:
        yield folder, address


@pytest.fixture
def visitor(pictures, browser):
    _, address = pictures
    found = Visitor(browser, address)
    yield found
    found.page.close()
    assert found.hosts == {"127.0.0.1"} and found.complaints == []


def test_factors_come_first_and_are_named(folders, browser, tmp_path_factory):
    folder = copied(folders, "pictures", tmp_path_factory)
    with served(folder) as address:
        visitor = Visitor(browser, address)
        visitor.sees("#factor-0 .caption-label", "side: left")
        visitor.sees("#factor-1 .caption-label", "factor 1: ")
        visitor.write("#factor-name-1", "stripes")
        visitor.write("#factor-values-1", "none, few, many, more")
        visitor.click("#keep-names-1")
        assert "expected at most" in visitor.error()
        visitor.write("#factor-values-1", "none")
        visitor.click("#keep-names-1")
        visitor.sees("#factor-1 .caption-label", "stripes: none")
        visitor.click("#another-point")
        visitor.sees("#factor-1 .caption-label", "stripes: none")
        visitor.keep("factors")
        assert json.loads((folder / "names.json").read_text())["factors"] == {"1": "stripes"}
        visitor.page.reload()
        visitor.sees("#factor-1 .caption-label", "stripes: none")
        visitor.open("Generate")
        visitor.sees("#draws .caption-label", "stripes: ")
        visitor.asked_nothing_of_others(address)


def test_draws_are_held_moved_and_saved(visitor):
    visitor.open("Generate")
    visitor.sees("#draws img")
    assert visitor.count("#draws img") == 12
    visitor.page.get_by_label("side", exact=True).click()
    visitor.page.get_by_role("option", name="right").click()
    visitor.page.wait_for_function(
        "[...document.querySelectorAll('#draws .caption-label')]"
        ".every(e => e.innerText.trim() == 'side: right')"
    )
    visitor.click("#draws button")
    visitor.sees("#moved img")
    before = visitor.page.locator("#moved img").first.get_attribute("src")
    visitor.page.locator("#direction-0 input[type=number]").fill("3")
    visitor.page.locator("#direction-0 input[type=number]").press("Enter")
    visitor.page.locator("#direction-0 input[type=range]").press("ArrowLeft")
    visitor.page.wait_for_function(
        "before => document.querySelector('#moved img')?.getAttribute('src') != before", arg=before
    )
    visitor.keep("generate")
    visitor.click("#save-draws")
    with visitor.page.expect_download() as download:
        visitor.click("#draws-file a")
    with ZipFile(download.value.path()) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("draws.csv").decode())))
    assert len(rows) == 12 and {row["side"] for row in rows} == {"right"}


def test_a_picture_is_read_and_edited(visitor, tmp_path):
    visitor.open("Edit")
    Image.new("L", (3 * SIDE, 3 * SIDE), 255).save(tmp_path / "large.png")
    visitor.page.locator("#picture input[type=file]").set_input_files(tmp_path / "large.png")
    visitor.sees("#code th", "side")
    visitor.click("#change")
    visitor.sees("#before img")
    visitor.sees("#after img")
    visitor.sees("#kept th", "factor 1")
    visitor.keep("edit")


def test_what_is_no_picture_is_one_line(visitor, tmp_path):
    visitor.open("Edit")
    visitor.click("#change")
    assert "Drop a picture first" in visitor.error()
    (tmp_path / "none.png").write_text("no picture")
    visitor.page.locator("#picture input[type=file]").set_input_files(tmp_path / "none.png")
    assert re.search(r"none\.png.*(image|picture)", visitor.error())
    visitor.click("#training-point")  # and the page goes on
    visitor.sees("#code th", "side")


def test_a_name_is_kept_and_seen_by_the_next_visitor(visitor, pictures, browser):
    folder, address = pictures
    visitor.open("Clusters")
    visitor.click("#clusters button")
    visitor.sees("#nearest img")
    visitor.sees("#cluster-draws img")
    visitor.write("#component-name", "a,b")
    visitor.click("#rename")
    assert "without , = *" in visitor.error()
    visitor.write("#component-name", "striped")
    visitor.click("#rename")
    visitor.sees("#clusters .caption-label", "striped")
    visitor.keep("clusters")
    assert '"striped"' in (folder / "names.json").read_text()
    other = Visitor(browser, address)
    other.open("Clusters")
    other.sees("#clusters .caption-label", "striped")
    other.page.close()


def test_labels_by_click_are_learnt_from_and_survive_a_reload(visitor, pictures):
    folder, _ = pictures
    visitor.open("Label these next")
    visitor.write("#new-property", "bright")
    visitor.write("#new-values", "no, yes")
    visitor.click("#begin")
    for number in range(6):
        visitor.page.locator("#answer label").nth(number % 2).click()
        visitor.sees("#tally", f"{number + 1} labelled")
    visitor.click("#take-back")
    visitor.sees("#tally", "5 labelled")
    assert len((folder / "labels.csv").read_text().splitlines()) == 6
    visitor.click("#refine")
    visitor.sees("#refine", "Learning …")
    visitor.sees("#tally", "Learning from all labels, which takes about 5 s")
    visitor.keep("learning")
    visitor.sees("#tally", "has learnt from 5 of them")
    visitor.sees("#refine", "Learn from the labels so far")
    visitor.page.locator("#answer label").nth(0).click()
    visitor.sees("#tally", "of 1")
    visitor.keep("labels")
    visitor.page.reload()
    visitor.sees("#factor-0 img")
    visitor.open("Label these next")
    visitor.page.locator("#property input").click()
    visitor.page.get_by_role("option", name="bright").click()
    visitor.sees("#tally", "6 labelled")


def test_outliers_are_ranked(visitor):
    visitor.open("Outliers")
    visitor.click("#rank")
    visitor.sees("#outliers img")
    captions = visitor.page.locator("#outliers .caption-label").all_inner_texts()
    scores = [float(caption.split()[0]) for caption in captions]
    assert len(scores) == 24 and scores == sorted(scores, reverse=True)
    visitor.keep("outliers")


@pytest.mark.slow
def test_a_table_has_columns_in_the_place_of_pictures(folders, browser, tmp_path_factory):
    folder = copied(folders, "table", tmp_path_factory)
    with served(folder) as address:
        visitor = Visitor(browser, address)
        visitor.sees("#factor-0 [role=gridcell]", "red")
        visitor.open("Generate")
        visitor.sees("#draws [role=gridcell]", "red")
        visitor.click("#draws [role=gridcell]")
        visitor.sees("#moved [role=gridcell]")
        visitor.keep("table-generate")
        visitor.open("Edit")
        visitor.click("#training-point")
        visitor.sees("#code th", "factor 0")
        visitor.click("#change")
        visitor.sees("#after [role=gridcell]")
        assert not visitor.page.get_by_text("The other properties").is_visible()  # there is one factor
        assert not visitor.page.locator("#kept").is_visible()
        visitor.keep("table-edit")
        visitor.open("Clusters")
        visitor.click("#clusters [role=gridcell]")
        visitor.sees("#nearest [role=gridcell]")
        visitor.keep("table-clusters")
        visitor.open("Label these next")
        visitor.write("#new-property", "fruit")
        visitor.write("#new-values", "lime, apple")
        visitor.click("#begin")
        visitor.page.locator("#answer label").nth(1).click()
        visitor.sees("#tally", "1 labelled")
        visitor.keep("table-labels")
        visitor.open("Outliers")
        visitor.click("#rank")
        visitor.sees("#outliers [role=gridcell]")
        visitor.keep("table-outliers")
        assert visitor.hosts == {"127.0.0.1"} and visitor.complaints == []
        visitor.page.close()


@pytest.mark.slow
def test_names_are_shown_as_they_are_and_ask_for_nothing(folders, browser, tmp_path):
    name = POISON.replace("/", "\\")
    folder = Path(shutil.copytree(folders["poisoned"], tmp_path / name))
    with served(folder) as address:
        visitor = Visitor(browser, address)
        visitor.sees("h1", name)
        visitor.open("Edit")
        visitor.click("#training-point")
        visitor.sees("#code th", POISON)
        visitor.open("Clusters")
        visitor.sees("#clusters [role=gridcell]")
        visitor.click("#clusters [role=gridcell]")
        visitor.sees("#nearest [role=gridcell]")
        visitor.write("#component-name", "<b>")
        visitor.click("#rename")
        assert f"{name}/names.json" in visitor.error()
        visitor.open("Label these next")
        visitor.sees("#answer", POISON)
        visitor.page.locator("#answer label").nth(1).click()
        visitor.sees("#tally", f"{name}/labels.csv")
        shutil.rmtree(folder)
        visitor.page.locator("#answer label").nth(1).click()
        assert f"{name} no longer exists" in visitor.error()
        visitor.asked_nothing_of_others(address)


@pytest.mark.slow
def test_a_path_of_missing_data_is_shown_as_it_is(folders, browser, tmp_path):
    folder = Path(shutil.copytree(folders["poisoned"], tmp_path / "run"))
    config = json.loads((folder / "config.json").read_text())
    config["data"] = str(tmp_path / POISON)
    (folder / "config.json").write_text(json.dumps(config))
    with served(folder) as address:
        visitor = Visitor(browser, address)
        visitor.sees("p", POISON.rpartition("//")[2])  # the last part of the path
        visitor.asked_nothing_of_others(address)


@pytest.mark.slow
def test_beyond_this_machine_nothing_is_answered_without_the_token(folders, browser, tmp_path_factory):
    folder = copied(folders, "plain", tmp_path_factory)
    with served(folder, "--host", "0.0.0.0") as address:
        page = browser.new_page()
        local = address.replace("0.0.0.0", "127.0.0.1")
        bare, token = local.split("?token=")
        for wrong in (bare, f"{bare}?token=x", f"{bare}config", f"{bare}?token={token[:-1]}"):
            assert page.goto(wrong).status == 403
        page.close()
        visitor = Visitor(browser, local)
        assert token not in visitor.page.url and visitor.count("#draws img") == 12
        visitor.page.close()


def test_a_run_that_is_deleted_is_one_line_and_the_page_goes_on(visitor, pictures):
    """The last of the tests: they share one run."""
    folder, _ = pictures
    shutil.rmtree(folder)
    visitor.open("Label these next")
    visitor.page.locator("#answer label").first.click()
    assert "no longer exists" in visitor.error()
    visitor.open("Generate")
    visitor.click("#draw-again")
    visitor.page.wait_for_timeout(500)
    visitor.sees("#draws img")
    assert not folder.exists()
