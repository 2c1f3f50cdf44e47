import numpy as np
import torch
import torchvision.datasets

from pyro_fmvae.data import Batches, Kind, load
from pyro_fmvae.data.sets import fashion_mnist
from pyro_fmvae.data.sets.idx import VALID_SIZE
from tests.data.idx_files import TEST, TEST_LABELS, TRAIN, TRAIN_LABELS, write, write_compressed
from tests.data.published import published


def test_splits(tmp_path):
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


def test_missing_files_are_downloaded(tmp_path, monkeypatch):
    with published(write_compressed(tmp_path / "server")) as source:
        monkeypatch.setattr(fashion_mnist, "SOURCE", source)
        assert len(load("fashion-mnist", tmp_path / "root").test) == 5
    assert (tmp_path / "root" / "FashionMNIST" / "raw").is_dir()
