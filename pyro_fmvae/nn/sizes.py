"""Checks of the networks' arguments, with the argument's name in each message, and initial weights."""

from collections.abc import Sequence
from math import inf, prod, sqrt
from numbers import Integral

from torch import Tensor, nn

# Initial weights that keep the size of a signal from layer to layer.


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


def check_size(name: str, value: int) -> int:
    """Return ``value`` if it is a positive integer, NumPy's included."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def check_sizes(name: str, values: Sequence[int], may_be_empty: bool = False) -> tuple[int, ...]:
    """Return ``values`` as a tuple if it is a sequence of positive integers."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"{name} must be a sequence of positive integers, got {values!r}")
    if not values and not may_be_empty:
        raise ValueError(f"{name} must not be empty")
    return tuple(check_size(f"{name}[{i}]", value) for i, value in enumerate(values))


def check_event(name: str, value: Tensor, event_shape: Sequence[int]) -> None:
    """Raise unless the last dimensions of ``value`` are ``event_shape``."""
    if value.shape[-len(event_shape) :] != tuple(event_shape):
        expected = ", ".join(["...", *map(str, event_shape)])
        raise ValueError(f"{name} must have shape [{expected}], got {list(value.shape)}")


def scale_sizes(name: str, factor: float, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return ``sizes`` times ``factor``, rounded, at least 1 each, if it is a number > 0."""
    if not 0 < factor < inf:
        raise ValueError(f"{name} must be a number > 0, got {factor!r}")
    return tuple(max(1, round(factor * size)) for size in sizes)
