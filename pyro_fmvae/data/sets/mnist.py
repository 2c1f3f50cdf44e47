"""MNIST, binarised dynamically or by a threshold."""

from pathlib import Path
from typing import Final

import torch

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.download import Source
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.sets.idx import CLASSES, SHAPE, read_parts

SOURCE: Final = Source(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)


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


LOADER: Final = Loader("mnist", lambda options: load_mnist(options.root, options.binarization))
