"""Random warps of images, for the encoder's input in training.

The bound holds for any q(z). So the decoder may explain x from the code of a distorted x: the objective is
the same, and the posterior cannot tell what the distortion hides. Clusters of such codes follow what the
distortion leaves alone. Shu et al. (2018, "Amortized inference regularization") do this with noise.
"""

import math

import torch
from torch import Tensor, nn

# Random thickness of strokes, for views of digits and letters.

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


ROTATION = math.radians(25)  # at strength 1
SHIFT = 3 / 28  # of the width, and of the height
SCALE = 0.2
SHEAR = 0.4
BEND = 2.5 / 28  # of the same
KNOTS = 5  # along each side, where displacements are drawn


class RandomWarp(nn.Module):
    """Rotate, move, scale, shear and bend images of any height and width, each at random.

    The angle, the shifts along both sides, the logarithm of the scale and the shear are drawn uniformly from
    symmetric intervals. At strength 1 these reach to 25 degrees, 3/28 of the side, 0.2 and 0.4. What comes in
    from outside an image continues the pixels of its edge. Images are
    bent by displacements of up to 2.5/28 of the side along each axis. They are drawn at 5×5 knots and
    smoothly interpolated between them (after Simard et al., 2003). Angles and shears are those of pixels, so
    that an image that is not square turns without being squeezed.

    Args:
        strength: factor > 0 on all intervals.
        colours: True for images [H, W, C], False for [H, W].
        interpolate: True interpolates bilinearly between pixels. False takes the nearest pixel, so that
            binary images stay binary.

    Raises:
        ValueError: ``strength`` out of range.
    """

    def __init__(self, strength: float = 1.0, colours: bool = False, interpolate: bool = True) -> None:
        super().__init__()
        if not 0 < strength < math.inf:
            raise ValueError(f"strength: expected a number > 0, got {strength}")
        self.strength = strength
        self.mode = "bilinear" if interpolate else "nearest"
        self.event_dim = 3 if colours else 2

    def forward(self, x: Tensor) -> Tensor:
        """Distort images ``[..., H, W]``, or ``[..., H, W, C]`` in colour.

        Raises:
            ValueError: fewer dimensions than an image has.
        """
        if x.dim() < self.event_dim:
            expected = "[..., H, W, C]" if self.event_dim == 3 else "[..., H, W]"
            raise ValueError(f"x: expected images {expected}, got a tensor of shape {list(x.shape)}")
        event = x.shape[x.dim() - self.event_dim :]
        images = x.reshape(-1, *event[:2], event[2:].numel()).movedim(-1, 1)
        with torch.autocast(x.device.type, enabled=False):  # places need more digits than bfloat16 has
            grid = self._places(images)
            moved = nn.functional.grid_sample(images, grid, self.mode, "border", align_corners=False)
        return moved.movedim(1, -1).reshape(x.shape)

    def _places(self, images: Tensor) -> Tensor:
        """Draw the place that each pixel of images [N, C, H, W] is taken from.

        Returns [N, H, W, 2]: column and row, from -1 to 1. Places are linear in the random numbers, so they
        are one matrix product of these with fixed surfaces.
        """
        coefficients = torch.cat([self._maps(len(images), images), self._bends(len(images), images)], -1)
        height, width = images.shape[-2:]
        places = coefficients @ _surfaces(height, width, images)
        return places.unflatten(-1, (height, width)).movedim(1, -1)

    def _maps(self, count: int, like: Tensor) -> Tensor:
        """Random affine maps [count, 2, 3] of places from -1 to 1, for images [..., H, W]."""
        aspect = like.shape[-2] / like.shape[-1]  # so that pixels turn, not the unit square
        uniform = self.strength * (2 * torch.rand(5, count, dtype=like.dtype, device=like.device) - 1)
        angle, scale, shear = ROTATION * uniform[0], (SCALE * uniform[1]).exp(), SHEAR * uniform[2]
        cos, sin = scale * angle.cos(), scale * angle.sin()
        right, down = 2 * SHIFT * uniform[3:]
        rows = [[cos, aspect * (shear * cos - sin), right], [sin / aspect, shear * sin + cos, down]]
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    def _bends(self, count: int, like: Tensor) -> Tensor:
        """Random displacements of the knots [count, 2, KNOTS²]."""
        shape = count, 2, KNOTS, KNOTS
        uniform = self.strength * (2 * torch.rand(shape, dtype=like.dtype, device=like.device) - 1)
        return (2 * BEND * uniform).flatten(-2)


def _surfaces(height: int, width: int, like: Tensor) -> Tensor:
    """Surfaces that the random coefficients multiply: [3 + KNOTS², height · width].

    The first three are each pixel's column and row, from -1 to 1 between the outer edges of an image, and 1.
    The others are bicubic, one per knot: 1 at that knot and 0 at all others.
    """
    knots = torch.eye(KNOTS, dtype=like.dtype, device=like.device)[None, None]
    down, right = (
        nn.functional.interpolate(knots, (size, KNOTS), mode="bicubic", align_corners=True)[0, 0]
        for size in (height, width)
    )
    bends = torch.einsum("hk,wl->klhw", down, right).flatten(0, 1)
    y, x = (
        (2 * torch.arange(size, dtype=like.dtype, device=like.device) + 1) / size - 1
        for size in (height, width)
    )
    y, x = y[:, None].expand(height, width), x.expand(height, width)
    return torch.cat([torch.stack([x, y, torch.ones_like(x)]), bends]).flatten(1)
