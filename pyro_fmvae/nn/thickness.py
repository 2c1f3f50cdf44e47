"""Random thickness of strokes, for views of digits and letters."""

import torch
from torch import Tensor, nn

MOST = 0.7  # of a pixel on each side, at strength 1


class RandomThickness(nn.Module):
    """Make the strokes of images thicker or thinner, each image at random.

    Thicker strokes move each pixel towards the greatest of its 3×3 neighbours, thinner ones towards the
    least, by a share drawn uniformly from 0 to 0.7 times the strength. It is for bright strokes on a dark
    background; dark ones become thinner where these would become thicker.

    Args:
        strength: in (0, 1].
        interpolate: True moves values by the share. False gives each pixel the new value with the share as
            probability, so that binary images stay binary.

    Raises:
        ValueError: ``strength`` out of range.
    """

    def __init__(self, strength: float = 1.0, interpolate: bool = True) -> None:
        super().__init__()
        if not 0 < strength <= 1:
            raise ValueError(f"strength: expected a number in (0, 1], got {strength}")
        self.strength, self.interpolate = strength, interpolate

    def forward(self, x: Tensor) -> Tensor:
        """Change images ``[..., H, W]``.

        Raises:
            ValueError: fewer dimensions than an image has.
        """
        if x.dim() < 2:
            raise ValueError(f"x: expected images [..., H, W], got a tensor of shape {list(x.shape)}")
        images = x.reshape(-1, 1, *x.shape[-2:])
        draws = torch.rand(2, len(images), 1, 1, 1, dtype=x.dtype, device=x.device)
        share = MOST * self.strength * draws[0]
        sign = torch.where(draws[1] < 0.5, -1.0, 1.0)
        target = sign * nn.functional.max_pool2d(sign * images, 3, stride=1, padding=1)
        if not self.interpolate:
            share = (torch.rand_like(images) < share).to(x.dtype)
        return torch.lerp(images, target, share).reshape(x.shape)
