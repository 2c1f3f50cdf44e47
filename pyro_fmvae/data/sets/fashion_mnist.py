"""Fashion-MNIST: grey images of clothes in the format of MNIST (Xiao, Rasul and Vollgraf, 2017)."""

from pathlib import Path
from typing import Final

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.download import Source
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.sets.idx import CLASSES, SHAPE, Part, read_parts

_REVISION = "b2617bb6d3ffa2e429640350f613e3291e10b141"
SOURCE: Final = Source(
    f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/{_REVISION}/data/fashion/",
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
)
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
            files, compressed or not. What is downloaded has to have the published SHA-256; an existing
            ``FashionMNIST/raw`` is read as it is.

    Raises:
        FileNotFoundError: ``FashionMNIST/raw`` lacks a file, or the download failed.
        ValueError: a file is not what its name says.
    """
    preprocessing = Preprocessing(Kind.IMAGE, SHAPE)

    def split(part: Part) -> Split:
        return Split(preprocessing(part.x), part.labels, signed=preprocessing.signed)

    train, valid, test = map(split, read_parts(root, "FashionMNIST", SOURCE))
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


LOADER: Final = Loader("fashion-mnist", lambda options: load_fashion_mnist(options.root))
