"""Sequences as scikit-learn's users give them: rows with the lengths of sequences, or a list of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class GivenSequences:
    """Rows of several sequences, one after the other.

    Attributes:
        rows: array or data frame of all rows.
        lengths: of the sequences, int64 [B]; None: the rows are one sequence.
        apart: results are lists, an array for each sequence.
    """

    rows: Any
    lengths: np.ndarray | None
    apart: bool

    @classmethod
    def of(cls, X: Any, lengths: Any = None) -> "GivenSequences":
        """The sequences of rows [n, D], or of a list of arrays or data frames [T, D].

        Args:
            X: rows.
            lengths: of the sequences, whose sum is n; None: all rows are one sequence, or X is a list.

        Raises:
            ValueError: lengths that do not fit, or of a list.
        """
        if isinstance(X, list | tuple) and X and all(getattr(part, "ndim", 0) == 2 for part in X):
            if lengths is not None:
                raise ValueError(
                    "lengths: expected None with a list of sequences, got lengths; leave them out"
                )
            widths = {part.shape[1] for part in X}
            if len(widths) > 1:
                raise ValueError(f"X: expected sequences of equally many columns, got {sorted(widths)}")
            return cls(_joined(X), _checked([len(part) for part in X], None), True)
        return cls(X, None if lengths is None else _checked(lengths, len(X)), False)

    def sizes(self, count: int) -> np.ndarray:
        """Lengths of the sequences of so many rows, int64 [B]."""
        return np.array([count]) if self.lengths is None else self.lengths

    def like(self, values: np.ndarray) -> Any:
        """Values of the rows, [n, ...], in the form in which the sequences came."""
        return np.split(values, np.cumsum(self.sizes(len(values)))[:-1]) if self.apart else values


def weights_of_sequences(sample_weight: Any, lengths: np.ndarray) -> np.ndarray:
    """How many sequences each one stands for, float64 [B].

    Args:
        sample_weight: of the sequences [B], or of the rows, equal within a sequence; None: 1.
        lengths: of the sequences.

    Raises:
        ValueError: another shape, weights that differ within a sequence, or no weight above 0.
    """
    if sample_weight is None:
        return np.ones(len(lengths))
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape == (lengths.sum(),) and len(weights) != len(lengths):
        begins = np.cumsum(lengths) - lengths
        if not np.array_equal(np.repeat(weights[begins], lengths), weights):
            raise ValueError(
                "sample_weight: expected one weight for each sequence, got others within a sequence"
            )
        weights = weights[begins]
    if weights.shape != lengths.shape or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            f"sample_weight: expected a finite number >= 0 for each of {len(lengths)} sequences, got shape "
            f"{list(weights.shape)}"
        )
    if not weights.any():
        raise ValueError("sample_weight: expected a weight above zero, got none")
    return weights


def _checked(lengths: Any, rows: int | None) -> np.ndarray:
    found = np.asarray(lengths)
    whole = found.ndim == 1 and len(found) and np.issubdtype(found.dtype, np.integer)
    if not whole or (found < 1).any() or (rows is not None and found.sum() != rows):
        total = "" if rows is None else f" whose sum is {rows}, the number of rows"
        raise ValueError(f"lengths: expected integers >= 1{total}, got {np.array2string(found, threshold=6)}")
    return found.astype(np.int64)


def _joined(parts: Sequence[Any]) -> Any:
    if all(hasattr(part, "iloc") for part in parts):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    return np.concatenate([np.asarray(part) for part in parts])
