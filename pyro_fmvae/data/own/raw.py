"""Contents of a person's own file, before any preprocessing."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pyro_fmvae.data.column_plan import PlannedColumn
from pyro_fmvae.data.column_transform import column_in_words

logger = logging.getLogger("pyro_fmvae")

DECIMAL_HINT = "; to learn from decimal numbers make them a few classes, such as low and high"
"""End of the message about decimal labels."""
_NAMED = 20  # columns that a message lists
LARGEST_LABEL = np.iinfo(np.int64).max - 1  # so that there is a number of values


class Raw(NamedTuple):
    """Checked contents of a file, in row order: finite numbers, at least one row, labels >= -1.

    Missing numbers are NaN, if the reader accepts them.
    """

    x: np.ndarray
    """bool, uint8, integer or float: [n, H, W], [n, H, W, 3] or [n, D]."""
    labels: np.ndarray | None = None
    """int64 [n, L], -1 = unknown."""
    label_names: tuple[str, ...] = ()
    """L different names."""
    column_names: tuple[str, ...] = ()
    """D names of the columns of `x`, where the file gives them."""
    value_names: tuple[tuple[str, ...], ...] = ()
    """For each label, names of its values 0, 1, …; empty where they are numbers. No entries: all are."""
    levels: tuple[tuple[str, ...], ...] = ()
    """For each column of `x`, names of its categories 0, 1, …; empty for a column of numbers. No entries: all
    are columns of numbers."""
    note: str = ""
    """Sentence on what was done to `x`; empty: nothing."""
    ignored: tuple[int, ...] = ()
    """Columns of `x`, from 0, that models leave out: NaN where they are no numbers."""
    plan: tuple[PlannedColumn, ...] = ()
    """Plan of the columns of a table that is read by columns; none of an array."""
    written: Callable[[], Mapping[str, np.ndarray]] | None = None
    """Reads all columns of a table again as they are written, [n] by name: texts, or numbers."""
    comma: bool = False
    """These texts have decimal commas."""
    unseen: np.ndarray | None = None
    """Where a column of categories has a word that its plan has not, bool [n, D]; None: nowhere."""


def is_decimal(text: str) -> bool:
    """Tell whether a text is a number with a fractional part."""
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and not value.is_integer()


def check_columns(expected: tuple[str, ...], names: tuple[str, ...], source: str) -> None:
    """Check that names of columns are the expected ones, unless either are unknown (empty).

    Raises:
        ValueError: the names differ, in number, spelling or order.
    """
    if names and expected and names != expected:
        before, now = {*expected}, {*names}
        extra = [repr(name) for name in names if name not in before]
        absent = [repr(name) for name in expected if name not in now]
        got = some_of(names, _NAMED)
        if bool(extra) != bool(absent):
            got = f"also {some_of(extra, _NAMED)}" if extra else f"no {some_of(absent, _NAMED)}"
        raise ValueError(f"{source}: expected the columns {some_of(expected, _NAMED)}, got {got}")


def warn_unseen(unseen: Mapping[str, Counter[str]], source: str) -> None:
    """Warn of fields that count as missing, once for each column.

    Args:
        unseen: for each column, how many fields have each value that training did not have.
        source: name of the data.
    """
    for column, counts in unseen.items():
        fields = "1 field" if counts.total() == 1 else f"{counts.total():,} fields"
        verb = "counts" if counts.total() == 1 else "count"
        values = some_of([repr(value) for value in counts])
        logger.warning("%s: %s of %s %s as missing: training had no %s", source, fields, column, verb, values)


def check_seen(
    unseen: Mapping[str, Counter[str]], levels: Sequence[Sequence[str]], names: Sequence[str], source: str
) -> None:
    """Raise ValueError if there are texts that training did not have.

    Args:
        unseen: as for :func:`warn_unseen`.
        levels: words of each column.
        names: of the columns, or none.
        source: name of the data.
    """
    words_of = {column_in_words(place, names): words for place, words in enumerate(levels)}
    for column, counts in unseen.items():
        known = words_of.get(column)
        expected = f"one of {', '.join(known)}" if known else "a number"
        raise ValueError(f"{source}: expected {expected} in {column}, got {next(iter(counts))!r}")


def some_of(values: Sequence[str], most: int = 5) -> str:
    """List the first few values, and say how many others there are."""
    left = len(values) - most
    return ", ".join(values[:most]) + (f" and {left:,} more" if left > 0 else "")
