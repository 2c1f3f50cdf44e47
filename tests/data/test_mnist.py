import gzip
import struct

import numpy as np
import pytest
import torch
import torchvision.datasets

from pyro_fmvae.data import load
from pyro_fmvae.data.mnist import VALID_SIZE

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (VALID_SIZE + 3, 28, 28)).astype(np.uint8)
TRAIN_DIGITS = RNG.integers(0, 10, VALID_SIZE + 3).astype(np.uint8)
TEST, TEST_DIGITS = TRAIN[:5], TRAIN_DIGITS[:5]


def idx(array):
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(root, **replaced):
    """The four idx files, or as many as are not replaced by None."""
    contents = {
        "train-images-idx3-ubyte": idx(TRAIN),
        "train-labels-idx1-ubyte": idx(TRAIN_DIGITS),
        "t10k-images-idx3-ubyte": idx(TEST),
        "t10k-labels-idx1-ubyte": idx(TEST_DIGITS),
    }
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        content = replaced.get(name[: name.index("s-")].replace("-", "_"), content)
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def test_splits(tmp_path):
    write(tmp_path)
    data = load("mnist", tmp_path)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [3, VALID_SIZE, 5]
    assert data.event_shape == (28, 28) and data.preprocessing.binary
    assert data.label_names == ("digit",) and data.label_sizes == (10,)
    assert data.train.labels[:, 0].tolist() == TRAIN_DIGITS[:3].tolist()
    assert data.valid.labels[:, 0].tolist() == TRAIN_DIGITS[3:].tolist()
    assert data.test.labels[:, 0].tolist() == TEST_DIGITS.tolist()


def test_dynamic_binarisation(tmp_path):
    write(tmp_path)
    data, again = load("mnist", tmp_path), load("mnist", tmp_path, seed=1)
    assert data.train.resample and not data.valid.resample and not data.test.resample
    assert torch.equal(data.train.x, torch.from_numpy(TRAIN[:3]))
    assert data.valid.x.dtype == data.test.x.dtype == torch.bool
    assert torch.equal(data.valid.x, again.valid.x) and torch.equal(data.test.x, again.test.x)
    # Drawn with the grey levels as probabilities: pixels of one level, 5 standard errors.
    level = torch.from_numpy(TRAIN[3:] == 51)
    assert abs(data.valid.x[level].float().mean() - 0.2) < 5 * 0.4 / level.sum() ** 0.5


def test_threshold(tmp_path):
    write(tmp_path)
    data = load("mnist", tmp_path, binarization="threshold")
    assert not data.train.resample
    assert torch.equal(data.train.x, torch.from_numpy(TRAIN[:3] >= 128))
    assert torch.equal(data.valid.x, torch.from_numpy(TRAIN[3:] >= 128))


def test_compressed_files(tmp_path):
    folder = write(tmp_path)
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    assert load("mnist", tmp_path).test.labels[:, 0].tolist() == TEST_DIGITS.tolist()


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"t10k_image": None}, FileNotFoundError, r"t10k-images-idx3-ubyte: no such file, nor .*ubyte\.gz"),
        ({"train_label": b"text"}, ValueError, "train-labels-idx1-ubyte: not an idx file of unsigned bytes"),
        ({"train_label": b""}, ValueError, "train-labels-idx1-ubyte: not an idx file of unsigned bytes"),
        ({"train_label": b"\0\0\x08\x03\0\0"}, ValueError, "train-labels.*: not an idx file"),
        ({"train_image": idx(TRAIN)[:-1]}, ValueError, "train-images.*: not an idx file"),
        ({"train_image": idx(TRAIN)[:2] + b"\x0d" + idx(TRAIN)[3:]}, ValueError, "not an idx file"),
        ({"t10k_image": idx(TEST[:, 1:])}, ValueError, r"expected t10k images .*\[5, 27, 28\] and \[5\]"),
        ({"t10k_label": idx(TEST_DIGITS[1:])}, ValueError, r"expected t10k images .*\[5, 28, 28\] and \[4\]"),
        ({"t10k_label": idx(TEST_DIGITS + 10)}, ValueError, "and n digits, .* labels up to 1"),
        (
            {"train_image": idx(TEST), "train_label": idx(TEST_DIGITS)},
            ValueError,
            "expected more than 10000 training images, got 5",
        ),
    ],
)
def test_bad_files(tmp_path, replaced, error, message):
    write(tmp_path, **replaced)
    with pytest.raises(error, match=message):
        load("mnist", tmp_path)


def test_a_damaged_compressed_file(tmp_path):
    folder = write(tmp_path, t10k_label=None)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(TEST_DIGITS))[:-6])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz: damaged"):
        load("mnist", tmp_path)


def test_without_local_files_torchvision_downloads(tmp_path, monkeypatch):
    def download(root, download):
        assert download
        write(root)

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    assert len(load("mnist", tmp_path).test) == 5


def test_a_failed_download(tmp_path, monkeypatch):
    def download(root, download):
        raise RuntimeError("no mirror answers")

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    with pytest.raises(FileNotFoundError, match=r"data_root: MNIST could not be downloaded to .*no mirror"):
        load("mnist", tmp_path)
