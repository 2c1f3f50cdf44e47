"""Correspondence of single latents with known sources, and sparsity of latents.

The measures are those of variational sparse coding (Tonolini et al., 2019). Sources come in blocks, one per
attribute of an image, and are zero where it is absent. A latent that has found a source is zero where the
source is, and large where the source is large. Signs and scales are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

THRESHOLD = 0.07
"""Correlations below it are set to 0; the value of Tonolini et al. (2019)."""


def correlation_matrix(sources: np.ndarray, latents: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
    """``A_fj = |corr(|source f|, |latent j|)|``, set to 0 below a threshold.

    The other measures of this module take this matrix. A constant column has correlation 0 with all others.
    Independent columns have a correlation of about 1/√n by chance.

    Args:
        sources: finite numbers [n, F], n at least 2.
        latents: finite numbers [n, J], exactly zero where a latent is off.
        threshold: in [0, 1].

    Returns:
        float64 [F, J], in [0, 1].

    Raises:
        ValueError: arrays of other shapes, or a threshold out of range.
    """
    s, z = _finite("sources", sources), _finite("latents", latents)
    if len(s) != len(z) or len(s) < 2:
        raise ValueError(
            f"sources, latents: expected the same number of rows, at least 2, got {list(s.shape)} and "
            f"{list(z.shape)}"
        )
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: expected a number in [0, 1], got {threshold}")
    correlations = np.abs(_standardised(np.abs(s)).T @ _standardised(np.abs(z))).clip(max=1.0)
    return np.where(correlations < threshold, 0.0, correlations)


def active_latents(correlations: np.ndarray) -> np.ndarray:
    """Mask of the latents that correlate with any source, bool [J].

    Args:
        correlations: result of :func:`correlation_matrix`, [F, J].
    """
    return np.any(_matrix(correlations) > 0, axis=0)


def block_concentration(correlations: np.ndarray, blocks: Sequence[int]) -> float:
    """Concentration of active latents on one block of sources each, in [1 / number of blocks, 1].

    For each latent, take its largest correlation in each block; the largest of these is divided by their
    sum. The result is the mean over active latents: 1 if each belongs to one block only, NaN if none is
    active.

    Args:
        correlations: result of :func:`correlation_matrix`, [F, J].
        blocks: number of sources in each block, in the order of the rows.

    Raises:
        ValueError: block sizes that do not add up to F.
    """
    best = _best_of_blocks(correlations, blocks)[:, active_latents(correlations)]
    if not best.size:
        return float("nan")
    return float((best.max(0) / best.sum(0)).mean())


def per_block(correlations: np.ndarray, blocks: Sequence[int]) -> np.ndarray:
    """Count the active latents whose largest correlation lies in each block, int64 [number of blocks].

    Args:
        correlations: result of :func:`correlation_matrix`, [F, J]. In a tie the first block counts.
        blocks: number of sources in each block, in the order of the rows.

    Raises:
        ValueError: block sizes that do not add up to F.
    """
    best = _best_of_blocks(correlations, blocks)[:, active_latents(correlations)]
    return np.bincount(best.argmax(0), minlength=len(blocks))


def best_correlation(correlations: np.ndarray) -> float:
    """The largest correlation of each source with a latent, averaged over sources.

    Args:
        correlations: result of :func:`correlation_matrix`, [F, J].
    """
    return float(_matrix(correlations).max(1).mean())


def contrast(correlations: np.ndarray) -> float:
    """Margin of a source's best latent over its second best, averaged over sources, in [0, 1].

    It is 1 if each source correlates perfectly with one latent and with no other.

    Args:
        correlations: result of :func:`correlation_matrix`, [F, J]. With one latent the second best is 0.
    """
    ordered = np.sort(_matrix(correlations), axis=1)[:, ::-1]
    second = ordered[:, 1] if ordered.shape[1] > 1 else 0.0
    return float((ordered[:, 0] - second).mean())


class Activity(NamedTuple):
    """Activity of latents, overall and by class. Without labels there are no classes."""

    share: np.ndarray
    """Share of points where each latent is not zero, float64 [J]."""
    classes: np.ndarray
    """Distinct known labels, ascending, int64 [C]."""
    share_by_class: np.ndarray
    """Share of each class's points where each latent is not zero, float64 [C, J]."""
    magnitude_by_class: np.ndarray
    """Mean absolute value of each latent over each class's points, zeros included, float64 [C, J]."""


def activity(latents: np.ndarray, labels: np.ndarray | None = None) -> Activity:
    """Measure how often each latent is not zero, and how strongly each class activates it.

    Args:
        latents: finite numbers [n, J], n at least 1, exactly zero where a latent is off.
        labels: integers [n]; points with -1 (unknown) belong to no class.

    Raises:
        ValueError: arrays of other shapes.
    """
    z = _finite("latents", latents)
    if not len(z):
        raise ValueError("latents: expected at least one row, got none")
    y = np.full(len(z), -1) if labels is None else np.asarray(labels)
    if y.shape != (len(z),) or y.dtype.kind not in "iu":
        raise ValueError(f"labels: expected {len(z)} integers, got {y.dtype} {list(y.shape)}")
    on, magnitude = (z != 0).astype(np.float64), np.abs(z)
    classes = np.unique(y[y >= 0]).astype(np.int64)
    of_class = y == classes[:, None]
    weights = of_class / of_class.sum(1, keepdims=True)
    return Activity(on.mean(0), classes, weights @ on, weights @ magnitude)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"{name}: expected at least one column [n, columns], got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite values, got NaN or infinity")
    return array


def _matrix(correlations: np.ndarray) -> np.ndarray:
    array = _finite("correlations", correlations)
    if not len(array) or (array < 0).any():
        raise ValueError("correlations: expected at least one row of numbers >= 0")
    return array


def _best_of_blocks(correlations: np.ndarray, blocks: Sequence[int]) -> np.ndarray:
    """Each latent's largest correlation in each block, [number of blocks, J]."""
    array = _matrix(correlations)
    if not blocks or min(blocks) < 1 or sum(blocks) != len(array):
        raise ValueError(f"blocks: expected sizes >= 1 with the sum {len(array)}, got {list(blocks)}")
    return np.stack([block.max(0) for block in np.split(array, np.cumsum(blocks)[:-1])])


def _standardised(columns: np.ndarray) -> np.ndarray:
    """Scale columns to mean 0 and sum of squares 1; constant columns become zeros."""
    centred = columns - columns.mean(0)
    centred[:, columns.min(0) == columns.max(0)] = 0.0  # rounding leaves about 1e-17 there
    norm = np.sqrt(np.square(centred).sum(0))
    return np.divide(centred, norm, out=np.zeros_like(centred), where=norm > 0)
