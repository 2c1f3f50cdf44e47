"""Data sets of a few points, for tests that depend only on shape, kind and labels."""

import torch

from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split


def dataset(shape=(4, 4), kind=Kind.BINARY, label_sizes=(), name="mine", size=3):
    """A data set with equal splits of zeros and a single 1; all labels are 0."""
    x = torch.zeros(size, *shape, dtype=torch.bool)
    x.view(-1)[0] = True
    split = Split(x, torch.zeros(size, len(label_sizes), dtype=torch.int64) if label_sizes else None)
    names = tuple(f"label{i}" for i in range(len(label_sizes)))
    return Dataset(name, split, split, split, Preprocessing(kind, shape), names, label_sizes)
