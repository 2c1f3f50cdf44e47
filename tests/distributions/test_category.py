"""Sums over categories by their codes are those of matrices of indicators."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions.category import codes_below, indicators, of_category, sums_by_category


def test_numbers_out_of_range_are_missing():
    numbers = torch.tensor([0.0, 2.0, torch.nan, -1.0, 3.0, 7.0])
    expected = torch.tensor([0, 2, -1, -1, -1, -1])
    assert torch.equal(codes_below(numbers, 3), expected)
    assert torch.equal(codes_below(numbers.nan_to_num(-5.0).int(), 3), expected)
    assert torch.equal(indicators(codes_below(numbers, 3), 3), indicators(numbers, 3))


@pytest.mark.parametrize("size", [1, 4, 50])
def test_sums_are_those_of_indicators(size):
    torch.manual_seed(0)
    codes = torch.randint(-1, size, (200,))
    one_hot, values, weights = indicators(codes, size).double(), torch.randn(3, size), torch.rand(200, 3)
    assert_close(of_category(values.double(), codes), one_hot @ values.double().mT)
    assert_close(sums_by_category(weights.double(), codes, size), weights.double().mT @ one_hot)
