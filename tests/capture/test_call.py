"""Which arguments of a step are data, and which are constants."""

from enum import Enum
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from pyro_fmvae.capture.guards import Call
from tests.capture.captured import EXACT, Plain, assert_twins, plainly, svi_for


class Colour(Enum):
    RED = 1
    BLUE = 2


class Box:
    """Of no particular kind; two of them are equal as long as they are the same."""


def shifted(z):
    return z + 1


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (Box(), "Box"),
        (np.ones(3), "ndarray"),
        ({1}, "set"),
        (object, "type"),
        (partial(shifted), "partial"),
        ((1, [Box()]), "Box"),
        ({"a": Box()}, "Box"),
    ],
)
def test_what_is_refused_is_named(argument, name):
    program = Plain(plainly)
    svi = svi_for(program)
    before = [p.detach().clone() for p in program.parameters()]
    for args, kwargs in (((argument,), {}), ((), {"more": argument})):
        with pytest.raises(ValueError, match=f"a captured step takes tensors, .*, got {name}; .*eager=True"):
            svi.step(torch.zeros(6, 3), *args, **kwargs)
    assert all(map(torch.equal, before, program.parameters()))
    assert not svi._steps
    svi.eager = True
    svi.step(torch.zeros(6, 3), argument)


def test_tensors_that_want_a_gradient_are_refused():
    """A replay would leave it out."""
    x, more = torch.zeros(6, 3), torch.zeros(2, requires_grad=True)
    svi = svi_for(Plain(lambda program, z, x, more: program.decoder(z + more)))
    for wanted in (more, 2 * more):
        with pytest.raises(ValueError, match=r"got a tensor of shape \[2\] that requires a gradient: detach"):
            svi.step(x, wanted)
    svi.step(x, more.detach())
    svi.eager = True
    svi.step(x, more)
    assert more.grad.abs().sum() > 0


OBJECTS = [Colour.RED, torch.float32, torch.device("cpu"), None, shifted, nn.Tanh()]
CONSTANTS = [*OBJECTS, "mean", 3, 0.5, 1j, True]


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: type(constant).__name__)
def test_constants(constant):
    x = torch.ones(2)
    key = Call((x, constant), {}).key
    assert hash(key) == hash(Call((2 * x, constant), {}).key)
    assert key == Call((2 * x, constant), {}).key
    others = [other for other in (*CONSTANTS, 1, 1.0, Colour.BLUE, nn.Tanh()) if other is not constant]
    assert all(key != Call((x, other), {}).key for other in others)


@pytest.mark.parametrize(
    "other",
    [torch.ones(3), torch.ones(2, 1), torch.ones(2).float(), torch.ones(4)[::2], torch.ones(2).to("meta")],
    ids=["size", "shape", "dtype", "stride", "device"],
)
def test_other_tensors(other):
    assert Call((torch.ones(2),), {}).key != Call((other,), {}).key


def test_structure_and_data():
    x, y = torch.ones(2), torch.zeros(2)
    call = Call((x, [1, y]), {"more": {"a": x, "b": None}})
    assert [id(tensor) for tensor in call.data] == [id(x), id(y), id(x)]
    assert call.shapes == ((2,),) * 3
    new = [torch.full((2,), float(n)) for n in range(3)]
    args, kwargs = call.arguments(new)
    assert args[0] is new[0]
    assert args[1][0] == 1
    assert args[1][1] is new[1]
    assert kwargs == {"more": {"a": new[2], "b": None}}
    assert call.key != Call((x, (1, y)), {"more": {"a": x, "b": None}}).key
    assert call.key != Call((x, [1, y]), {"more": {"a": x, "c": None}}).key


def choosing(program, z, x, colour, kind, activation, reduction, nothing):
    assert nothing is None
    factor = 2.0 if colour is Colour.RED else 3.0
    mean = program.decoder(activation(z)).to(kind) * factor
    return mean.double() + getattr(x, reduction)()


def test_constants_choose_the_program():
    x = torch.randn(6, 3)
    every = [
        (x, Colour.RED, torch.float64, shifted, "mean", None),
        (x, Colour.BLUE, torch.float64, shifted, "mean", None),
        (x, Colour.RED, torch.float32, shifted, "mean", None),
        (x, Colour.RED, torch.float64, nn.functional.relu, "mean", None),
        (x, Colour.RED, torch.float64, shifted, "sum", None),
    ]
    svi = assert_twins(lambda: Plain(choosing), every * 2, EXACT)
    assert len(svi._steps) == len(every)


@pytest.mark.parametrize(
    ("arguments", "rows"), [((torch.ones(3, 2), torch.ones(5)), 3), ((1, torch.ones(())), 1), ((1,), 0)]
)
def test_rows(arguments, rows):
    assert Call(arguments, {}).rows == rows
