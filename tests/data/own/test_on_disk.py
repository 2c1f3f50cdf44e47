import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_fmvae.data import Batches, array_file, load, load_file
from pyro_fmvae.data.column_plan import PlannedColumn
from pyro_fmvae.data.own import on_disk
from pyro_fmvae.data.own.column_file import read_words
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.own.on_disk import open_file, read_whole
from pyro_fmvae.files.memory import at_most

WORDS = np.array(["cat", "dog", "owl"])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def rows(n=200):
    generator = np.random.default_rng(0)
    x = generator.normal(5, 3, (n, 4))
    x[:, 2] = 7  # constant
    return x, generator.integers(-1, 3, n)


def write(path, x, labels=None, **types):
    if path.suffix == ".npz":
        named = {} if labels is None else {"labels": labels, "label_names": np.array(["kind"])}
        np.savez(path, x=x, **named)
    elif path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".zarr":
        zarr = pytest.importorskip("zarr", minversion="3")
        group = zarr.create_group(path, attributes={} if labels is None else {"label_names": ["kind"]})
        group.create_array("x", data=x, chunks=(30, 3))
        if labels is not None:
            group.create_array("labels", data=labels)
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import feather, parquet

        columns = {f"c{i}": column for i, column in enumerate(x.T)}
        if labels is not None:
            columns["label:kind"] = [WORDS[label] if label >= 0 else None for label in labels]
        if path.suffix == ".parquet":
            parquet.write_table(pa.table(columns), path, row_group_size=30)
        else:
            feather.write_feather(pa.table(columns), path, chunksize=30)
    return path


def all_of(split):
    return split.observations


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".arrow", ".feather", ".zarr"])
def test_splits_hold_the_rows_that_they_hold_in_memory(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(array_file, "PIECE", 1000)  # so that moments and digests of many pieces are merged
    x, labels = rows()
    path = write(tmp_path / f"t{suffix}", x, None if suffix == ".npy" else labels)
    apart, held = (load(str(path), in_memory=flag) for flag in (False, True))
    assert isinstance(held.train.x, Tensor) and not isinstance(apart.train.x, Tensor)
    assert apart.fingerprint == held.fingerprint and apart.label_sizes == held.label_sizes
    assert (
        apart.value_names == held.value_names
        and apart.preprocessing.column_names == held.preprocessing.column_names
    )
    np.testing.assert_allclose(apart.preprocessing.mean, held.preprocessing.mean, rtol=1e-13)
    np.testing.assert_allclose(apart.preprocessing.std, held.preprocessing.std, rtol=1e-13)
    for name in ("train", "valid", "test"):
        one, two = apart.split(name), held.split(name)
        order = two.observations[:, 0].argsort()
        sorted_one = one.observations[:, 0].argsort()
        torch.testing.assert_close(one.observations[sorted_one], two.observations[order])
        if labels is not None and suffix != ".npy":
            assert torch.equal(one.labels[sorted_one], two.labels[order])
        assert (one.x.index.diff() > 0).all()  # in the order of the file


def test_whole_files_are_the_same_on_disk_and_in_memory(tmp_path):
    x, labels = rows()
    parquet = write(tmp_path / "t.parquet", x, labels)
    run = load(str(parquet))
    found, names = load_file(parquet, run.preprocessing, run.label_names, run.value_names)
    assert names == ("kind",) and not isinstance(found.x, Tensor)
    assert torch.equal(found.observations, run.preprocessing(x))
    assert found.labels[:, 0].tolist() == labels.tolist()


def test_values_of_labels_that_a_run_does_not_know_are_counted(tmp_path):
    x, labels = rows()
    path = write(tmp_path / "t.parquet", x, labels)
    preprocessing, left_out = load(str(path)).preprocessing, {}
    found, _ = load_file(path, preprocessing, ("kind",), (("owl", "cat"),), left_out)
    assert left_out["kind"] == {"dog": (labels == 1).sum()}
    assert found.labels[:, 0].tolist() == [{0: 1, 2: 0}.get(label, -1) for label in labels.tolist()]


def test_marks_of_what_is_missing_are_unknown_labels(tmp_path, monkeypatch):
    x, labels = rows()
    path = InMemory.of(x, np.array(["cat", "NA", "owl"])[labels.clip(0)]).write(tmp_path)
    assert load(str(path)).value_names == (("cat", "owl"),)
    monkeypatch.setitem(globals(), "WORDS", ["cat", "n/a", "owl"])
    path = write(tmp_path / "t.parquet", x, labels)
    assert load(str(path)).value_names == (("cat", "owl"),)


def test_pictures(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)
    data = load(str(write(tmp_path / "t.npy", x)))
    assert data.event_shape == (8, 8) and data.train.signed
    (batch,) = next(iter(Batches(data.train, 40, shuffle=False)))
    torch.testing.assert_close(batch, torch.from_numpy(x[data.train.x.index, :, :, 0] / 127.5 - 1).float())
    binary = load(str(write(tmp_path / "b.npy", (x > 100).astype(np.uint8))))
    assert binary.preprocessing.binary and binary.train.x.dtype == torch.bool


def test_large_npz_files_stay_on_disk_unless_told_otherwise(tmp_path, monkeypatch):
    path = write(tmp_path / "t.npz", *rows())
    assert open_file(path) is None and open_file(path, False) is not None
    monkeypatch.setattr(on_disk, "LARGE", 1000)
    assert open_file(path) is not None and open_file(path, True) is None


def test_npz_files_whose_rows_do_not_lie_one_after_another_are_read_into_memory(tmp_path):
    x = np.asfortranarray(rows()[0])
    np.savez(tmp_path / "t.npz", x=x)
    held = load(str(tmp_path / "t.npz"))
    assert isinstance(held.train.x, Tensor) and len(held.train) == 160
    with pytest.raises(ValueError, match="its columns lie one after another"):
        load(str(tmp_path / "t.npz"), in_memory=False)


def test_decoded_rows_are_kept_and_decoded_anew_where_the_file_has_changed(tmp_path):
    x, labels = rows()
    path = write(tmp_path / "t.parquet", x, labels)
    first = open_file(path).x
    before = first.path.stat().st_ino
    assert open_file(path).x.path == first.path and first.path.stat().st_ino == before
    write(path, x[:100], labels[:100])
    assert len(open_file(path).x) == 100


def test_integers_and_truth_values_are_numbers(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    small = {"a": pa.array([1, 2, 3, 4], "int16"), "b": pa.array([True, False, True, True])}
    parquet.write_table(pa.table(small | {"label:k": pa.array([0, 1, None, 1])}), path)
    opened = open_file(path)
    assert opened.x.dtype == np.float32 and opened.labels[:, 0].tolist() == [0, 1, -1, 1]
    np.testing.assert_array_equal(opened.x.read(), [[1, 1], [2, 0], [3, 1], [4, 1]])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"a": ["x", "y", "z"]}, "expected numbers alone, got words in column 'a'"),
        ({"label:k": [0, 1, 0]}, "expected rows with at least one column that is no label"),
        (
            {"a": [1.0, 2.0, 3.0], "label:k": [0.5, 1.0, 2.0]},
            "'k': expected labels that are integers or words",
        ),
        ({"a": [1.0, 2.0, 3.0], "label:k": [0, -2, 1]}, "'k': expected labels from -1"),
        ({"a": [1.0, None, 3.0]}, "must be finite, but holds NaN or infinity"),
    ],
)
def test_bad_columns(tmp_path, column, message):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(column), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"t\.parquet.*{message}"):
        load(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_damaged_files_of_columns(tmp_path, suffix):
    path = write(tmp_path / f"t{suffix}", *rows())
    content = path.read_bytes()
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"t\{suffix}: cannot be read"):
            open_file(path)


def column_files(path, table):
    from pyarrow import feather, parquet

    if path.suffix == ".parquet":
        parquet.write_table(table, path, compression="zstd")
    else:
        feather.write_feather(table, path, compression="zstd")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_few_bytes_do_not_fill_the_disk(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"t{suffix}"
    column_files(path, pa.table({"a": np.zeros(10**6, bool), "b": np.ones(10**6, bool)}))
    message = rf"t\{suffix}: its rows would take 7\.6 MiB on the disk, more than 1,000 times .*--max-memory"
    with at_most(4 << 20), pytest.raises(ValueError, match=message):
        open_file(path)
    assert open_file(path).x.shape == (10**6, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_one_word_does_not_unpack_beyond_the_limit(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"t{suffix}"
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), ["a" * (1 << 20)])
    column_files(path, pa.table({"a": np.arange(1000.0), "label:k": words}))
    with at_most(100 << 20), pytest.raises(ValueError, match=r"takes more than 100\.0 MiB .*--max-memory"):
        open_file(path)


def test_arrow_columns_shorter_than_they_say(tmp_path):
    """pyarrow would read what lies behind them in memory."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather

    path = tmp_path / "t.arrow"
    feather.write_feather(pa.table({"a": np.arange(12345.0)}), path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace((12345).to_bytes(8, "little"), (10**7).to_bytes(8, "little")))
    with pytest.raises(ValueError, match=r"t\.arrow: cannot be read: .*too small"):
        open_file(path)


def test_arrow_categories_beyond_the_last(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "t.arrow"
    words = pa.DictionaryArray.from_arrays(pa.array([0, 7, 1]), ["a", "b"], safe=False)
    column_files(path, pa.table({"a": [1.0, 2.0, 3.0], "label:k": words}))
    with pytest.raises(ValueError, match=r"t\.arrow: cannot be read: .*out of bounds"):
        open_file(path)


def test_what_cannot_stay_on_disk(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", x=rows()[0])
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match=r"in_memory: .*c\.npz is compressed"):
        load(str(tmp_path / "c.npz"), in_memory=False)
    with pytest.raises(ValueError, match=r"in_memory: expected a file that ends in .*t\.csv is read whole"):
        load(str(tmp_path / "t.csv"), in_memory=False)
    with pytest.raises(ValueError, match="in_memory: expected a file of rows, 'smiley'"):
        load("smiley", in_memory=False)


def test_reading_whole_keeps_to_the_limit_and_to_finite_numbers(tmp_path):
    path = write(tmp_path / "t.npy", rows()[0])
    assert read_whole(path).x.shape == (200, 4)
    with at_most(1000), pytest.raises(ValueError, match="--max-memory"):
        read_whole(path)
    holes = rows()[0]
    holes[3, 1] = np.nan
    write(path, holes)
    assert np.isnan(read_whole(path, missing=True).x).sum() == 1
    with pytest.raises(ValueError, match="expected finite numbers"):
        read_whole(path)


@pytest.mark.parametrize("words", [False, True])
def test_whole_numbers_beyond_float64_stay_exact_beside_a_gap(tmp_path, words):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers = [2**60 + 1, None, 2**60 + 3, 7]
    columns = {
        "big": numbers,
        "small": [1, None, 3, 4],
        "x": [0.5, 1.5, None, 2.5],
        "none": pa.nulls(4, pa.int64()),
    }
    parquet.write_table(pa.table(columns | ({"word": list("abab")} if words else {})), tmp_path / "t.parquet")
    found = read_words if words else open_file
    written = found(tmp_path / "t.parquet").written()
    assert list(written) == ([*columns, "word"] if words else ["big"])
    assert written["big"].tolist() == numbers
    column = PlannedColumn("big", "number", "", "", "")
    filled = column.fill(written["big"], np.array([0, 12.75, 0, 0]))
    assert filled.dtype == np.int64 and filled.tolist() == [2**60 + 1, 13, 2**60 + 3, 7]
