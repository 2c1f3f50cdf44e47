"""What Python holds is read as the file that a run keeps of it."""

import numpy as np
import pytest
import torch

from pyro_fmvae.data import SparseOptions, load
from pyro_fmvae.data.column_plan import entries_of
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.data.own.in_memory import InMemory

MIXED = SparseOptions(mixed=True)
N = 40


class Columns:
    """A data frame, as far as the library looks at one."""

    def __init__(self, **columns):
        self.contents, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self.contents[name]


def mixed():
    """Numbers, numbers as texts, words, truth values, and gaps in each."""
    rng = np.random.default_rng(0)
    numbers, words = rng.normal(size=N), np.array(["clay", " sand", "peat"], dtype=object)[np.arange(N) % 3]
    texts = np.array([f"{value:.3f}" for value in rng.normal(size=N)], dtype=object)
    numbers[3], words[4], words[5], texts[6] = np.nan, None, "NA", "?"
    return Columns(u=numbers, soil=words, wet=np.arange(N) % 2 == 0, t=texts)


def numeric():
    return Columns(u=np.arange(float(N)), v=np.arange(N) ** 2)


def pictures():
    return np.random.default_rng(0).integers(0, 256, (N, 5, 4), dtype=np.uint8)


@pytest.mark.parametrize(
    ("data", "options"), [(pictures, None), (numeric, None), (numeric, MIXED), (mixed, MIXED)]
)
@pytest.mark.parametrize(
    "labels", [None, np.arange(N) % 3, np.array(["a", "b", "?", ""])[np.arange(N) % 4]], ids=str
)
def test_data_are_those_of_the_file(tmp_path, data, options, labels):
    held = InMemory.of(data(), labels)
    here, there = load(held, sparse=options), load(str(held.write(tmp_path)), sparse=options)
    assert here.preprocessing == there.preprocessing and here.fingerprint == there.fingerprint
    assert (here.name, here.label_names, here.value_names) == ("data", there.label_names, there.value_names)
    for name in ("train", "valid", "test"):
        mine, theirs = here.split(name), there.split(name)
        torch.testing.assert_close(mine.observations, theirs.observations, rtol=0, atol=0, equal_nan=True)
        assert (mine.labels is None) == (theirs.labels is None) == (labels is None)
        assert labels is None or torch.equal(mine.labels, theirs.labels)


def test_columns_that_are_ignored_may_hold_anything():
    found = load(
        InMemory.of(mixed()), sparse=SparseOptions(mixed=True, table=TableOptions(ignore=("2", "t")))
    )
    assert found.preprocessing.ignored == (1, 3)


def test_the_columns_of_a_frame_are_read_by_their_dtypes(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "zip": pandas.Categorical(rng.integers(100, 120, N)),
            "day": pandas.date_range("2024-01-01", periods=N, freq="3D"),
            "wet": rng.random(N) < 0.5,
            "id": np.arange(N) + 1,
            "note": [f"n{row}" for row in range(N)],
            "lasted": pandas.to_timedelta([np.nan, *range(1, N)], unit="m") * 7.5,
        }
    )
    held = InMemory.of(frame)
    read = held.read(asked=TableOptions(kinds=held.kinds))
    kinds = ["category", "date", "boolean", "id", "id", "number"]
    np.testing.assert_allclose(read.x[:, -1], [np.nan, *np.arange(1, N) * 7.5 / 60])
    assert [column.kind for column in read.plan] == kinds
    there = read_csv(held.write(tmp_path), TableOptions(kinds=held.kinds, header=True))
    assert [column.kind for column in there.plan] == kinds
    np.testing.assert_array_equal(there.x, read.x)
    hours = entries_of("lasted", np.asarray(frame)[:, -1]).values  # of an array of objects
    np.testing.assert_array_equal(hours, read.x[:, -1])
    days = np.array(["2024-01-31", "NaT"], dtype="M8[us]")
    assert entries_of("day", days).values.tolist() == ["2024-01-31", ""]


def test_a_frame_without_rows_is_refused():
    for frame in (Columns(x=np.empty(0)), Columns(x=np.empty(0), word=np.empty(0, dtype=object))):
        with pytest.raises(ValueError, match=r"^data: expected at least one row, got 0$"):
            InMemory.of(frame).read()


def test_networks_take_numbers_alone():
    words = np.array(["a", "b"] * 6, dtype=object)
    held = InMemory.of(Columns(x=np.arange(12.0), words=words))
    with pytest.raises(ValueError, match=r"^data: expected numbers alone, got words in column"):
        load(held)


def test_lists_may_stand_in_ignored_columns_alone():
    parts = np.empty(4, dtype=object)
    parts[:] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    held = InMemory.of(Columns(x=np.arange(4.0), parts=parts))
    found = load(held, sparse=SparseOptions(mixed=True, table=TableOptions(ignore=("parts",))))
    assert found.preprocessing.ignored == (1,)
    with pytest.raises(ValueError, match=r"^data, row 1: expected a number or a word in column 'parts'"):
        load(held)


def test_words_and_complex_numbers_are_refused_in_the_words_of_python():
    for values in (np.array(["a", "b"] * 3, dtype=object), np.arange(6) + 1j):
        with pytest.raises(ValueError, match=r"words in column 'x'; model='mixture' takes them$"):
            load(InMemory.of(Columns(x=values, y=np.arange(6.0))))


def test_an_arrow_table_is_a_data_frame():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1.0, 2.0, None], "word": ["x", None, "y"], "kind": ["p", "q", "p"]})
    held = InMemory.of(table, ["kind"])
    raw = held.read()
    assert held.labels == {"kind": ["p", "q", "p"]} and raw.column_names == ("a", "word")
    np.testing.assert_array_equal(raw.x, [[1, 0], [2, np.nan], [np.nan, 1]])
    alone = InMemory.of(table.select(["a"]), table.select(["kind"])).read()
    np.testing.assert_array_equal(alone.x, [[1], [2], [np.nan]])


def test_marks_for_missing_labels_repeated_names_and_bfloat16():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "kind": pandas.array(["x", None, "y"], dtype="string")})
    assert InMemory.of(frame, ["kind", "kind"]).labels == {"kind": ["x", "", "y"]}
    twice = InMemory.of(pandas.DataFrame([[1.0, "x"], [2.0, "y"]], columns=["a", "a"]))
    assert twice.columns["a"].tolist() == [1, 2] and twice.columns["a.1"].tolist() == ["x", "y"]
    assert not twice.index  # it only counts the rows
    assert InMemory.of(torch.ones(2, 3, dtype=torch.bfloat16)).x.dtype == np.float32
    with pytest.raises(ValueError, match=r"^labels: .* or names of columns as strings, got 3$"):
        InMemory.of(frame, 3)
