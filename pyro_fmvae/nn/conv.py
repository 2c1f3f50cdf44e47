"""Convolutional encoders and decoders for images of any size.

An encoder halves the side of a square image until 4×4 pixels are left, by convolutions of kernel 3 and
padding 1 with a ReLU after each. A linear head follows. The decoder is its mirror image. A table gives the
layers for squares of 28, 32, 64 and 128 pixels. Images of other sizes are padded to the next of these with
the pixels of their edges, or first shrunk to 128 pixels on their longer side: see
:class:`~pyro_fmvae.nn.canvas.Canvas`. The decoder undoes this, so that the likelihood is one of the original
pixels.

28 pixels: the pair of Paquet, Ghaisas and Tieleman (2018), Appendix E, here with one channel::

    encoder   1 → 32 → 32 → 32 → 64 → 64 → 64 → 64 → 64   channels
                1    2    1    2    1    2    1    1      stride
             28   28   14   14    7    7    4    4    4   pixels on a side
    decoder  64 → 64 → 64 → 64 → 64 → 32 → 32 → 32 → outputs
                1    1    2    1    2    1    2    1
              4    4    4    7    7   14   14   28   28

A transposed convolution of stride 2 makes ``2n - 1 + output_padding`` pixels of ``n``: 7 of 4 without output
padding, 14 of 7 and 28 of 14 with one. Weights plus biases, at 64 latent dimensions and one output::

    encoder   (9·1·32 + 32) + 2 (9·32·32 + 32) + (9·32·64 + 64) + 4 (9·64·64 + 64)       = 185,024
    head      1,024 · 2·64 + 2·64                                                       = 131,200
    linear    64 · 1,024 + 1,024                                                        =  66,560
    decoder   4 (9·64·64 + 64) + (9·64·32 + 32) + 2 (9·32·32 + 32) + (9·32·1 + 1)       = 184,961
                                                                                total     567,745

(the paper prints 567,775). 32 pixels: the same layers, with 32, 16, 8 and 4 pixels on a side.

64 pixels: the paper's pair of Section 4.2, here with three channels, as for colour images::

    encoder    3 → 128 → 256 → 512 → 1024        channels, stride 2
              64    32    16     8      4        pixels on a side
    decoder  1024 → 512 → 256 → 128 → 3·outputs
                4     8    16    32      64

Weights plus biases, with L latent dimensions and two outputs per colour (mean and standard deviation)::

    encoder   (9·3·128 + 128) + (9·128·256 + 256) + (9·256·512 + 512) + (9·512·1024 + 1024)    =  6,198,528
    head      16,384 · 2L + 2L                                                                 = 32,770 L
    linear    L · 16,384 + 16,384
    decoder   (9·1024·512 + 512) + (9·512·256 + 256) + (9·256·128 + 128) + (9·128·6 + 6)       =  6,200,966

128 pixels: one more layer at the wide end, with 64 channels; not from the paper.

A width of 1/4 leaves a quarter of the channels, and about a sixteenth of the work.

Inside, images are stored with their channels last, as views of ``[N, H, W, C]``: a step on a CPU takes 0.7 to
0.8 of the time that it takes with channels first. Parameters are stored as usual. Transposed convolutions add
their biases afterwards, because oneDNN takes long for a bias's gradient.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import conv_transpose2d

from pyro_fmvae.nn.canvas import Canvas
from pyro_fmvae.nn.heads import NormalHead
from pyro_fmvae.nn.sizes import check_event, check_size, scale_sizes, scaled_normal_

_EIGHT = ((32, 1), (32, 2), (32, 1), (64, 2), (64, 1), (64, 2), (64, 1), (64, 1))
_FOUR = ((128, 2), (256, 2), (512, 2), (1024, 2))
_LAYERS = {28: _EIGHT, 32: _EIGHT, 64: _FOUR, 128: ((64, 2), *_FOUR)}
"""Channels and stride of each convolution of an encoder, by the side of the square that it takes."""
_NECK = 4  # pixels on a side, for all of them


class ConvEncoder(nn.Module):
    """Convolutions down to 4×4 pixels, then means and log variances.

    Images are padded to the next square of 28, 32, 64 or 128 pixels, or shrunk to 128: see
    :class:`~pyro_fmvae.nn.canvas.Canvas`.

    Weights start with variance ``2 / fan`` (He et al., 2015), biases at zero; the head's as in its own class.

    Args:
        event_shape: shape of one image, ``(H, W)`` or ``(H, W, C)`` with 1, 3 or 4 channels.
        latent_dim: number of latent dimensions.
        width: factor > 0 on the number of channels, rounded, at least one channel each.
        head: makes the last layer, from its numbers of features and of latent dimensions.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        latent_dim: int,
        width: float = 1.0,
        head: Callable[[int, int], nn.Module] = NormalHead,
    ) -> None:
        super().__init__()
        self.canvas = Canvas(event_shape, tuple(_LAYERS))
        wide, strides = zip(*_LAYERS[self.canvas.side], strict=True)
        channels = (self.canvas.colours, *scale_sizes("width", width, wide))
        layers: list[nn.Module] = []
        for (channels_in, channels_out), stride in zip(pairwise(channels), strides, strict=True):
            conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1)
            scaled_normal_(conv, gain=2.0)
            layers += [conv, nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        self.features = _NECK * _NECK * channels[-1]
        self.head = head(self.features, latent_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode ``x[..., *event_shape]`` as what the head gives, each ``[..., latent_dim]``."""
        shape = self.canvas.event_shape
        check_event("x", x, shape)
        batch_shape = x.shape[: -len(shape)]
        images = x.reshape(prod(batch_shape), *shape[:2], self.canvas.colours)
        features = self.convolutions(self.canvas.lay(images)).movedim(1, -1)
        return self.head(features.reshape(*batch_shape, self.features))


class ConvDecoder(nn.Module):
    """A linear layer to 4×4 pixels, then transposed convolutions up to an image.

    The mirror image of :class:`ConvEncoder`, for images of the same sizes. Weights start with variance
    ``2 / fan``, but ``1 / fan`` in the last layer, which no ReLU follows; biases at zero.

    Args:
        latent_dim: number of latent dimensions.
        event_shape: shape of one image, ``(H, W)`` or ``(H, W, C)`` with 1, 3 or 4 channels.
        outputs: numbers per pixel and channel, for example 1 for a Bernoulli logit, 2 for a mean and a
            standard deviation.
        width: factor > 0 on the number of channels, rounded, at least one channel each.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self, latent_dim: int, event_shape: Sequence[int], outputs: int = 1, width: float = 1.0
    ) -> None:
        super().__init__()
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.canvas = Canvas(event_shape, tuple(_LAYERS))
        self.outputs = check_size("outputs", outputs)
        wide, strides = zip(*_LAYERS[self.canvas.side], strict=True)
        channels = (*reversed(scale_sizes("width", width, wide)), self.outputs * self.canvas.colours)
        self.neck = (_NECK, _NECK, channels[0])
        self.linear = nn.Linear(latent_dim, _NECK * _NECK * channels[0])
        scaled_normal_(self.linear, gain=2.0)
        sides = [self.canvas.side]  # of the encoder's images
        for stride in strides:
            sides.append((sides[-1] - 1) // stride + 1)
        layers: list[nn.Module] = []
        for (channels_in, channels_out), (side_in, side_out), stride in zip(
            pairwise(channels), pairwise(reversed(sides)), reversed(strides), strict=True
        ):
            conv = _ConvTranspose2d(
                channels_in,
                channels_out,
                kernel_size=3,
                stride=stride,
                padding=1,
                output_padding=side_out - (stride * (side_in - 1) + 1),
            )
            scaled_normal_(conv, gain=2.0)
            layers += [nn.ReLU(), conv]
        scaled_normal_(conv, gain=1.0)
        self.convolutions = nn.Sequential(*layers)

    @property
    def first(self) -> nn.Linear:
        """The layer that takes z."""
        return self.linear

    @torch.no_grad()
    def start_at(self, features: Tensor) -> None:
        """Give about these features [outputs, C] at every pixel, whatever z is: a start near the data's mean.

        What is left of the last layer's weights is a twentieth, so that z is not cut off. Without this the
        first thousand steps go into the background of colour pictures.
        """
        last = self.convolutions[-1]
        assert isinstance(last, _ConvTranspose2d) and last.bias is not None
        last.bias.copy_(features.flatten())
        last.weight.mul_(0.05)

    def forward(self, z: Tensor) -> Tensor:
        """Decode ``z[..., latent_dim]`` to ``[..., outputs, *event_shape]``."""
        check_event("z", z, (self.latent_dim,))
        batch_shape = z.shape[:-1]
        channels_last = self.linear(z).reshape(batch_shape.numel(), *self.neck)
        squares = self.convolutions(channels_last.movedim(-1, 1)).to(self.linear.weight.dtype)
        images = self.canvas.lift(squares).movedim(1, -1)  # [N, H, W, outputs · C], as it lies in memory
        parts = images.unflatten(-1, (self.outputs, self.canvas.colours)).unbind(-2)
        stacked = torch.stack(parts, 1)  # whose gradient goes back in long runs, unlike that of movedim
        return stacked.reshape(*batch_shape, self.outputs, *self.canvas.event_shape)


class _ConvTranspose2d(nn.ConvTranspose2d):
    """A transposed convolution that adds its bias afterwards, so that the bias's gradient is a plain sum."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        assert self.bias is not None and isinstance(self.padding, tuple) and output_size is None
        out = conv_transpose2d(input, self.weight, None, self.stride, self.padding, self.output_padding)
        rows = out.movedim(1, -1).flatten(-2)  # [N, H, W · C]: one long run of numbers for each row of pixels
        rows = rows + self.bias.to(out.dtype).repeat(out.shape[-1])
        return rows.unflatten(-1, (out.shape[-1], out.shape[1])).movedim(-1, 1)
