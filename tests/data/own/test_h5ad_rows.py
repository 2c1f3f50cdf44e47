"""Rows of .h5ad files as they are needed: the numbers of dense matrices, which take more memory."""

import tracemalloc

import numpy as np
import pytest
import torch

pytest.importorskip("anndata", reason="pip install 'pyro_fmvae[anndata]'")

import h5py
import pandas as pd
from anndata import AnnData
from scipy import sparse

from pyro_fmvae.data import CountOptions, SparseOptions, array_file, load, load_file
from pyro_fmvae.data.own import h5ad_file, on_disk
from pyro_fmvae.data.own.h5ad_file import open_h5ad

N, GENES = 200, 7
FORMS = {"dense": np.asarray, "csr": sparse.csr_matrix, "csc": sparse.csc_matrix}
COUNTS = CountOptions("donor")


def counts():
    x = np.random.default_rng(0).poisson(0.7, (N, GENES)).astype(np.float32)
    x[:, 0] += 1
    return x


def write(path, form="csr", x=None, compression=None):
    donor = pd.Categorical(np.where(np.arange(N) % 3, "ann", "bob"))
    data = AnnData(
        FORMS[form](counts() if x is None else x),
        obs=pd.DataFrame({"donor": donor}, index=[f"c{n}" for n in range(N)]),
    )
    data.var_names = [f"g{gene}" for gene in range(GENES)]
    data.write_h5ad(path, compression=compression)
    return path


@pytest.fixture
def in_file(monkeypatch):
    """Matrices of any size stay in their file."""
    monkeypatch.setattr(h5ad_file, "LARGE", 0)
    monkeypatch.setattr(on_disk, "LARGE", 0)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(array_file, "PIECE", 300)  # a few rows


def read(path, **options):
    return load(str(path), sparse=SparseOptions(counts=COUNTS), **options)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("options", [CountOptions(), COUNTS])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_rows_in_any_order(form, options, compression, tmp_path, in_file):
    rows, described = open_h5ad(write(tmp_path / "cells.h5ad", form, compression=compression), options)
    expected = counts()
    if options.batch_column:
        expected = np.column_stack([expected, np.arange(N) % 3 == 0])
        assert described["levels"] == (*[()] * GENES, ("ann", "bob"))
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows.read(), expected)
    chosen, found = np.random.default_rng(1).integers(N, size=90), np.empty((90, rows.shape[1]))
    for places, part in rows.pieces(chosen):
        found[places] = part
    np.testing.assert_array_equal(found, expected[chosen])


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_sparse_matrix_gives_the_data_set_of_a_dense_one(form, tmp_path):
    one, two = (read(write(tmp_path / f"{kind}.h5ad", kind)) for kind in (form, "dense"))
    assert isinstance(two.train.x, torch.Tensor) and not isinstance(one.train.x, torch.Tensor)
    assert (one.preprocessing, one.fingerprint) == (two.preprocessing, two.fingerprint)
    for name in ("train", "valid", "test"):
        assert torch.equal(one.split(name).observations, two.split(name).observations)
        assert torch.equal(one.split(name).places, two.split(name).places)
    again, _ = load_file(tmp_path / f"{form}.h5ad", two.preprocessing)
    assert torch.equal(again.observations[two.train.places], two.train.observations)


@pytest.mark.usefixtures("small_pieces", "in_file")
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_rows_that_stay_in_their_file(form, tmp_path):
    path = write(tmp_path / "cells.h5ad", form)
    one, two = read(path), read(path, in_memory=True)
    assert not isinstance(one.train.x, torch.Tensor) and isinstance(two.train.x, torch.Tensor)
    assert (one.preprocessing, one.fingerprint) == (two.preprocessing, two.fingerprint)
    places, order = two.train.places.sort()
    assert torch.equal(one.train.places, places)  # in the order of the file
    assert torch.equal(one.train.observations, two.train.observations[order])


def test_batches_that_float32_does_not_hold(tmp_path):
    data = AnnData(
        counts(), obs=pd.DataFrame({"day": [20240101, 20240102] * (N // 2)}, index=list(map(str, range(N))))
    )
    data.write_h5ad(tmp_path / "cells.h5ad")
    found = load(str(tmp_path / "cells.h5ad"), sparse=SparseOptions(counts=CountOptions("day")))
    assert found.preprocessing.levels[-1] == ("20240101", "20240102")
    rows, _ = open_h5ad(tmp_path / "cells.h5ad", CountOptions("day"), found.preprocessing.levels[-1])
    np.testing.assert_array_equal(rows.read()[:, -1], [0, 1] * (N // 2))


def test_columns_are_standardised_as_those_of_a_dense_matrix(tmp_path):
    one, two = (load(str(write(tmp_path / f"{kind}.h5ad", kind))) for kind in ("csr", "dense"))
    np.testing.assert_allclose(one.preprocessing.mean, two.preprocessing.mean, rtol=1e-5)
    torch.testing.assert_close(one.train.observations, two.train.observations)


def test_a_sparse_matrix_is_never_dense_as_a_whole(tmp_path):
    cells, genes = 4000, 2000
    x = sparse.random(cells, genes, 0.01, "csr", np.float32, np.random.default_rng(0), np.ones)
    x = (x + sparse.csr_matrix((np.ones(cells), (np.arange(cells), np.zeros(cells, int))), x.shape)).tocsr()
    AnnData(x.astype(np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    tracemalloc.start()
    try:
        found = load(str(tmp_path / "cells.h5ad"), sparse=SparseOptions(counts=CountOptions()))
        found.train.select(torch.arange(100)).observations.sum()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * cells * genes / 2


@pytest.mark.usefixtures("small_pieces")
def test_a_number_that_is_no_count_is_named_by_its_row_in_the_file(tmp_path):
    path = write(tmp_path / "cells.h5ad")
    preprocessing, x = read(path).preprocessing, counts()
    x[150, 3] = 0.5
    write(path, x=x)
    message = "got 0.5 in column 'g3' of row 150"
    with pytest.raises(ValueError, match=message):
        read(path)
    with pytest.raises(ValueError, match=message):
        load_file(path, preprocessing)[0].x.read(torch.tensor([3, 150]))


@pytest.mark.usefixtures("in_file")
@pytest.mark.parametrize(
    ("name", "place", "value"), [("indices", 9, 99), ("indptr", 9, 10**6), ("indptr", 9, -4)]
)
def test_damage_that_is_met_while_reading(name, place, value, tmp_path):
    path = write(tmp_path / "cells.h5ad")
    with h5py.File(path, "r+") as file:
        file[f"X/{name}"][place] = value
    with pytest.raises(ValueError, match="'/X' is not a valid sparse matrix"):
        read(path)
