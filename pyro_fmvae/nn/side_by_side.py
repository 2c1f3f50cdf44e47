"""Encoders side by side, each with dimensions of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SideBySide(nn.Module):
    """Several encoders of one x, whose outputs are joined along the latent dimensions.

    They share no features, so what one learns for its dimensions leaves the others alone.

    Args:
        encoders: in the order of their dimensions.
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode x as each encoder does, and join location with location and scale with scale."""
        parts = zip(*(encoder(x) for encoder in self.encoders), strict=True)
        return tuple(torch.cat(part, -1) for part in parts)
