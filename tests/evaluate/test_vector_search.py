"""Nearest vectors, by faiss and by NumPy alike, against all distances written out."""

import importlib.util

import numpy as np
import pytest

from pyro_fmvae.evaluate import LEAST_QUANTISED, vector_index, vector_search

WITH_FAISS = pytest.param(
    True,
    marks=pytest.mark.skipif(
        importlib.util.find_spec("faiss") is None, reason="pip install 'pyro_fmvae[search]'"
    ),
    id="faiss",
)


@pytest.fixture(params=[WITH_FAISS, pytest.param(False, id="numpy")])
def library(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(vector_search, "find_spec", lambda _: None)


@pytest.fixture(scope="module")
def vectors():
    """Clusters far from the origin, and queries near some of them."""
    rng = np.random.default_rng(0)
    centres = 20 + 3 * rng.normal(size=(50, 6))
    points = centres[rng.integers(50, size=LEAST_QUANTISED)] + rng.normal(size=(LEAST_QUANTISED, 6))
    return points.astype(np.float32), (points[:7] + 0.1 * rng.normal(size=(7, 6))).astype(np.float32)


@pytest.mark.usefixtures("library")
def test_the_nearest_by_distance(vectors):
    points, queries = vectors
    squares = np.square(points[None].astype(np.float64) - queries[:, None]).sum(-1)
    expected = np.argsort(squares, 1)[:, :10]
    values, rows = vector_index(points).search(queries, 10)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(values, np.take_along_axis(squares, expected, 1), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("library")
def test_the_nearest_by_inner_product(vectors):
    points, queries = vectors
    products = queries.astype(np.float64) @ points.T
    expected = np.argsort(-products, 1)[:, :10]
    values, rows = vector_index(points, inner=True).search(queries, 10)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(values, np.take_along_axis(products, expected, 1), rtol=1e-5)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dim", [5, 6])
def test_quantised_vectors_find_most_of_the_nearest(vectors, dim):
    points, queries = (part[:, :dim] for part in vectors)
    exact = vector_index(points).search(queries, 10)[1]
    values, rows = vector_index(points, quantised=True).search(queries, 10)
    found = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), rows.tolist(), strict=True)]
    assert np.mean(found) > 5  # of 10; by chance 0.01
    assert (np.diff(values, axis=1) >= 0).all()


def test_equal_values_keep_their_order():
    values = np.array([[2.0, 1.0, 1.0, 0.0, 1.0, 3.0]])
    for count in range(1, 7):
        assert vector_search.nearest(values, count).tolist() == [[3, 1, 2, 4, 0, 5][:count]]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((10, 4), {"quantised": True}, "expected 10,000 points or more, got 10"),
        ((LEAST_QUANTISED, 4), {"quantised": True, "inner": True}, "expected Euclidean distances"),
    ],
)
def test_bad_input(shape, options, message):
    with pytest.raises(ValueError, match=f"quantised: {message}"):
        vector_index(np.zeros(shape), **options)
