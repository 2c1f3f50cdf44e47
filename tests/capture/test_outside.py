"""What can be seen of programs from outside, and whether it stays."""

from functools import partial
from types import FunctionType

import pyro.poutine as poutine
import pytest
import torch
from torch import nn

from pyro_fmvae.capture.guards import Observed, Outside, attributes
from tests.capture import captured
from tests.infer.programs import Toy

LEVEL, UNUSED = 1.0, 2.0
NET = nn.Linear(1, 1)


def level():
    return LEVEL


def reads_globals(x):
    return [level() * x for _ in range(2)] + [NET(x)]


def names(*programs):
    return {name for _, name in Outside(programs).places}


def test_modules():
    toy, net = Toy(), nn.Linear(1, 1)
    assert Outside([toy.model, toy.guide]).modules == [toy]
    assert Outside([net, lambda: net]).modules == [net]
    listed = [net, {"toy": toy}]
    assert Outside([lambda: listed]).modules == [net, toy]
    assert Outside([partial(reads_globals, net)]).modules == [NET, net]
    assert Outside([poutine.scale(poutine.block(lambda: net), 2.0)]).modules == [net]


def test_variables_of_closures_and_globals_that_are_read():
    inner, beta = level, 2.0
    UNUSED = nn.Linear(1, 1)  # also the name of a global

    def program(x):
        def nested():
            return inner() * x.UNUSED

        return nested() * beta

    assert names(program) == {"inner", "beta", "LEVEL"}
    assert names(reads_globals) == {"level", "LEVEL", "NET"}
    assert names(lambda: UNUSED) == {"UNUSED"}


def test_variables_without_a_value():
    def program():
        return later

    [place] = map(Observed, Outside([program]).places)
    assert place.value is None
    later = 1.0
    assert not place.holds()


def test_libraries_are_not_searched():
    assert names(torch.nn.functional.softplus, poutine.trace, nn.Linear(1, 1)) == set()


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_are_libraries_wherever_they_are_installed(folder):
    """In the folder of a user, say, which is none of the environment's."""
    installed = {}
    exec(compile("LEVEL = 1.0\ndef f(): return LEVEL", f"/home/me/{folder}/other/code.py", "exec"), installed)
    assert names(installed["f"]) == set()


class Callable:
    """A program that is no module."""

    def __init__(self, net):
        self.beta, self.net = 1.0, net

    def __call__(self, x):
        return LEVEL * self.net(x)


@pytest.mark.parametrize("bound", [False, True])
def test_objects_that_are_called(bound):
    program = Callable(NET)
    seen = Outside([program.__call__ if bound else program])
    assert {name for _, name in seen.places} == {"net", "LEVEL"}  # beta is never read
    assert seen.modules == [NET]


class Reading(nn.Module):
    level, unread = 1.0, 2.0

    def __init__(self):
        super().__init__()
        self.activation, self.history = level, []

    def forward(self, x):
        return self.activation() * self.scaled * self.shift(x) * self.level

    @property
    def scaled(self):
        return UNUSED

    @staticmethod
    def shift(x):
        return x + SHIFT.amount

    def fit(self, losses):
        losses.append(NET(self.history))


class SHIFT:
    amount = 1.0


def test_attributes_that_are_read():
    """By name, in an object or its class, methods too, and what functions among them read."""
    net = Reading()
    found = Outside([net]).places
    names_of_net = {name for holder, name in found if holder is vars(net)}
    assert names_of_net == {"activation", "level", "scaled", "shift"}
    assert {name for _, name in found} == {*names_of_net, "UNUSED", "LEVEL", "amount"}
    before = list(map(Observed, found))
    for holder, name, value in ((net, "level", 3.0), (Reading, "level", 4.0), (SHIFT, "amount", 5.0)):
        old = getattr(holder, name)
        setattr(holder, name, value)
        assert not all(place.holds() for place in before)
        delattr(net, name) if holder is net else setattr(holder, name, old)
        assert all(place.holds() for place in before)


def test_variables_of_other_files():
    def program():
        return captured.RATE

    assert names(program) == {"RATE"}


def test_imports_that_have_no_package_are_left_to_python():
    def program():
        try:
            from tests.capture.guards import nothing
        except ImportError:
            from tests.capture.captured import RATE as nothing
        return nothing

    alone = FunctionType(program.__code__, {"__package__": None, "__name__": "__main__"})
    outside = Outside([alone])
    assert not outside.places
    outside.look_at_imports()
    assert [name for _, name in outside.places] == ["RATE"]


def test_arguments_of_partials_and_defaults():
    options = {"level": 1.0}

    def program(x, *, more=options):
        return x, more

    places = [Observed(place) for place in Outside([partial(program, options, more=options)]).places]
    assert {place.name for place in places} == {0, "more"}
    assert len(places) == 3
    options["level"] = 2.0
    assert not any(place.holds() for place in places)


def test_attributes_of_a_module_without_what_every_module_has():
    net = nn.Linear(2, 3)
    net.beta, net.history = 1.0, []
    assert {name for _, name in attributes(net)} == {"in_features", "out_features", "beta"}
