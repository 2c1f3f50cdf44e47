"""Whether what was seen once is still the same."""

from argparse import Namespace
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from pyro_fmvae.capture.guards import Observed


@dataclass
class Options:
    beta: float
    inner: object = None


def observed(value):
    holder = {"it": value}
    return Observed((holder, "it")), holder


TENSOR = torch.ones(2)
SAME = [(1.0, 1.0), ("ab", "a" + "b"), ([1, [2.0]], [1, [2.0]]), ({"a": TENSOR}, {"a": TENSOR})]
DIFFERENT = [
    (1.0, 2.0),
    (1.0, 1),
    (None, 1.0),
    (torch.ones(2), torch.ones(2)),
    ([1, 2], (1, 2)),
    ([1, 2], [1, 2, 3]),
    ({"a": torch.ones(2)}, {"a": torch.ones(2)}),
    (object(), object()),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_equal_things_are_the_same(before, after):
    place, holder = observed(before)
    holder["it"] = after
    assert place.holds()


@pytest.mark.parametrize(("before", "after"), DIFFERENT)
def test_other_things_are_not(before, after):
    place, holder = observed(before)
    assert place.holds()
    holder["it"] = after
    assert not place.holds()


@dataclass(slots=True)
class Slots:
    beta: float


@pytest.mark.parametrize("make", [Options, Slots, Namespace, SimpleNamespace])
def test_what_changes_inside(make):
    options = make(beta=1.0)
    place, _ = observed({"all": (options, 1)})
    options.beta = 2.0
    assert not place.holds()
    options.beta = 1.0
    assert place.holds()


@dataclass(frozen=True)
class Frozen:
    inner: object


@pytest.mark.parametrize(
    ("value", "changeable"),
    [
        (1.0, False),
        (TENSOR, False),
        ((1, (2, "a")), False),
        (Frozen((1, 2)), False),
        ((1, [2]), True),
        (Frozen([1]), True),
        (Options(1.0), True),
        ({}, True),
        (Options, False),
    ],
)
def test_what_may_change_and_still_be_the_same_object(value, changeable):
    assert observed(value)[0].changeable == changeable


def test_what_changes_beside_what_may():
    place, holder = observed({"calls": 0, "beta": 1.0, "seen": []})
    holder["it"]["calls"] += 1
    holder["it"]["seen"].append(1)
    free = place.changes()
    assert free == {("calls",), ("seen",), ("seen", 0)}
    assert place.holds(free)
    holder["it"]["seen"].append(2)
    assert place.holds(free)
    holder["it"]["beta"] = 2.0
    assert not place.holds(free)


def test_long_lists_are_not_looked_into():
    place, holder = observed(list(range(1000)))
    holder["it"][0] = 1
    assert place.holds()
    holder["it"] = list(holder["it"])
    assert not place.holds()


def test_a_list_within_itself():
    loop = []
    loop.append(loop)
    place, _ = observed(loop)
    assert place.holds()
