"""A data set in memory, in three splits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fmvae.data.preprocessing import Preprocessing
from pyro_fmvae.data.storage import as_float

SPLITS = ("train", "valid", "test", "unseen")


@dataclass(frozen=True, eq=False)
class Split:
    """Observations and what is known of their labels.

    Raises:
        ValueError: a dtype or shape other than those below.
    """

    x: Tensor
    """[n, *event_shape], stored compactly: bool (pixels in {0, 1}), uint8 (grey levels, 255 = 1.0) or float32
    (greys in [0, 1], standardised columns, patches, or real numbers, where NaN is a missing one).
    `observations`, `whole` and `Batches` give float32."""
    labels: Tensor | None = None
    """int64 [n, L], -1 = unknown; None where the data set has no labels."""
    resample: bool = False
    """Dynamic binarisation: `x` holds grey levels, from which `Batches` draws binary pixels at each visit."""
    signed: bool = False
    """`observations`, `whole` and `Batches` map what is stored in [0, 1] to [-1, 1]."""

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
        """All of `x` as float32 [n, *event_shape]; grey probabilities, not draws, where `resample` is set."""
        return as_float(self.x, self.signed)

    def select(self, rows: Tensor) -> Split:
        """The rows at the indices int64 [m], in that order."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, x=self.x[rows], labels=labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits and what describes them."""

    name: str
    train: Split
    valid: Split
    test: Split | None
    """None where the data set comes without one."""
    preprocessing: Preprocessing
    """How raw data became `x`: to be repeated on new data (`load_file`)."""
    label_names: tuple[str, ...] = ()
    """One name per label column."""
    label_sizes: tuple[int, ...] = ()
    """Number of values per label column: labels lie in 0, …, size - 1 (size 0 where none is known)."""
    value_names: tuple[tuple[str, ...], ...] = ()
    """What the values of each label column are called; empty where they are just numbers."""
    combined: tuple[str, ...] = ()
    """Labels whose combinations `hold_out` keeps apart; empty: all of them."""
    fingerprint: str = ""
    """Of what a random split depends on: other rows, or the same in another order or type, have another one,
    and where combinations are held out, other labels. Empty where splits are fixed, and for patches."""
    unseen: Split | None = None
    """Rows with combinations of labels that no other split has: see `hold_out`."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one observation: (H, W), (H, W, 3) or (D,)."""
        return self.preprocessing.event_shape

    def split(self, name: str) -> Split:
        """The split called 'train', 'valid', 'test' or 'unseen'.

        Raises:
            ValueError: another name, or a split that this data set lacks.
        """
        if name not in SPLITS:
            raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {name!r}")
        split: Split | None = getattr(self, name)
        if split is None:
            raise ValueError(f"split: the data set {self.name!r} has no {name} split")
        return split
