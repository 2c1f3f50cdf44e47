"""Ranges of options: each check raises ValueError, naming the option, for a value outside of it."""

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

LARGEST: Final = 2**31 - 1
"""Largest number of anything that can be counted."""

Check: TypeAlias = Callable[[str, Any], None]
"""Given the name and the value of an option, raises ValueError if the value is out of range."""


def count(least: int, most: int = LARGEST) -> Check:
    """An integer in ``least``..``most``."""

    def check(name: str, value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"{name}: expected a number in {least}..{most}, got {value}")

    return check


def positive(name: str, value: float) -> None:
    """A finite number > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number > 0, got {value}")


def nonnegative(name: str, value: float) -> None:
    """A finite number >= 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a number >= 0, got {value}")


def at_least_one(name: str, value: float) -> None:
    """A finite number >= 1."""
    if not 1 <= value < math.inf:
        raise ValueError(f"{name}: expected a number >= 1, got {value}")


def exponent(name: str, value: float) -> None:
    """A number in (1/2, 1], the exponents for which step sizes of Robbins and Monro converge."""
    if not 0.5 < value <= 1:
        raise ValueError(f"{name}: expected a number in (1/2, 1], got {value}")


def share(name: str, value: float) -> None:
    """A number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share in [0, 1], got {value}")


def share_below_one(name: str, value: float) -> None:
    """A number in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: expected a share in [0, 1), got {value}")


def share_between(name: str, value: float) -> None:
    """A number in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: expected a share in (0, 1), got {value}")


def sizes(name: str, value: tuple[int, ...]) -> None:
    """One or more integers >= 1."""
    if not (value and min(value) >= 1 and max(value) <= LARGEST):
        raise ValueError(f"{name}: expected sizes >= 1, such as 2,2,64, got {value}")
