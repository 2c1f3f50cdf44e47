"""The order of factors in a latent vector, and in the groups that are vectorised together."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from pyro_fmvae.models.shapes import check_dims

T = TypeVar("T")


class FactorLayout:
    """Conversions between latent vectors z [..., I·D] and the blocks of factors.

    Args:
        groups: indices of the factors in each group; together 0..I-1.
        dim: D, dimensions of each factor.
    """

    def __init__(self, groups: Sequence[Sequence[int]], dim: int) -> None:
        order = [factor for group in groups for factor in group]
        self.num_groups, self.num_factors, self.dim = len(groups), len(order), dim
        self.places = [order.index(factor) for factor in range(len(order))]

    def in_order(self, of_groups: Sequence[T]) -> list[T]:
        """Sort one entry per factor from the order of groups into that of factors."""
        return [of_groups[place] for place in self.places]

    def split(self, name: str, z: Tensor) -> Tensor:
        """Split z [..., B, I·D] into blocks [I, ..., B, D].

        Raises:
            ValueError: another last dimension; the message starts with ``name``.
        """
        check_dims(name, z, self.num_factors * self.dim)
        return z.unflatten(-1, (self.num_factors, self.dim)).movedim(-2, 0)

    def take(self, blocks: Tensor, group: Sequence[int]) -> Tensor:
        """Select the factors of a group from blocks [I, ...]."""
        return blocks if self.num_groups == 1 else blocks[list(group)]

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """Join the blocks of groups, each [..., I_g, B, D], to z [..., B, I·D]."""
        z = torch.cat(list(groups), -3)[..., self.places, :, :] if len(groups) > 1 else groups[0]
        z = z.transpose(-3, -2).flatten(-2)
        return z if z.dim() == 2 else z.unsqueeze(-3)  # plates left of the factors keep their place
