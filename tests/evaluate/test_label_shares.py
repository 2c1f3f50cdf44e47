import math

import pytest
import torch

from pyro_fmvae.evaluate import overcalled


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
