"""What Python holds is read as the file that a run keeps of it."""

import re

import numpy as np
import pytest
import torch

from pyro_fmvae.data import SparseOptions, load
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
    found = load(InMemory.of(mixed()), sparse=SparseOptions(mixed=True, ignore=("2", "t")))
    assert found.preprocessing.ignored == (1, 3)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            [f"w{row % 51}" for row in range(102)],
            "has 51 different words, at most 50 can be categories; leave it out with --ignore x",
        ),
        ([f"w{row}" for row in range(12)], "has another word in every row; leave it out with --ignore x"),
        (["1", "2", "x"] * 4, "expected a number in column 'x', got 'x'"),
        ([np.inf, 1.0] * 6, "row 1 of column 'x': expected a finite number, got 'inf'"),
    ],
)
def test_bad_columns(column, message):
    words = np.array(["a", "b"] * (len(column) // 2), dtype=object)
    held = InMemory.of(Columns(x=np.array(column, dtype=object), words=words))
    with pytest.raises(ValueError, match=f"^data.*{re.escape(message)}"):
        load(held, sparse=MIXED)
    with pytest.raises(ValueError, match=r"^data, row"):
        load(held)


def test_marks_for_missing_labels_repeated_names_and_bfloat16():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "kind": pandas.array(["x", None, "y"], dtype="string")})
    assert InMemory.of(frame, ["kind", "kind"]).labels == {"kind": ["x", "", "y"]}
    assert InMemory.of(torch.ones(2, 3, dtype=torch.bfloat16)).x.dtype == np.float32
    with pytest.raises(ValueError, match=r"^labels: .* or names of columns as strings, got 3$"):
        InMemory.of(frame, 3)
