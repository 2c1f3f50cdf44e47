"""What a recording relies on, and that steps notice when it is no longer so."""

import copy
from functools import partial

import pyro
import pytest
import torch
from torch import nn

from pyro_fmvae.capture.guards import Assumptions, Rehearsal
from tests.capture.captured import EXACT, Methods, Plain, assert_twins, plainly
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


def test_a_rehearsal_finds_called_modules_and_undoes_what_they_did():
    norm, inner = nn.BatchNorm1d(3), nn.Linear(3, 3)
    net = nn.Sequential(norm, inner)
    rehearsal = Rehearsal()
    random = torch.get_rng_state()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with rehearsal.watching():
        net(torch.randn(5, 3))
    net(torch.randn(5, 3))
    assert rehearsal.modules == [net]
    assert not rehearsal.made(net.parameters())
    assert rehearsal.made([nn.Parameter(torch.ones(1))])
    assert norm.num_batches_tracked == 2
    rehearsal.undo()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), random)


def test_a_rehearsal_notices_modules_that_grow():
    net = nn.Sequential(nn.Linear(1, 1))
    rehearsal = Rehearsal(net)
    assert not rehearsal.made([])
    net.append(nn.Linear(1, 1))
    assert rehearsal.made([])


def test_a_rehearsal_undoes_writes_to_tensors_from_outside():
    whole, other, out = torch.zeros(3), torch.ones(2), torch.ones(2)
    rehearsal = Rehearsal()
    with rehearsal.watching():
        for _ in range(2):
            whole[1:].add_(other)
            other.mul_(2.0)
            torch.add(other, 1.0, out=out)
            whole[:2].sub_(5.0)  # overlaps with what was written before
            made = torch.empty(3).fill_(1.0)
            made.view(3, 1)[0].mul_(2.0)
    assert [tensor.shape.numel() for tensor in rehearsal.written] == [2, 2, 2, 2]
    assert (whole.tolist(), other.tolist(), out.tolist()) == ([-10.0, -7.0, 3.0], [4.0, 4.0], [5.0, 5.0])
    rehearsal.undo()
    assert (whole.tolist(), other.tolist(), out.tolist()) == ([0.0] * 3, [1.0] * 2, [1.0] * 2)
