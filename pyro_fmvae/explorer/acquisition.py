"""Which points to label next, so that few labels tell of many points."""

from typing import Final

import numpy as np

POOL: Final = 1500
"""Points that are compared at most, drawn at random; those whose label is known are always among them."""
SHARE: Final = 0.5
"""Points that one label tells of, as a share of an equal part of the pool."""
FEWEST: Final = 5
"""Neighbours that a label tells of at least."""
NOISE: Final = 0.1
"""Variance of a label about the function that it is a value of."""


def most_telling(points: np.ndarray, known: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Choose the points whose labels, beside those that are known, tell most about all the others.

    A label is a noisy value of a function of the point, a Gaussian process with variance 1 and covariance
    exp(-d²/(h h')), where d is the distance of two points and h, h' their distances to a near neighbour. A
    point tells of another one by as much as its label lowers the other's variance; one after another, the
    point that lowers the sum of the variances most is taken (active learning of Cohn, 1996). So points are
    taken from the middle of crowded regions of which no label tells yet, and no two from one place. The more
    labels there are, the nearer the neighbour that a label tells of.

    Args:
        points: encodings [N, J], in units in which distances mean something.
        known: indices of the points whose label is known, int64 [n].
        count: how many to choose.
        seed: of the pool.

    Returns:
        Indices of the chosen points in order, fewer than ``count`` if there are not as many.
    """
    rest = np.setdiff1d(np.arange(len(points)), known)
    drawn = np.random.default_rng(seed).permutation(rest)[:POOL]
    pool = np.concatenate([known, drawn]).astype(np.int64)
    neighbours = max(FEWEST, int(SHARE * len(pool) / (len(known) + count)))
    covariance = _covariance(points[pool].astype(np.float64), neighbours)
    for place in range(len(known)):
        _condition(covariance, place)
    chosen: list[int] = []
    for _ in range(min(count, len(drawn))):
        gain = np.square(covariance).sum(1) / (covariance.diagonal() + NOISE)
        gain[: len(known)] = gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        _condition(covariance, chosen[-1])
    return pool[chosen]


def _covariance(points: np.ndarray, neighbours: int) -> np.ndarray:
    """Covariance of the function at points [n, J], each with the scale of its own surroundings: [n, n]."""
    squares = np.square(points).sum(1)
    distances = (squares[:, None] + squares - 2 * points @ points.T).clip(min=0)
    near = min(neighbours, len(points) - 1)
    scale = np.sqrt(np.partition(distances, near, axis=1)[:, near]).clip(min=np.finfo(np.float32).tiny)
    covariance: np.ndarray = np.exp(-distances / np.outer(scale, scale))
    return covariance


def _condition(covariance: np.ndarray, place: int) -> None:
    """The covariance after the label of a point is known, in place."""
    column = covariance[:, place].copy()
    covariance -= np.outer(column, column) / (column[place] + NOISE)
