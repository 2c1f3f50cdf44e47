"""The tables of rows in the documentation are those of the rows' files."""

import argparse
from pathlib import Path

import pytest

from tests.scripts import imported

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"mnist": "results.md", "clusters": "results.md", "codes": "vsc.md", "outliers": "outliers.md"}
ROWS = ROOT / "docs" / "rows"


@pytest.fixture
def sweeps():
    """Sweep and report of every folder of rows."""
    chosen = argparse.Namespace(data_root=None, device="auto", split="valid", scale=1.0)
    with imported(
        ROOT / "examples", ["sweep", "mnist_sweep", "mnist_clusters", "vsc_sweep", "outlier_sweep"]
    ) as s:
        scripts = {
            "mnist": (s.mnist_sweep.SETTING.rows, s.mnist_sweep.SETTING.report),
            "clusters": (s.mnist_clusters.rows, s.mnist_clusters.report),
            "outliers": (s.outlier_sweep.rows, s.outlier_sweep.report),
            "codes": (s.vsc_sweep.rows, s.vsc_sweep.report),
        }
        yield {
            name: (s.sweep.Sweep(list(rows(chosen)), ROWS / name), report)
            for name, (rows, report) in scripts.items()
        }


def test_every_folder_of_rows_has_a_sweep(sweeps):
    assert {folder.name for folder in ROWS.iterdir()} == set(sweeps) == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_the_files_say(sweeps, name):
    sweep, report = sweeps[name]
    results = sweep.results()
    assert len(results) == len(list((ROWS / name).glob("*.json"))) > 0
    assert report(results, None) in (ROOT / "docs" / PAGES[name]).read_text(encoding="utf-8")
