"""MNIST's format and layout, which other data sets of 28×28 grey images in ten classes share."""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data.download import Source, downloaded
from pyro_fmvae.files.memory import check_fits

SHAPE: Final = (28, 28)
CLASSES: Final = 10
VALID_SIZE: Final = 10_000
"""The last images of the 60,000 training images are the validation split."""


class Part(NamedTuple):
    """Images of one split, and their classes."""

    x: np.ndarray
    """Grey levels, uint8 [n, 28, 28]."""
    labels: torch.Tensor
    """Classes 0 to 9, int64 [n, 1]."""


def read_parts(root: Path, name: str, source: Source) -> tuple[Part, Part, Part]:
    """Read training, validation and test images: of the published files 50,000, 10,000 and 10,000.

    Args:
        root: the folder that holds, or after a download will hold, ``NAME/raw`` with the original idx files,
            compressed or not. An existing ``NAME/raw`` is read as it is.
        name: of the data set, as torchvision calls it.
        source: where they are downloaded from if the folder is missing.

    Raises:
        FileNotFoundError: ``NAME/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    folder = root / name / "raw"
    if not folder.is_dir():
        with downloaded(name, source, root) as files:
            folder.parent.mkdir(exist_ok=True)
            if not folder.is_dir():  # nor has another process put it there meanwhile
                files.rename(folder)
    train, test = _read_part(folder, "train"), _read_part(folder, "t10k")
    if len(train.x) <= VALID_SIZE:
        raise ValueError(f"{folder}: expected more than {VALID_SIZE} training images, got {len(train.x)}")
    first, held_out = slice(None, -VALID_SIZE), slice(-VALID_SIZE, None)
    return (Part(train.x[first], train.labels[first]), Part(train.x[held_out], train.labels[held_out]), test)


def _read_part(folder: Path, prefix: str) -> Part:
    x = read_idx(folder / f"{prefix}-images-idx3-ubyte")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    if x.shape[1:] != SHAPE or labels.shape != x.shape[:1] or labels.max(initial=0) >= CLASSES:
        raise ValueError(
            f"{folder}: expected {prefix} images of shape [n, 28, 28] and n labels from 0 to {CLASSES - 1}, "
            f"got shapes {list(x.shape)} and {list(labels.shape)}, labels up to {labels.max(initial=0)}"
        )
    return Part(x, torch.from_numpy(labels.astype(np.int64))[:, None])


def read_idx(path: Path) -> np.ndarray:
    """Read the uint8 array of an idx file: bytes 0, 0, 8, rank; big-endian int32 sizes; then the values.

    Args:
        path: of the file, which may also lie there compressed, with ``.gz`` behind its name.

    Raises:
        FileNotFoundError: there is neither.
        ValueError: the file is damaged, or holds something else.
    """
    compressed = path.with_name(path.name + ".gz")
    if path.is_file():
        with path.open("rb") as file:
            return _read_stream(file, path)
    if not compressed.is_file():
        raise FileNotFoundError(f"{path}: neither this file nor {compressed.name} exists")
    try:
        with gzip.open(compressed) as stream:
            return _read_stream(stream, path)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{compressed}: damaged: {error}") from error


def _read_stream(file: IO[bytes] | gzip.GzipFile, path: Path) -> np.ndarray:
    """Read an idx file, and not more than its header tells of."""
    start = file.read(4)
    rank = start[3] if len(start) == 4 else 0
    sizes = file.read(4 * rank)
    shape = np.frombuffer(sizes, dtype=">i4").tolist() if len(sizes) == 4 * rank else []
    if start[:3] == b"\0\0\x08" and shape and min(shape) >= 0:
        size = math.prod(shape)
        check_fits(size, str(path))
        content = file.read(size + 1)
        if len(content) == size:
            return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()
    raise ValueError(f"{path}: not an idx file of unsigned bytes")
