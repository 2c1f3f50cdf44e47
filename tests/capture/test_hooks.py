"""Hooks of modules and gradients, and a ``forward`` that is replaced: noticed, or refused."""

import logging
from functools import partial
from types import MethodType

import pytest
import torch
from torch import nn

from pyro_fmvae.capture import CaptureError
from pyro_fmvae.capture.guards import Hooks, functions
from tests.capture.captured import EXACT, Methods, Plain, assert_twins, numbers, plainly, svi_for
from tests.infer.programs import Toy


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "pyro_fmvae")
    return caplog


def captures(log):
    return sum(record.getMessage().startswith("captured the step") for record in log.records)


class Halved(nn.Linear):
    """A layer whose class is the test's own."""

    def forward(self, z):
        return 0.5 * super().forward(z)


def halved():
    """A program whose decoder has a class of its own, without a ``forward``."""
    return Plain(plainly, type("Inherits", (Halved,), {})(2, 3))


class Removable:
    """What stands for an attribute that was set, as torch's handles stand for hooks."""

    def __init__(self, owner, name, value):
        self.owner, self.name = owner, name
        setattr(owner, name, value)

    def remove(self):
        delattr(self.owner, self.name)


def triple_forward(layer, z):
    return 3.0 * nn.functional.linear(z, layer.weight, layer.bias)


CHANGES = {
    "forward": lambda net: net.register_forward_hook(lambda *a: 2.0 * a[-1]),
    "forward with keywords": lambda net: net.register_forward_hook(lambda *a: 2.0 * a[-1], with_kwargs=True),
    "before forward": lambda net: net.register_forward_pre_hook(lambda net, given: (2.0 * given[0],)),
    "backward": lambda net: net.register_full_backward_hook(lambda net, given, _: (0.5 * given[0],)),
    "before backward": lambda net: net.register_full_backward_pre_hook(lambda net, grads: (0.5 * grads[0],)),
    "gradient": lambda net: net.weight.register_hook(lambda grad: 0.5 * grad),
    "other forward": lambda net: Removable(net, "forward", MethodType(triple_forward, net)),
    "forward of the class": lambda net: Removable(type(net), "forward", triple_forward),
}


@pytest.mark.parametrize("name", CHANGES)
def test_steps_notice(name, log):
    """What is added, and that it is removed: each time, the step is captured once more."""
    added = []

    def between(step, svi, program):
        if step == 3:
            added.append(CHANGES[name](program.decoder))
        if step == 6:
            added.pop().remove()

    assert_twins(halved, [(torch.randn(6, 3),)] * 9, EXACT, between=between)
    assert captures(log) == 3


@pytest.mark.parametrize("name", CHANGES)
def test_what_there_is_before_the_capture_is_recorded(name, log):
    def make():
        program = halved()
        CHANGES[name](program.decoder)
        return program

    assert_twins(make, [(torch.randn(6, 3),)] * 4, EXACT)
    assert captures(log) == 1


def test_hooks_of_the_second_pass(log):
    def between(step, svi, program):
        if step == 3:
            program.encoder.register_forward_hook(lambda *given: 0.5 * given[-1])

    toys = [(torch.bernoulli(torch.full((6, 5), 0.5)),)] * 6
    assert_twins(Toy, toys, between=between, recompute=True)
    assert captures(log) == 2


def test_a_guide_whose_class_gets_another_forward(log):
    class Guide(nn.Module):
        def __init__(self, program):
            super().__init__()
            self.program = program

        def forward(self, x):
            self.program.guide(x)

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Methods()
            self.model, self.guide = self.inner.model, Guide(self.inner)

    def between(step, svi, program):
        if step == 3:
            Guide.forward = lambda guide, x: guide.program.guide(0.5 * x)
        if step == 0:
            Guide.forward = lambda guide, x: guide.program.guide(x)

    assert_twins(Program, [(torch.randn(6, 3),)] * 6, EXACT, between=between)
    assert captures(log) == 2


def test_the_gradient_of_a_natural_parameter():
    def between(step, svi, toy):
        if step == 3:
            toy.weights.natural.register_hook(lambda grad: 0.5 * grad)

    assert_twins(Toy, [(torch.bernoulli(torch.full((6, 5), 0.5)),)] * 6, between=between)


def test_numbers_that_a_hook_reads(log):
    """A hook is one of the program's functions, with variables that are watched."""
    settings = {"factor": 1.0}

    def between(step, svi, program):
        settings["factor"] = 1.0 + step // 2
        if step == 0:
            program.decoder.register_forward_hook(lambda *given: settings["factor"] * given[-1])
            program.encoder.weight.register_hook(lambda grad: settings["factor"] * grad)

    assert_twins(Methods, [(torch.randn(6, 3),)] * 6, EXACT, between=between)
    assert captures(log) == 3


def test_all_hooks_are_dropped_at_once():
    def between(step, svi, program):
        if step == 0:
            program.decoder.register_forward_hook(lambda *given: 2.0 * given[-1])
        if step == 3:
            program.decoder._forward_hooks = type(program.decoder._forward_hooks)()

    assert_twins(Methods, [(torch.randn(6, 3),)] * 6, EXACT, between=between)


def test_a_hook_that_is_there_for_one_call_alone(log):
    """Found no more once the program has run, it is nothing that changes."""

    def body(program, z, x):
        hook = program.decoder.register_forward_hook(lambda *given: 2.0 * given[-1])
        try:
            return program.decoder(z)
        finally:
            hook.remove()

    assert_twins(lambda: Plain(body), [(torch.randn(6, 3),)] * 5, EXACT)
    assert captures(log) == 1


def test_refuses_a_program_that_adds_hooks_at_every_call():
    def body(program, z, x):
        program.decoder.weight.register_hook(lambda grad: 0.5 * grad)
        return program.decoder(z)

    with pytest.raises(CaptureError, match="changes a module's mode or hooks"):
        svi_for(Plain(body)).step(torch.randn(6, 3))


def halve(p):
    p.grad.mul_(0.5)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("natural", [False, True])
def test_refuses_hooks_on_gradients_in_their_place(later, natural):
    """An optimiser's own step may be in there. Eager steps run them."""
    toy = Toy()
    x, parameter = toy.data(6), toy.weights.natural if natural else toy.decoder.weight
    svi = svi_for(toy)
    if later:
        svi.step(x)
    hook = parameter.register_post_accumulate_grad_hook(halve)
    before, random = numbers(toy), torch.get_rng_state()
    with pytest.raises(
        CaptureError, match=r"parameter of shape \[.*register_post_accumulate_grad_hook.*eager=True"
    ):
        svi.step(x)
    assert all(torch.equal(value, before[name]) for name, value in numbers(toy).items())
    assert torch.equal(torch.get_rng_state(), random)
    assert svi.optim.steps == later
    svi.eager = True
    svi.step(x)
    svi.eager = False
    hook.remove()
    svi.step(x)
    assert svi.optim.steps == 2 + later


def test_hooks_on_gradients_that_are_frozen_never_run(log):
    def make():
        program = Methods()
        program.decoder.weight.register_post_accumulate_grad_hook(halve)
        program.decoder.weight.requires_grad_(False)
        return program

    assert_twins(make, [(torch.randn(6, 3),)] * 4, EXACT)
    assert captures(log) == 1


def test_hold_compares_hooks_by_their_registration():
    net = nn.Linear(1, 1)
    net.register_forward_hook(print)
    hooks = Hooks([net], [net.weight])
    assert hooks.hold()
    handle = net.register_forward_hook(print)
    assert not hooks.hold()
    handle.remove()
    assert hooks.hold()
    for register in (net.weight.register_hook, net.weight.register_post_accumulate_grad_hook):
        handle = register(lambda _: None)
        assert not hooks.hold()
        handle.remove()
        assert hooks.hold()
    net.__class__ = Halved
    assert not hooks.hold()


def test_functions_of_a_module():
    net, hooks = Halved(1, 1), [partial(print, number) for number in range(3)]
    net.register_forward_pre_hook(hooks[0])
    net.register_forward_hook(hooks[1])
    net.bias.register_hook(hooks[2])
    assert functions(net) == [Halved.forward, *hooks]
    net.forward = print
    assert functions(net) == [print, *hooks]
    net.weight = net.bias = None
    assert functions(net) == [print, *hooks[:2]]
