import numpy as np
import pytest

from pyro_fmvae.data import load
from pyro_fmvae.data.download import Source
from pyro_fmvae.data.sets import mnist_static
from pyro_fmvae.data.sets.mnist_static import SOURCE
from tests.data.published import published

IMAGES = np.random.default_rng(0).integers(0, 2, (4, 28, 28)).astype(np.uint8)
SIZES = {"train": 4, "valid": 2, "test": 3}


def amat(images, end="\n", last="\n"):
    return end.join(" ".join(map(str, row.flatten())) for row in images) + last


@pytest.fixture(autouse=True)
def small_and_offline(monkeypatch):
    monkeypatch.setattr(mnist_static, "SIZES", SIZES)
    monkeypatch.setattr(
        mnist_static, "SOURCE", Source("http://127.0.0.1:9/", dict.fromkeys(SOURCE.sha256, "0" * 64))
    )


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for split, n in SIZES.items():
        (folder / f"binarized_mnist_{split}.amat").write_text(texts.get(split, amat(IMAGES[:n])), newline="")


@pytest.mark.parametrize("shape", [(28, 28), (784,)])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_archive_without_a_test_split(tmp_path, shape, dtype):
    x = IMAGES.reshape(4, *shape).astype(dtype)
    np.savez(tmp_path / "mnist_static.npz", x_train=x, x_valid=x[2:])
    data = load("mnist-static", tmp_path)
    assert data.name == "mnist-static" and data.event_shape == (28, 28) and data.preprocessing.binary
    assert (data.train.observations.numpy() == IMAGES).all()
    assert (data.valid.observations.numpy() == IMAGES[2:]).all()
    assert data.train.labels is None and data.label_names == ()
    assert data.test is None
    with pytest.raises(ValueError, match="split: the data set 'mnist-static' has no test split"):
        data.split("test")


def test_archive_with_a_test_split(tmp_path):
    np.savez(tmp_path / "mnist_static.npz", x_train=IMAGES, x_valid=IMAGES, x_test=IMAGES[:1])
    assert len(load("mnist-static", tmp_path).split("test")) == 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": IMAGES}, "expected an array 'x_valid', found x_train"),
        ({"x_train": IMAGES, "x_valid": 2 * IMAGES}, "'x_valid': expected values 0 and 1 of shape"),
        ({"x_train": IMAGES[:, 1:], "x_valid": IMAGES}, r"'x_train': expected .*, got uint8 \[4, 27, 28\]"),
        ({"x_train": IMAGES, "x_valid": IMAGES[:0]}, r"'x_valid': expected .*, got uint8 \[0, 28, 28\]"),
        ({"x_train": IMAGES.astype(object), "x_valid": IMAGES}, "'x_train' is a pickled array of objects"),
    ],
)
def test_bad_archives(tmp_path, arrays, message):
    np.savez(tmp_path / "mnist_static.npz", **arrays)
    with pytest.raises(ValueError, match=rf"mnist_static\.npz: {message}"):
        load("mnist-static", tmp_path)


@pytest.mark.parametrize(
    "text", [amat(IMAGES), amat(IMAGES, last=""), amat(IMAGES, " \n", " \n"), amat(IMAGES, "\r\n", "\r\n")]
)
def test_text_files(tmp_path, text):
    write(tmp_path, train=text)
    data = load("mnist-static", tmp_path)
    assert (data.train.observations.numpy() == IMAGES).all()
    assert len(data.valid) == 2 and len(data.split("test")) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        amat(IMAGES[:3]),
        amat(IMAGES[:, 1:]),
        amat(IMAGES).replace("1", "2", 1),
        amat(IMAGES).replace("\n", " ", 1),
        "<html>" + "\n" * 3,
    ],
)
def test_bad_text_files(tmp_path, text):
    write(tmp_path, train=text)
    with pytest.raises(ValueError, match=r"_train\.amat: expected 4 lines of 784 digits, each 0 or 1"):
        load("mnist-static", tmp_path)


def test_missing_files_are_downloaded_once(tmp_path, monkeypatch):
    root = tmp_path / "root"
    write(tmp_path / "server")
    write(root)
    (root / "binarized_mnist_valid.amat").write_text(amat(1 - IMAGES[:2]))
    (root / "binarized_mnist_train.amat").unlink()
    with published(tmp_path / "server") as source:
        monkeypatch.setattr(mnist_static, "SOURCE", source)
        data = load("mnist-static", root)
    assert (data.train.observations.numpy() == IMAGES).all()
    assert (data.valid.observations.numpy() == 1 - IMAGES[:2]).all()  # which was there
    assert sorted(path.name for path in root.iterdir()) == sorted(source.sha256)


def test_a_failed_download(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="data_root: statically binarised MNIST could not be downloaded to "
    ):
        load("mnist-static", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []
