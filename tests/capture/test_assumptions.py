"""What a recording relies on, and that steps notice when it is no longer so."""

import copy
from functools import partial

import pyro
import pytest
import torch
from torch import nn

from pyro_fmvae.capture.guards import Assumptions
from tests.capture.captured import CLOSE, EXACT, Methods, Plain, assert_twins, plainly
from tests.infer.programs import Toy


def binary(size=6):
    return torch.bernoulli(torch.full((size, 5), 0.5))


def replaced_parameter(program, svi):
    program.decoder.weight = nn.Parameter(torch.ones(3, 2))


def replaced_submodule(program, svi):
    program.encoder = nn.Linear(3, 4)


def replaced_posterior(toy, svi):
    toy.weights = copy.deepcopy(toy.weights)


def other_memory(program, svi):
    program.decoder.weight.data = torch.ones(3, 2)


def loaded(program, svi):
    program.load_state_dict({name: 1.1 * value for name, value in program.state_dict().items()})


def loaded_by_assignment(program, svi):
    state = {name: 1.1 * value for name, value in program.state_dict().items()}
    program.load_state_dict(state, assign=True)


def frozen(program, svi):
    program.encoder.weight.requires_grad_(False)


def back_and_forth(program, svi):
    program.encoder.float()
    program.encoder.double()


def fresh_optimiser_state(program, svi):
    state = svi.optim.state_dict()
    for one in state["others"]["state"].values():
        one["exp_avg"].mul_(0.5)
    svi.optim.load_state_dict(copy.deepcopy(state))


CHANGES = [
    replaced_parameter,
    replaced_submodule,
    other_memory,
    loaded,
    loaded_by_assignment,
    frozen,
    back_and_forth,
    fresh_optimiser_state,
]


@pytest.mark.parametrize("change", CHANGES)
def test_steps_notice(change):
    def between(step, svi, program):
        if step == 3:
            change(program, svi)

    assert_twins(Methods, [(torch.randn(6, 3),)] * 8, EXACT, between=between)


def test_steps_notice_another_posterior():
    def between(step, svi, toy):
        if step == 3:
            replaced_posterior(toy, svi)

    assert_twins(Toy, [(binary(),)] * 8, between=between)


def test_modes_of_submodules():
    def between(step, svi, program):
        program.decoder[1].train(step % 4 < 2)

    assert_twins(
        lambda: Plain(plainly, nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))),
        [(torch.randn(6, 3),)] * 6,
        EXACT,
        between=between,
    )


def test_a_value_of_the_store_that_was_set():
    def between(step, svi, program):
        if step == 3:
            pyro.get_param_store()["sd"] = torch.full((3,), 2.0)
        if step == 6:  # its constraint is another one then: other operations
            pyro.get_param_store().setdefault("sd", torch.ones(3))
            del pyro.get_param_store()["sd"]

    assert_twins(lambda: Plain(plainly, scale=True), [(torch.randn(6, 3),)] * 9, EXACT, between=between)


def test_another_dtype():
    def make():
        torch.set_default_dtype(torch.float64)
        return Plain(plainly)

    def between(step, svi, program):
        if step == 2:
            torch.set_default_dtype(torch.float32)
            program.float()

    batches = [(torch.randn(6, 3),)] * 2 + [(torch.randn(6, 3).float(),)] * 3
    assert_twins(make, batches, EXACT, between=between, optimizer=partial(torch.optim.SGD, lr=1e-4))


def test_hold_compares_what_it_knows_and_nothing_else():
    toy, other = Toy(), Toy()
    known = Assumptions([toy], ["sd"])
    assert {id(t) for t in known.tensors} == {id(p) for p in toy.parameters()}
    other.encoder = nn.Linear(1, 1)
    pyro.param("sd", torch.ones(1))
    with torch.no_grad():
        toy.encoder.weight.add_(1.0)
    assert known.hold()
    toy.decoder.eval()
    assert not known.hold()
    toy.decoder.train()
    assert known.hold()


@pytest.mark.parametrize("compile", [False, True])
def test_another_view_of_the_same_memory(compile):
    """The address stays, but a compiled program takes the strides for granted."""

    def make():
        program = Plain(lambda program, z, x: program.decoder(z) * program.table)
        program.memory = torch.arange(1.0, 10.0).reshape(3, 3)
        program.table = program.memory[0]
        return program

    def between(step, svi, program):
        if step == 3:
            program.table.data = program.memory[:, 0]

    tolerance = CLOSE if compile else EXACT
    assert_twins(make, [(torch.randn(6, 3),)] * 6, tolerance, between=between, compile=compile)
