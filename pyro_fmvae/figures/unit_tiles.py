"""Conversion of a dictionary's units to coloured tiles."""

import matplotlib
import numpy as np

from pyro_fmvae.figures.tiles import Array, as_array

SIGNED = "Each unit is scaled by its largest absolute value: red is positive, white 0, blue negative."
POSITIVE = "Each unit is scaled by its largest value: black is 0."


def as_units(name: str, units: Array) -> np.ndarray:
    """Check units and return them as float64 [H, h, w].

    Args:
        name: name of the argument, for messages.
        units: finite floats or bools [H, h, w], H at least 1.

    Raises:
        ValueError: another shape or type, or values that are not finite.
    """
    array = as_array(name, units)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"{name}: expected at least one unit [H, h, w], got shape {list(array.shape)}")
    return array


def tiles(units: np.ndarray, signed: bool) -> np.ndarray:
    """Colour units, each scaled by its own largest absolute value; units of zeros stay 0.

    Args:
        units: [H, h, w].
        signed: True for colours from blue over white (0) to red, False for black (0) to white.

    Returns:
        Colours in [0, 1], [H, h, w, 3].
    """
    largest = np.abs(units).max((1, 2), keepdims=True)
    scaled = np.divide(units, largest, out=np.zeros_like(units), where=largest > 0)
    if signed:
        return np.asarray(matplotlib.colormaps["RdBu_r"]((scaled + 1) / 2))[..., :3]
    return np.repeat(scaled[..., None], 3, axis=-1)
