"""Data that Python hands to a run, preprocessed as in its training."""

import numpy as np
from numpy.typing import ArrayLike

from pyro_fmvae.data import Preprocessing, Split
from pyro_fmvae.data.own.in_memory import as_numbers
from pyro_fmvae.data.own.raw import check_columns


def given_rows(preprocessing: Preprocessing, array: ArrayLike) -> Split:
    """Preprocess data as in the training.

    Args:
        preprocessing: of the run.
        array: n observations in their own units, or a data frame.

    Raises:
        ValueError: other data than the run's; it names the argument ``array``.
    """
    columns = tuple(map(str, getattr(array, "columns", ())))  # of a data frame
    check_columns(preprocessing.column_names, columns, "array")
    raw = np.require(array, requirements="W")  # torch warns of arrays that it must not write to
    if raw.shape == preprocessing.event_shape:
        raise ValueError(f"array: expected observations [n, ...], got one of {list(raw.shape)}; add an axis")
    if not raw.size:
        raise ValueError(f"array: expected at least one observation, got {list(raw.shape)}")
    levels = preprocessing.levels
    mixed = raw.dtype.kind == "O" or (levels and (columns or raw.dtype.kind not in "buif"))
    if mixed and raw.ndim == 2 and len(preprocessing.event_shape) == 1:
        levels = levels or ((),) * preprocessing.event_shape[0]
        raw = as_numbers(raw, levels, preprocessing.column_names, preprocessing.ignored, "array")
    if raw.dtype.kind not in "buif":
        raise ValueError(f"array: expected numbers, got dtype {raw.dtype}")
    return Split(preprocessing(raw, "array"), signed=preprocessing.signed)
