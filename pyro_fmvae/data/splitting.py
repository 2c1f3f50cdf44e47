"""Random splits of rows, and the digest of what they depend on."""

import hashlib

import numpy as np


def split_rows(
    n: int, seed: int, expected: str, fewest: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows for training, validation and testing: about 80, 10 and 10 % of n, at least one each.

    Args:
        n: number of rows.
        seed: of their permutation, at least 0.
        expected: the beginning of the error message.
        fewest: least number of rows, at least 3.

    Raises:
        ValueError: there are fewer rows.
    """
    if n < fewest:
        raise ValueError(f"{expected} to split into train, valid and test, got {n}")
    order = np.random.default_rng(seed).permutation(n)
    held_out = max(1, n // 10)
    valid, test, train = np.split(order, [held_out, 2 * held_out])
    return train, valid, test


def fingerprint(rows: np.ndarray) -> str:
    """Digest rows in their order, on which a random split depends: 64 hexadecimal digits.

    Args:
        rows: numbers or strings, of any shape.
    """
    digest = hashlib.sha256(f"{rows.dtype.str} {rows.shape}".encode())
    digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
