"""MNIST's four files with made-up contents."""

import gzip
import struct

import numpy as np

from pyro_fmvae.data.sets.mnist import VALID_SIZE

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (VALID_SIZE + 3, 28, 28)).astype(np.uint8)
TRAIN_LABELS = RNG.integers(0, 10, VALID_SIZE + 3).astype(np.uint8)
TEST, TEST_LABELS = TRAIN[:5], TRAIN_LABELS[:5]


def idx(array):
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(root, name="MNIST", **replaced):
    """The four idx files, or as many as are not replaced by None."""
    contents = {
        "train-images-idx3-ubyte": idx(TRAIN),
        "train-labels-idx1-ubyte": idx(TRAIN_LABELS),
        "t10k-images-idx3-ubyte": idx(TEST),
        "t10k-labels-idx1-ubyte": idx(TEST_LABELS),
    }
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for file, content in contents.items():
        content = replaced.get(file[: file.index("s-")].replace("-", "_"), content)
        if content is not None:
            (folder / file).write_bytes(content)
    return folder


def write_compressed(folder):
    """The four files as they are published."""
    (folder / "raw").mkdir(parents=True)
    for path in write(folder).iterdir():
        (folder / "raw" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    return folder / "raw"
