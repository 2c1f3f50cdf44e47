"""Powers that take the skew out of the columns of a table. Yeo and Johnson (2000)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from scipy.stats import skew, yeojohnson, yeojohnson_normmax  # type: ignore[import-untyped]
from torch import Tensor

SKEWED: Final = 1.0
"""Columns whose skewness is beyond this are transformed."""
LARGEST: Final = 5.0
"""Bound on the absolute value of a power."""
_FURTHEST = 50.0  # logarithm of a standardised number
_MARGIN = 1e-6  # from the end of the range of a power, whose inverse is infinite there


@dataclass(frozen=True)
class PowerTransform:
    """Yeo and Johnson's power of each standardised column; a power of 1 leaves a column as it is."""

    mean: tuple[float, ...]
    """Column means [D] before the powers; 0 where a column is left as it is."""
    std: tuple[float, ...]
    """Column standard deviations [D] before them; 1 where a column is left as it is."""
    power: tuple[float, ...]
    """The powers [D], of greatest likelihood for the training rows."""

    @classmethod
    def fit(cls, training: np.ndarray, skip: Sequence[int] = ()) -> PowerTransform | None:
        """Fit powers to skewed columns; None if there are none.

        Args:
            training: [n, D], NaN where missing.
            skip: columns that stay as they are.
        """
        size = training.shape[1]
        mean, std, power = np.zeros(size), np.ones(size), np.ones(size)
        for column in sorted(set(range(size)) - set(skip)):
            known = training[:, column]
            known = known[~np.isnan(known)].astype(np.float64)
            centre, spread = known.mean(), known.std()
            standard = (known - centre) / spread if spread > 0 else known
            if spread > 0 and abs(skew(standard)) > SKEWED:
                found = np.clip(yeojohnson_normmax(standard), -LARGEST, LARGEST)
                mean[column], std[column], power[column] = centre, spread, found
        if (power == 1).all():
            return None
        return cls(tuple(mean.tolist()), tuple(std.tolist()), tuple(power.tolist()))

    @property
    def number(self) -> int:
        """How many columns are transformed."""
        return sum(power != 1 for power in self.power)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform rows, float64 [n, D]; NaN stays NaN."""
        found = x.astype(np.float64)
        for column, power in enumerate(self.power):
            if power != 1:
                standard = (found[:, column] - self.mean[column]) / self.std[column]
                known = ~np.isnan(standard)
                found[known, column] = yeojohnson(standard[known], power)
        return found

    def inverse(self, y: Tensor) -> Tensor:
        """Undo the transform of rows [..., D]; numbers beyond its range become the nearest within."""
        power = y.new_tensor(self.power)
        above, below = _unpowered(y.clamp(min=0), power), -_unpowered((-y).clamp(min=0), 2 - power)
        standard = torch.where(y >= 0, above, below)
        return torch.where(power == 1, y, standard * y.new_tensor(self.std) + y.new_tensor(self.mean))

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {"mean": list(self.mean), "std": list(self.std), "power": list(self.power)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> PowerTransform:
        """Invert `to_dict`.

        Raises:
            KeyError, TypeError: `state` is not what `to_dict` writes.
        """
        return cls(tuple(state["mean"]), tuple(state["std"]), tuple(state["power"]))


def _unpowered(y: Tensor, power: Tensor) -> Tensor:
    """X >= 0 with ((x + 1)^p - 1) / p = y, or log(x + 1) = y for p = 0."""
    safe = torch.where(power == 0, 1.0, power)
    base = (1 + safe * y).clamp(min=_MARGIN)
    return torch.where(power == 0, y.clamp(max=_FURTHEST).expm1(), base ** (1 / safe) - 1)
