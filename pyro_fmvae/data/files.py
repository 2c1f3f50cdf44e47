"""Data sets in a person's own files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pyro_fmvae.data.csv_file import read_csv
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.npz_file import read_npz
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.raw import Raw

READERS = {".npz": read_npz, ".csv": read_csv}
"""How a file is read, by its suffix."""


def read(path: Path) -> Raw:
    """Read a file by its suffix.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an unknown suffix, or contents that the reader refuses.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected a file that ends in {' or '.join(READERS)}")
    return reader(path)


def load_file(path: str | Path, preprocessing: Preprocessing) -> Split:
    """The whole file, in row order, under the preprocessing of an existing run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed, its observations are not of the run's shape or range, or its
            columns have other names than the run's.
    """
    raw = read(Path(path))
    preprocessing.check_columns(raw.column_names, str(path))
    return _split(raw, preprocessing, source=f"{path}: 'x'")


def split_file(path: Path, seed: int) -> Dataset:
    """A new data set from a file: 80 % training, 10 % validation, 10 % test (at least one row in each).

    Args:
        path: a .npz or .csv file.
        seed: of the permutation that makes the splits, at least 0.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed or has fewer than three rows.
    """
    raw = read(path)
    n = len(raw.x)
    if n < 3:
        raise ValueError(f"{path}: expected at least 3 rows to split into train, valid and test, got {n}")
    order = np.random.default_rng(seed).permutation(n)
    held_out = max(1, n // 10)
    valid, test, train = np.split(order, [held_out, 2 * held_out])
    preprocessing = replace(_fit(raw.x, train), column_names=raw.column_names)
    everything = _split(raw, preprocessing, source=f"{path}: 'x'")
    return Dataset(
        name=path.stem,
        train=everything.select(torch.from_numpy(train)),
        valid=everything.select(torch.from_numpy(valid)),
        test=everything.select(torch.from_numpy(test)),
        preprocessing=preprocessing,
        label_names=raw.label_names,
        label_sizes=() if raw.labels is None else tuple((raw.labels.max(axis=0) + 1).tolist()),
    )


def _fit(x: np.ndarray, train: np.ndarray) -> Preprocessing:
    """The kind of a file's observations; a table's columns are standardised by its training rows alone."""
    if x.dtype == np.bool_ or (x.dtype == np.uint8 and x.max() <= 1):
        return Preprocessing(Kind.BINARY, x.shape[1:])
    if x.ndim == 2 and x.dtype != np.uint8:
        return Preprocessing.standardizing(x[train])
    return Preprocessing(Kind.IMAGE, x.shape[1:])


def _split(raw: Raw, preprocessing: Preprocessing, source: str) -> Split:
    labels = None if raw.labels is None else torch.from_numpy(raw.labels)
    return Split(preprocessing(raw.x, source), labels)
