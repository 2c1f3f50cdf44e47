from itertools import permutations

import numpy as np
import pytest
import torch

from pyro_fmvae.evaluate import RECOVERED, UnitMatch, match_units


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


@pytest.mark.parametrize(("learnt", "true"), [(5, 5), (6, 4), (4, 6)])
def test_against_all_matchings(learnt, true):
    rng = np.random.default_rng(learnt)
    w, t = rng.standard_normal((learnt, 3, 2)), rng.standard_normal((true, 3, 2))
    found = match_units(w, t)
    few, many = min(learnt, true), max(learnt, true)
    best = -np.inf
    for chosen in permutations(range(many), few):
        pairs = [(i, j) if learnt >= true else (j, i) for i, j in zip(range(few), chosen, strict=True)]
        total = sum(cosine(t[i], w[j]) for i, j in pairs)
        if total > best:
            best, matching = total, dict(pairs)
    assert found.unit_of.tolist() == [matching.get(i, -1) for i in range(true)]
    expected = [cosine(t[i], w[matching[i]]) if i in matching else 0.0 for i in range(true)]
    np.testing.assert_allclose(found.cosines, expected, atol=1e-12)
    assert found.cosines.dtype == np.float64 and found.unit_of.dtype == np.int64


def test_order_and_length_are_free_but_not_the_sign():
    true = np.eye(4).reshape(4, 2, 2)
    order = np.array([2, 0, 3, 1])
    found = match_units(true[order] * np.array([1e-9, 2, 3e9, 1])[:, None, None], true)
    assert order[found.unit_of].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(found.cosines, 1, atol=1e-12)
    assert found.cosines.max() <= 1
    assert found.recovered == 4
    assert match_units(-true[:1], true[:1]).cosines == pytest.approx(-1)


def test_the_limit_is_exclusive():
    assert RECOVERED == 0.95
    found = UnitMatch(np.array([0.95, 0.9500001, 0.94, 1.0]), np.arange(4))
    assert found.recovered == 2


def test_counts_of_units_at_known_angles():
    angles = np.array([0.0, 17.0, 19.0])  # cosines 1, 0.956 and 0.946
    true, learnt = np.zeros((3, 6)), np.zeros((3, 6))
    for unit, angle in enumerate(np.radians(angles)):
        true[unit, 2 * unit] = 1
        learnt[unit, 2 * unit : 2 * unit + 2] = np.cos(angle), np.sin(angle)
    found = match_units(learnt, true)
    np.testing.assert_allclose(found.cosines, np.cos(np.radians(angles)), atol=1e-12)
    assert found.recovered == 2


def test_zero_units_have_cosine_zero():
    found = match_units(np.array([[0.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert found.cosines.tolist() == [1, 0] and found.unit_of.tolist() == [1, 0]
    assert match_units(np.ones((2, 2)), np.zeros((2, 2))).recovered == 0


def test_takes_tensors():
    units = torch.randn(3, 4, dtype=torch.float32)
    np.testing.assert_array_equal(match_units(units, units).unit_of, [0, 1, 2])


@pytest.mark.parametrize(
    ("learnt", "true", "message"),
    [
        (np.zeros((3, 4)), np.zeros((3, 2, 2)), r"learnt, true: .*, got \[4\] and \[2, 2\]"),
        (np.zeros(3), np.zeros((1, 3)), r"learnt: expected at least one unit \[H, ...\], got \[3\]"),
        (np.zeros((1, 3)), np.zeros((0, 3)), r"true: expected at least one unit .*, got \[0, 3\]"),
        (np.full((1, 3), np.nan), np.zeros((1, 3)), "learnt: expected finite values"),
        (np.zeros((1, 3)), np.full((1, 3), np.inf), "true: expected finite values"),
    ],
)
def test_errors(learnt, true, message):
    with pytest.raises(ValueError, match=message):
        match_units(learnt, true)
