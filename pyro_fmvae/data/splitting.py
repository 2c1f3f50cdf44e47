"""Random splits of rows, and the digest of what they depend on."""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

SHARE: Final = 0.1
"""Share of the rows for validation, and for testing, unless another one is asked for."""


@dataclass(frozen=True)
class Splitting:
    """How the rows of a person's own data are split.

    Raises:
        ValueError: a share out of range, shares that leave nothing to train on, or a bad fold.
    """

    valid: float = SHARE
    """Share of the rows for validation, in [0, 1)."""
    test: float | None = None
    """Share of the rows for testing, in [0, 1); None: a tenth. With None or 0, rows with a label that fewer
    than half of the rows have stay in training, as far as the others suffice."""
    fold: str | None = None
    """``2/5``: the second fifth of the rows, in random order, is for testing."""

    def __post_init__(self) -> None:
        for name, share in (("valid", self.valid), ("test", self.test)):
            if share is not None and not 0 <= share < 1:
                raise ValueError(f"{name}: expected a share in [0, 1), got {share}")
        if self.fold is None:
            if self.valid + self.test_share >= 1:
                raise ValueError(
                    f"valid, test: expected shares with a sum below 1, got {self.valid} and {self.test_share}"
                )
            return
        if self.test is not None:
            raise ValueError("test: a fold is the test split, so give either --fold or --test")
        number, count = self.parsed_fold
        if not (count >= 2 and 1 <= number <= count):
            raise ValueError(f"fold: expected such as 2/5, the second of five folds, got '{self.fold}'")
        if self.valid + 1 / count >= 1:
            raise ValueError(f"valid: expected a share below {1 - 1 / count:.2g} beside --fold {self.fold}")

    @property
    def test_share(self) -> float:
        """Share of the rows for testing, where there are no folds."""
        return SHARE if self.test is None else self.test

    @property
    def parsed_fold(self) -> tuple[int, int]:
        """Number of the fold, from 1, and number of folds; (0, 0) if the text is no fold."""
        found = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", self.fold or "", re.ASCII)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def usual(self) -> bool:
        """True if nothing else than tenths is asked for."""
        return self.fold is None and (self.valid, self.test_share) == (SHARE, SHARE)

    def staying(self, labels: np.ndarray | None) -> np.ndarray | None:
        """Mask of the rows that should stay in training for their labels, bool [n]; None if there are none.

        Args:
            labels: integers [n, L], -1 = unknown, or None.
        """
        if labels is None or self.test or self.fold is not None:
            return None
        known = labels >= 0
        mask: np.ndarray = np.any(known[:, known.mean(0) < 0.5], axis=1)
        return mask if mask.any() else None


def split_rows(
    n: int, seed: int, expected: str, how: Splitting | None = None, staying: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows for training, validation and testing: about 80, 10 and 10 % of n unless `how` says otherwise.

    A split with a share above 0 has at least one row.

    Args:
        n: number of rows.
        seed: of their permutation, at least 0.
        expected: the beginning of the error message.
        how: shares of the rows.
        staying: mask of rows that are not taken out of training while there are others, bool [n].

    Returns:
        Indices of the rows of each split, int64.

    Raises:
        ValueError: fewer than three rows, or too few for the shares or folds.
    """
    if n < 3:
        raise ValueError(f"{expected} to split into train, valid and test, got {n}")
    how = Splitting() if how is None else how
    order = np.random.default_rng(seed).permutation(n)
    if staying is not None:
        order = order[np.argsort(staying[order], kind="stable")]
    if how.fold is not None:
        number, count = how.parsed_fold
        folds = np.array_split(order, count)
        test, rest = folds[number - 1], np.concatenate([*folds[: number - 1], *folds[number:]])
        valid, train = np.split(rest, [_count(how.valid, n)])
    else:
        held_out = np.cumsum([_count(how.valid, n), _count(how.test_share, n)])
        valid, test, train = np.split(order, held_out)
    if not len(train) or (how.fold is not None and not len(test)):
        raise ValueError(f"valid, test, fold: too few rows to split so; there are {n}")
    return train, valid, test


def _count(share: float, n: int) -> int:
    """Number of rows in a share of n, rounded down, but at least one if the share is above 0."""
    return max(1, math.floor(share * n + 1e-9)) if share else 0


class Digest:
    """Digest of rows in their order, of which some are given after the other.

    Args:
        dtype, shape: of all rows.
    """

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._digest = hashlib.sha256(f"{dtype.str} {shape}".encode())

    def update(self, rows: np.ndarray) -> None:
        """Take the next rows."""
        self._digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    @property
    def hexadecimal(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


def fingerprint(rows: np.ndarray) -> str:
    """Digest rows in their order, on which a random split depends: 64 hexadecimal digits.

    Args:
        rows: numbers or strings, of any shape.
    """
    digest = Digest(rows.dtype, rows.shape)
    digest.update(rows)
    return digest.hexadecimal


def split_fingerprint(digest: str, staying: np.ndarray | None) -> str:
    """Digest everything that :func:`split_rows` depends on, beside its options.

    Args:
        digest: of the rows: see :func:`fingerprint`.
        staying: as for :func:`split_rows`.
    """
    return digest if staying is None else fingerprint(np.array([digest, fingerprint(staying)]))
