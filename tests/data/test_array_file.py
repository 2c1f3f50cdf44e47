import io
import zipfile

import numpy as np
import pytest
import torch

from pyro_fmvae.data import Kind, Preprocessing, array_file
from pyro_fmvae.data.array_file import FileRows, open_member, open_npy


def table(n=1000, width=7, dtype=np.float32):
    return np.random.default_rng(0).integers(0, 100, (n, width)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, ">f8"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_any_rows_in_any_order(tmp_path, suffix, dtype, monkeypatch):
    monkeypatch.setattr(array_file, "PIECE", 300)
    x, path = table(dtype=dtype), tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, x)
        found = open_npy(path)
    else:
        np.savez(path, labels=np.arange(3), x=x)
        found = open_member(path, "x")
    rows = np.random.default_rng(1).integers(0, len(x), 400)  # some of them twice
    taken = np.zeros((len(rows), x.shape[1]), dtype)
    for places, part in found.pieces(rows):
        taken[places] = part
    np.testing.assert_array_equal(taken, x[rows])
    np.testing.assert_array_equal(found.read(), x)
    assert found.nbytes == x.nbytes and len(found) == len(x)


def test_rows_are_preprocessed_as_the_whole_array_is(tmp_path):
    x = table()
    np.save(tmp_path / "x.npy", x)
    preprocessing = Preprocessing.standardizing(x)
    rows = FileRows(open_npy(tmp_path / "x.npy"), preprocessing, "x")
    chosen = torch.tensor([999, 0, 500, 3])
    assert torch.equal(rows.read(chosen), preprocessing(x)[chosen])
    assert rows.shape == (1000, 7) and rows.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "kind", "stored"),
    [
        (bool, Kind.BINARY, torch.bool),
        (np.uint8, Kind.IMAGE, torch.uint8),
        (np.float64, Kind.IMAGE, torch.float32),
    ],
)
def test_pictures_keep_the_type_that_they_are_stored_in(tmp_path, dtype, kind, stored):
    x = (np.arange(60).reshape(5, 4, 3) % 2).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    rows = FileRows(open_npy(tmp_path / "x.npy"), Preprocessing(kind, (4, 3)), "x")
    found = rows.read(torch.arange(5))
    assert found.dtype == rows.dtype == stored
    np.testing.assert_array_equal(found.numpy(), x)


def test_a_compressed_member_is_left_to_others(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=table())
    assert open_member(tmp_path / "x.npz", "x") is None
    np.savez(tmp_path / "y.npz", y=table())
    assert open_member(tmp_path / "y.npz", "x") is None


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(4.0), r"expected rows \[n, ...\], got shape \[4\]"),
        (np.zeros((0, 3)), r"expected rows \[n, ...\], got shape \[0, 3\]"),
        (np.array([["a", "b"]]), "expected numbers, got dtype <U1"),
        (np.asfortranarray(table()), "its columns lie one after another"),
        (np.array([[{}]], dtype=object), "expected numbers, got dtype object"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"x\.npy: {message}"):
        open_npy(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", x=array)
    with pytest.raises(ValueError, match=rf"x\.npz: 'x': {message}"):
        open_member(tmp_path / "x.npz", "x")


def test_damaged_files_are_refused(tmp_path):
    buffer, path = io.BytesIO(), tmp_path / "x.npy"
    np.save(buffer, table())
    whole = buffer.getvalue()
    for content in (b"", whole[:50], whole[:-1], whole + b"1", b"\x93NUMPY\x01\x00\x02\x00{}"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.npy: damaged"):
            open_npy(path)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", whole[:-1])
    with pytest.raises(ValueError, match=r"'x': damaged"):
        open_member(tmp_path / "x.npz", "x")
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_npy(tmp_path / "none.npy")


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, table())
    found = open_npy(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="it has become shorter"):
        found.read()
