"""Fashion-MNIST: grey images of clothes in the format of MNIST (Xiao, Rasul and Vollgraf, 2017)."""

from pathlib import Path
from typing import Final

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.sets.idx import CLASSES, SHAPE, Part, read_parts

GARMENTS: Final = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""Names of the classes 0 to 9."""


def load_fashion_mnist(root: Path) -> Dataset:
    """Load 50,000 training, 10,000 validation and 10,000 test images [28, 28], labelled by garment.

    The images stay grey, for a Gaussian observation.

    Args:
        root: the folder that holds, or after a download will hold, ``FashionMNIST/raw`` with the original idx
            files, compressed or not. The download is torchvision's, which verifies checksums; an existing
            ``FashionMNIST/raw`` is read as it is.

    Raises:
        FileNotFoundError: ``FashionMNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    preprocessing = Preprocessing(Kind.IMAGE, SHAPE)

    def split(part: Part) -> Split:
        return Split(preprocessing(part.x), part.labels, signed=preprocessing.signed)

    train, valid, test = map(split, read_parts(root, "FashionMNIST", _download))
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


def _download(root: Path) -> None:
    from torchvision.datasets import FashionMNIST  # heavy, and needed only here

    FashionMNIST(root, download=True)


LOADER: Final = Loader("fashion-mnist", lambda options: load_fashion_mnist(options.root))
