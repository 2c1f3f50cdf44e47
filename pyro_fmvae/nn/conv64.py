"""The convolutional pair for 64×64 colour images of Paquet, Ghaisas and Tieleman (2018), Section 4.2.

Four convolutions of kernel 3, stride 2 and padding 1, with a ReLU after each, and their mirror image::

    encoder    3 → 128 → 256 → 512 → 1024        channels
              64    32    16     8      4        pixels on a side
    decoder  1024 → 512 → 256 → 128 → 3·outputs
                4     8    16    32      64

Weights plus biases, with L latent dimensions and two outputs per colour (mean and standard deviation)::

    encoder   (9·3·128 + 128) + (9·128·256 + 256) + (9·256·512 + 512) + (9·512·1024 + 1024)    =  6,198,528
    head      16,384 · 2L + 2L                                                                 = 32,770 L
    linear    L · 16,384 + 16,384
    decoder   (9·1024·512 + 512) + (9·512·256 + 256) + (9·256·128 + 128) + (9·128·6 + 6)       =  6,200,966

A width of 1/4 leaves a quarter of the channels, and about a sixteenth of the work.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from .initialization import scaled_normal_
from .normal_head import NormalHead
from .sizes import check_event, check_size, scale_sizes

_SIDE, _COLOURS = 64, 3
_IMAGE = (_SIDE, _SIDE, _COLOURS)
_CHANNELS = (128, 256, 512, 1024)
_NECK = _SIDE // 2 ** len(_CHANNELS)  # pixels on a side


class ConvEncoder64(nn.Module):
    """Four convolutions to 4·4·1,024 features, then means and log variances.

    Weights start with variance ``2 / fan`` (He et al., 2015), biases at zero; the head's as in its own class.

    Args:
        latent_dim: number of latent dimensions.
        width: factor > 0 on the number of channels, rounded, at least one channel each.
        head: makes the last layer, from its numbers of features and of latent dimensions.
    """

    def __init__(
        self,
        latent_dim: int,
        width: float = 1.0,
        head: Callable[[int, int], nn.Module] = NormalHead,
    ) -> None:
        super().__init__()
        channels = (_COLOURS, *scale_sizes("width", width, _CHANNELS))
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise(channels):
            conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1)
            scaled_normal_(conv, gain=2.0)
            layers += [conv, nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        self.features = _NECK * _NECK * channels[-1]
        self.head = head(self.features, latent_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode ``x[..., 64, 64, 3]`` as what the head gives, each ``[..., latent_dim]``."""
        check_event("x", x, _IMAGE)
        batch_shape = x.shape[:-3]
        channels_last = x.reshape(batch_shape.numel(), *_IMAGE)
        features = self.convolutions(channels_last.movedim(-1, 1)).movedim(1, -1)
        return self.head(features.reshape(*batch_shape, self.features))


class ConvDecoder64(nn.Module):
    """A linear layer to 4·4·1,024 features, then four transposed convolutions.

    Weights start with variance ``2 / fan``, but ``1 / fan`` in the last layer, which no ReLU follows; biases
    at zero.

    Args:
        latent_dim: number of latent dimensions.
        outputs: numbers per pixel and colour, for example 2 for a mean and a standard deviation.
        width: factor > 0 on the number of channels, rounded, at least one channel each.
    """

    def __init__(self, latent_dim: int, outputs: int = 2, width: float = 1.0) -> None:
        super().__init__()
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.outputs = check_size("outputs", outputs)
        channels = (*reversed(scale_sizes("width", width, _CHANNELS)), _COLOURS * outputs)
        self.neck = (_NECK, _NECK, channels[0])
        self.linear = nn.Linear(latent_dim, _NECK * _NECK * channels[0])
        scaled_normal_(self.linear, gain=2.0)
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise(channels):
            conv = nn.ConvTranspose2d(
                channels_in, channels_out, kernel_size=3, stride=2, padding=1, output_padding=1
            )
            scaled_normal_(conv, gain=2.0)
            layers += [nn.ReLU(), conv]
        scaled_normal_(conv, gain=1.0)
        self.convolutions = nn.Sequential(*layers)

    @torch.no_grad()
    def start_at(self, features: Tensor) -> None:
        """Give about these features [outputs, 3] at every pixel, whatever z is: a start near the data's mean.

        What is left of the last layer's weights is a twentieth, so that z is not cut off. Without this the
        first thousand steps go into the background of the pictures.
        """
        last = self.convolutions[-1]
        assert isinstance(last, nn.ConvTranspose2d) and last.bias is not None
        last.bias.copy_(features.flatten())
        last.weight.mul_(0.05)

    def forward(self, z: Tensor) -> Tensor:
        """Decode ``z[..., latent_dim]`` to ``[..., outputs, 64, 64, 3]``."""
        check_event("z", z, (self.latent_dim,))
        batch_shape = z.shape[:-1]
        channels_last = self.linear(z).reshape(batch_shape.numel(), *self.neck)
        images = self.convolutions(channels_last.movedim(-1, 1)).to(self.linear.weight.dtype)
        parts = images.movedim(1, -1).unflatten(-1, (self.outputs, _COLOURS)).movedim(-2, 1)
        return parts.reshape(*batch_shape, *parts.shape[1:])
