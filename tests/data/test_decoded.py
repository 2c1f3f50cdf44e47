import os
import time

import numpy as np
import pytest

from pyro_fmvae.data.array_file import open_npy
from pyro_fmvae.data.decoded import KEPT, decoded_rows, forget_unused, mark_used

X = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def decode(path, key="a", x=X, parts=None):
    return decoded_rows(path, key, x.shape, x.dtype, lambda: parts or [x[:1], x[1:]])


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_rows_are_decoded_once_for_each_key(tmp_path):
    first = decode(tmp_path / "t")
    np.testing.assert_array_equal(open_npy(first).read(), X)
    assert decode(tmp_path / "t", parts=["never looked at"]) == first
    assert decode(tmp_path / "t", "b", X + 1) != first


def test_files_unused_for_a_month_are_deleted_when_another_is_decoded(tmp_path):
    used, unused, read = (decode(tmp_path / "t", key) for key in "abc")
    half_written = unused.with_name(".rows-0.npy.1.tmp")
    stranger = unused.with_name("notes.npy")
    for path in (half_written, stranger):
        path.touch()
    for path in (used, unused, read, half_written, stranger):
        age(path, KEPT + 60)
    os.utime(read, (time.time(), read.stat().st_mtime))
    decode(tmp_path / "t", "a")  # which marks it
    new = decode(tmp_path / "t", "d")
    assert sorted(unused.parent.iterdir()) == sorted([used, read, stranger, new])


def test_younger_files_and_other_kinds_stay(tmp_path):
    images, rows = tmp_path / "images-1.npy", tmp_path / "rows-1.npy"
    for path in (images, rows):
        path.touch()
        age(path, KEPT - 60)
    forget_unused(tmp_path, "rows")
    assert rows.exists()
    for path in (images, rows):
        age(path, KEPT + 60)
    forget_unused(tmp_path, "rows")
    assert images.exists() and not rows.exists()
    mark_used(images)
    forget_unused(tmp_path, "images")
    assert images.exists()


def test_a_disk_that_is_too_small(tmp_path):
    with pytest.raises(ValueError, match=r"t: its rows take more than an exbibyte, and .* has .* left"):
        decoded_rows(tmp_path / "t", "a", (2**40, 2**40), X.dtype, list)
    assert not list(tmp_path.rglob("*.npy"))
