import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Gamma, Normal
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    COLUMN_NORMAL_GAMMA,
    NORMAL_GAMMA,
    ColumnComponent,
    ColumnNormalGamma,
    NaturalColumnNormalGamma,
)
from tests.distributions.family_case import FamilyCase, tensors
from tests.infer.conjugate_case import ConjugateCase

NAN = math.nan


class TestColumnNormalGamma(FamilyCase):
    kind = NaturalColumnNormalGamma
    moderate = {  # noqa: RUF012
        "1": (tensors([1.0], [50.0], [30.0], [12.0]), tensors([0.0], [1.0], [0.01], [0.01])),
        "3": (
            tensors([1.0, -2.0, 0.3], [4.0, 1.0, 9.0], [2.5, 1.0, 5.0], [1.0, 3.0, 0.2]),
            tensors([0.5, 0.0, 0.1], [2.0, 2.0, 0.5], [1.5, 1.0, 3.0], [1.0, 0.5, 2.0]),
        ),
    }
    extreme = {  # noqa: RUF012
        "many": tensors([0.3, -1.0], [2e5, 2.0], [1e5, 3.0], [3e4, 2.0]),
    }
    outside = {  # noqa: RUF012
        name: torch.tensor([0.5, -0.5, -1.0, 0.0, *column], dtype=torch.float64)
        for name, column in {"s": [1.0, 0.5, -1.0, 0.0], "a": [-0.6, -0.5, -1.0, 0.0]}.items()
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (2,), (6,))}  # noqa: RUF012

    def log_density(self, standard, value):
        m, s, a, b = standard
        loc, precision = value.unbind(-2)
        normal = Normal(m, (s * precision).rsqrt()).log_prob(loc)
        return (normal + Gamma(a, b).log_prob(precision)).sum(-1)

    def draw(self, standard, count):
        m, s, a, b = standard
        precision = Gamma(a, b).sample((count,)).clamp(min=1e-10)
        return torch.stack([Normal(m, (s * precision).rsqrt()).sample(), precision], -2)

    def observe(self, value, count):
        loc, precision = value
        return Normal(loc, precision.rsqrt()).sample((count,))

    def log_likelihood(self, value, x):
        loc, precision = value.unbind(-2)
        return Normal(loc, precision.rsqrt()).log_prob(x).sum(-1)


class TestColumnMixture(ConjugateCase):
    kind, component = NaturalColumnNormalGamma, ColumnComponent
    parameters = ["loc", "log_mean_concentration", "log_concentration", "log_rate"]  # noqa: RUF012

    def prior(self):
        one = torch.ones(2)
        return ColumnNormalGamma(0.3 * one, 0.6 * one, 2.2 * one, 0.8 * one)

    def q(self, loc, scale):
        return dist.Normal(loc, scale).to_event(1)

    def observe(self, count):
        return torch.randn(count, 2)

    def clusters(self, count):
        index = torch.arange(count) % 3
        return 30 * torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]])[index] + torch.randn(count, 2), index


def test_with_equal_counts_it_is_the_normal_gamma():
    m, b = torch.randn(3, 4).double(), torch.rand(3, 4).double() + 0.1
    s, a = torch.rand(3).double() + 0.1, torch.rand(3).double() + 0.1
    ours = COLUMN_NORMAL_GAMMA.natural(m, s.unsqueeze(-1).expand(3, 4), a.unsqueeze(-1).expand(3, 4), b)
    theirs = NORMAL_GAMMA.natural(m, s, a, b)
    assert_close(COLUMN_NORMAL_GAMMA.kl(ours, ours[0]), NORMAL_GAMMA.kl(theirs, theirs[0]))
    x = torch.randn(7, 4).double()
    tables = (
        family.expected_log_likelihood(x, torch.zeros_like(x), family.mean_stats(natural))
        for family, natural in ((COLUMN_NORMAL_GAMMA, ours), (NORMAL_GAMMA, theirs))
    )
    assert_close(*tables)


def test_a_missing_number_counts_nothing():
    """The columns of a row are as many observations: each column alone, of the rows that have it."""
    x = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, -1.0], [0.5, 3.0, NAN]]).double()
    weights = torch.rand(3, 2).double()
    prior = COLUMN_NORMAL_GAMMA.natural(*tensors([0.1] * 3, [0.7] * 3, [1.3] * 3, [0.4] * 3)).expand(2, -1)
    whole = COLUMN_NORMAL_GAMMA.conjugate_update(prior, weights, x, torch.zeros_like(x))
    table = COLUMN_NORMAL_GAMMA.expected_log_likelihood(
        x, torch.zeros_like(x), COLUMN_NORMAL_GAMMA.mean_stats(whole)
    )
    expected = torch.zeros(3, 2).double()
    for column in range(3):
        rows = (~x[:, column].isnan()).nonzero().squeeze(-1)
        known, slots = x[rows, column].unsqueeze(-1), slice(4 * column, 4 * column + 4)
        zero = torch.zeros_like(known)
        alone = NORMAL_GAMMA.conjugate_update(prior[:, slots], weights[rows], known, zero)
        assert_close(whole[:, slots], alone)
        expected[rows] += NORMAL_GAMMA.expected_log_likelihood(known, zero, NORMAL_GAMMA.mean_stats(alone))
    assert_close(table, expected)


def test_rows_are_scored_by_the_numbers_that_are_there():
    loc_precision = torch.stack([torch.randn(2, 3), torch.rand(2, 3) + 0.1], -2)
    fn = ColumnComponent(loc_precision, torch.tensor([1, 0]))
    x = torch.tensor([[0.3, NAN, -1.0], [NAN, NAN, NAN]])
    loc, precision = loc_precision[1]
    expected = Normal(loc, precision.rsqrt()).log_prob(torch.tensor([0.3, 0.0, -1.0]))[[0, 2]].sum()
    assert_close(fn.log_prob(x), torch.stack([expected, torch.zeros(())]))
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(torch.full((2, 3), math.inf))
    with pytest.raises(ValueError, match=r"loc_precision: expected shape \[..., K, 2, D\], got \[2, 3\]"):
        ColumnComponent(torch.zeros(2, 3), torch.tensor([0]))
