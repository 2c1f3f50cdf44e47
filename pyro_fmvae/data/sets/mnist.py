"""MNIST, binarised dynamically or by a threshold."""

from pathlib import Path
from typing import Final

import torch

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.sets.idx import CLASSES, SHAPE, read_parts


def load_mnist(root: Path, binarization: Binarization) -> Dataset:
    """Load 50,000 training, 10,000 validation and 10,000 test images [28, 28], labelled by their digit.

    Args:
        root: the folder that holds, or after a download will hold, ``MNIST/raw`` with the original idx files,
            compressed or not. The download is torchvision's, which verifies checksums; an existing
            ``MNIST/raw`` is read as it is.
        binarization: 'dynamic' draws each pixel with a probability equal to its grey level: training pixels
            at every visit, those of the other splits once, with a fixed seed. 'threshold' takes grey >= 1/2.

    Raises:
        FileNotFoundError: ``MNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    train, valid, test = read_parts(root, "MNIST", _download)
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


def _download(root: Path) -> None:
    from torchvision.datasets import MNIST  # heavy, and needed only here

    MNIST(root, download=True)


LOADER: Final = Loader("mnist", lambda options: load_mnist(options.root, options.binarization))
