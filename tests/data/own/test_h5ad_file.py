"""The matrix of a .h5ad file: dense or sparse, and nothing that lies elsewhere or is too large."""

import os
import sys
import zlib

import numpy as np
import pytest

pytest.importorskip("anndata", reason="pip install 'pyro_fmvae[anndata]'")

import h5py
import pandas as pd
from anndata import AnnData
from scipy.sparse import csc_matrix, csr_matrix

from pyro_fmvae.data import CountOptions
from pyro_fmvae.data.own.h5ad_file import opened, read_names
from pyro_fmvae.data.own.on_disk import read_whole
from pyro_fmvae.files.memory import at_most

X = np.array([[0.0, 1.5, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -3.0], [4.0, 5.0, 6.0]], dtype=np.float32)
GENES = ("CD3", "CD19", "NKG7")


def write(path, x, names=GENES):
    data = AnnData(x)
    data.var_names = list(names)
    data.write_h5ad(path)
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "cells.h5ad", X)


@pytest.mark.parametrize("form", [np.asarray, csr_matrix, csc_matrix])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_every_form_is_read(form, dtype, tmp_path):
    x = np.abs(X).astype(dtype)
    raw = read_whole(write(tmp_path / "cells.h5ad", form(x)))
    np.testing.assert_array_equal(raw.x, x)
    assert raw.x.dtype == (np.float32 if dtype is np.float32 else np.float64)  # no picture of one line
    assert raw.column_names == GENES


def test_missing_numbers_are_for_models_that_take_them(tmp_path):
    x = np.where(X == 0, np.nan, X)
    path = write(tmp_path / "cells.h5ad", x)
    np.testing.assert_array_equal(read_whole(path, missing=True).x, x)
    with pytest.raises(ValueError, match=r"'x': expected finite numbers"):
        read_whole(path)


def changed(change):
    """A change of an open file, for the table below."""
    return lambda path: _change(path, change)


def _change(path, change):
    with h5py.File(path, "r+") as file:
        change(file, path)


def elsewhere(file, path):
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["X"] = X
    del file["X"]
    file["X"] = h5py.ExternalLink("other.h5", "X")


def external(file, path):
    path.with_name("raw.bin").write_bytes(X.tobytes())
    del file["X"]
    file.create_dataset("X", X.shape, X.dtype, external=[(str(path.with_name("raw.bin")), 0, X.nbytes)])


def virtual(file, path):
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["X"] = X
    del file["X"]
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource(str(path.with_name("other.h5")), "X", X.shape)
    file.create_virtual_dataset("X", layout)


def soft(file, _):
    file.move("X", "Y")
    file["X"] = h5py.SoftLink("/Y")


def through_a_link(file, path):
    """Names that lie behind a link into another file, which is a pipe that nobody writes into."""
    os.mkfifo(path.with_name("other.h5"))
    file["var/elsewhere"] = h5py.ExternalLink("other.h5", "/")
    file["var"].attrs["_index"] = "elsewhere/names"


def unlimited(file, path):
    """A virtual array whose shape HDF5 finds out from its sources, which are pipes."""
    os.mkfifo(path.with_name("other.h5"))
    del file["X"]
    source = h5py.VirtualSource("other.h5", "X", (4, 3), maxshape=(None, 3))
    layout = h5py.VirtualLayout((4, 3), X.dtype, maxshape=(None, 3))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    file.create_virtual_dataset("X", layout)


def unused(file, _):
    file["uns/elsewhere"] = h5py.ExternalLink("other.h5", "/")


def circular(file, _):
    file["uns/all"] = file["/"]
    file["var/again"] = h5py.SoftLink("/var")


def enormous(file, _):
    del file["X"]
    file.create_dataset("X", (10**9, 10**6), "f4", chunks=(1000, 1000))


def long(file, _):
    del file["X"]
    file.create_dataset("X", (10**8, 3), "f4", chunks=(1000, 3))


def thick(file, _):
    del file["X"]
    file.create_dataset("X", (4, 3), "f4", chunks=(10**8, 3), maxshape=(None, 3))


def sparse(form=csr_matrix, **changes):
    def change(file, _):
        del file["X"]
        group = file.create_group("X")
        matrix = form(X)
        arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr} | changes
        group.attrs["encoding-type"] = form.__name__
        group.attrs["shape"] = arrays.pop("shape", X.shape)
        for name, array in arrays.items():
            group[name] = array

    return changed(change)


def words(file, _):
    del file["X"]
    file["X"] = np.array([[b"a", b"b", b"c"]] * 4)


def without(name):
    def change(file, _):
        del file[name]

    return changed(change)


def fewer_names(file, _):
    del file["var/_index"]
    file["var/_index"] = list(GENES[:2])


def padded(file, _):
    """Three names in 60 MB that gzip to nothing."""
    del file["var/_index"]
    file.create_dataset("var/_index", (3,), "S20000000", chunks=(1,), compression="gzip")


def unprintable(file, _):
    del file["var/_index"]
    file["var/_index"] = ["a", "b", "\x1b[2J"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed(elsewhere), "'/X' refers to another place"),
        (changed(external), "'/X' refers to another place"),
        (changed(virtual), "'/X' refers to another place"),
        (changed(soft), "'/X' refers to another place"),
        (changed(through_a_link), "'/var/elsewhere' refers to another place"),
        (changed(unlimited), "'/X' refers to another place"),
        (changed(unused), "'/uns/elsewhere' refers to another place"),
        (changed(circular), "'/var/again' refers to another place"),
        (changed(enormous), "expected 1,000,000 names"),
        (changed(long), "loading it would take .* of memory"),
        (changed(thick), "loading it would take .* of memory"),
        (sparse(shape=(10**6, 3)), "'/X' is not a valid sparse matrix: expected 1,000,001 integers"),
        (sparse(shape=(3 * 10**6, 3), indptr=np.zeros(3 * 10**6 + 1, np.int32)), "would take .* of memory"),
        (sparse(indices=np.full(6, 99)), "expected integers from 0 to 2 in 'indices'"),
        (sparse(indptr=np.arange(3)), "expected 5 integers that rise from 0 to 6 at most in 'indptr'"),
        (sparse(indices=-np.ones(6, np.int32)), "expected integers from 0 to 2 in 'indices'"),
        (sparse(indices=np.zeros(6)), "expected integers from 0 to 2 in 'indices'"),
        (sparse(indptr=np.array([0, 6, 0, 0, 0])), "rise from 0 to 6 at most in 'indptr'"),
        (sparse(indptr=np.array([0, 1, 2, 3, 7], np.uint64)), "rise from 0 to 6 at most in 'indptr'"),
        (sparse(indptr=np.array([-1, 1, 2, 3, 6])), "rise from 0 to 6 at most in 'indptr'"),
        (sparse(data=np.ones(3, np.float32)), "rise from 0 to 3 at most in 'indptr'"),
        (sparse(csc_matrix, indices=np.full(6, 4)), "expected integers from 0 to 3 in 'indices'"),
        (sparse(csc_matrix, indptr=np.array([0, 6, 0, 0])), "rise from 0 to 6 at most in 'indptr'"),
        (changed(padded), "/var/_index: loading it would take"),
        (sparse(shape=(4.0, 3.0)), "expected X to be a dense, CSR or CSC matrix"),
        (changed(words), "expected numbers"),
        (without("X"), "expected 'X' in '/'"),
        (without("var"), "expected 'var' in '/'"),
        (changed(fewer_names), "expected 3 names"),
        (changed(unprintable), "expected names of printable characters"),
        (lambda path: path.write_bytes(b"no file of HDF5"), r"not a \.h5ad file"),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), r"not a \.h5ad file"),
    ],
)
def test_other_files_are_refused(damage, message, path):
    damage(path)
    with at_most(32 << 20), pytest.raises(ValueError, match=message) as raised:
        read_whole(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")
def test_one_string_for_many_rows(path):
    """A megabyte on the disk, to which a thousand rows refer."""
    with h5py.File(path, "r+") as file:
        del file["obs/_index"]
        names = file.create_dataset("obs/_index", (1000,), h5py.string_dtype(), chunks=(1,))
        names[0] = "a" * (1 << 20)
        _, reference = names.id.read_direct_chunk((0,))
        for row in range(1, 1000):
            names.id.write_direct_chunk((row,), reference)
    assert path.stat().st_size < 3 << 20
    message = r"takes more than 100\.0 MiB .*--max-memory"
    with at_most(100 << 20), pytest.raises(ValueError, match=message), opened(path) as file:
        read_names(file, "obs", 1000, path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")
def test_a_piece_that_unpacks_to_more_than_it_says(path):
    with h5py.File(path, "r+") as file:
        del file["X"]
        x = file.create_dataset("X", X.shape, X.dtype, chunks=X.shape, compression="gzip")
        x.id.write_direct_chunk((0, 0), zlib.compress(bytes(300 << 20)))
    with at_most(100 << 20), pytest.raises(ValueError, match=r"a damaged one$"):
        read_whole(path)


def test_names_must_differ(tmp_path):
    path = write(tmp_path / "cells.h5ad", X, ["CD3", "CD3", "NKG7"])
    with pytest.raises(ValueError, match="expected different names of variables"):
        read_whole(path)


COLUMNS = {
    "words": (["b", "a", "b", "c"], ("a", "b", "c"), [1, 0, 1, 2]),
    "categories": (pd.Categorical(["b", "a", "b", "c"], ["c", "b", "a"]), ("a", "b", "c"), [1, 0, 1, 2]),
    "numbers": ([4, 2, 2, 3], (), [4, 2, 2, 3]),
    "numbers as categories": (pd.Categorical([4, 2, 2, 3]), (), [4, 2, 2, 3]),
    "nullable": (pd.array([4, 2, 2, 3], dtype="Int64"), (), [4, 2, 2, 3]),
    "truth": ([True, False, True, True], (), [1, 0, 1, 1]),
}


def write_cells(folder, donor):
    data = AnnData(np.log1p(X.clip(min=0)), obs=pd.DataFrame({"donor": donor}, index=list("wxyz")))
    data.var_names = list(GENES)
    data.layers["raw"] = csr_matrix(X.clip(min=0).round())
    data.write_h5ad(folder / "cells.h5ad")
    return folder / "cells.h5ad"


@pytest.mark.parametrize("donor", COLUMNS)
def test_layer_and_batches(donor, tmp_path):
    values, words, numbers = COLUMNS[donor]
    path = write_cells(tmp_path, values)
    raw = read_whole(path, counts=CountOptions("donor", "raw"))
    np.testing.assert_array_equal(raw.x, np.column_stack([X.clip(min=0).round(), numbers]))
    assert raw.column_names == (*GENES, "donor")
    assert raw.levels == (((), (), (), words) if words else ())


def test_batches_that_are_known_keep_their_numbers(tmp_path):
    path = write_cells(tmp_path, ["b", "b", "a", "a"])
    raw = read_whole(path, counts=CountOptions("donor", "raw"), batches=("x", "a", "b"))
    np.testing.assert_array_equal(raw.x[:, -1], [2, 2, 1, 1])
    with pytest.raises(ValueError, match=r"obs\['donor'\]: expected one of a, x, got 'b'"):
        read_whole(path, counts=CountOptions("donor", "raw"), batches=("a", "x"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CountOptions(layer="spliced"), r"expected 'spliced' in '/layers', found raw"),
        (CountOptions("site"), r"expected 'site' in '/obs', found _index, donor"),
    ],
)
def test_layers_and_columns_that_are_not_there(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_whole(write_cells(tmp_path, list("abab")), counts=options)


@pytest.mark.parametrize(
    "donor",
    [pd.Categorical(["a", None, "b", "b"]), [1.0, np.nan, 2.0, 2.0], pd.array([1, None, 2, 2], "Int64")],
)
def test_a_missing_batch(donor, tmp_path):
    with pytest.raises(ValueError, match=r"obs\['donor'\]: expected a batch in every row, that of row 1"):
        read_whole(write_cells(tmp_path, donor), counts=CountOptions("donor"))


def test_damaged_categories(tmp_path):
    path = write_cells(tmp_path, pd.Categorical(["a", "b", "b", "b"]))
    with h5py.File(path, "r+") as file:
        file["obs/donor/codes"][0] = 5
    with pytest.raises(ValueError, match="'/obs/donor' is damaged: codes need to be between -1 and"):
        read_whole(path, counts=CountOptions("donor"))


def test_decimal_batches(tmp_path):
    path = write_cells(tmp_path, [0.5, 1.0, 1.0, 0.5])
    with pytest.raises(ValueError, match=r"obs\['donor'\]: expected words or integers, got '0.5'"):
        read_whole(path, counts=CountOptions("donor"))
