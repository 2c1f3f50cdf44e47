"""Decoded means in the units of the data, with as many digits as float32 has of a standardised number."""

from typing import Final

import numpy as np
from torch import Tensor

from pyro_fmvae.data.preprocessing import Kind, Preprocessing

SINGLE: Final = 2.0**-23
"""Relative distance of neighbouring numbers in float32."""
DOUBLE: Final = 1e-15
"""The same in float64, from where it shows in decimals."""
MEAN: Final = 1e-12
"""Standardised numbers up to this are the mean of a column, such as those of a constant one."""


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
