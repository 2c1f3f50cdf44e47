"""Data that Python hands to a run, preprocessed as in its training."""

from collections import Counter
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from pyro_fmvae.data import Preprocessing, Split
from pyro_fmvae.data.own.files import load_file
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.data.own.image_names import SUFFIXES
from pyro_fmvae.data.own.in_memory import as_numbers
from pyro_fmvae.data.own.raw import check_columns, warn_unseen

Given = ArrayLike | PathLike[str]
"""Data as Python hands them over: an array, a data frame, or a path."""


def given_rows(preprocessing: Preprocessing, array: Given, strict: bool = False) -> Split:
    """Preprocess data as in the training.

    In a table that may have gaps, a word or category that the training data did not have counts as missing; a
    warning says how many of them each column has.

    Args:
        preprocessing: of the run.
        array: n observations in their own units, a data frame, or the path of a picture, of a file of
            data or of a folder: see :func:`~pyro_fmvae.data.own.files.load_file`. Its labels do not count.
        strict: such a word or category in an array is an error.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: other data than the run's; it names the argument ``array``, or the file.
    """
    if isinstance(array, str | PathLike):
        path = Path(array)
        if path.suffix.lower() in SUFFIXES:
            return read_image(path, preprocessing)
        return replace(load_file(path, preprocessing, left_out={})[0], labels=None)
    columns = tuple(map(str, getattr(array, "columns", ())))  # of a data frame
    check_columns(preprocessing.column_names, columns, "array")
    try:
        raw = np.require(array, requirements="W")  # torch warns of arrays that it must not write to
    except ValueError:  # NumPy's message is about its own parts
        raise ValueError("array: expected observations of one shape, got several shapes") from None
    if raw.shape == preprocessing.event_shape:
        raise ValueError(f"array: expected observations [n, ...], got one of {list(raw.shape)}; add an axis")
    if not raw.size:
        raise ValueError(f"array: expected at least one observation, got {list(raw.shape)}")
    levels = preprocessing.levels
    unseen: dict[str, Counter[str]] = {}
    mixed = raw.dtype.kind == "O" or (levels and (columns or raw.dtype.kind not in "buif"))
    if mixed and raw.ndim == 2 and len(preprocessing.event_shape) == 1:
        levels = levels or ((),) * preprocessing.event_shape[0]
        lenient = preprocessing.missing and not strict
        names, ignored = preprocessing.column_names, preprocessing.ignored
        raw = as_numbers(raw, levels, names, ignored, "array", unseen if lenient else None)
    if raw.dtype.kind not in "buif":
        wanted = "numbers" if preprocessing.image else "numbers, or a data frame"
        raise ValueError(f"array: expected {wanted}, got dtype {raw.dtype}")
    x = preprocessing(raw, "array")
    unseen |= preprocessing.unseen(raw)
    if strict and unseen:
        column, values = next(iter(unseen.items()))
        raise ValueError(f"array: expected a value that training had in {column}, got {next(iter(values))}")
    warn_unseen(unseen, "array")
    return Split(x, signed=preprocessing.signed)
