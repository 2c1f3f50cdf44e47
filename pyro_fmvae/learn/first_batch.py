"""The first batch of data, from which parameters start, and a check that there is anything to learn."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

LARGEST_SHARE = 1e-6  # of the greatest number of a type that squares of data may add up to
LEAST_SPREAD = 1e-13  # of data, whose noise has a variance of 1e-30 at least


def first_batch(batches: Iterable[Any]) -> Tensor:
    """The first batch of data, [B, D], from which parameters can start."""
    x: Tensor = next(iter(batches))[0].flatten(1)
    check_spread(x)
    return x


def check_spread(x: Tensor) -> None:
    """Check that there is something to learn in data, and that their squares can be added up.

    Args:
        x: data, floats of any shape; NaN is a missing number.

    Raises:
        ValueError: all numbers are equal or missing (NaN), no two differ by more than 1e-13, or their squares
            add up to more than a millionth of the greatest number of their type.
    """
    known = x[~x.isnan()]
    if not known.numel() or known.min() == known.max():
        raise ValueError("data: expected numbers that differ, got none, or nothing but equal ones")
    if not known.max() - known.min() > LEAST_SPREAD:
        widest = (known.max() - known.min()).item()
        raise ValueError(f"data: expected numbers {LEAST_SPREAD} apart at least, got {widest:.3g} at most")
    most = LARGEST_SHARE * torch.finfo(x.dtype).max
    if not known.double().square().sum() <= most:
        greatest = known.abs().max().item()
        raise ValueError(
            f"data: expected squares that add up to {most:.3g} at most, got numbers up to {greatest:.3g}"
        )
