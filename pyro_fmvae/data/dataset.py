"""A data set in three splits, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.array_file import RowArray
from pyro_fmvae.data.preprocessing import Preprocessing
from pyro_fmvae.data.readable_rows import ReadableRows, select
from pyro_fmvae.data.storage import as_float

SPLITS = ("train", "valid", "test", "unseen")


@dataclass(frozen=True, eq=False)
class Split:
    """Observations and their labels, as far as they are known.

    Raises:
        ValueError: a dtype or shape other than those below.
    """

    x: Tensor | ReadableRows
    """[n, *event_shape], stored compactly: bool (pixels in {0, 1}), uint8 (grey levels, 255 = 1.0) or float32
    (greys in [0, 1], standardised columns, patches, or real numbers, where NaN is a missing one).
    `observations`, `whole` and `Batches` give float32. `ReadableRows` are read when they are needed."""
    labels: Tensor | None = None
    """int64 [n, L], -1 = unknown; None where the data set has no labels."""
    resample: bool = False
    """Dynamic binarisation: `x` holds grey levels, from which `Batches` draws binary pixels at each visit."""
    signed: bool = False
    """`observations`, `whole` and `Batches` map what is stored in [0, 1] to [-1, 1]."""
    places: Tensor | None = None
    """int64 [n], where each row stands in its file, or among the sorted files of its folder; None of rows
    that were not drawn from one."""
    raw: np.ndarray | RowArray | None = None
    """Numbers of the whole file in their own units, [N, D], NaN where one is missing. `places` are the rows
    of this split. None unless it is a table that may have gaps."""
    written: Callable[[], Mapping[str, np.ndarray]] | None = None
    """Reads all columns of the whole table as they are written, [N] by name: see `Raw`. Of a table without a
    plan, it reads those that `raw` does not hold exactly. None of arrays."""
    comma: bool = False
    """These texts have decimal commas."""
    unseen: np.ndarray | None = None
    """Where the whole table has a category that training did not have, bool [N, D]; None: nowhere."""

    def __post_init__(self) -> None:
        if self.x.dtype not in (torch.bool, torch.uint8, torch.float32):
            raise ValueError(f"x: expected dtype bool, uint8 or float32, got {self.x.dtype}")
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.dim() != 2 or len(self.labels) != len(self.x):
            raise ValueError(
                f"labels: expected int64 [{len(self.x)}, L], "
                f"got {self.labels.dtype} {list(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def observations(self) -> Tensor:
        """All of `x` as float32 [n, *event_shape], in memory; with `resample`, greys and not binary draws."""
        x = self.x if isinstance(self.x, Tensor) else self.x.read(torch.arange(len(self)))
        return as_float(x, self.signed)

    def raw_rows(self, rows: Tensor) -> np.ndarray | None:
        """The numbers of the rows at the indices int64 [m] in their own units, [m, D]; None: see `raw`."""
        if self.raw is None or self.places is None:
            return None
        places = self.places[rows].numpy()
        if isinstance(self.raw, np.ndarray):
            return self.raw[places]
        found = np.empty((len(places), *self.raw.shape[1:]), self.raw.dtype)
        for there, part in self.raw.pieces(places):
            found[there] = part
        return found

    def unseen_rows(self, rows: Tensor) -> Tensor | None:
        """`unseen` of the rows at the indices int64 [m], bool [m, D]; None: nowhere."""
        if self.unseen is None or self.places is None:
            return None
        return torch.from_numpy(self.unseen[self.places[rows].numpy()])

    def select(self, rows: Tensor) -> Split:
        """Take the rows at the indices int64 [m], in that order."""
        labels, places = (None if part is None else part[rows] for part in (self.labels, self.places))
        return replace(self, x=select(self.x, rows), labels=labels, places=places)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits and their description."""

    name: str
    train: Split
    valid: Split
    """Validation split; the training rows themselves if none are kept apart for it: see `validated`."""
    test: Split | None
    """Test split; None if the data set has none."""
    preprocessing: Preprocessing
    """The map from raw data to `x`, which `load_file` repeats on new data."""
    label_names: tuple[str, ...] = ()
    """One name per label column."""
    label_sizes: tuple[int, ...] = ()
    """Number of values per label column: labels lie in 0, …, size - 1 (size 0 where none is known)."""
    value_names: tuple[tuple[str, ...], ...] = ()
    """Names of the values of each label column; empty where the values are just numbers."""
    combined: tuple[str, ...] = ()
    """Labels whose combinations `hold_out` may hold out; empty: all labels."""
    fingerprint: str = ""
    """Digest of everything that a random split depends on. It changes with the rows, their order and their
    type, and, where combinations are held out, with the labels. Empty for fixed splits and for patches."""
    note: str = ""
    """Sentence on what was done to the files to make them one array; empty: nothing."""
    validated: bool = True
    """True if rows are kept apart for validation."""
    unseen: Split | None = None
    """Rows whose combinations of labels occur in no other split: see `hold_out`."""

    @classmethod
    def of_splits(cls, train: Split, valid: Split, test: Split, **description: Any) -> Dataset:
        """Make a data set of three splits, of which the last two may have no rows.

        Args:
            train, valid, test: the splits.
            **description: other attributes.
        """
        return cls(
            train=train,
            valid=valid if len(valid) else train,
            test=test if len(test) else None,
            validated=len(valid) > 0,
            **description,
        )

    @property
    def tested(self) -> str:
        """Name of the split to measure a model on: the first that there is of test, valid and train."""
        if self.test is not None:
            return "test"
        return "valid" if self.validated else "train"

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one observation: (H, W), (H, W, 3) or (D,)."""
        return self.preprocessing.event_shape

    def split(self, name: str) -> Split:
        """Return the split called 'train', 'valid', 'test' or 'unseen'.

        Raises:
            ValueError: another name, or a split that this data set lacks.
        """
        if name not in SPLITS:
            raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {name!r}")
        split: Split | None = getattr(self, name)
        if split is None or (name == "valid" and not self.validated):
            raise ValueError(f"split: the data set {self.name!r} has no {name} split")
        return split
