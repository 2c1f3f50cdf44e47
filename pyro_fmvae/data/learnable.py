"""Check that there is something to learn from a person's own data."""

from collections.abc import Sequence
from typing import Final

from pyro_fmvae.data.dataset import SPLITS, Dataset

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
    x = dataset.train.x
    if not dataset.preprocessing.image and (x == x[:1]).all():
        raise ValueError("data: all columns are constant, so there is nothing to learn")
    for name in label_names:
        _check_label(dataset, name)


def _check_label(dataset: Dataset, name: str) -> None:
    """Raise ValueError unless a label has several values, with two training points each on average."""
    assert dataset.train.labels is not None
    known = dataset.train.labels[:, dataset.label_names.index(name)]
    known = known[known >= 0]
    values = len(known.unique())
    if values < 2 <= len(known):
        raise ValueError(
            f"labels: expected at least two values of '{name}' in training, "
            f"all {len(known):,} known points have the same"
        )
    if 2 * values > len(known):
        raise ValueError(
            f"labels: expected at least two training points for each value of '{name}', on average; "
            f"there are {values:,} values for {len(known):,} points"
        )
