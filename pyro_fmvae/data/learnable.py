"""Whether there is anything to learn from a person's own data."""

from typing import Final

from pyro_fmvae.data.dataset import SPLITS, Dataset

FEWEST: Final = 10
"""Points of the smallest data set, of which one is for validation and one for testing."""


def check_learnable(dataset: Dataset) -> None:
    """Check that there is something to learn.

    Raises:
        ValueError: fewer than ten points, pictures of one pixel, or a table whose columns are all constant.
    """
    splits = (getattr(dataset, name) for name in SPLITS)
    points = sum(len(split) for split in splits if split is not None)
    if points < FEWEST:
        raise ValueError(
            f"data: expected at least {FEWEST} points to learn from, better hundreds, got {points}"
        )
    if dataset.preprocessing.image and max(dataset.event_shape[:2]) == 1:
        raise ValueError("data: expected pictures of more than one pixel; numbers make a table, [n, D]")
    x = dataset.train.x
    if not dataset.preprocessing.image and (x == x[:1]).all():
        raise ValueError("data: all columns are constant, so there is nothing to learn")
