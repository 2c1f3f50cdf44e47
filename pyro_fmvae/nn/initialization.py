"""Initial weights that keep the size of a signal from layer to layer."""

from math import prod, sqrt

from torch import nn


def scaled_normal_(layer: nn.Linear | nn.Conv2d | nn.ConvTranspose2d, gain: float) -> None:
    """Draw weights from ``Normal(0, gain / fan)`` (a variance) and set biases to zero, in place.

    ``fan`` counts the products that are summed into one output, away from the borders. A transposed
    convolution of stride ``s`` spreads its products over ``s²`` times as many outputs, so its ``fan`` is, on
    average, ``s²`` times smaller, which ``torch.nn.init`` does not know.

    Args:
        layer: the layer to initialise.
        gain: 2 before a ReLU, which halves the second moment (He et al., 2015), else 1.
    """
    if isinstance(layer, nn.Linear):
        fan: float = layer.in_features
    else:
        fan = layer.in_channels * prod(layer.kernel_size)
        if isinstance(layer, nn.ConvTranspose2d):
            fan /= prod(layer.stride)
    nn.init.normal_(layer.weight, std=sqrt(gain / fan))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
