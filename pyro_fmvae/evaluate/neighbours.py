"""Distance to the nearest training point, as an outlier score (see `docs/concepts/outliers.md`)."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

NEAREST = "nearest"
"""Name of the score."""


class Neighbours:
    """Training points as a model sees them, and distances to the nearest of them.

    A point is the mean of q(z | x) beside what its reconstruction lacks, x - E[x | mean]. The first is in
    units of the posterior's standard deviations, latent by latent, and the second in that of all elements:
    both are means over the training points. The score is the Euclidean distance to the nearest of them. A
    point that is one of them, number for number, is compared with the others.

    Args:
        model: one with an encoder to a Gaussian q(z | x) and a decoder, in ``eval()`` mode.
        train: (x, ...) per batch of training points; at least two points.

    Raises:
        ValueError: fewer than two training points with finite numbers.
    """

    def __init__(self, model: Any, train: Iterable[tuple[Tensor, ...]]) -> None:
        self._model = model
        parts = zip(*((*self._features(batch), _hashes(batch[0])) for batch in train), strict=True)
        mean, scale, residual, hashes = (np.concatenate(arrays) for arrays in parts)
        finite = np.isfinite(mean).all(1) & np.isfinite(residual).all(1)
        if finite.sum() < 2:
            raise ValueError(f"train: expected two points with finite numbers or more, got {finite.sum()}")
        smallest = np.finfo(np.float32).tiny
        self._units = scale[finite].mean(0).clip(smallest)
        self._noise = np.sqrt(np.square(residual[finite]).mean()).clip(smallest)
        points = self._points(mean[finite], residual[finite])
        self._hashes = hashes[finite]
        from sklearn.neighbors import NearestNeighbors  # here: scikit-learn takes a while to import

        self._index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(points)

    def among_training_points(self) -> np.ndarray:
        """Distance of each training point with finite numbers to the nearest other one, float64 [n]."""
        return self._index.kneighbors()[0][:, 0].astype(np.float64)

    def distances(self, batches: Iterable[tuple[Tensor, ...]]) -> np.ndarray:
        """Distance of each point to the nearest training point, float64 [n]; inf where it is not finite.

        Of a training point: to the nearest other one, as in :meth:`among_training_points`.
        """
        return np.concatenate(list(self.distance_parts(batches)))

    def distance_parts(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterator[np.ndarray]:
        """The distances of batch after batch, float64 [B], so that not all have to be held."""
        for batch in batches:
            mean, _, residual = self._features(batch)
            points = self._points(mean, residual)
            finite, found = np.isfinite(points).all(1), np.full(len(points), np.inf)
            if finite.any():
                nearest = self._index.kneighbors(points[finite], n_neighbors=2)[0]
                itself = np.isin(_hashes(batch[0]), self._hashes)[finite]
                found[finite] = np.where(itself, nearest[:, 1], nearest[:, 0])
            yield found

    def _points(self, mean: np.ndarray, residual: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.concatenate([mean / self._units, residual / self._noise], 1)

    def _features(self, batch: tuple[Tensor, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation of q(z | x) [B, J], and x - E[x | mean] [B, elements of x].

        Networks overflow far from their training data, where validation would reject the whole batch.
        """
        model, x = self._model, batch[0]
        with torch.no_grad(), pyro.validation_enabled(False):
            q = model.posterior(x)
            density = model.observation.density(model.decoder, q.mean, x)
            residual = model.observation.explained(x) - density.mean
            mean, scale, beyond = (part.flatten(1).cpu().numpy() for part in (q.mean, q.stddev, residual))
        return mean, scale, beyond


def _hashes(x: Tensor) -> np.ndarray:
    """A number for each point's numbers, int64 [B], by which to find it again."""
    return np.array([hash(row.tobytes()) for row in x.cpu().numpy()], np.int64)
