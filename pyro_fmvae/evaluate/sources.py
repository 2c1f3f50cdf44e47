"""How single latents belong to known sources, and how sparse they are.

The measures are those of variational sparse coding (Tonolini et al., 2019): sources come in blocks, one per
attribute of what a picture shows, and are zero where it is absent. A latent that has found a source is zero
where that one is, and large where it is large; signs are free, and so is a latent's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

THRESHOLD = 0.07
"""Correlations below it count as none: that of variational sparse coding's authors."""


def correlation_matrix(sources: np.ndarray, latents: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
    """``A_fj = |corr(|source f|, |latent j|)|``, and 0 where that is below a threshold.

    The measures below are those of this matrix. A constant column has no correlation with anything. By
    chance alone, that of independent columns is about 1/√n.

    Args:
        sources: finite numbers [n, F], n at least 2.
        latents: finite numbers [n, J]; exact zeros where a latent is off.
        threshold: in [0, 1].

    Returns:
        float64 [F, J], in [0, 1].

    Raises:
        ValueError: arrays of other shapes, or a threshold out of range.
    """
    s, z = _finite("sources", sources), _finite("latents", latents)
    if len(s) != len(z) or len(s) < 2:
        raise ValueError(
            f"sources, latents: expected as many rows, 2 at least, got {list(s.shape)} and {list(z.shape)}"
        )
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: expected a number in [0, 1], got {threshold}")
    correlations = np.abs(_standardised(np.abs(s)).T @ _standardised(np.abs(z))).clip(max=1.0)
    return np.where(correlations < threshold, 0.0, correlations)


def active_latents(correlations: np.ndarray) -> np.ndarray:
    """Whether each latent has a correlation with any source, bool [J].

    Args:
        correlations: of :func:`correlation_matrix`, [F, J].
    """
    return np.any(_matrix(correlations) > 0, axis=0)


def block_concentration(correlations: np.ndarray, blocks: Sequence[int]) -> float:
    """How far each active latent keeps to one block of sources, in [1 / number of blocks, 1].

    The largest of a latent's correlations is taken in each block; the largest of these, as a share of their
    sum, is averaged over active latents. 1: each belongs to one block alone. NaN where none is active.

    Args:
        correlations: of :func:`correlation_matrix`, [F, J].
        blocks: number of sources in each block, in the order of the rows.

    Raises:
        ValueError: blocks that are not F sources together.
    """
    best = _best_of_blocks(correlations, blocks)[:, active_latents(correlations)]
    if not best.size:
        return float("nan")
    return float((best.max(0) / best.sum(0)).mean())


def per_block(correlations: np.ndarray, blocks: Sequence[int]) -> np.ndarray:
    """Count the active latents whose largest correlation lies in each block, int64 [number of blocks].

    Args:
        correlations: of :func:`correlation_matrix`, [F, J]. Of equal correlations the first counts.
        blocks: number of sources in each block, in the order of the rows.

    Raises:
        ValueError: blocks that are not F sources together.
    """
    best = _best_of_blocks(correlations, blocks)[:, active_latents(correlations)]
    return np.bincount(best.argmax(0), minlength=len(blocks))


def best_correlation(correlations: np.ndarray) -> float:
    """The largest correlation of each source with a latent, averaged over sources.

    Args:
        correlations: of :func:`correlation_matrix`, [F, J].
    """
    return float(_matrix(correlations).max(1).mean())


def contrast(correlations: np.ndarray) -> float:
    """By how much a source's best latent is ahead of its second best, averaged over sources, in [0, 1].

    1: each source has one latent, which knows it exactly, and no other latent knows anything of it.

    Args:
        correlations: of :func:`correlation_matrix`, [F, J]. With a single latent the second best is 0.
    """
    ordered = np.sort(_matrix(correlations), axis=1)[:, ::-1]
    second = ordered[:, 1] if ordered.shape[1] > 1 else 0.0
    return float((ordered[:, 0] - second).mean())


class Activity(NamedTuple):
    """What `activity` returns. Its second and third part are empty without labels."""

    share: np.ndarray
    """Share of points in which each latent is not zero, float64 [J]."""
    classes: np.ndarray
    """The labels that there are, ascending, int64 [C]."""
    share_by_class: np.ndarray
    """The same share among the points of each class, float64 [C, J]."""
    magnitude_by_class: np.ndarray
    """Mean of the latents' absolute values, zeros included, over the points of each class, float64 [C, J]."""


def activity(latents: np.ndarray, labels: np.ndarray | None = None) -> Activity:
    """How often each latent is not zero, and how strongly classes activate it.

    Args:
        latents: finite numbers [n, J], n at least 1; exact zeros where a latent is off.
        labels: integers [n], -1 = unknown: left out of the classes.

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
        raise ValueError(f"{name}: expected columns [n, columns], one at least, got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite values, got NaN or infinity")
    return array


def _matrix(correlations: np.ndarray) -> np.ndarray:
    array = _finite("correlations", correlations)
    if not len(array) or (array < 0).any():
        raise ValueError("correlations: expected numbers >= 0 in one row at least")
    return array


def _best_of_blocks(correlations: np.ndarray, blocks: Sequence[int]) -> np.ndarray:
    """Each latent's largest correlation in each block, [number of blocks, J]."""
    array = _matrix(correlations)
    if not blocks or min(blocks) < 1 or sum(blocks) != len(array):
        raise ValueError(f"blocks: expected sizes >= 1 of {len(array)} sources together, got {list(blocks)}")
    return np.stack([block.max(0) for block in np.split(array, np.cumsum(blocks)[:-1])])


def _standardised(columns: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and sum of squares 1; zeros in place of constant ones."""
    centred = columns - columns.mean(0)
    centred[:, columns.min(0) == columns.max(0)] = 0.0  # rounding leaves about 1e-17 there
    norm = np.sqrt(np.square(centred).sum(0))
    return np.divide(centred, norm, out=np.zeros_like(centred), where=norm > 0)
