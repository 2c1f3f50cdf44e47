import numpy as np
import pytest
import torch

from pyro_fmvae.data import Batches, Kind, load

RNG = np.random.default_rng(0)
N = 40
IMAGES = RNG.integers(0, 256, (N, 64, 64, 3), dtype=np.uint8)
FACTORS = np.stack([np.arange(N) % size for size in (6, 5, 3)], axis=1).astype(np.uint8)
NAMES = np.array(["body", "hair", "action"])
ACTIONS = np.array(["walk", "cast", "slash"])


def write(root, **changes):
    arrays = {"x": IMAGES, "factors": FACTORS, "factor_names": NAMES, "action_names": ACTIONS} | changes
    np.savez(
        root / "lpc_sprites64.npz", **{name: array for name, array in arrays.items() if array is not None}
    )


def test_every_row_is_in_one_split_with_its_labels(tmp_path):
    write(tmp_path)
    data = load("sprites", tmp_path)
    splits = [data.train, data.valid, data.test]
    assert [len(split) for split in splits] == [34, 2, 4]
    rows = []
    for split in splits:
        assert split.signed and split.labels.dtype == torch.int64
        for image, labels in zip(split.x.numpy(), split.labels.numpy(), strict=True):
            (row,) = np.flatnonzero((image == IMAGES).all(axis=(1, 2, 3)))
            assert (FACTORS[row] == labels).all()
            rows.append(row)
    assert sorted(rows) == list(range(N)) != rows


def test_what_describes_them(tmp_path):
    write(tmp_path)
    data = load("sprites", tmp_path)
    assert (
        data.name == "sprites" and data.event_shape == (64, 64, 3) and data.preprocessing.kind is Kind.IMAGE
    )
    assert data.label_names == ("body", "hair", "action") and data.label_sizes == (6, 5, 3)
    assert data.value_names == ((), (), ("walk", "cast", "slash"))
    assert data.combined == ("body", "hair")  # what a sprite wears, not what it does
    x, _ = next(iter(Batches(data.train, 34, shuffle=False)))
    torch.testing.assert_close(x.double(), data.train.x.double() / 127.5 - 1, atol=1e-6, rtol=0)


def test_the_splits_are_fixed(tmp_path):
    write(tmp_path)
    first, again = load("sprites", tmp_path), load("sprites", tmp_path, seed=1)
    assert all(torch.equal(first.split(name).x, again.split(name).x) for name in ("train", "valid", "test"))


def test_values_that_do_not_occur_count_where_they_have_names(tmp_path):
    write(tmp_path, action_names=np.array(["walk", "cast", "slash", "fall"]))
    assert load("sprites", tmp_path).label_sizes == (6, 5, 4)


def test_names_of_values_may_be_missing(tmp_path):
    write(tmp_path, action_names=None)
    assert load("sprites", tmp_path).value_names == ((), (), ())


def test_each_split_has_a_row(tmp_path):
    write(tmp_path, x=IMAGES[:3], factors=FACTORS[:3])
    data = load("sprites", tmp_path)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [1, 1, 1]


def test_without_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_root: expected lpc_sprites64\.npz in .*; it can't be"):
        load("sprites", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, "expected an array 'x'"),
        ({"x": IMAGES / 255}, r"expected 'x' uint8 \[n, 64, 64, 3\] .*, got float64"),
        ({"x": IMAGES[:, :32]}, r"got uint8 \[40, 32, 64, 3\] and uint8 \[40, 3\]"),
        ({"x": IMAGES[:2], "factors": FACTORS[:2]}, "n at least 3"),
        ({"factors": FACTORS[:-1]}, r"and uint8 \[39, 3\]"),
        ({"factors": FACTORS[:, :2]}, r"'factors' \[n, 3\] of integers >= 0, .* and uint8 \[40, 2\]"),
        ({"factors": FACTORS.astype(float)}, "and float64"),
        ({"factors": FACTORS.astype(int) - 1}, "and int64"),
        (
            {"factor_names": np.array(["body", "hair", "hair"])},
            "expected 'factor_names' to be different strings",
        ),
        ({"factor_names": np.arange(3)}, "expected 'factor_names' to be different strings"),
        ({"action_names": ACTIONS[:2]}, r"expected 'action_names' to be at least 3 strings, got <U5 \[2\]"),
        ({"action_names": np.arange(3)}, "expected 'action_names' to be at least 3 strings, got int64"),
    ],
)
def test_bad_files(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"lpc_sprites64\.npz: .*{message}"):
        load("sprites", tmp_path)
