"""Weights of a loss as attributes that refuse numbers out of range."""

import math
from typing import Any

from torch import Tensor


class Weight:
    """A descriptor for a weight: a finite number, or a scalar tensor, whose value is not looked at.

    Args:
        positive: True to refuse 0 as well.

    Raises:
        ValueError: when it is set, a number out of range; the message names the attribute.
    """

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: Any, value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            value = float(value)
            if not 0 <= value < math.inf or (self._positive and value == 0):
                limit = "> 0" if self._positive else ">= 0"
                raise ValueError(f"{self._name}: expected a number {limit}, got {value}")
        instance.__dict__[self._name] = value
