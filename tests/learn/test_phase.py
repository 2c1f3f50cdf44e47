import math

import pytest
import torch

from pyro_fmvae.learn.phase import Budget, arguments, endless


@pytest.mark.parametrize(
    "given",
    [{}, {"iterations": -1}, {"minutes": -1.0}, {"iterations": 1, "minutes": -1.0}]
    + [{"minutes": value} for value in (math.nan, math.inf)],
)
def test_budget_refuses(given):
    with pytest.raises(ValueError, match=r"^budget: expected"):
        Budget(**given)


def test_endless_iterates_over_and_over():
    source = endless([1, 2])
    assert [next(source) for _ in range(5)] == [1, 2, 1, 2, 1]


def test_endless_refuses_an_empty_loader():
    with pytest.raises(ValueError, match=r"^batches: expected at least one"):
        next(endless([]))


def test_batches_as_arguments():
    x = torch.zeros(2)
    assert arguments(x) == (x,)
    assert arguments((x, 1)) == (x, 1)
    assert arguments([x]) == [x]
