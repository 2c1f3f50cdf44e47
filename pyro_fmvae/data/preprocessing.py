"""Preprocessing of raw arrays into observations, which a run can store and repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, get_type_hints

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.binarization import Binarization, check_binarization, to_binary
from pyro_fmvae.data.column_plan import PlannedColumn, continuous_columns, plan_from_json, plan_to_json
from pyro_fmvae.data.column_transform import ColumnTransform, column_in_words
from pyro_fmvae.data.count_table import CountTable
from pyro_fmvae.data.patch_transform import PatchTransform
from pyro_fmvae.data.storage import as_float, to_real, to_stored
from pyro_fmvae.files.untrusted import check_type

SINGLE: Final = 2.0**-23
"""Relative distance of neighbouring numbers in float32."""
DOUBLE: Final = 1e-15
"""The same in float64, from where it shows in decimals."""
MEAN: Final = 1e-12
"""Standardised numbers up to this are the mean of a column, such as those of a constant one."""
_SMALLEST, _LARGEST = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


class Kind(Enum):
    """Kind of one observation."""

    BINARY = "binary"
    """Pixels or features in {0, 1}."""
    IMAGE = "image"
    """Greys or colours, stored in [0, 1] and mapped to [-1, 1] for the model."""
    TABLE = "table"
    """Real columns, standardised."""
    REAL = "real"
    """Real numbers of any shape, taken as they are; NaN is a missing number."""
    PATCHES = "patches"
    """Grey patches of images, centred, scaled and optionally whitened: see `PatchTransform`."""
    COUNTS = "counts"
    """Counts of a table, taken as they are: see `CountTable`."""


@dataclass(frozen=True)
class Preprocessing:
    """The map from a raw array to the stored observations of a `Split`.

    The scale of raw pixels depends on the preprocessing alone, never on the array at hand: a row gives the
    same grey whatever the other rows are. bool is 0 and 1. Floats are taken as they are, and must lie in
    [0, 1] unless the kind is real. uint8 is divided by 255, except that a binary kind without `binarization`
    takes 0 and 1 as they are and refuses other values. With `binarization`, uint8 with maximum 1 is refused,
    since such dark greys cannot be distinguished from binary pixels.
    """

    kind: Kind
    event_shape: tuple[int, ...]
    """Shape of one observation: (H, W), (H, W, 3) or (D,). For patches, the shape that `patches` gives."""
    binarization: Binarization | None = None
    """Binarisation of greys: by one draw with a fixed seed ('dynamic'; only training splits are drawn afresh
    at each visit), by a threshold at 1/2 ('threshold'), or none (None), for pixels that are binary already.
    Only with `Kind.BINARY`."""
    mean: tuple[float, ...] | None = None
    """Column means [D] of the training split. Only with `Kind.TABLE`."""
    std: tuple[float, ...] | None = None
    """Column standard deviations [D] of the training split, 1 for constant columns. With `Kind.TABLE`."""
    missing: bool = False
    """A table may have missing numbers, NaN. They stay NaN, and do not count in `mean` and `std`."""
    patches: PatchTransform | None = None
    """Transform of the greys. Only with `Kind.PATCHES`."""
    powers: ColumnTransform | None = None
    """Powers and codes of columns, before they are standardised. Only with `Kind.TABLE`."""
    counts: CountTable | None = None
    """Which column is the batch, and what batches there are. Only with `Kind.COUNTS`."""
    levels: tuple[tuple[str, ...], ...] = ()
    """Words of each column [D], stored as 0, 1, …; empty for a column of numbers. With `Kind.TABLE`, and with
    `Kind.COUNTS` for the column of batches."""
    lower: tuple[float, ...] = field(default=(), compare=False)
    """Least number that is filled in or drawn in each column [D]: see `bounds_of`. With `Kind.TABLE`."""
    upper: tuple[float, ...] = field(default=(), compare=False)
    """Greatest such number in each column [D]."""
    column_names: tuple[str, ...] = field(default=(), compare=False)
    """Names of the columns [D] if the training file gave them, else empty. They label and check columns, but
    the map, and so equality, does not depend on them."""
    ignored: tuple[int, ...] = field(default=(), compare=False)
    """Columns, from 0, that a model leaves out, so that files may hold anything there. With `Kind.TABLE`."""
    plan: tuple[PlannedColumn, ...] = field(default=(), compare=False)
    """How the columns of a table of numbers and words are read; none of arrays. With `Kind.TABLE`, and with
    `Kind.COUNTS`."""

    @classmethod
    def standardizing(
        cls,
        training: np.ndarray,
        missing: bool = False,
        source: str = "x",
        column_names: tuple[str, ...] = (),
        levels: tuple[tuple[str, ...], ...] = (),
        unskew: bool = False,
        ignored: tuple[int, ...] = (),
        every: np.ndarray | None = None,
        plan: tuple[PlannedColumn, ...] = (),
    ) -> Preprocessing:
        """Fit the preprocessing of a table to its training rows.

        Args:
            training: [n, D].
            missing: accept NaN, here and later.
            source: name of the array in messages.
            column_names: names of the columns [D], or none.
            levels: names of categories, as above; they are not standardised.
            unskew: transform columns first: see `ColumnTransform`.
            ignored: columns, from 0, that may have only missing numbers.
            every: all rows of the file [N, D], where categories are looked up; None: the training rows.
            plan: of its columns.

        Raises:
            ValueError: a column has only missing numbers, or a mean or standard deviation that float32 cannot
                hold.
        """
        training = training.astype(np.float64)
        empty = np.isnan(training).all(axis=0)
        unread = [column for column in ignored if empty[column]]
        empty[unread], training[:, unread] = False, 0.0  # constant, so they stay as they are
        if missing and empty.any():
            column = column_in_words(int(empty.argmax()), column_names)
            raise ValueError(f"{source}: expected training numbers in each column, but {column} has none")
        low, high = np.nanmin(training, axis=0), np.nanmax(training, axis=0)
        categories = [column for column, names in enumerate(levels) if names]
        powers = None
        if unskew:
            asked = continuous_columns(plan)
            powers = ColumnTransform.fit(training, [*categories, *ignored], every, asked)
            if powers is not None:
                training, categories = powers(training), categories + powers.coded
        with np.errstate(over="ignore", invalid="ignore"):
            std = np.nanstd(training, axis=0) if missing else training.std(axis=0)
            mean = np.nanmean(training, axis=0) if missing else training.mean(axis=0)
        for place, values in enumerate(() if powers is None else powers.values):
            if values:
                low[place], high[place] = values[0], values[-1]
        fitted = cls.of_moments(mean, std, low, high, categories, source, column_names)
        return replace(fitted, missing=missing, powers=powers, levels=levels, ignored=ignored, plan=plan)

    @classmethod
    def of_moments(
        cls,
        mean: np.ndarray,
        std: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        categories: Sequence[int] = (),
        source: str = "x",
        column_names: tuple[str, ...] = (),
    ) -> Preprocessing:
        """Make the preprocessing of a table of these column means and deviations [D], changed in place.

        `low` and `high` are the range of each column: rounding may leave constant ones a deviation of 1e-17.
        `categories` are columns that stay as they are. Errors are those of :meth:`standardizing`.
        """
        std[low == high] = 1.0
        mean[list(categories)], std[list(categories)] = 0.0, 1.0
        beyond = ~((np.abs(mean) <= _LARGEST) & (std <= _LARGEST) & (std >= _SMALLEST))
        if beyond.any():
            column = column_in_words(int(beyond.argmax()), column_names)
            raise ValueError(
                f"{source}: expected columns whose mean and standard deviation float32 holds, those of "
                f"{column} are {mean[beyond][0]:.4g} and {std[beyond][0]:.4g}"
            )
        means, stds, lower, upper = (tuple(part.tolist()) for part in (mean, std, *bounds_of(low, high)))
        return cls(
            Kind.TABLE, mean.shape, None, means, stds, lower=lower, upper=upper, column_names=column_names
        )

    @property
    def binary(self) -> bool:
        """True where a Bernoulli observation is right, False where a Gaussian one is."""
        return self.kind is Kind.BINARY

    @property
    def image(self) -> bool:
        """True if an observation is an image, whole or a patch: (H, W) or (H, W, C)."""
        return self.kind is not Kind.TABLE and len(self.event_shape) >= 2

    @property
    def decoded(self) -> Preprocessing:
        """The preprocessing of what a model decodes: of counts, without the column of their batch."""
        if self.counts is None or self.counts.batch is None:
            return self
        options = self.counts.options
        return replace(
            self,
            event_shape=(self.event_shape[0] - 1,),
            counts=CountTable(replace(options, batch_column=None), self.counts.total),
            levels=(),
            column_names=tuple(name for name in self.column_names if name != options.batch_column),
            plan=tuple(column for column in self.plan if column.name != options.batch_column),
        )

    @property
    def category_sizes(self) -> tuple[int, ...]:
        """Number of categories of each column [D] of a table; 0 for a column of numbers."""
        words = [len(names) for names in self.levels] or [0] * self.event_shape[0]
        values = (
            [len(numbers) for numbers in self.powers.values] if self.powers is not None else [0] * len(words)
        )
        return tuple(map(max, words, values))

    @property
    def signed(self) -> bool:
        """True for greys and colours, which the model sees in [-1, 1], as Paquet et al. (2018) scale them."""
        return self.kind is Kind.IMAGE

    @property
    def allows_missing(self) -> bool:
        """True if a file may have NaN for a missing number."""
        return self.kind is Kind.REAL or self.missing

    def unseen(self, raw: np.ndarray) -> dict[str, Counter[str]]:
        """Count the numbers of raw data [n, ...] that are no category of their column, by the column's name.

        They count as missing.
        """
        found = {} if self.powers is None else self.powers.unseen(raw)
        return {column_in_words(column, self.column_names): counts for column, counts in found.items()}

    def undo(self, x: Tensor) -> Tensor:
        """Map the model's output [..., *event_shape] back to the scale of raw data; pixels lie in [0, 1].

        Real data and counts stay as they are; the batch of a row, if there is one, goes back to its place.
        Tables are float64, since float32 is too coarse for time stamps, say. Patches become greys [..., P, P]
        around 1/2, since their own mean is not known.
        """
        if self.patches is not None:
            return (0.5 + self.patches.invert(x)).clamp(0, 1)
        if self.kind is Kind.TABLE:
            x = x.double()
            x = x * x.new_tensor(self.std) + x.new_tensor(self.mean)
            return x if self.powers is None else self.powers.inverse(x)
        if self.counts is not None and x.shape[-1:] == self.event_shape:
            return self.counts.inverse(x)
        return (x + 1) / 2 if self.signed else x

    def __call__(self, raw: np.ndarray, source: str = "x", rows: np.ndarray | None = None) -> Tensor:
        """Convert raw data to stored observations, bool, uint8 or float32 [n, *event_shape] (see `Split.x`).

        Args:
            raw: finite numbers [n, *event_shape], or greys of patches [n, P, P]. Real data may hold NaN, and
                so may tables with `missing`.
            source: name of the array in messages.
            rows: numbers of the rows, where they are not all there are; for messages.

        Raises:
            ValueError: the shape is not that of this preprocessing, or values lie outside its range.
        """
        expected = self.event_shape if self.patches is None else (self.patches.size,) * 2
        if raw.shape[1:] != expected:
            raise ValueError(
                f"{source}: expected observations of shape {list(expected)}, got {list(raw.shape[1:])}"
            )
        if self.patches is not None:
            return self.patches.apply(as_float(to_stored(raw, source)).double()).float()
        if self.counts is not None:
            return self.counts(raw, source, self.column_names, rows)
        if self.kind is Kind.REAL:
            return to_real(raw, source)
        if self.kind is Kind.TABLE:
            if not self.missing and np.isnan(raw).any():
                raise ValueError(f"{source}: expected numbers, but some are missing (NaN)")
            return self._standardised(raw, source)
        stored = to_stored(raw, source)
        return to_binary(stored, self.binarization, source) if self.binary else stored

    def _standardised(self, raw: np.ndarray, source: str) -> Tensor:
        with np.errstate(over="ignore"):
            x = raw.astype(np.float64) if self.powers is None else self.powers(raw)
            x = (x - np.asarray(self.mean)) / np.asarray(self.std)
            x = x.astype(np.float32)
        beyond = np.isinf(x).any(axis=0)
        if beyond.any():
            column = column_in_words(int(beyond.argmax()), self.column_names)
            raise ValueError(
                f"{source}: expected numbers that float32 holds once they are standardised as in training, "
                f"{column} has others"
            )
        return torch.from_numpy(x)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object; `from_dict` makes an equal preprocessing of it, floats to the bit."""
        return {
            "kind": self.kind.value,
            "event_shape": list(self.event_shape),
            "binarization": self.binarization,
            "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std),
            "missing": self.missing,
            "patches": None if self.patches is None else self.patches.to_dict(),
            "powers": None if self.powers is None else self.powers.to_dict(),
            "counts": None if self.counts is None else self.counts.to_dict(),
            "levels": [list(names) for names in self.levels],
            "lower": list(self.lower),
            "upper": list(self.upper),
            "column_names": list(self.column_names),
            "ignored": list(self.ignored),
            "plan": plan_to_json(self.plan),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Preprocessing:
        """Invert `to_dict`.

        Raises:
            ValueError: `state` is not what `to_dict` writes.
        """
        try:
            mean, std = state["mean"], state["std"]
            patches, powers, counts = (state[name] for name in ("patches", "powers", "counts"))
            found = cls(
                kind=Kind(state["kind"]),
                event_shape=tuple(state["event_shape"]),
                binarization=check_binarization(state["binarization"]) if state["binarization"] else None,
                mean=None if mean is None else tuple(mean),
                std=None if std is None else tuple(std),
                missing=bool(state["missing"]),
                patches=None if patches is None else PatchTransform.from_dict(patches),
                powers=None if powers is None else ColumnTransform.from_dict(powers),
                counts=None if counts is None else CountTable.from_dict(counts),
                levels=tuple(tuple(names) for names in state["levels"]),
                lower=tuple(state["lower"]),
                upper=tuple(state["upper"]),
                column_names=tuple(state["column_names"]),
                ignored=tuple(state["ignored"]),
                plan=plan_from_json(state["plan"]),
            )
            for name, hint in get_type_hints(cls).items():
                check_type(name, getattr(found, name), hint)
            return found
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"preprocessing: not what to_dict() writes: {error!r}") from error


def bounds_of(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose the bounds of what is filled in or drawn: the range of a column, and half of it on either side.

    Positive columns stay positive, above half of the least number at least; negative ones stay negative.
    Constant columns have no bounds but those of float64.

    Args:
        low, high: the range of each column in training, [D].

    Returns:
        Bounds [D] each.
    """
    margin, most = (high - low) / 2, np.finfo(np.float64).max
    lower = np.where(low >= 0, np.maximum(low - margin, low / 2), low - margin)
    upper = np.where(high <= 0, np.minimum(high + margin, high / 2), high + margin)
    return np.where(margin > 0, lower, -most), np.where(margin > 0, upper, most)


def in_units(preprocessing: Preprocessing, mean: Tensor) -> np.ndarray:
    """Decoded means, on the CPU, in the units of the data, as :class:`Preprocessing` takes them.

    Means of greys and colours are clamped to [0, 1], and those of columns to the bounds of the preprocessing;
    tables are float64, without digits that float32 does not hold (:func:`rounded_units`).
    """
    if preprocessing.kind is Kind.TABLE:
        rounded = rounded_units(preprocessing, mean)
        return np.clip(rounded, preprocessing.lower, preprocessing.upper) if preprocessing.lower else rounded
    units = preprocessing.undo(mean)
    clamped: np.ndarray = (units.clamp(0, 1) if preprocessing.signed else units).numpy()
    return clamped


def rounded_units(preprocessing: Preprocessing, x: Tensor) -> np.ndarray:
    """Undo the preprocessing of a table, and round off the digits that float32 did not hold.

    The last digit kept is that of the step from a float32 number to the next, in units of the column: within
    a standard deviation of its mean the same for all numbers, and a larger one further out. A number is thus
    rounded alike whatever rows come with it, and one of a file reads as it did there. Column means are
    exact. Categories, and numbers that are not finite, stay as they are.

    Args:
        preprocessing: of a table.
        x: standardised numbers, on the CPU, [..., D].

    Returns:
        Numbers in their units, float64 [..., D].
    """
    step = SINGLE * x.double().abs().clamp(min=1) * (x.abs() > MEAN)
    values: np.ndarray = preprocessing.undo(x).numpy()
    above, below = (preprocessing.undo(x.double() + sign * step).numpy() for sign in (1, -1))
    with np.errstate(invalid="ignore"):
        digit = np.maximum(np.abs(above - below) / 2, DOUBLE * np.abs(values))
    rounds = np.isfinite(digit) & (digit > 0)
    decimals = np.floor(-np.log10(digit, where=rounds, out=np.zeros_like(digit)))
    unit = 10.0 ** np.abs(decimals)
    rounded = np.where(decimals >= 0, np.rint(values * unit) / unit, np.rint(values / unit) * unit)
    return np.where(rounds, rounded, values)
