"""Checks of the networks' arguments, with the argument's name in each message."""

from collections.abc import Sequence
from math import inf
from numbers import Integral

from torch import Tensor


def check_size(name: str, value: int) -> int:
    """Return ``value`` if it is a positive integer, NumPy's included."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def check_sizes(name: str, values: Sequence[int], may_be_empty: bool = False) -> tuple[int, ...]:
    """Return ``values`` as a tuple if it is a sequence of positive integers."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"{name} must be a sequence of positive integers, got {values!r}")
    if not values and not may_be_empty:
        raise ValueError(f"{name} must not be empty")
    return tuple(check_size(f"{name}[{i}]", value) for i, value in enumerate(values))


def check_event(name: str, value: Tensor, event_shape: Sequence[int]) -> None:
    """Raise unless the last dimensions of ``value`` are ``event_shape``."""
    if value.shape[-len(event_shape) :] != tuple(event_shape):
        expected = ", ".join(["...", *map(str, event_shape)])
        raise ValueError(f"{name} must have shape [{expected}], got {list(value.shape)}")


def scale_sizes(name: str, factor: float, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return ``sizes`` times ``factor``, rounded, at least 1 each, if it is a number > 0."""
    if not 0 < factor < inf:
        raise ValueError(f"{name} must be a number > 0, got {factor!r}")
    return tuple(max(1, round(factor * size)) for size in sizes)
