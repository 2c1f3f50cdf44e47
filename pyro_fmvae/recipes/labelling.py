"""Checks of labels that factors are trained on: their values, and how many points have them."""

from collections.abc import Sequence

import torch

from pyro_fmvae.data import Dataset, hide_labels
from pyro_fmvae.data.dataset import SPLITS
from pyro_fmvae.data.own.folder import SPARSE, sparse


def check_numbered(dataset: Dataset, names: Sequence[str]) -> None:
    """Check that the values of these labels are numbered, so that a factor can have a component for each.

    Raises:
        ValueError: large values that leave out most numbers below them, such as years.
    """
    splits = [dataset.split(name) for name in SPLITS if getattr(dataset, name) is not None]
    for name in names:
        column = dataset.label_names.index(name)
        if dataset.label_sizes[column] <= SPARSE:
            continue
        values = torch.cat([split.labels[:, column] for split in splits if split.labels is not None]).unique()
        count = int((values >= 0).sum())
        if sparse(int(values[-1]), count):
            raise ValueError(
                f"labels: '{name}' has {count} values, the largest {values[-1]}; number them from 0"
            )


def check_labels(
    dataset: Dataset, names: Sequence[str], factors: Sequence[int], share: float, seed: int
) -> None:
    """Check that labels can be trained on.

    Args:
        dataset: with the labels.
        names: of the labels that are trained on.
        factors: K_i of each factor, those of the labels first.
        share: of the training points, those whose labels are used.
        seed: of the choice of these points.

    Raises:
        ValueError: no labels, a label without a factor or with more values than its factor has components,
            or one that no chosen training point has.
    """
    if not names:
        raise ValueError(f"labels: the data set '{dataset.name}' has no labels to train on")
    if len(factors) < len(names):
        raise ValueError(
            f"factors: expected at least one for each of the {len(names)} labels "
            f"({', '.join(names)}), got {len(factors)}"
        )
    for name, size, components in zip(names, dataset.label_sizes, factors, strict=False):
        if size > components:
            raise ValueError(
                f"factors: label '{name}' has values up to {size - 1}, so its factor needs {size} "
                f"components, not {components}"
            )
    points = len(dataset.train)
    kept = round(share * points)
    if not kept:
        raise ValueError(
            f"labels: expected at least one of the {points:,} training points, got a share of {share}"
        )
    known = hide_labels(dataset.train, share, seed) >= 0
    for name in names:
        if not known[:, dataset.label_names.index(name)].any():
            raise ValueError(
                f"labels: of the {kept:,} training points that keep them, none has a known '{name}'"
            )
