"""Patches of natural images: the two photographs that scikit-learn ships."""

from typing import Final

import numpy as np

from pyro_fmvae.data.dataset import Dataset
from pyro_fmvae.data.loader import Loader, SparseOptions
from pyro_fmvae.data.patch_sets import split_patches, stacked

PATCH_SIZE: Final = 12
_SEED: Final = 0


def load_scenes(options: SparseOptions) -> Dataset:
    """Cut patches from a temple and a flower, 640 x 427 pixels each, the same in every run; no labels.

    Args:
        options: how patches are cut; a `patch_size` of None is 12.

    Raises:
        ValueError: fewer training patches than whitening needs.
    """
    from sklearn.datasets import load_sample_images  # heavy, and needed only here

    photographs = stacked(np.stack(load_sample_images()["images"]), "scenes")
    return split_patches(photographs, "scenes", options.patch_size or PATCH_SIZE, options, _SEED)


LOADER: Final = Loader("scenes", lambda options: load_scenes(options.sparse), patches=True)
