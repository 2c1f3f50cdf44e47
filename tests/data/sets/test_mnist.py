import gzip

import numpy as np
import pytest
import torch
import torchvision.datasets

from pyro_fmvae.data import Batches, Kind, load
from pyro_fmvae.data.download import Source
from pyro_fmvae.data.sets import mnist
from pyro_fmvae.data.sets.mnist import VALID_SIZE, read_idx, read_parts
from tests.data.idx_files import TEST, TEST_LABELS, TRAIN, TRAIN_LABELS, idx, write, write_compressed
from tests.data.published import published

NEVER = Source("https://nowhere.invalid/", {"nothing": "to download"})


def test_splits(tmp_path):
    write(tmp_path)
    data = load("mnist", tmp_path)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [3, VALID_SIZE, 5]
    assert data.event_shape == (28, 28) and data.preprocessing.binary
    assert data.label_names == ("digit",) and data.label_sizes == (10,)
    assert data.train.labels[:, 0].tolist() == TRAIN_LABELS[:3].tolist()
    assert data.valid.labels[:, 0].tolist() == TRAIN_LABELS[3:].tolist()
    assert data.test.labels[:, 0].tolist() == TEST_LABELS.tolist()


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


def test_missing_files_are_downloaded_once(tmp_path, monkeypatch):
    root = tmp_path / "data"
    with published(write_compressed(tmp_path / "server")) as source:
        monkeypatch.setattr(mnist, "SOURCE", source)
        assert len(load("mnist", root).test) == 5
    assert len(load("mnist", root).test) == 5  # the server is gone
    assert [path.name for path in root.iterdir()] == ["MNIST"]


def test_a_failed_download_leaves_nothing_in_the_way_of_the_next(tmp_path, monkeypatch):
    root = tmp_path / "data"
    with published(write_compressed(tmp_path / "server")) as source:
        wrong = source.sha256 | {"t10k-labels-idx1-ubyte.gz": "0" * 64}
        monkeypatch.setattr(mnist, "SOURCE", source._replace(sha256=wrong))
        with pytest.raises(
            FileNotFoundError, match=r"data_root: MNIST could not be downloaded to .* does not match"
        ):
            load("mnist", root)
        assert list(root.iterdir()) == []
        monkeypatch.setattr(mnist, "SOURCE", source)
        assert len(load("mnist", root).test) == 5


def test_splits_of_fashion_mnist(tmp_path):
    write(tmp_path, "FashionMNIST")
    data = load("fashion-mnist", tmp_path)
    assert data.name == "fashion-mnist" and data.event_shape == (28, 28)
    assert data.preprocessing.kind is Kind.IMAGE and not data.preprocessing.binary
    for name, x, labels in (
        ("train", TRAIN[:3], TRAIN_LABELS[:3]),
        ("valid", TRAIN[3:], TRAIN_LABELS[3:]),
        ("test", TEST, TEST_LABELS),
    ):
        split = data.split(name)
        assert torch.equal(split.x, torch.from_numpy(x)) and not split.resample
        assert split.labels.tolist() == labels[:, None].tolist()
    assert len(data.valid) == VALID_SIZE


def test_the_model_sees_greys_from_minus_one_to_one(tmp_path):
    write(tmp_path, "FashionMNIST")
    data = load("fashion-mnist", tmp_path)
    ((x, _),) = Batches(data.test, 5, shuffle=False)
    np.testing.assert_allclose(x, TEST / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(data.preprocessing.undo(x), TEST / 255, atol=1e-6)


def test_every_class_has_a_name(tmp_path):
    write(tmp_path, "FashionMNIST")
    data = load("fashion-mnist", tmp_path)
    assert data.label_names == ("garment",) and data.label_sizes == (10,)
    assert data.value_names == (tuple(torchvision.datasets.FashionMNIST.classes),)


def test_mnist_of_the_same_root_is_something_else(tmp_path):
    write(tmp_path, "FashionMNIST")
    write(tmp_path, "MNIST", t10k_label=None)
    assert len(load("fashion-mnist", tmp_path).test) == 5


def test_missing_files_of_fashion_mnist_are_downloaded(tmp_path, monkeypatch):
    with published(write_compressed(tmp_path / "server")) as source:
        monkeypatch.setattr(mnist, "FASHION", source)
        assert len(load("fashion-mnist", tmp_path / "root").test) == 5
    assert (tmp_path / "root" / "FashionMNIST" / "raw").is_dir()


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
