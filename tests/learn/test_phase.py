import math

import pytest
import torch

from pyro_fmvae.learn.phase import Budget, arguments, endless


@pytest.mark.parametrize(
    ("budget", "step", "seconds", "fraction"),
    [
        (Budget(iterations=4), 0, 1e9, 0.0),
        (Budget(iterations=4), 3, 0.0, 0.75),
        (Budget(iterations=4), 4, 0.0, 1.0),
        (Budget(minutes=0.5), 10**9, 0.0, 0.0),
        (Budget(minutes=0.5), 1, 15.0, 0.5),
        (Budget(minutes=0.5), 1, 60.0, 2.0),
        (Budget(iterations=4, minutes=0.5), 3, 60.0, 0.75),
        (Budget(iterations=0), 0, 0.0, 1.0),
        (Budget(minutes=0.0), 0, 0.0, 1.0),
        (Budget(iterations=0, minutes=1.0), 0, 0.0, 1.0),
    ],
)
def test_fraction(budget, step, seconds, fraction):
    assert budget.fraction(step, seconds) == fraction
    assert budget.empty == (not (budget.minutes if budget.iterations is None else budget.iterations))


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


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (Budget(iterations=1), Budget(iterations=3), 0.25),
        (Budget(minutes=3.0), Budget(minutes=1.0), 0.75),
        (Budget(iterations=0), Budget(iterations=3), 0.0),
        (Budget(iterations=2), Budget(iterations=0), 1.0),
        (Budget(iterations=0), Budget(iterations=0), 0.0),
    ],
)
def test_share_of_two_budgets(one, other, share):
    assert one.share_beside(other) == share


def test_budgets_in_different_units_have_no_shares():
    with pytest.raises(ValueError, match=r"^other: expected a budget in the same unit"):
        Budget(iterations=1).share_beside(Budget(minutes=1.0))
