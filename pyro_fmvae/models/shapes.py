"""Checks of tensors: of latent dimensions, labels and components."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_dims(name: str, value: Tensor, dims: int) -> None:
    """That the last dimension of a tensor has this size.

    Raises:
        ValueError: it has another.
    """
    if value.shape[-1:] != (dims,):
        raise ValueError(f"{name}: expected {dims} latent dimensions, got shape {list(value.shape)}")


def check_shape(name: str, value: Tensor, other: str, like: Tensor) -> None:
    """That a tensor has the shape of another argument.

    Raises:
        ValueError: it has another.
    """
    if value.shape != like.shape:
        raise ValueError(f"{name}: expected {list(like.shape)} as of {other}, got {list(value.shape)}")


def check_integers(name: str, value: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """That there is nothing, or a tensor of integers of a shape; gives it as int64.

    Raises:
        ValueError: another shape, or no integers.
    """
    if value is None:
        return None
    kind = value.dtype
    if list(value.shape) != list(shape) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise ValueError(f"{name}: expected int64 {list(shape)}, got {kind} {list(value.shape)}")
    return value.long()


def check_codes(
    name: str, codes: Tensor | None, num_points: int, sizes: Sequence[int], of: str = "factor"
) -> Tensor | None:
    """That there is nothing, or for each of I factors the index of one of its components, or -1 for none.

    Args:
        name: of the argument, for the message.
        codes: integers [num_points, I].
        num_points: how many rows.
        sizes: K_i of each factor.
        of: what the message calls a column.

    Returns:
        The codes as int64.

    Raises:
        ValueError: another shape, no integers, or an index out of range.
    """
    codes = check_integers(name, codes, (num_points, len(sizes)))
    if codes is None:
        return None
    for number, (size, given) in enumerate(zip(sizes, codes.unbind(-1), strict=True)):
        if wrong := given[(given < -1) | (given >= size)].tolist():
            raise ValueError(f"{name}: expected -1 to {size - 1} of {of} {number}, got {wrong[0]}")
    return codes
