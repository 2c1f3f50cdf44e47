"""Columns of a table as a mixture takes them: skewed ones by a power, ones of few values by their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

MOST_VALUES: Final = 10
"""Largest number of integers in a column of categories."""
REPEATED: Final = 5
"""Rows that there are at least for each of them, on average."""
SKEWED: Final = 1.0
"""Columns whose skewness is beyond this are transformed."""
LARGEST: Final = 5.0
"""Bound on the absolute value of a power."""
RESOLUTION: Final = 1e-4
"""Largest error of a number, relative to itself, that float32 may leave at the ends of a column."""
DECIMALS: Final = 3
"""Decimals of a power: further ones depend on the machine, and a run checks that its data are the same."""
_FURTHEST = 50.0  # logarithm of a standardised number
_MARGIN = 1e-6  # from the end of the range of a power, whose inverse is infinite there


@dataclass(frozen=True)
class ColumnTransform:
    """Yeo and Johnson's (2000) powers of skewed columns, and codes of columns of few integers.

    A power of 1 leaves a standardised column as it is. A power above 1 stretches large numbers and one below
    1 small ones; beyond the training rows' range the transform goes on as a logarithm on that side, so that a
    far row is not stretched without limit. A Gaussian of a column of few integers, such as years
    or grades, would shrink to one of them, so these are categories.
    """

    mean: tuple[float, ...]
    """Column means [D] before the powers; 0 where a column is left as it is."""
    std: tuple[float, ...]
    """Column standard deviations [D] before them; 1 where a column is left as it is."""
    power: tuple[float, ...]
    """The powers [D], of greatest likelihood for the training rows; nearer to 1 where float32 could not tell
    the largest numbers apart."""
    end: tuple[float, ...]
    """The training rows' end on the side that a power stretches [D], standardised; 0 where it is within."""
    values: tuple[tuple[float, ...], ...]
    """For each column, the numbers that are its categories 0, 1, …; empty where it has none."""

    @classmethod
    def fit(
        cls,
        training: np.ndarray,
        skip: Sequence[int] = (),
        every: np.ndarray | None = None,
        continuous: Collection[int] = (),
    ) -> ColumnTransform | None:
        """Fit powers to skewed columns, and find those of few integers; None if there are neither.

        Args:
            training: [n, D], NaN where missing.
            skip: columns that stay as they are.
            every: all rows of the file [N, D], whose integers are categories; None: the training rows.
            continuous: columns whose few integers are numbers all the same.
        """
        every = training if every is None else every
        size = training.shape[1]
        mean, std, power, end = np.zeros(size), np.ones(size), np.ones(size), np.zeros(size)
        values: list[tuple[float, ...]] = [()] * size
        for column in sorted(set(range(size)) - set(skip)):
            known, anywhere = (_known(rows[:, column]) for rows in (training, every))
            if column not in continuous and has_few_integers(anywhere):
                values[column] = tuple(np.unique(anywhere).tolist())
                continue
            if len(np.unique(known)) < 2:
                continue  # rounding may leave a constant column a deviation
            centre, spread = known.mean(), known.std()
            standard = (known - centre) / spread if spread > 0 else known
            if spread > 0 and abs(scipy.stats.skew(standard)) > SKEWED:
                found = np.clip(scipy.stats.yeojohnson_normmax(standard), -LARGEST, LARGEST)
                found = round(float(found), DECIMALS)
                while not _resolved(standard, found):
                    found = round(1 + 0.8 * (found - 1), DECIMALS)
                mean[column], std[column], power[column] = centre, spread, found
                end[column] = max(standard.max(), 0.0) if found > 1 else min(standard.min(), 0.0)
        if (power == 1).all() and not any(values):
            return None
        mean_, std_, power_, end_ = (tuple(each.tolist()) for each in (mean, std, power, end))
        return cls(mean_, std_, power_, end_, tuple(values))

    @property
    def coded(self) -> list[int]:
        """Columns that are categories."""
        return [column for column, numbers in enumerate(self.values) if numbers]

    def unseen(self, x: np.ndarray) -> dict[int, Counter[str]]:
        """Count the numbers of rows [n, D] that are no category of their column, by column."""
        found = {}
        for column in self.coded:
            numbers = x[:, column]
            other = numbers[~np.isnan(numbers) & ~np.isin(numbers, self.values[column])]
            if len(other):
                found[column] = Counter(f"{number:.15g}" for number in other.tolist())
        return found

    @property
    def number(self) -> int:
        """How many columns are transformed."""
        return sum(power != 1 for power in self.power)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform rows, float64 [n, D]; NaN stays NaN, and a number that is no category becomes NaN."""
        found = x.astype(np.float64)
        for column in self.coded:
            same = found[:, column, None] == np.array(self.values[column])
            found[:, column] = np.where(same.any(axis=1), same.argmax(axis=1), np.nan)
        for column, (power, end) in enumerate(zip(self.power, self.end, strict=True)):
            if power != 1:
                standard = (found[:, column] - self.mean[column]) / self.std[column]
                known = ~np.isnan(standard)
                x = standard[known]
                inside = np.minimum(x, end) if power > 1 else np.maximum(x, end)
                beyond = np.sign(x - inside) * np.log1p(np.abs(x - inside))
                powered = scipy.stats.yeojohnson(inside, power)
                found[known, column] = powered + (1 + abs(end)) ** abs(power - 1) * beyond
        return found

    def inverse(self, y: Tensor) -> Tensor:
        """Undo the transform of rows [..., D]; numbers beyond its range become the nearest within."""
        power, end = y.new_tensor(self.power), y.new_tensor(self.end)
        stretching = 1 + (power - 1).abs()  # the exponent on the side of the end
        furthest = end.sign() * ((1 + end.abs()) ** stretching - 1) / stretching
        inside = torch.where(power > 1, y.minimum(furthest), y.maximum(furthest))
        above, below = _unpowered(inside.clamp(min=0), power), -_unpowered((-inside).clamp(min=0), 2 - power)
        beyond = (y - inside) / (1 + end.abs()) ** (stretching - 1)
        beyond = beyond.sign() * beyond.abs().clamp(max=_FURTHEST).expm1()
        standard = torch.where(inside >= 0, above, below) + beyond
        x = torch.where(power == 1, y, standard * y.new_tensor(self.std) + y.new_tensor(self.mean))
        for column in self.coded:
            numbers = y.new_tensor(self.values[column])
            codes = y[..., column]
            found = numbers[codes.nan_to_num(0.0).round().long().clamp(0, len(numbers) - 1)]
            x[..., column] = torch.where(codes.isnan(), codes, found)
        return x

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        lists = {name: list(getattr(self, name)) for name in ("mean", "std", "power", "end")}
        return {**lists, "values": [list(numbers) for numbers in self.values]}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ColumnTransform:
        """Invert `to_dict`.

        Raises:
            KeyError, TypeError: `state` is not what `to_dict` writes.
        """
        values = tuple(tuple(numbers) for numbers in state["values"])
        mean, std, power, end = (tuple(state[name]) for name in ("mean", "std", "power", "end"))
        return cls(mean, std, power, end, values)


def has_few_integers(known: np.ndarray) -> bool:
    """Tell whether numbers [n] are a few whole ones, each of which is there several times on average."""
    different = np.unique(known)
    few = 2 <= len(different) <= min(MOST_VALUES, len(known) / REPEATED)
    return bool(few and (different == np.round(different)).all())


def column_in_words(index: int, names: Sequence[str]) -> str:
    """Name a column in messages: by its name, or by its number from 1."""
    return f"column '{names[index]}'" if names else f"column {index + 1}"


def _resolved(x: np.ndarray, power: float) -> bool:
    """Tell whether numbers can be read off their powers in float32: to 1e-4 of themselves at both ends."""
    y, ends = scipy.stats.yeojohnson(x, power), np.array([x.min(), x.max()])
    slope = (1 + np.abs(ends)) ** (np.sign(ends) * (power - 1))
    error = np.finfo(np.float32).eps * max(np.abs(y - y.mean()).max(), y.std())
    return bool((error <= RESOLUTION * (1 + np.abs(ends)) * slope).all())


def _known(column: np.ndarray) -> np.ndarray:
    return column[~np.isnan(column)].astype(np.float64)


def _unpowered(y: Tensor, power: Tensor) -> Tensor:
    """X >= 0 with ((x + 1)^p - 1) / p = y, or log(x + 1) = y for p = 0."""
    safe = torch.where(power == 0, 1.0, power)
    base = (1 + safe * y).clamp(min=_MARGIN)
    return torch.where(power == 0, y.clamp(max=_FURTHEST).expm1(), base ** (1 / safe) - 1)
