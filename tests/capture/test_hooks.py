"""Hooks of modules and gradients: recorded with the rest, or refused."""

import logging
from types import MethodType

import pytest
import torch
from torch import nn

from pyro_fmvae.capture import CaptureError
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


def triple_forward(layer, z):
    return 3.0 * nn.functional.linear(z, layer.weight, layer.bias)


CHANGES = {
    "forward": lambda net: net.register_forward_hook(lambda *a: 2.0 * a[-1]),
    "forward with keywords": lambda net: net.register_forward_hook(lambda *a: 2.0 * a[-1], with_kwargs=True),
    "before forward": lambda net: net.register_forward_pre_hook(lambda net, given: (2.0 * given[0],)),
    "backward": lambda net: net.register_full_backward_hook(lambda net, given, _: (0.5 * given[0],)),
    "before backward": lambda net: net.register_full_backward_pre_hook(lambda net, grads: (0.5 * grads[0],)),
    "gradient": lambda net: net.weight.register_hook(lambda grad: 0.5 * grad),
    "other forward": lambda net: setattr(net, "forward", MethodType(triple_forward, net)),
    "forward of the class": lambda net: setattr(type(net), "forward", triple_forward),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_there_is_before_the_capture_is_recorded(name, log):
    def make():
        program = halved()
        CHANGES[name](program.decoder)
        return program

    assert_twins(make, [(torch.randn(6, 3),)] * 4, EXACT)
    assert captures(log) == 1


def test_a_hook_that_is_there_for_one_call_alone(log):
    def body(program, z, x):
        hook = program.decoder.register_forward_hook(lambda *given: 2.0 * given[-1])
        try:
            return program.decoder(z)
        finally:
            hook.remove()

    assert_twins(lambda: Plain(body), [(torch.randn(6, 3),)] * 5, EXACT)
    assert captures(log) == 1


def halve(p):
    p.grad.mul_(0.5)


@pytest.mark.parametrize("natural", [False, True])
def test_refuses_hooks_on_gradients_in_their_place(natural):
    """An optimiser's own step may be in there. Eager steps run them."""
    toy = Toy()
    x, parameter = toy.data(6), toy.weights.natural if natural else toy.decoder.weight
    svi = svi_for(toy)
    hook = parameter.register_post_accumulate_grad_hook(halve)
    before, random = numbers(toy), torch.get_rng_state()
    with pytest.raises(
        CaptureError, match=r"parameter of shape \[.*register_post_accumulate_grad_hook.*eager=True"
    ):
        svi.step(x)
    assert all(torch.equal(value, before[name]) for name, value in numbers(toy).items())
    assert torch.equal(torch.get_rng_state(), random)
    assert svi.optim.steps == 0
    svi.eager = True
    svi.step(x)
    svi.eager = False
    hook.remove()
    svi.step(x)
    assert svi.optim.steps == 2


def test_hooks_on_gradients_that_are_frozen_never_run(log):
    def make():
        program = Methods()
        program.decoder.weight.register_post_accumulate_grad_hook(halve)
        program.decoder.weight.requires_grad_(False)
        return program

    assert_twins(make, [(torch.randn(6, 3),)] * 4, EXACT)
    assert captures(log) == 1
