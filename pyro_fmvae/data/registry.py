"""Data sets by name or by path."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyro_fmvae.data.dataset import Dataset
from pyro_fmvae.data.files import READERS, split_file
from pyro_fmvae.data.mnist import load_mnist
from pyro_fmvae.data.mnist_static import load_mnist_static
from pyro_fmvae.data.preprocessing import Binarization, check_binarization
from pyro_fmvae.data.smileys import load_smiley

LOADERS: Final[dict[str, Callable[[Path, Binarization], Dataset]]] = {
    "smiley": lambda root, binarization: load_smiley(),
    "mnist": load_mnist,
    "mnist-static": lambda root, binarization: load_mnist_static(root),
}
"""Known names; each loader is given the folder of downloads and the binarisation of greys."""


def load(
    data: str, data_root: Path | str | None = None, *, binarization: Binarization = "dynamic", seed: int = 0
) -> Dataset:
    """Load a data set.

    Args:
        data: a name in `LOADERS`, or the path of a .npz or .csv file.
        data_root: where known data sets lie or are downloaded to; ``~/.cache/pyro_fmvae`` unless given.
        binarization: how the greys of `mnist` become binary (see `load_mnist`); others are not concerned.
        seed: of the random split of a file, at least 0; known data sets have fixed splits.

    Raises:
        FileNotFoundError: files of a known data set are missing and could not be downloaded.
        ValueError: an unknown name that is no file either, a file that is malformed, or another bad argument.
    """
    checked = check_binarization(binarization)
    if seed < 0:
        raise ValueError(f"seed: expected at least 0, got {seed}")
    if data in LOADERS:
        root = Path.home() / ".cache" / "pyro_fmvae" if data_root is None else Path(data_root)
        return LOADERS[data](root, checked)
    if not Path(data).is_file():
        raise ValueError(
            f"data: expected one of {', '.join(LOADERS)}, or an existing file that ends in "
            f"{' or '.join(READERS)}, got {data!r}"
        )
    return split_file(Path(data), seed)
