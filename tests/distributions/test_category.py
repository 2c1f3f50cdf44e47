"""Sums over categories by their codes are those of matrices of indicators."""

import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import DIRICHLET
from pyro_fmvae.distributions.category import (
    CategoryBlock,
    codes_below,
    indicators,
    of_category,
    sums_by_category,
)


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


def test_a_block_is_what_its_columns_are_one_by_one():
    torch.manual_seed(0)
    sizes = [3, 1, 5]
    codes = [torch.randint(-1, size, (2, 40)) for size in sizes]
    block = CategoryBlock(sizes, torch.device("cpu"))
    assert_close(
        block.indicators(codes).float(),
        torch.cat([indicators(of, size).float() for of, size in zip(codes, sizes, strict=True)], -1),
    )
    natural, prior = 5 * torch.rand(2, 4, 9, dtype=torch.float64) + 0.1, torch.rand(9, dtype=torch.float64)
    stats = block.mean_stats(natural)
    apart = torch.zeros(2, 4, dtype=torch.float64)
    for of, own, before in zip(
        stats.split(sizes, -1), natural.split(sizes, -1), prior.split(sizes), strict=True
    ):
        assert_close(of, DIRICHLET.mean_stats(own), rtol=1e-12, atol=1e-12)
        apart += kl_divergence(Dirichlet(own), Dirichlet(before))
    softmax = [part.log_softmax(-1) for part in prior.log().split(sizes)]
    assert_close(block.log_softmax(prior.log()), torch.cat(softmax), rtol=1e-12, atol=1e-12)
    assert_close(block.relative_entropy(natural, prior, stats), apart, rtol=1e-12, atol=1e-12)
