"""Checks of tensors: of latent dimensions, labels and components."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def check_dims(name: str, value: Tensor, dims: int) -> None:
    """Check the size of a tensor's last dimension.

    Raises:
        ValueError: another size.
    """
    if value.shape[-1:] != (dims,):
        raise ValueError(f"{name}: expected {dims} latent dimensions, got shape {list(value.shape)}")


def check_shape(name: str, value: Tensor, other: str, like: Tensor) -> None:
    """Check that a tensor has the shape of another argument.

    Raises:
        ValueError: another shape.
    """
    if value.shape != like.shape:
        raise ValueError(f"{name}: expected the shape {list(like.shape)} of {other}, got {list(value.shape)}")


def check_integers(name: str, value: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Check that a tensor, if there is one, has integers and this shape; return it as int64.

    Raises:
        ValueError: another shape or type.
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
    """Check codes, if there are any: the index of a component of each factor, or -1 for none.

    Args:
        name: name of the argument, for the message.
        codes: integers [num_points, I], or None.
        num_points: number of rows.
        sizes: K_i of each factor.
        of: word for a column in the message.

    Returns:
        The codes as int64, or None.

    Raises:
        ValueError: another shape or type, or an index out of range.
    """
    codes = check_integers(name, codes, (num_points, len(sizes)))
    if codes is None:
        return None
    for number, (size, given) in enumerate(zip(sizes, codes.unbind(-1), strict=True)):
        if wrong := given[(given < -1) | (given >= size)].tolist():
            raise ValueError(f"{name}: expected -1 to {size - 1} of {of} {number}, got {wrong[0]}")
    return codes


def of_components(gammas: Sequence[Tensor], beside: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Responsibilities γ_i [B, K_i] of I factors as arrays, with others beside them.

    Returns:
        ``codes`` int64 [B, I], those of the greatest responsibility; the others; and per factor i
        ``responsibilities_i`` [B, K_i].
    """
    codes = torch.stack([gamma.argmax(-1) for gamma in gammas], -1)
    of_factors = {f"responsibilities_{factor}": gamma for factor, gamma in enumerate(gammas)}
    return {"codes": codes, **beside, **of_factors}
