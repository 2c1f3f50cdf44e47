"""Statically binarised MNIST: the fixed draw that most published likelihoods are reported on."""

from pathlib import Path
from typing import Final

import numpy as np

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.download import Source, downloaded
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

SOURCE: Final = Source(
    "https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/",
    {
        "binarized_mnist_train.amat": "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
        "binarized_mnist_valid.amat": "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
        "binarized_mnist_test.amat": "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
    },
)
SHAPE: Final = (28, 28)
SIZES: Final = {"train": 50_000, "valid": 10_000, "test": 10_000}


def load_mnist_static(root: Path) -> Dataset:
    """Load 50,000 training, 10,000 validation and 10,000 test images [28, 28] in {0, 1}, without labels.

    They are read from ``mnist_static.npz`` (`x_train`, `x_valid` and optionally `x_test`; without it there is
    no test split), or else from ``binarized_mnist_{train,valid,test}.amat``, which are downloaded if missing.
    What is downloaded has to have the SHA-256 by which others know it.

    Args:
        root: the folder of these files.

    Raises:
        FileNotFoundError: a download failed.
        ValueError: a file is not as described.
    """
    archive = root / "mnist_static.npz"
    if archive.is_file():
        arrays = read_arrays(archive, required=("x_train", "x_valid"), optional=("x_test",))
        images = {key.removeprefix("x_"): _check(x, f"{archive}: {key!r}") for key, x in arrays.items()}
    else:
        _fetch(root)
        images = {split: _read_amat(root / f"binarized_mnist_{split}.amat", n) for split, n in SIZES.items()}
    preprocessing = Preprocessing(Kind.BINARY, SHAPE)
    splits = {split: Split(preprocessing(x)) for split, x in images.items()}
    return Dataset("mnist-static", splits["train"], splits["valid"], splits.get("test"), preprocessing)


def _check(x: np.ndarray, source: str) -> np.ndarray:
    if x.shape[1:] not in (SHAPE, (784,)) or len(x) == 0 or not ((x == 0) | (x == 1)).all():
        raise ValueError(
            f"{source}: expected values 0 and 1 of shape [n, 28, 28] or [n, 784], "
            f"got {x.dtype} {list(x.shape)}"
        )
    return x.reshape(-1, *SHAPE).astype(np.bool_)


def _fetch(root: Path) -> None:
    """Download the text files that are missing."""
    missing = {name: digest for name, digest in SOURCE.sha256.items() if not (root / name).is_file()}
    if missing:
        with downloaded("statically binarised MNIST", SOURCE._replace(sha256=missing), root) as files:
            for name in missing:
                (files / name).replace(root / name)


def _read_amat(path: Path, n: int) -> np.ndarray:
    """Read images, bool [n, 28, 28], from a text file of n rows of 784 digits 0 or 1, separated by spaces."""
    text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    digits = text[(text != ord(" ")) & (text != ord("\r"))]
    # Each line now is 784 digits and a line feed, except that the last line feed may be missing.
    if digits.size % 785 == 784:
        digits = np.append(digits, np.uint8(ord("\n")))
    if digits.size == n * 785:
        table = digits.reshape(n, 785)
        if (table[:, 784] == ord("\n")).all() and ((table[:, :784] | 1) == ord("1")).all():
            return (table[:, :784] == ord("1")).reshape(n, *SHAPE)
    raise ValueError(f"{path}: expected {n} lines of 784 digits, each 0 or 1")


LOADER: Final = Loader("mnist-static", lambda options: load_mnist_static(options.root))
