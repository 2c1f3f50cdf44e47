"""The tables of rows on the page of results are those of the rows' files."""

import argparse
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
ROWS = ROOT / "docs" / "rows"


@pytest.fixture
def sweeps(monkeypatch):
    """Sweep and report of every folder of rows."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import mnist_clusters
    import mnist_sweep
    from sweep import Sweep

    chosen = argparse.Namespace(data_root=None, device="auto", split="valid", scale=1.0)
    scripts = {
        "mnist": (mnist_sweep.SETTING.rows, mnist_sweep.SETTING.report),
        "clusters": (mnist_clusters.rows, mnist_clusters.report),
    }
    return {
        name: (Sweep(list(rows(chosen)), ROWS / name), report) for name, (rows, report) in scripts.items()
    }


def test_every_folder_of_rows_has_a_sweep(sweeps):
    assert {folder.name for folder in ROWS.iterdir()} == set(sweeps)


@pytest.mark.parametrize("name", ["mnist", "clusters"])
def test_page_shows_what_the_files_say(sweeps, name):
    sweep, report = sweeps[name]
    results = sweep.results()
    assert len(results) == len(list((ROWS / name).glob("*.json"))) > 0
    assert report(results, None) in PAGE
