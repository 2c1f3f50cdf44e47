import gzip

import numpy as np
import pytest

from pyro_fmvae.data.download import Source
from pyro_fmvae.data.sets.idx import VALID_SIZE, read_idx, read_parts
from tests.data.idx_files import TEST, TEST_LABELS, TRAIN, TRAIN_LABELS, idx, write

NEVER = Source("https://nowhere.invalid/", {"nothing": "to download"})


def test_parts(tmp_path):
    write(tmp_path, "Other")
    train, valid, test = read_parts(tmp_path, "Other", NEVER)
    for part, x, labels in (
        (train, TRAIN[:3], TRAIN_LABELS[:3]),
        (valid, TRAIN[3:], TRAIN_LABELS[3:]),
        (test, TEST, TEST_LABELS),
    ):
        np.testing.assert_array_equal(part.x, x)
        assert part.x.dtype == np.uint8 and part.labels.tolist() == labels[:, None].tolist()
    assert len(valid.x) == VALID_SIZE


def test_compressed_files(tmp_path):
    folder = write(tmp_path)
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    assert read_parts(tmp_path, "MNIST", NEVER)[2].labels[:, 0].tolist() == TEST_LABELS.tolist()


@pytest.mark.parametrize("place", [1, 12, 20, -1])
def test_damaged_compression(tmp_path, place):
    content = bytearray(gzip.compress(idx(np.arange(100, dtype=np.uint8))))
    content[place] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.gz: damaged: "):
        read_idx(tmp_path / "a")


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 1, 3)])
def test_an_array_of_any_rank(tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a").write_bytes(idx(array))
    read = read_idx(tmp_path / "a")
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        (
            {"t10k_image": None},
            FileNotFoundError,
            r"t10k-images-idx3-ubyte: neither this file nor .*ubyte\.gz exists",
        ),
        ({"train_label": b"text"}, ValueError, "train-labels-idx1-ubyte: not an idx file of unsigned bytes"),
        ({"train_label": b""}, ValueError, "train-labels-idx1-ubyte: not an idx file of unsigned bytes"),
        ({"train_label": b"\0\0\x08\x03\0\0"}, ValueError, "train-labels.*: not an idx file"),
        ({"train_image": idx(TRAIN)[:-1]}, ValueError, "train-images.*: not an idx file"),
        ({"train_image": idx(TRAIN)[:2] + b"\x0d" + idx(TRAIN)[3:]}, ValueError, "not an idx file"),
        ({"t10k_image": idx(TEST[:, 1:])}, ValueError, r"expected t10k images .*\[5, 27, 28\] and \[5\]"),
        ({"t10k_label": idx(TEST_LABELS[1:])}, ValueError, r"expected t10k images .*\[5, 28, 28\] and \[4\]"),
        (
            {"t10k_label": idx(np.full(5, 10, np.uint8))},
            ValueError,
            "n labels from 0 to 9, .* labels up to 10$",
        ),
        (
            {"train_image": idx(TEST), "train_label": idx(TEST_LABELS)},
            ValueError,
            "expected more than 10000 training images, got 5",
        ),
    ],
)
def test_bad_files(tmp_path, replaced, error, message):
    write(tmp_path, **replaced)
    with pytest.raises(error, match=message):
        read_parts(tmp_path, "MNIST", NEVER)


def test_a_damaged_compressed_file(tmp_path):
    folder = write(tmp_path, t10k_label=None)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(TEST_LABELS))[:-6])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz: damaged"):
        read_parts(tmp_path, "MNIST", NEVER)
