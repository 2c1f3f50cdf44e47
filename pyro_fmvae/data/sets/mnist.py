"""MNIST, binarised dynamically or by a threshold, and Fashion-MNIST, which has its format and layout."""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.download import Source, downloaded
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.files.memory import check_fits

SHAPE: Final = (28, 28)
CLASSES: Final = 10
VALID_SIZE: Final = 10_000
"""The last images of the 60,000 training images are the validation split."""
SOURCE: Final = Source(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
_REVISION = "b2617bb6d3ffa2e429640350f613e3291e10b141"
FASHION: Final = Source(
    f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/{_REVISION}/data/fashion/",
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
)
GARMENTS: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
"""Names of the classes 0 to 9."""


def load_mnist(root: Path, binarization: Binarization) -> Dataset:
    """Load 50,000 training, 10,000 validation and 10,000 test images [28, 28], labelled by their digit.

    Args:
        root: the folder that holds, or after a download will hold, ``MNIST/raw`` with the original idx files,
            compressed or not. What is downloaded has to have the published SHA-256; an existing ``MNIST/raw``
            is read as it is.
        binarization: 'dynamic' draws each pixel with a probability equal to its grey level: training pixels
            at every visit, those of the other splits once, with a fixed seed. 'threshold' takes grey >= 1/2.

    Raises:
        FileNotFoundError: ``MNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    train, valid, test = read_parts(root, "MNIST", SOURCE)
    preprocessing = Preprocessing(Kind.BINARY, SHAPE, binarization)
    dynamic = binarization == "dynamic"
    return Dataset(
        name="mnist",
        train=Split(
            torch.from_numpy(train.x) if dynamic else preprocessing(train.x), train.labels, resample=dynamic
        ),
        valid=Split(preprocessing(valid.x), valid.labels),
        test=Split(preprocessing(test.x), test.labels),
        preprocessing=preprocessing,
        label_names=("digit",),
        label_sizes=(CLASSES,),
    )


def load_fashion_mnist(root: Path) -> Dataset:
    """Load 50,000 training, 10,000 validation and 10,000 test images [28, 28], labelled by garment.

    The images (Xiao, Rasul and Vollgraf, 2017) stay grey, for a Gaussian observation.

    Args:
        root: the folder that holds, or after a download will hold, ``FashionMNIST/raw`` with the original idx
            files, compressed or not. What is downloaded has to have the published SHA-256; an existing
            ``FashionMNIST/raw`` is read as it is.

    Raises:
        FileNotFoundError: ``FashionMNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    preprocessing = Preprocessing(Kind.IMAGE, SHAPE)

    def split(part: Part) -> Split:
        return Split(preprocessing(part.x), part.labels, signed=preprocessing.signed)

    train, valid, test = map(split, read_parts(root, "FashionMNIST", FASHION))
    return Dataset(
        name="fashion-mnist",
        train=train,
        valid=valid,
        test=test,
        preprocessing=preprocessing,
        label_names=("garment",),
        label_sizes=(CLASSES,),
        value_names=(GARMENTS,),
    )


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


LOADERS: Final = (
    Loader("mnist", lambda options: load_mnist(options.root, options.binarization)),
    Loader("fashion-mnist", lambda options: load_fashion_mnist(options.root)),
)
