"""The tables of rows in the documentation are those of the rows' files."""

import argparse
from pathlib import Path

import pytest

from tests.scripts import imported

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "mnist": "notes/2026-11-28-results.md",
    "mnist-quarter": "notes/2026-11-22-a-quarter-of-the-iterations.md",
    "omniglot": "notes/2026-11-28-results.md",
    "omniglot-quarter": "notes/2026-11-22-a-quarter-of-the-iterations.md",
    "clusters": "notes/2026-11-28-results.md",
    "dynamic": "notes/2026-11-28-results.md",
    "characters": "notes/2026-11-28-results.md",
    "generalisation": "notes/2026-11-28-results.md",
    "codes": "notes/2026-11-28-sparse-codes.md",
    "outliers": "notes/2026-11-28-outliers.md",
}
ROWS = ROOT / "docs" / "rows"


@pytest.fixture
def sweeps():
    """Sweep and report of every folder of rows."""
    chosen = argparse.Namespace(data_root=None, device="auto", split="valid", scale=1.0, float32=False)
    names = [
        "mnist_sweep",
        "omniglot_sweep",
        "mnist_clusters",
        "mnist_dynamic",
        "omniglot_clusters",
        "generalisation",
        "vsc_sweep",
        "outlier_sweep",
    ]
    with imported(ROOT / "examples", ["sweep", *names]) as s:
        scripts = {
            "mnist": (s.mnist_sweep.SETTING.rows, s.mnist_sweep.SETTING.report),
            "mnist-quarter": (s.mnist_sweep.SETTING.rows, s.mnist_sweep.SETTING.report),
            "omniglot": (s.omniglot_sweep.SETTING.rows, s.omniglot_sweep.SETTING.report),
            "omniglot-quarter": (s.omniglot_sweep.SETTING.rows, s.omniglot_sweep.SETTING.report),
            "clusters": (s.mnist_clusters.rows, s.mnist_clusters.report),
            "dynamic": (s.mnist_dynamic.rows, s.mnist_dynamic.report),
            "characters": (s.omniglot_clusters.rows, s.omniglot_clusters.report),
            "generalisation": (s.generalisation.rows, s.generalisation.report),
            "outliers": (s.outlier_sweep.rows, s.outlier_sweep.report),
            "codes": (s.vsc_sweep.rows, s.vsc_sweep.report),
        }
        yield {
            name: (s.sweep.Sweep(list(rows(chosen)), ROWS / name), report)
            for name, (rows, report) in scripts.items()
        }


def test_every_folder_of_rows_has_a_sweep(sweeps):
    """But for that of own data, which tests/test_own_data_benchmark.py holds."""
    assert {folder.name for folder in ROWS.iterdir()} - {"own-data"} == set(sweeps) == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_the_files_say(sweeps, name):
    sweep, report = sweeps[name]
    results = sweep.results()
    assert len(results) == len(list((ROWS / name).glob("*.json"))) > 0
    assert report(results, None) in (ROOT / "docs" / PAGES[name]).read_text(encoding="utf-8")


def test_curves_are_of_rows_of_equal_length(sweeps, tmp_path, monkeypatch):
    """Rows of tenfold and long training have matrices of their own, but no place on the curves."""
    with imported(ROOT / "examples", ["sweep", "vsc_sweep"]) as s:
        curves = []
        monkeypatch.setattr(s.vsc_sweep, "_curves", lambda measured, _: curves.append(measured))
        monkeypatch.setattr(s.vsc_sweep.figures, "correlation_matrices", lambda *_: None)
        names = []
        monkeypatch.setattr(s.vsc_sweep.figures, "save", lambda figure, path: names.append(path.name))

        def record(kind, latents, beta, elbo):
            found = {"bounds": {"elbo": elbo}, "correlations": ["0 1"]}
            return {"data": "smiley", "kind": kind, "latents": latents, "beta": beta, "result": found}

        short = [record("vae", 40, 1.0, -3.0), record("beta2", 40, 2.0, -4.0), record("vsc", 40, 1.0, -2.0)]
        long = [record("vsc-long", 40, 1.0, -1.0), record("beta4-tenfold", 40, 4.0, -1.0)]
        s.vsc_sweep._draw(short + long, tmp_path / "codes.png")
        by_latents, by_beta = curves
        assert by_beta == {"β-VAE": {1.0: [-3.0], 2.0: [-4.0]}}
        assert sorted(value for values in by_latents.values() for value in values[40]) == [-3.0, -2.0]
        assert {"codes-smiley-J40.png", "codes-smiley-J40-long.png", "codes-smiley-J40-tenfold.png"} < set(
            names
        )
        curves.clear()
        s.vsc_sweep._draw(long, tmp_path / "codes.png")
        assert not curves
