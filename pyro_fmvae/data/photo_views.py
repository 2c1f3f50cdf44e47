"""Random crops, mirror images and colours of photographs, by torchvision."""

import torch
from torch import Tensor, nn

CROP = 0.6  # share of the area that a crop loses at most, at strength 1
SQUEEZE = 4 / 3  # greatest factor on the aspect ratio of a crop, at strength 1
COLOUR = 0.4  # of brightness, contrast and saturation, as a share, at strength 1
HUE = 0.1  # of the circle of hues


class RandomPhoto(nn.Module):
    """Crop, mirror and recolour images, each image at random.

    At strength 1 a crop keeps between 40 % and all of the area, with an aspect ratio of 3/4 to 4/3 times the
    image's, and is resized to the whole image. Half of the images are mirrored. Brightness, contrast and
    saturation change by up to 40 %, and the hue by a tenth of the circle. The transforms are those of
    :mod:`torchvision.transforms.v2`, which draw one change for a whole batch, so images are changed one by
    one.

    Args:
        strength: in (0, 1], factor on all of these but the mirror images.
        height, width: of the images.
        signed: True for pixels in [-1, 1], False for [0, 1].

    Raises:
        ValueError: ``strength`` out of range.
    """

    def __init__(self, strength: float, height: int, width: int, signed: bool = False) -> None:
        super().__init__()
        if not 0 < strength <= 1:
            raise ValueError(f"strength: expected a number in (0, 1], got {strength}")
        from torchvision.transforms import v2  # heavy, and needed only here

        colour, aspect, squeeze = COLOUR * strength, width / height, SQUEEZE**strength
        ratios = aspect / squeeze, aspect * squeeze
        self.change = v2.Compose(
            [
                v2.RandomResizedCrop((height, width), scale=(1 - CROP * strength, 1.0), ratio=ratios),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(colour, colour, colour, HUE * strength),
            ]
        )
        self.signed = signed

    def forward(self, x: Tensor) -> Tensor:
        """Change images ``[B, H, W, 3]``."""
        unit = (x + 1) / 2 if self.signed else x
        changed = torch.stack([self.change(image) for image in unit.movedim(-1, 1)]).movedim(1, -1)
        return 2 * changed - 1 if self.signed else changed
