"""Data sets by name or by path.

A new data set is a module in :mod:`pyro_fmvae.data.sets` and its line in `LOADERS`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from pyro_fmvae.data.binarization import Binarization, check_binarization
from pyro_fmvae.data.dataset import Dataset
from pyro_fmvae.data.decoded import user_cache
from pyro_fmvae.data.loader import Loader, LoadOptions, SparseOptions
from pyro_fmvae.data.own.files import READERS, open_pictures, split_file, split_folder
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.own.pictures import LONGEST
from pyro_fmvae.data.own.pictures import SMALLEST as SMALLEST_IMAGE
from pyro_fmvae.data.own.zarr_store import is_folder
from pyro_fmvae.data.patch_sets import split_patches
from pyro_fmvae.data.sets.bars import LOADERS as BARS
from pyro_fmvae.data.sets.celeba import LOADER as CELEBA
from pyro_fmvae.data.sets.mnist import LOADERS as MNIST
from pyro_fmvae.data.sets.mnist_static import LOADER as MNIST_STATIC
from pyro_fmvae.data.sets.omniglot import LOADER as OMNIGLOT
from pyro_fmvae.data.sets.scenes import LOADER as SCENE_PATCHES
from pyro_fmvae.data.sets.smileys import LOADER as SMILEY
from pyro_fmvae.data.sets.sprites import LOADER as SPRITES
from pyro_fmvae.data.splitting import Splitting

LARGEST_IMAGE: Final = 1024

LOADERS: Final[dict[str, Loader]] = {
    loader.name: loader
    for loader in (SMILEY, *MNIST, MNIST_STATIC, OMNIGLOT, SPRITES, CELEBA, *BARS, SCENE_PATCHES)
}
"""Known data sets by name, in the order that messages list them in."""
SCENES: Final = SCENE_PATCHES.name
GENERATED: Final = "bars"
"""Stands for those bars that the model could have generated."""


def load(
    data: str | InMemory,
    data_root: Path | str | None = None,
    *,
    binarization: Binarization = "dynamic",
    image_size: int | None = None,
    seed: int = 0,
    sparse: SparseOptions | None = None,
    splitting: Splitting | None = None,
    shape: tuple[int, ...] | None = None,
    in_memory: bool | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        data: a name in `LOADERS`, or the path of a file whose ending is one of `READERS`, or of a folder of
            images; or what Python holds.
        data_root: folder that known data sets lie in or are downloaded to; default ``~/.cache/pyro_fmvae``.
        binarization: binarisation of the greys of `mnist` and `omniglot` (see `load_mnist`); other data sets
            ignore it.
        image_size: side in pixels, from 8 to 1024, that the images of `celeba` or of a folder are resized to;
            other data sets ignore it. None: 64 for `celeba`, and for a folder what `choose_shape` says.
        seed: of the random split of a file or folder, at least 0; known data sets have fixed splits.
        sparse: options for a model of sparse causes: numbers as they are, with missing ones, or patches of
            images. Of the known data sets, `scenes` takes those of patches, and those of bars `as_is`.
        splitting: shares of the rows of a file or folder for validation and testing; default: a tenth each.
        shape: (H, W) or (H, W, 3) that a folder's images had in a run, in the place of `image_size`.
        in_memory: hold the observations of a file in memory, or read them from disk as they are needed. None:
            read those of .npy, Parquet and Arrow files, of zarr stores, and of uncompressed .npz files and
            .h5ad files of a gibibyte or more. Sparse matrices stay sparse.

    Raises:
        FileNotFoundError: files of a known data set are missing and could not be downloaded.
        ValueError: `data` is neither a known name nor a file or folder, or is malformed, or another argument
            is bad.
    """
    checked = check_binarization(binarization)
    if seed < 0:
        raise ValueError(f"seed: expected at least 0, got {seed}")
    if image_size is not None and not SMALLEST_IMAGE <= image_size <= LARGEST_IMAGE:
        raise ValueError(f"image_size: expected {SMALLEST_IMAGE} to {LARGEST_IMAGE} pixels, got {image_size}")
    options = SparseOptions() if sparse is None else sparse
    _check_sparse(str(data), options)
    if splitting is not None and not splitting.usual and (data in LOADERS or options.patch_size is not None):
        what = f"the splits of {data!r} are fixed" if data in LOADERS else "splits of patches are fixed"
        raise ValueError(f"valid, test, fold: {what}")
    if isinstance(data, InMemory):
        if options.patch_size is not None:
            return split_patches(open_pictures(data), data.file.stem, options.patch_size, options, seed)
        return split_file(data, seed, options, splitting)
    path = Path(data)
    folder = bool(data) and is_folder(path)
    if in_memory is False and (data in LOADERS or folder or options.patch_size is not None):
        raise ValueError(f"in_memory: expected a file of rows, {data!r} has its own way into memory")
    if data in LOADERS:
        root = user_cache() if data_root is None else Path(data_root)
        return LOADERS[data].load(LoadOptions(root, checked, image_size or LONGEST, options))
    if not data or not path.exists():
        raise ValueError(
            f"data: expected one of {', '.join(LOADERS)}, an existing file that ends in "
            f"{' or '.join(READERS)}, or a folder of images, got {data!r}"
        )
    if options.patch_size is not None:
        name = path.resolve().name if folder else path.stem
        return split_patches(open_pictures(path), name, options.patch_size, options, seed)
    if folder:
        found = split_folder(path, image_size, seed, options.as_is, splitting, shape)
        notes = filter(None, (published_namesake(data), found.note))
        return replace(found, note="; ".join(notes))
    return split_file(path, seed, options, splitting, in_memory)


def published_namesake(data: str) -> str:
    """Say of a folder with the name of a published data set that it is meant; of any other, an empty text."""
    name = Path(data).name
    if name not in (*LOADERS, GENERATED):
        return ""
    return f"{data} is your own folder, not the published data set {name}; give --data-root to mean that"


def _check_sparse(data: str, options: SparseOptions) -> None:
    """Check that a data set can be read as asked.

    Raises:
        ValueError: it cannot.
    """
    known = LOADERS.get(data)
    if options.patch_size is not None and not (known is None or known.patches):
        names = ", ".join(name for name, loader in LOADERS.items() if loader.patches)
        raise ValueError(f"patch_size: expected a file or folder of images, or {names}, got {data!r}")
    if options.on_off and options.patch_size is None and not (known is not None and known.patches):
        raise ValueError("on_off: expected a patch_size with it")
    if options.counts is not None and (known is not None or Path(data).is_dir()):
        raise ValueError(f"likelihood: expected a table of counts in a file, got {data!r}")
    if options.as_is and not (known is None or known.as_is):
        names = ", ".join(name for name, loader in LOADERS.items() if loader.as_is)
        raise ValueError(f"as_is: expected a file or folder, or {names}, got {data!r}")
