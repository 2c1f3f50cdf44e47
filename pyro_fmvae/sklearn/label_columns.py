"""Columns of labels, some of them unknown, as integers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class LabelColumns:
    """Values of each label.

    Attributes:
        names: of the labels; those of a data frame's columns, or else ``label``, or ``label0``, ....
        classes: sorted values of each label.
    """

    names: tuple[str, ...]
    classes: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, y: ArrayLike | None) -> "LabelColumns":
        """The values that occur in labels [n] or [n, L]; None: no labels.

        Raises:
            ValueError: another shape, or a label of which no value is known.
        """
        if y is None:
            return cls((), ())
        columns = _columns(y)
        names = tuple(map(str, getattr(y, "columns", ())))
        if not names:
            numbers = range(columns.shape[1])
            names = ("label",) if columns.shape[1] == 1 else tuple(f"label{number}" for number in numbers)
        classes = []
        for name, column in zip(names, columns.T, strict=True):
            known = column[~_unknown(column)]
            if not len(known):
                raise ValueError(f"y: expected a known value of '{name}', all are -1")
            classes.append(np.unique(known))
        return cls(names, tuple(classes))

    def encoded(self, y: ArrayLike) -> np.ndarray:
        """Numbers of the values of labels, -1 where unknown: int64 [n, L]."""
        found = []
        for values, column in zip(self.classes, _columns(y).T, strict=True):
            codes, unknown = np.full(len(column), -1), _unknown(column)
            codes[~unknown] = np.searchsorted(values, column[~unknown])
            found.append(codes)
        return np.stack(found, 1)

    def decoded(self, codes: np.ndarray) -> np.ndarray:
        """Values [n, L] of the leading columns of codes [n, I]."""
        return np.stack([values[codes[:, column]] for column, values in enumerate(self.classes)], 1)


def _columns(y: Any) -> np.ndarray:
    array = np.asarray(y)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"y: expected values [n] or [n, L], got shape {list(array.shape)}")
    return array


def _unknown(column: np.ndarray) -> np.ndarray:
    """True where a value is -1, as a number or as text, or None or NaN, bool [n]."""
    return np.array([v is None or v != v or v in (-1, "-1") for v in column.tolist()], dtype=bool)
