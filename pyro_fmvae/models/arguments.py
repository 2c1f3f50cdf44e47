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


def check_integers(name: str, value: Tensor | None, shape: Sequence[int]) -> None:
    """That there is nothing, or a tensor of integers of a shape.

    Raises:
        ValueError: another shape, or no integers.
    """
    if value is None:
        return
    kind = value.dtype
    if list(value.shape) != list(shape) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise ValueError(f"{name}: expected int64 {list(shape)}, got {kind} {list(value.shape)}")


def check_codes(name: str, codes: Tensor | None, num_points: int, sizes: Sequence[int]) -> None:
    """That there is nothing, or for each of I factors the index of one of its components, or -1 for none.

    Args:
        name: of the argument, for the message.
        codes: integers [num_points, I].
        num_points: how many rows.
        sizes: K_i of each factor.

    Raises:
        ValueError: another shape, no integers, or an index out of range.
    """
    check_integers(name, codes, (num_points, len(sizes)))
    if codes is None:
        return
    for factor, (size, given) in enumerate(zip(sizes, codes.unbind(-1), strict=True)):
        if wrong := given[(given < -1) | (given >= size)].tolist():
            raise ValueError(f"{name}: expected -1 to {size - 1} of factor {factor}, got {wrong[0]}")
