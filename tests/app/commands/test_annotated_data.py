"""Cells in, cells with codes out."""

import numpy as np
import pytest

pytest.importorskip("anndata", reason="pip install 'pyro_fmvae[anndata]'")

import anndata
import pandas as pd

from pyro_fmvae.app.explorer import exploration
from pyro_fmvae.app.runs import load
from pyro_fmvae.data.own.row_names import RowNames
from tests.small_runs import command, succeed, train_all

pytestmark = [
    pytest.mark.usefixtures("single_precision"),
    pytest.mark.filterwarnings("ignore::UserWarning:anndata"),
]
CELLS = 60


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A file of cells of two types, with something in each of its places."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(2, size=CELLS)
    data = anndata.AnnData((3.0 * kinds[:, None] + rng.normal(size=(CELLS, 4))).astype(np.float32))
    data.obs_names = [f"cell {number}" for number in range(CELLS)]
    data.obs["batch"] = rng.integers(3, size=CELLS)
    data.obsm["X_pca"] = rng.normal(size=(CELLS, 2))
    data.uns["note"] = "kept"
    path = tmp_path_factory.mktemp("data") / "cells.h5ad"
    data.write_h5ad(path)
    return path


@pytest.fixture(scope="module")
def run(cells, tmp_path_factory):
    kinds = {"fmvae": {"model": "fmvae", "factors": "2,3"}}
    return train_all(tmp_path_factory.mktemp("runs"), {"fmvae": cells}, kinds)["fmvae"]


def test_codes_go_beside_the_cells(run, cells, tmp_path):
    out = succeed("encode", run, "--data", cells, "--out", tmp_path / "out" / "coded.h5ad")
    assert "obs['factor 0 code']" in out and "obsm['X_fmvae']" in out
    before, after = (anndata.read_h5ad(path) for path in (cells, tmp_path / "out" / "coded.h5ad"))
    expected = load(run, "cpu").encode(before.X)
    for factor in range(2):
        gamma = expected[f"responsibilities_{factor}"]
        np.testing.assert_array_equal(after.obs[f"factor {factor} code"], expected["codes"][:, factor])
        np.testing.assert_allclose(after.obs[f"factor {factor} probability"], gamma.max(1), rtol=1e-6)
        np.testing.assert_array_equal(after.obsm[f"responsibilities_{factor}"], gamma)
    np.testing.assert_array_equal(after.obsm["X_fmvae"], expected["mean"])
    np.testing.assert_array_equal(after.obsm["scale"], expected["scale"])
    added = [f"factor {factor} {what}" for factor in range(2) for what in ("code", "probability")]
    assert list(after.obs.columns) == ["batch", *added]
    np.testing.assert_array_equal(after.X, before.X)
    assert list(after.obs_names) == list(before.obs_names)
    assert after.uns["note"] == "kept" and "X_pca" in after.obsm


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        (None, "coded.h5ad", "a .h5ad file is written beside the data of one"),
        ("coded", "twice.h5ad", "has obs['factor 0 code'] already"),
        ("cells", "cells", "expected different files"),
    ],
)
def test_nothing_is_lost(data, out, message, run, cells, tmp_path):
    places = {"cells": cells, "coded": tmp_path / "coded.h5ad"}
    succeed("encode", run, "--data", cells, "--out", places["coded"])
    before = {path: path.read_bytes() for path in places.values()}
    options = [] if data is None else ["--data", places[data]]
    status, _, err = command("encode", run, *options, "--out", places.get(out, tmp_path / out))
    assert status == 2
    assert message in err
    assert {path: path.read_bytes() for path in places.values()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["coded.h5ad"]


def test_tables_and_arrays_name_the_cells(run, cells, tmp_path):
    """Of a whole file in its order; of the run's own test split each row has the name that is its own."""
    names = [f"cell {number}" for number in range(CELLS)]
    for kind in ("csv", "npz"):
        succeed("encode", run, "--data", cells, "--out", tmp_path / f"codes.{kind}")
    succeed("encode", run, "--out", tmp_path / "own.csv")
    succeed("score", run, "--data", cells, "--out", tmp_path / "scores.csv")
    options = ["--data", cells, "--like", cells, "-n", 1]
    succeed("search", run, *options, "--out", tmp_path / "found.csv")
    whole, own, scores, found = (
        pd.read_csv(tmp_path / f"{name}.csv") for name in ("codes", "own", "scores", "found")
    )
    assert list(whole["name"]) == list(scores["name"]) == list(found["query"]) == list(found["name"]) == names
    with np.load(tmp_path / "codes.npz") as arrays:
        assert arrays["name"].tolist() == names
    assert 0 < len(own) < CELLS
    matched = whole.set_index("name").loc[own["name"]]
    np.testing.assert_allclose(own["mean_0"], matched["mean_0"], rtol=1e-5)
    explored = exploration.Exploration(load(run, "cpu"))
    assert set(explored.row_names.values) < set(names)


def test_names_that_are_not_different_label_nothing(run, monkeypatch):
    """The explorer falls back to the numbers of rows, by which labels are found again."""
    monkeypatch.setattr(
        exploration, "row_names", lambda _, rows: RowNames("name", np.full(len(rows), "cell"))
    )
    explored = exploration.Exploration(load(run, "cpu"))
    names = explored.row_names
    assert not names.given and names.values.tolist() == list(map(str, explored.points.places.tolist()))
