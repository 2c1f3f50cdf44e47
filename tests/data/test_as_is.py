"""Numbers that are taken as they are, and missing ones."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import Batches, Kind, Preprocessing, SparseOptions, load, load_file, whole

RNG = np.random.default_rng(0)
AS_IS = SparseOptions(as_is=True)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def holed(*shape):
    """Numbers of any size, about a fifth of which are missing; one row is missing altogether."""
    x = RNG.normal(100, 50, shape)
    x[RNG.random(shape) < 0.2] = np.nan
    x[0] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (6,)])
def test_floats_stay_as_they_are_and_may_be_missing(tmp_path, shape, dtype):
    x = holed(30, *shape).astype(dtype)
    path = write(tmp_path / "a.npz", x=x, labels=np.arange(30))
    data = load(str(path), sparse=AS_IS)
    preprocessing = data.preprocessing
    assert preprocessing == Preprocessing(Kind.REAL, shape) and preprocessing.allows_missing
    assert not preprocessing.binary and not preprocessing.signed
    expected = torch.from_numpy(x.astype(np.float32))
    for name in ("train", "valid", "test"):
        split = data.split(name)
        rows = split.labels[:, 0]
        for seen in (split.x, split.observations, whole(split)[0], preprocessing.undo(split.x)):
            torch.testing.assert_close(seen, expected[rows], rtol=0, atol=0, equal_nan=True)
    for x_seen, labels in Batches(data.train, 7, seed=3):
        assert x_seen.dtype == torch.float32
        torch.testing.assert_close(x_seen, expected[labels[:, 0]], rtol=0, atol=0, equal_nan=True)
    everything, _ = load_file(path, Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))))
    torch.testing.assert_close(everything.x, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (RNG.integers(0, 256, (10, 4, 4)).astype(np.uint8), 255),
        (RNG.integers(0, 2, (10, 5)).astype(np.uint8), 255),
        (RNG.integers(0, 2, (10, 4, 4, 3)).astype(bool), 1),
        (RNG.integers(-9, 9, (10, 5)), 1),
    ],
)
def test_other_numbers(tmp_path, x, scale):
    path = write(tmp_path / "a.npz", x=x)
    data = load(str(path), sparse=AS_IS)
    assert data.preprocessing.kind is Kind.REAL and data.train.x.dtype == torch.float32
    everything, _ = load_file(path, data.preprocessing)
    torch.testing.assert_close(everything.observations, torch.from_numpy((x / scale).astype(np.float32)))


def test_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for row in range(5):
        Image.new("RGB", (8, 8), (51 * row, 0, 255)).save(folder / f"{row}.png")
    data = load(str(folder), image_size=8, sparse=AS_IS)
    assert data.preprocessing == Preprocessing(Kind.REAL, (8, 8, 3)) and not data.train.signed
    everything, _ = load_file(folder, data.preprocessing)
    expected = torch.tensor([[0.2 * row, 0, 1] for row in range(5)], dtype=torch.float32)
    torch.testing.assert_close(everything.observations[:, 3, 4], expected)
    assert sorted(torch.cat([data.train.x, data.valid.x, data.test.x])[:, 0, 0, 0].tolist()) == pytest.approx(
        expected[:, 0].tolist()
    )


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_are_refused(tmp_path, value):
    x = holed(10, 4)
    x[5, 2] = value
    path = write(tmp_path / "a.npz", x=x)
    message = r"a\.npz: 'x' must be finite, or NaN where it is missing, but holds infinity"
    with pytest.raises(ValueError, match=message):
        load(str(path), sparse=AS_IS)
    with pytest.raises(ValueError, match=message):
        load_file(path, Preprocessing(Kind.REAL, (4,)))


def test_numbers_that_only_float64_holds(tmp_path):
    path = write(tmp_path / "a.npz", x=np.full((5, 2), 1e300))
    with pytest.raises(ValueError, match=r"a\.npz: 'x': expected finite numbers that float32 holds"):
        load(str(path), sparse=AS_IS)


@pytest.mark.parametrize("shape", [(4, 4), (5,)])
def test_nothing_may_be_missing_otherwise(tmp_path, shape):
    x = RNG.random((10, *shape))
    run = load(str(write(tmp_path / "a.npz", x=x))).preprocessing
    assert not run.allows_missing
    x[3] = np.nan
    path = write(tmp_path / "b.npz", x=x)
    for read in (lambda: load(str(path)), lambda: load_file(path, run)):
        with pytest.raises(ValueError, match=r"b\.npz: 'x' must be finite, but holds NaN or infinity"):
            read()
    with pytest.raises(ValueError, match="x: expected"):
        run(x)


def table(n=100):
    """Text and numbers of two columns, of which every fourth (left empty) and fifth (nan) is missing."""
    x = RNG.normal(7, 3, (n, 2))
    x[::4, 0], x[::5, 1] = np.nan, np.nan
    lines = [f"{a},{row % 3},{b}".replace("nan,", ",") for row, (a, b) in enumerate(x.tolist())]
    return "a,label:kind,b\n" + "\n".join(lines) + "\n", x


def test_a_table_is_standardised_by_what_is_known_of_its_training_rows(tmp_path):
    text, x = table()
    path = tmp_path / "a.csv"
    path.write_text(text)
    row = int(np.isnan(x[:, 0]).argmax()) + 1
    message = rf"a\.csv, row {row}: expected a number in column 'a', got none; --model mixture takes gaps$"
    with pytest.raises(ValueError, match=message):
        load(str(path))
    data = load(str(path), sparse=AS_IS)
    preprocessing = data.preprocessing
    assert preprocessing.kind is Kind.TABLE and preprocessing.missing and preprocessing.allows_missing
    assert preprocessing.column_names == ("a", "b") and data.label_names == ("kind",)
    for column in range(2):
        known = data.train.x[:, column].double()
        known = known[~known.isnan()]
        assert 50 < len(known) < 80
        assert known.mean().item() == pytest.approx(0, abs=1e-6)
        assert known.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    everything, names = load_file(
        path, Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
    )
    assert names == ("kind",) and everything.labels[:, 0].tolist() == [row % 3 for row in range(100)]
    undone = preprocessing.undo(everything.x.double())
    torch.testing.assert_close(undone, torch.from_numpy(x), atol=1e-5, rtol=0, equal_nan=True)


def test_another_table_may_have_missing_numbers_if_that_of_the_run_might(tmp_path):
    path, new = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("a,b\n" + "".join(f"{row},{row % 7}\n" for row in range(30)))
    new.write_text("a,b\n,1\nnan,\n")
    ours, theirs = (load(str(path), sparse=sparse).preprocessing for sparse in (AS_IS, None))
    assert (ours.mean, ours.std) == (theirs.mean, theirs.std) and ours != theirs
    assert load_file(new, ours)[0].x.isnan().tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match=r"b\.csv: expected numbers, but some are missing"):
        load_file(new, theirs)


def test_a_column_of_which_nothing_is_known(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,\n2,\n" * 5)
    with pytest.raises(
        ValueError, match=r"a\.csv: expected training numbers in each column, but column 'b' has"
    ):
        load(str(path), sparse=AS_IS)


def test_a_constant_column_with_missing_numbers_is_centred():
    preprocessing = Preprocessing.standardizing(np.array([[0.1], [np.nan], [0.1], [0.1]]), missing=True)
    assert preprocessing.std == (1.0,)
    assert preprocessing.mean[0] == pytest.approx(0.1)
