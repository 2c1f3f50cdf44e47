"""Sprites: small people composed of layers of the Liberated Pixel Cup's art, with six true factors."""

from pathlib import Path
from typing import Final

import numpy as np
import torch

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

FILE: Final = "lpc_sprites64.npz"
SHAPE: Final = (64, 64, 3)
OUTFIT: Final = ("body", "bottomwear", "topwear", "hair")
_VALID, _TEST = 20, 10  # one row in so many
_SEED = 0


def load_sprites(root: Path) -> Dataset:
    """Load images [64, 64, 3] with labels for every factor, from ``lpc_sprites64.npz``.

    The file holds ``x`` uint8 [n, 64, 64, 3], ``factors`` [n, L], ``factor_names`` [L] and optionally, for a
    factor called NAME, ``NAME_names``, the names of its values. A tenth of the rows are for testing and a
    twentieth for validation, drawn with a fixed seed.

    Args:
        root: the folder of the file.

    Raises:
        FileNotFoundError: there is no such file. It is not published, so it cannot be downloaded.
        ValueError: the file is not as described.
    """
    path = root / FILE
    if not path.is_file():
        raise FileNotFoundError(f"data_root: expected {FILE} in {root}; it can't be downloaded")
    arrays = read_arrays(path, required=("x", "factors", "factor_names"))
    x, factors, names = arrays["x"], arrays["factors"], tuple(arrays["factor_names"].tolist())
    if arrays["factor_names"].dtype.kind != "U" or len(set(names)) != len(names):
        raise ValueError(f"{path}: expected 'factor_names' to be different strings, got {list(names)}")
    fits = x.dtype == np.uint8 and x.shape[1:] == SHAPE and factors.shape == (len(x), len(names))
    if not fits or factors.dtype.kind not in "ui" or factors.min(initial=0) < 0 or len(x) < 3:
        raise ValueError(
            f"{path}: expected 'x' uint8 [n, 64, 64, 3] and 'factors' [n, {len(names)}] of integers >= 0, "
            f"n at least 3, got {x.dtype} {list(x.shape)} and {factors.dtype} {list(factors.shape)}"
        )
    largest = factors.max(axis=0).tolist()
    value_names = _read_value_names(path, names, largest)
    images, labels = torch.from_numpy(x), torch.from_numpy(factors.astype(np.int64))
    everything = Split(images, labels, signed=True)
    order = torch.from_numpy(np.random.default_rng(_SEED).permutation(len(x)))
    test, valid = max(1, len(x) // _TEST), max(1, len(x) // _VALID)
    return Dataset(
        name="sprites",
        train=everything.select(order[test + valid :]),
        valid=everything.select(order[test : test + valid]),
        test=everything.select(order[:test]),
        preprocessing=Preprocessing(Kind.IMAGE, SHAPE),
        label_names=names,
        label_sizes=tuple(len(values) or top + 1 for values, top in zip(value_names, largest, strict=True)),
        value_names=value_names,
        combined=tuple(name for name in OUTFIT if name in names),
    )


def _read_value_names(path: Path, names: tuple[str, ...], largest: list[int]) -> tuple[tuple[str, ...], ...]:
    """Read the names of each factor's values, at least up to `largest`; empty where the file has none."""
    keys = [f"{name}_names" for name in names]
    arrays = read_arrays(path, required=(), optional=tuple(keys))
    for key, top in zip(keys, largest, strict=True):
        array = arrays.get(key)
        if array is not None and (array.dtype.kind != "U" or array.ndim != 1 or len(array) <= top):
            raise ValueError(
                f"{path}: expected {key!r} to be at least {top + 1} strings, "
                f"got {array.dtype} {list(array.shape)}"
            )
    return tuple(tuple(arrays[key].tolist()) if key in arrays else () for key in keys)


LOADER: Final = Loader("sprites", lambda options: load_sprites(options.root))
