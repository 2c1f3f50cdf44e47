"""Zarr stores: what is read of them, and what they cannot make the reader do."""

import gzip
import json
import os
import sys

import numpy as np
import pytest

from pyro_fmvae.data import load, load_file
from pyro_fmvae.data.own.zarr_store import decode_store
from pyro_fmvae.files.memory import at_most

zarr = pytest.importorskip("zarr", minversion="3", reason="pip install 'pyro_fmvae[zarr]'")

X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
LABELS = np.arange(50) % 3 - 1


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.zarr"


def write(path, x=X, labels=LABELS, zarr_format=3, **names):
    group = zarr.create_group(path, zarr_format=zarr_format, attributes=names)
    group.create_array("x", data=x, chunks=(16, *x.shape[1:]))
    if labels is not None:
        group.create_array("labels", data=labels)
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_with_labels_and_names(path, zarr_format):
    columns = [f"gene {i}" for i in range(6)]
    names = {"label_names": ["kind"], "value_names": [["a", "b"]], "column_names": columns}
    x, found = decode_store(write(path, zarr_format=zarr_format, **names))
    np.testing.assert_array_equal(x.read(), X)
    assert found["labels"][:, 0].tolist() == LABELS.tolist()
    assert found["label_names"] == ("kind",) and found["value_names"] == (("a", "b"),)
    assert found["column_names"] == tuple(columns)


@pytest.mark.parametrize("layout", [{"chunks": (7, 2)}, {"chunks": (5, 6), "shards": (10, 6)}])
@pytest.mark.parametrize("dtype", [">f8", "i2", "u1", "?"])
def test_a_single_array_of_any_layout(path, layout, dtype):
    expected = (X > 0).astype(dtype) if dtype == "?" else np.abs(10 * X).astype(dtype)
    zarr.create_array(path, data=expected, attributes={"column_names": list("abcdef")}, **layout)
    x, found = decode_store(path)
    np.testing.assert_array_equal(x.read(), expected)
    assert found == {"column_names": tuple("abcdef")}


def test_several_pieces(path, monkeypatch):
    monkeypatch.setattr("pyro_fmvae.data.own.zarr_store._PIECE", 800)  # two chunks of 16 rows of 24 bytes
    np.testing.assert_array_equal(decode_store(write(path))[0].read(), X)


def test_pictures_and_commands_of_a_run(path):
    pictures = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)
    data = load(str(write(path, pictures, None)))
    assert data.name == "cells" and data.event_shape == (8, 8) and data.train.signed
    rows, names = load_file(path, data.preprocessing)
    assert names == ()
    np.testing.assert_array_equal(rows.x.read(rows.places).numpy(), pictures[..., 0])


def test_a_store_that_has_changed_is_decoded_anew(path):
    first = decode_store(write(path))[0]
    assert decode_store(path)[0].path == first.path
    zarr.open_array(path / "x", mode="r+")[3] = 7
    assert decode_store(path)[0].read()[3].tolist() == [7] * 6


def edit(path, **changes):
    """Change the description of an array."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_pickle(path):
    write(path, zarr_format=2)
    edit(path / "x" / ".zarray", filters=[{"id": "pickle", "protocol": 5}])


def with_pickle_behind_another_description(path):
    """What looks like format 3 says nothing of the codecs that format 2 would use."""
    with_pickle(path)
    said = json.loads((path / "x" / ".zarray").read_text())
    (path / "x" / "zarr.json").write_text(json.dumps({**said, "filters": None}))


def with_another_codec(path):
    write(path)
    edit(path / "x" / "zarr.json", codecs=[{"name": "numcodecs.pickle"}])


def with_another_codec_in_a_shard(path):
    zarr.create_array(path, data=X, chunks=(5, 6), shards=(10, 6))
    edit(
        path / "zarr.json",
        codecs=[{"name": "sharding_indexed", "configuration": {"codecs": [{"name": "strange"}]}}],
    )


def with_a_pipe(path):
    write(path)
    (path / "x" / "c" / "0" / "0").unlink()
    os.mkfifo(path / "x" / "c" / "0" / "0")


def with_a_link_to_another_file(path):
    write(path)
    chunk = path / "x" / "c" / "0" / "0"
    chunk.rename(path.parent / "other")
    chunk.symlink_to(path.parent / "other")


def with_chunks_of_nothing(path):
    write(path)
    edit(path / "x" / "zarr.json", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 6]}})


def with_chunks_of_nothing_in_format_2(path):
    write(path, zarr_format=2)
    edit(path / "x" / ".zarray", chunks=[16, 0])


def with_shards_of_nothing(path):
    zarr.create_array(path, data=X, chunks=(5, 6), shards=(10, 6))
    (codec,) = json.loads((path / "zarr.json").read_text())["codecs"]
    codec["configuration"]["chunk_shape"] = [0, 6]
    edit(path / "zarr.json", codecs=[codec])


def without_most_chunks(path):
    """A few hundred bytes that stand for 400 GB of one number."""
    write(path, labels=None)
    edit(path / "x" / "zarr.json", shape=[10**10, 6])


def with_a_damaged_chunk(path):
    write(path)
    (path / "x" / "c" / "0" / "0").write_bytes(b"nothing")


def without_x(path):
    zarr.create_group(path).create_array("y", data=X)


def nested_too_deeply(path):
    write(path)
    (path / "x" / "zarr.json").write_text("[" * 100_000)


def lists_of_two_lengths(path):
    write(path, value_names=[["a", "b"], ["c"]])


def one_dimension(path):
    zarr.create_array(path, data=X[:, 0])


def words(path):
    zarr.create_array(path, shape=(3, 2), dtype="U3", zarr_format=2)


def empty_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_pickle, "expected the codecs .*, got 'pickle'"),
        (with_pickle_behind_another_description, "cannot be read: "),
        (with_another_codec, "expected the codecs .*, got 'numcodecs.pickle'"),
        (with_another_codec_in_a_shard, "expected the codecs .*, got 'strange'"),
        (with_a_pipe, "c/0/0: not an ordinary file"),
        (with_a_link_to_another_file, "c/0/0: not an ordinary file"),
        (with_chunks_of_nothing, r"expected chunks of at least one row and column, got \[0, 6\]"),
        (
            with_chunks_of_nothing_in_format_2,
            r"expected chunks of at least one row and column, got \[16, 0\]",
        ),
        (with_shards_of_nothing, "cannot be read: "),
        (without_most_chunks, "its rows (would )?take "),
        (with_a_damaged_chunk, "cannot be read: "),
        (without_x, "expected an array, or a group with an array 'x'"),
        (nested_too_deeply, "nested too deeply"),
        (lists_of_two_lengths, "cannot be read: .* inhomogeneous"),
        (one_dimension, "'x' must have shape"),
        (words, "'x' must hold numbers"),
        (empty_folder, "expected an array, or a group with an array 'x'"),
    ],
)
def test_bad_stores(path, make, message):
    make(path)
    with pytest.raises(ValueError, match=rf"cells\.zarr.*{message}"):
        decode_store(path)
    assert not list((path.parent / "home").rglob("rows-*"))


def test_chunks_are_not_decoded_beyond_the_limit(path):
    write(path)
    with at_most(100), pytest.raises(ValueError, match="--max-memory"):
        decode_store(path)
    edit(
        path / "x" / "zarr.json", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1, 2**50]}}
    )
    with pytest.raises(ValueError, match=r"a chunk: loading it would take .* --max-memory"):
        decode_store(path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")
def test_a_chunk_that_unpacks_to_more_than_it_says(path):
    zarr.create_array(path, data=X, chunks=X.shape, compressors=zarr.codecs.GzipCodec())
    (path / "c" / "0" / "0").write_bytes(gzip.compress(bytes(500 << 20)))
    with at_most(100 << 20), pytest.raises(ValueError, match=r"takes more than 100\.0 MiB .*--max-memory"):
        decode_store(path)


def test_a_store_that_is_missing(path):
    with pytest.raises(FileNotFoundError, match=r"cells\.zarr: no such folder"):
        decode_store(path)
