"""MNIST, binarised dynamically or by a threshold."""

import gzip
import math
from pathlib import Path
from typing import Final

import numpy as np
import torch

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.preprocessing import Binarization, Kind, Preprocessing

SHAPE: Final = (28, 28)
VALID_SIZE: Final = 10_000
"""The last images of the 60,000 training images are the validation split."""


def load_mnist(root: Path, binarization: Binarization) -> Dataset:
    """50,000 training, 10,000 validation and 10,000 test images [28, 28], labelled by their digit.

    Args:
        root: the folder that holds, or after a download will hold, ``MNIST/raw`` with the original idx files,
            compressed or not. The download is torchvision's, which verifies checksums; an existing
            ``MNIST/raw`` is read as it is.
        binarization: 'dynamic': training pixels are drawn at every visit, those of the other splits once,
            with a fixed seed, each with a probability equal to its grey level. 'threshold': grey >= 1/2.

    Raises:
        FileNotFoundError: ``MNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    folder = root / "MNIST" / "raw"
    if not folder.is_dir():
        _download(root)
    x, digits = _read_pair(folder, "train")
    x_test, test_digits = _read_pair(folder, "t10k")
    if len(x) <= VALID_SIZE:
        raise ValueError(f"{folder}: expected more than {VALID_SIZE} training images, got {len(x)}")
    preprocessing = Preprocessing(Kind.BINARY, SHAPE, binarization)
    train, valid = slice(None, -VALID_SIZE), slice(-VALID_SIZE, None)
    dynamic = binarization == "dynamic"
    return Dataset(
        name="mnist",
        train=Split(
            torch.from_numpy(x[train]) if dynamic else preprocessing(x[train]),
            digits[train],
            resample=dynamic,
        ),
        valid=Split(preprocessing(x[valid]), digits[valid]),
        test=Split(preprocessing(x_test), test_digits),
        preprocessing=preprocessing,
        label_names=("digit",),
        label_sizes=(10,),
    )


def _download(root: Path) -> None:
    from torchvision.datasets import MNIST  # heavy, and needed only here

    try:
        MNIST(root, download=True)
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(f"data_root: MNIST could not be downloaded to {root}: {error}") from error


def _read_pair(folder: Path, prefix: str) -> tuple[np.ndarray, torch.Tensor]:
    """Grey levels, uint8 [n, 28, 28], and digits, int64 [n, 1]."""
    x = _read_idx(folder / f"{prefix}-images-idx3-ubyte")
    digits = _read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    if x.shape[1:] != SHAPE or digits.shape != x.shape[:1] or digits.max(initial=0) > 9:
        raise ValueError(
            f"{folder}: expected {prefix} images of shape [n, 28, 28] and n digits, "
            f"got shapes {list(x.shape)} and {list(digits.shape)}, labels up to {digits.max(initial=0)}"
        )
    return x, torch.from_numpy(digits.astype(np.int64))[:, None]


def _read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an idx file: bytes 0, 0, 8, rank; then big-endian int32 sizes; then the values."""
    compressed = path.with_name(path.name + ".gz")
    if path.is_file():
        content = path.read_bytes()
    elif compressed.is_file():
        try:
            content = gzip.decompress(compressed.read_bytes())
        except (OSError, EOFError) as error:
            raise ValueError(f"{compressed}: damaged: {error}") from error
    else:
        raise FileNotFoundError(f"{path}: no such file, nor {compressed.name}")
    rank = content[3] if len(content) > 3 else 0
    start = 4 + 4 * rank
    shape = np.frombuffer(content[4:start], dtype=">i4").tolist() if len(content) >= start else []
    if content[:3] != b"\0\0\x08" or not shape or len(content) != start + math.prod(shape):
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
