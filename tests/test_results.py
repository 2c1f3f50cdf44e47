"""The tables of rows on the page of results are those of the rows' files."""

import argparse
from pathlib import Path

import pytest

from tests.scripts import imported

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
ROWS = ROOT / "docs" / "rows"


@pytest.fixture
def sweeps():
    """Sweep and report of every folder of rows."""
    chosen = argparse.Namespace(data_root=None, device="auto", split="valid", scale=1.0)
    with imported(ROOT / "examples", ["sweep", "mnist_sweep", "mnist_clusters"]) as s:
        scripts = {
            "mnist": (s.mnist_sweep.SETTING.rows, s.mnist_sweep.SETTING.report),
            "clusters": (s.mnist_clusters.rows, s.mnist_clusters.report),
        }
        yield {
            name: (s.sweep.Sweep(list(rows(chosen)), ROWS / name), report)
            for name, (rows, report) in scripts.items()
        }


def test_every_folder_of_rows_has_a_sweep(sweeps):
    assert {folder.name for folder in ROWS.iterdir()} == set(sweeps)


@pytest.mark.parametrize("name", ["mnist", "clusters"])
def test_page_shows_what_the_files_say(sweeps, name):
    sweep, report = sweeps[name]
    results = sweep.results()
    assert len(results) == len(list((ROWS / name).glob("*.json"))) > 0
    assert report(results, None) in PAGE
