"""Check that there is something to learn from a person's own data."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pyro_fmvae.data.dataset import SPLITS, Dataset, Split
from pyro_fmvae.data.readable_rows import pieces, read

FEWEST: Final = 10
"""Points of the smallest data set, of which one is for validation and one for testing."""


def check_learnable(dataset: Dataset, label_names: Sequence[str] = ()) -> None:
    """Check that there is something to learn.

    Args:
        dataset: the data.
        label_names: of the labels that are trained on.

    Raises:
        ValueError: fewer than ten points, pictures of one pixel, a table whose columns are all constant; or a
            label with a single value in training, or with more than one value for two points.
    """
    splits = (getattr(dataset, name) for name in SPLITS)
    points = sum(len(split) for split in splits if split is not None)
    if points < FEWEST:
        raise ValueError(f"data: expected at least {FEWEST} points, better hundreds, got {points}")
    if dataset.preprocessing.image and max(dataset.event_shape[:2]) == 1:
        raise ValueError("data: expected pictures of more than one pixel; numbers make a table, [n, D]")
    first = read(dataset.train.x, torch.arange(1))
    if not dataset.preprocessing.image and all((part == first).all() for part in pieces(dataset.train.x)):
        raise ValueError("data: all columns are constant, so there is nothing to learn")
    for name in label_names:
        _check_label(dataset, name, label_names)


def _check_label(dataset: Dataset, name: str, label_names: Sequence[str]) -> None:
    """Raise ValueError unless a label has several values, with two training points each on average.

    The message names those of ``label_names`` that have several.
    """
    known = _known(dataset.train, dataset.label_names.index(name))
    values = len(known.unique())
    if values < 2 <= len(known):
        apart = [split for split in (dataset.valid, dataset.test) if split is not None]
        found = torch.cat([_known(split, dataset.label_names.index(name)) for split in apart])
        columns = {other: dataset.label_names.index(other) for other in label_names}
        others = [other for other in columns if len(_known(dataset.train, columns[other]).unique()) > 1]
        hint = f"; --label-names {','.join(others)} leaves it out" if others else ""
        if (found != known[0]).any():
            hint = "; validation and test points have others: --valid 0 --test 0 trains on these, too"
        raise ValueError(
            f"labels: expected at least two values of '{name}' in training, "
            f"all {len(known):,} known points have the same{hint}"
        )
    if 2 * values > len(known):
        raise ValueError(
            f"labels: expected at least two training points for each value of '{name}', on average; "
            f"there are {values:,} values for {len(known):,} points"
        )


def _known(split: Split, column: int) -> Tensor:
    """The known values of a label, int64 [n]."""
    assert split.labels is not None
    return split.labels[split.labels[:, column] >= 0, column]
