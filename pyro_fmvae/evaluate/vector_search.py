"""Search among many vectors: by faiss where it is installed, by NumPy otherwise."""

from importlib.util import find_spec
from typing import Any, Final, Protocol

import numpy as np

LEAST_QUANTISED: Final = 10_000
"""Vectors from which a quantiser can learn its 256 centroids per part."""
_CENTROIDS, _LEARNT_FROM, _AT_ONCE = 256, 20_000, 1 << 24  # numbers of a table of distances


class VectorIndex(Protocol):
    """Vectors to search in, with the interface of faiss."""

    def search(self, queries: Any, count: int) -> tuple[Any, Any]:
        """Squared distances or inner products [m, count], nearest first, and numbers of vectors [m, count].

        Args:
            queries: float32 [m, J].
            count: how many to find, at most as many as there are vectors.
        """


def vector_index(vectors: np.ndarray, inner: bool = False, quantised: bool = False) -> VectorIndex:
    """Make vectors searchable.

    Args:
        vectors: [n, J].
        inner: the nearest have the greatest inner products, not the smallest Euclidean distances.
        quantised: keep of each vector only one byte per two dimensions, the nearest of 256 centroids that are
            learnt by k-means (product quantisation: Jégou, Douze and Schmid, 2011). Distances are then those
            from the query itself to the centroids. With an odd J, one byte per dimension.

    Raises:
        ValueError: too few vectors to quantise, or inner products of quantised ones.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if quantised and inner:
        raise ValueError("quantised: expected Euclidean distances, inner products are not quantised")
    if quantised and len(vectors) < LEAST_QUANTISED:
        raise ValueError(f"quantised: expected {LEAST_QUANTISED:,} points or more, got {len(vectors):,}")
    if find_spec("faiss") is None:
        return _Quantised(vectors) if quantised else _Exact(vectors, inner)
    import faiss

    index: Any
    if quantised:
        index = faiss.IndexPQ(vectors.shape[1], _parts(vectors.shape[1]), 8)
        index.train(_sample(vectors))
    else:
        metric = faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2
        index = faiss.IndexFlat(vectors.shape[1], metric)
    index.add(vectors)
    found: VectorIndex = index
    return found


def nearest(values: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the ``count`` smallest of each row [m, n], in order; equal ones in the order of the row."""
    if count < values.shape[1]:
        last = np.partition(values, count - 1, axis=1)[:, count - 1 : count]
        return np.stack([_first(row, end, count) for row, end in zip(values, last, strict=True)])
    return np.argsort(values, axis=1, kind="stable")


def _first(row: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    (places,) = np.nonzero(row <= end)
    return places[np.argsort(row[places], kind="stable")[:count]]


class _Exact:
    """All distances, some queries at a time."""

    def __init__(self, vectors: np.ndarray, inner: bool) -> None:
        self.vectors, self.inner = vectors, inner
        self.squares = None if inner else np.square(vectors).sum(1)

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        parts = [self._search(part, count) for part in _batches(queries, len(self.vectors))]
        values, rows = (np.concatenate(found) for found in zip(*parts, strict=True))
        return values, rows

    def _search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        products = queries.astype(np.float32) @ self.vectors.T
        if self.squares is None:
            rows = nearest(-products, count)
            return np.take_along_axis(products, rows, 1), rows
        rows = nearest(self.squares - 2 * products, count)
        # The expanded square loses digits far from the origin; of those that were found it is redone.
        return np.square(self.vectors[rows] - queries[:, None]).sum(-1), rows


class _Quantised:
    """One byte for each part of a vector, and distances by tables. Jégou et al. (2011), Section 3."""

    def __init__(self, vectors: np.ndarray) -> None:
        from sklearn.cluster import MiniBatchKMeans  # here: scikit-learn takes a while to import

        parts = _parts(vectors.shape[1])
        self.quantisers = [
            MiniBatchKMeans(_CENTROIDS, batch_size=2048, n_init=1, random_state=0).fit(part)
            for part in np.split(_sample(vectors), parts, axis=1)
        ]
        split = zip(self.quantisers, np.split(vectors, parts, axis=1), strict=True)
        self.codes = np.stack([of.predict(np.ascontiguousarray(part)).astype(np.uint8) for of, part in split])

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        found = [self._search(query, count) for query in queries.astype(np.float32)]
        return np.stack([values for values, _ in found]), np.stack([rows for _, rows in found])

    def _search(self, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        squares = np.zeros(self.codes.shape[1], dtype=np.float32)
        parts = zip(self.quantisers, np.split(query, len(self.quantisers)), self.codes, strict=True)
        for quantiser, part, codes in parts:
            squares += np.square(quantiser.cluster_centers_ - part).sum(1).astype(np.float32)[codes]
        (rows,) = nearest(squares[None], count)
        return squares[rows], rows


def _parts(dim: int) -> int:
    return dim if dim % 2 else dim // 2


def _sample(vectors: np.ndarray) -> np.ndarray:
    if len(vectors) <= _LEARNT_FROM:
        return vectors
    return vectors[np.random.default_rng(0).choice(len(vectors), _LEARNT_FROM, replace=False)]


def _batches(queries: np.ndarray, n: int) -> list[np.ndarray]:
    at_once = max(1, _AT_ONCE // n)
    return [queries[start : start + at_once] for start in range(0, len(queries), at_once)]
