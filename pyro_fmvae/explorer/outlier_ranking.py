"""Training points ranked by how little the model expects them."""

from typing import Final, NamedTuple

import numpy as np

from pyro_fmvae.evaluate import NEAREST, Neighbours, outlier_scores
from pyro_fmvae.explorer.exploration import Exploration
from pyro_fmvae.runs.by_batches import in_order

SAMPLES: Final = 4
"""Draws of z per point."""


class Ranked(NamedTuple):
    """A training point and its score."""

    row: int
    """Its place among :attr:`Exploration.points`."""
    score: float
    """The higher, the less the model expects it."""


def scores_of(explored: Exploration) -> dict[str, np.ndarray]:
    """Scores of the training points, by name, the most useful first: see ``docs/outliers.md``.

    Raises:
        ValueError: there are no training points.
    """
    recipe, model = explored.run.recipe, explored.trained.model
    batches = in_order(explored.points, explored.trained.device)
    scores = outlier_scores(model, batches, SAMPLES)
    if recipe.gaussian_codes and model.bounded:
        scores[NEAREST] = Neighbours(model, batches).among_training_points()
    return dict(reversed(scores.items()))


def rank(scores: np.ndarray, most: int) -> list[Ranked]:
    """The points of the highest scores, highest first.

    Args:
        scores: of one kind, [n].
        most: how many at most.
    """
    order = np.argsort(-scores, kind="stable")[:most]
    return [Ranked(int(row), float(scores[row])) for row in order]
