import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from pyro_fmvae.evaluate import classification_measures, overcalled, reference_accuracies, wilson_interval


def rows(counts):
    """True and predicted values with these counts, of true values 0, 1, … in rows."""
    pairs = [(t, p) for t, row in enumerate(counts) for p, count in enumerate(row) for _ in range(count)]
    return np.array(pairs).T


def test_measures_of_three_classes_by_hand():
    """Recalls 6/8, 1/2 and 0; precisions 6/7, 1/4 and 0; F1 2·6 / (8 + 7), 2·1 / (2 + 4) and 0."""
    found = classification_measures(*rows([[6, 2, 0], [1, 1, 0], [0, 1, 0]]))
    low, high = found.pop("interval")
    assert low < 7 / 11 < high
    assert found == {
        "n": 11,
        "accuracy": pytest.approx(7 / 11),
        "balanced_accuracy": pytest.approx((6 / 8 + 1 / 2 + 0) / 3),
        "macro_f1": pytest.approx((12 / 15 + 2 / 6 + 0) / 3),
        "values": [0, 1, 2],
        "confusion": [[6, 2, 0], [1, 1, 0], [0, 1, 0]],
    }


def test_values_that_are_only_predicted_are_no_classes():
    """Naming the component 7 costs the recall of its points, and no class of its own."""
    found = classification_measures(np.array([2, 2, 4, 4]), np.array([2, 7, 4, 4]))
    assert found["values"] == [2, 4, 7]
    assert found["confusion"] == [[1, 0, 1], [0, 2, 0], [0, 0, 0]]
    assert found["balanced_accuracy"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_a_single_class():
    found = classification_measures(np.array([3, 3]), np.array([3, 3]))
    assert (found["values"], found["confusion"], found["macro_f1"]) == ([3], [[2]], 1.0)


@pytest.mark.parametrize(("successes", "n"), [(0, 5), (5, 5), (3, 7), (160, 200), (1, 1)])
def test_the_ends_of_the_interval_solve_wilsons_equation(successes, n):
    """At either end, the share found is z standard deviations away: (p̂ - p)² = z² p (1 - p) / n."""
    z = norm.ppf(0.975)
    share, (low, high) = successes / n, wilson_interval(successes, n)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n, abs=1e-12)
    assert low < high


def test_references():
    rng = np.random.default_rng(0)
    truth, test_truth = np.repeat([1, 5], [30, 20]), np.repeat([1, 5], [10, 40])
    codes, test_codes = (rng.normal(y[:, None] / 2.0, 1.0, (len(y), 2)) for y in (truth, test_truth))
    found = reference_accuracies(codes, truth, test_codes, test_truth)
    assert found["majority"] == 0.2  # 1 is commoner in training, not in the test
    scaled, test_scaled = ((part - codes.mean(0)) / codes.std(0) for part in (codes, test_codes))
    expected = LogisticRegression(tol=1e-8).fit(scaled, truth).score(test_scaled, test_truth)
    assert 0.5 < expected < 1 and found["logistic_regression"] == pytest.approx(expected, abs=0.021)


def test_references_of_equally_frequent_and_of_single_classes():
    codes = np.zeros((4, 1))
    assert reference_accuracies(codes, np.array([2, 1, 1, 2]), codes, np.ones(4))["majority"] == 1
    alone = reference_accuracies(codes, np.full(4, 2), codes, np.array([2, 2, 2, 0]))
    assert alone == {"majority": 0.75, "logistic_regression": None}


def points(*counts):
    """So many points of value 0, of value 1, and so on."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))


def test_names_the_value_of_a_collapsed_factor():
    found = overcalled(points(4, 96), points(48, 52))
    assert found == (1, pytest.approx(0.96), pytest.approx(0.52))
    assert overcalled(points(0, 0, 30), points(10, 10, 10)).value == 2
    assert overcalled(points(30), points(10, 10, 10)).value == 0  # values that are never predicted


def test_differences_that_are_small_or_chance_are_passed_over():
    assert overcalled(points(50, 50), points(50, 50)) is None
    assert overcalled(points(69, 31), points(50, 50)) is None  # 0.19, whatever its standard error
    assert overcalled(points(6900, 3100), points(5000, 5000)) is None
    assert overcalled(points(9, 1), points(2, 2)) is None  # 0.4, but of 4 labels


def test_the_excess_is_measured_in_standard_errors_of_a_difference_of_two_shares():
    excesses = []
    for ones in range(70, 90):
        pooled = (ones + 20) / 140
        error = math.sqrt(pooled * (1 - pooled) * (1 / 100 + 1 / 40))
        excesses.append((ones / 100 - 0.5) / error)
        assert (overcalled(points(ones, 100 - ones), points(20, 20)) is not None) == (excesses[-1] > 3)
    assert excesses[0] < 3 < excesses[-1]


def test_nothing_to_compare():
    assert overcalled(points(3, 2), points()) is None
    assert overcalled(points(), points(3, 2)) is None
