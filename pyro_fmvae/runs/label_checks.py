"""Checks of labelled factors, while a run is trained and at its end."""

from dataclasses import replace

import numpy as np

from pyro_fmvae.data import Dataset, Split
from pyro_fmvae.evaluate import label_agreement, overcalled
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.runs.by_batches import in_order, map_rows
from pyro_fmvae.runs.factor_names import values_of
from pyro_fmvae.runs.trainer import Trainer

CHECKED_POINTS = 500  # of each kind, at most


def accuracies(trainer: Trainer, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Measure how well the labelled factors predict known labels, of up to 500 points of each kind.

    Nothing is drawn from the training's generators.

    Args:
        trainer: of a run with labels, its model in the mode for evaluation.
        dataset: its data.

    Returns:
        ``train``, of the labels in use, and ``valid``, of those of validation points: label → accuracy. A
        kind without known labels is left out, and so is ``valid`` where no rows are kept for validation.
    """
    run, found = trainer.run, {}
    splits = {"train": trainer.training} | ({"valid": dataset.valid} if dataset.validated else {})
    for name, split in splits.items():
        rows = known_rows(split, len(run.labelled))
        if rows is not None:
            names = run.label_names[: len(run.labelled)]
            batches = in_order(rows, trainer.device)
            with seeded(0):
                sizes = run.recipe.num_values
                agreement = label_agreement(trainer.model, batches, names, run.labelled, sizes)
            found[name] = agreement["accuracy"]
    return found


def known_rows(split: Split, columns: int) -> Split | None:
    """Up to 500 rows that have one of the leading labels, with these labels alone; None if there are none."""
    if split.labels is None or not columns:
        return None
    rows = (split.labels[:, :columns] >= 0).any(-1).nonzero().squeeze(-1)[:CHECKED_POINTS]
    return replace(split.select(rows), labels=split.labels[rows, :columns]) if len(rows) else None


def collapses(trainer: Trainer) -> list[str]:
    """Describe labelled factors that call unlabelled training points by one value too often.

    Args:
        trainer: of a run, its model in the mode for evaluation.

    Returns:
        A sentence for each of these factors, by the rule of :func:`~pyro_fmvae.evaluate.overcalled`.
    """
    run, labels = trainer.run, trainer.training.labels
    if labels is None or not run.labelled:
        return []
    rows = (labels < 0).any(-1).nonzero().squeeze(-1)[:CHECKED_POINTS]
    if not len(rows):
        return []
    unlabelled = replace(trainer.training.select(rows), labels=None)
    with seeded(0):
        codes = map_rows(trainer.model.predicted_codes, in_order(unlabelled, trainer.device))
    sentences = []
    for factor in run.labelled:
        known = labels[:, factor] >= 0
        values = codes[~known[rows], factor] % run.recipe.num_values[factor]
        found = overcalled(values, labels[known, factor])
        if found is not None:
            value = values_of(factor, np.array([found.value]), run)[0]
            sentences.append(
                f"{run.label_names[factor]}: {found.predicted:.0%} of the training points without this label "
                f"are called {value}, of the labels {found.labelled:.0%} are; either the factor has "
                f"collapsed, or {value} is commoner in the data than among the labels, as where these were "
                "chosen value by value"
            )
    return sentences
