"""Recovery: the number of true generative fields that a model has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy  # type: ignore[import-untyped]

RECOVERED: Final = 0.95
"""The cosine that a unit must exceed to count as recovered."""


@dataclass(frozen=True)
class UnitMatch:
    """A matching of the H' true units to learnt ones, in the order of the true units.

    Attributes:
        cosines: cosine of each true unit and its learnt one, float64 [H']; 0 where there is none.
        unit_of: the learnt unit matched to each true one, int64 [H']; -1 where there is none.
    """

    cosines: np.ndarray
    unit_of: np.ndarray

    @property
    def recovered(self) -> int:
        """Number of true units whose cosine is above `RECOVERED`."""
        return int((self.cosines > RECOVERED).sum())


def match_units(learnt: np.ndarray, true: np.ndarray) -> UnitMatch:
    """Match true to learnt units one to one, with the largest sum of cosine similarities.

    The cosine ignores lengths but not signs: a unit and its negative have the cosine -1. A unit of zeros has
    the cosine 0 with any other. With fewer learnt than true units, some true units stay unmatched. The
    Hungarian method finds the matching.

    Args:
        learnt: finite numbers [H, ...], H at least 1, such as a model's dictionary.
        true: finite numbers [H', ...], H' at least 1, with the same shape of a unit.

    Raises:
        ValueError: arrays of other shapes, or values that are not finite.
    """
    w, t = _units("learnt", learnt), _units("true", true)
    if w.shape[1:] != t.shape[1:]:
        raise ValueError(
            f"learnt, true: expected units of one shape, got {list(w.shape[1:])} and {list(t.shape[1:])}"
        )
    cosines = (_directions(t) @ _directions(w).T).clip(-1.0, 1.0)
    rows, columns = scipy.optimize.linear_sum_assignment(cosines, maximize=True)
    best, unit_of = np.zeros(len(t)), np.full(len(t), -1)
    best[rows], unit_of[rows] = cosines[rows, columns], columns
    return UnitMatch(best, unit_of)


def _units(name: str, values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2 or not array.size:
        raise ValueError(f"{name}: expected at least one unit [H, ...], got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite values, got NaN or infinity")
    return array


def _directions(units: np.ndarray) -> np.ndarray:
    """Units [H, D] of length 1; zeros stay zeros."""
    flat = units.reshape(len(units), -1)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.divide(flat, length, out=np.zeros_like(flat), where=length > 0)
