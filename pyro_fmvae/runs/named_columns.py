"""Rows of a table as columns with their names, units and words."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from pyro_fmvae.runs.by_batches import in_units
from pyro_fmvae.runs.run import Run


def named_columns(
    run: Run, rows: Tensor, known: np.ndarray | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Columns that are not ignored.

    Args:
        run: of a table.
        rows: as the model sees them, on the CPU, [n, D].
        known: the same in their units, as far as they are known, [n, D]: NaN where one is not.

    Yields:
        Name and values [n] of each column: numbers, NaN where one is missing, or words, '' where one is.
    """
    preprocessing = run.preprocessing
    values = in_units(preprocessing, rows)
    values = (values if known is None else np.where(np.isnan(known), values, known)).T
    whole = len(values) == preprocessing.event_shape[0]  # decoded counts are without their batch
    names = preprocessing.column_names if whole else preprocessing.decoded_columns
    names = names or tuple(f"x_{column}" for column in range(len(values)))
    levels = preprocessing.levels if whole and preprocessing.levels else ((),) * len(values)
    for column, (name, words) in enumerate(zip(names, levels, strict=True)):
        if column not in preprocessing.ignored:
            place = np.nan_to_num(values[column], nan=len(words)).astype(int) if words else ()
            yield name, np.array([*words, ""])[place] if words else values[column]
