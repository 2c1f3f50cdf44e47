"""Labels that factors are trained on: checks of their values, and the points whose labels are used."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.data import Dataset, Split, hide_labels
from pyro_fmvae.data.dataset import SPLITS
from pyro_fmvae.data.labels import Amount, how_to_label, number_per_value
from pyro_fmvae.data.own.folder import SPARSE, sparse
from pyro_fmvae.learn.label_spreading import CLASSIFICATION, spread_labels

# Defaults of a factorial mixture VAE for a person's own data that labels are trained on.

PRECISION = 0.95
"""Share of hidden labels that have to be predicted correctly before images without one are labelled."""

MANY_NUMBERS = 1000
"""Numbers in an image, channels counted, from which on KL[z] weighs little beside the reconstruction."""


def own_labelled(
    dataset: Dataset, labels: Tensor | None, spread: float | None, closed: bool
) -> dict[str, Any]:
    """Find the defaults; the page on the model has the reason of each.

    Args:
        dataset: the person's own data.
        labels: in use, of all training points, int64 [N, L'], -1 = unknown; None without any.
        spread: of the options, None if it was not given.
        closed: whether factors without labels are closed at first, so that labels come first.

    Returns:
        Values by name of the option.
    """
    image = dataset.preprocessing.image
    spread = (PRECISION if image else 0.0) if spread is None else spread
    found: dict[str, Any] = {"refine_iterations": 0, "augment_until": 1.0, "spread": spread}
    if labels is not None and (labels >= 0).any():
        known = spread_labels(dataset.train, labels, spread) >= 0
        found["label_weight"] = CLASSIFICATION / known.double().mean().item()
    if image:
        found |= {"min_scale": 0.1, "augmentation": 0.5}
        if closed:
            found["free_from"] = 0.5
            if math.prod(dataset.event_shape) >= MANY_NUMBERS:
                found["kl_weight"] = 20.0
    return found


LISTED = 8
"""Values that a message names, at most."""


def check_numbered(dataset: Dataset, names: Sequence[str]) -> None:
    """Check that the values of these labels are numbered, so that a factor can have a component for each.

    Raises:
        ValueError: large values that leave out most numbers below them, such as years.
    """
    splits = [split for name in SPLITS if (split := getattr(dataset, name)) is not None]
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
    dataset: Dataset,
    names: Sequence[str],
    factors: Sequence[int],
    amount: Amount,
    seed: int,
    per_value: int = 1,
) -> None:
    """Check that labels can be trained on.

    Args:
        dataset: with the labels.
        names: of the labels that are trained on.
        factors: K_i of each factor, those of the labels first.
        amount: of labels that are used, as :func:`~pyro_fmvae.data.hide_labels` takes it.
        seed: of the choice of these points.
        per_value: components for each value of a label.

    Raises:
        ValueError: no labels, a label without a factor or with more values than its factor has components,
            or one that no chosen training point has.
    """
    if not names:
        raise ValueError(
            f"labels: the data set '{dataset.name}' has no labels to train on; {how_to_label(dataset)}"
        )
    if len(factors) < len(names):
        raise ValueError(
            f"factors: expected at least one for each of the {len(names)} labels "
            f"({', '.join(names)}), got {len(factors)}"
        )
    for name, size, components in zip(names, dataset.label_sizes, factors, strict=False):
        if (needed := per_value * size) > components:
            raise ValueError(
                f"factors: label '{name}' has values up to {size - 1}, so its factor needs {needed} "
                f"components, not {components}"
            )
    points = len(dataset.train)
    used = points if number_per_value(amount) else round(float(amount) * points)
    if not used:
        raise ValueError(
            f"labels: expected at least one of the {points:,} training points, got a share of {amount}"
        )
    known = hide_labels(dataset.train, amount, seed) >= 0
    for name in names:
        if not known[:, dataset.label_names.index(name)].any():
            raise ValueError(
                f"labels: none of the {used:,} training points whose labels are used has a known '{name}'"
            )


class LabelledPoints(NamedTuple):
    """Training points whose labels are used."""

    labels: Tensor
    """Labels of all training points, int64 [N, L'], -1 where they are unknown or hidden."""
    scarce: list[str]
    """A sentence for each label with values of which there are fewer points than were asked for."""

    @property
    def used(self) -> int:
        """Number of points with a label in use."""
        return int((self.labels >= 0).any(-1).sum())


def labelled_points(recipe: Recipe[Any], train: Split) -> LabelledPoints:
    """Choose the training points whose labels are used.

    Args:
        recipe: of a run that was trained on labels.
        train: its training rows.
    """
    number = number_per_value(recipe.labels)
    labels = hide_labels(train, recipe.labels, recipe.config.seed)[:, list(recipe.labelled)]
    scarce = []
    for factor in recipe.labelled if number else ():
        values, counts = labels[labels[:, factor] >= 0, factor].unique(return_counts=True)
        few = [
            f"'{recipe.value_text(factor, value)}' ({count})"
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
            if count < number
        ]
        if few:
            name = recipe.label_names[factor]
            scarce.append(f"labels: fewer than {number} training points have the {name} {shortened(few)}")
    return LabelledPoints(labels, scarce)


def shortened(texts: Sequence[str]) -> str:
    """Texts separated by commas, of many the first ones: ``'ant', 'bee' and 40 others``."""
    rest = len(texts) - LISTED
    return ", ".join(texts[:LISTED]) + (f" and {rest} other{'s'[: rest - 1]}" if rest > 0 else "")
