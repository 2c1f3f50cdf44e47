"""Weights that are attributes."""

import math

import pytest
import torch

from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import Weight


class Loss:
    any, positive = Weight(), Weight(positive=True)


def test_numbers_become_floats_and_tensors_stay():
    loss, tensor = Loss(), torch.tensor(-1.0)
    loss.any = 0
    assert type(loss.any) is float
    loss.any = tensor
    assert loss.any is tensor
    assert isinstance(Loss.any, Weight)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(("name", "limit"), [("any", ">= 0"), ("positive", "> 0")])
def test_numbers_out_of_range(name, limit, bad):
    loss = Loss()
    setattr(loss, name, 1.0)
    with pytest.raises(ValueError, match=f"^{name}: expected a number {limit}, got"):
        setattr(loss, name, bad)
    assert getattr(loss, name) == 1.0


def test_zero():
    loss = Loss()
    loss.any = 0.0
    with pytest.raises(ValueError, match="positive: expected a number > 0, got 0"):
        loss.positive = 0.0


@pytest.mark.parametrize("name", ["kl_weight", "label_weight", "independence_weight"])
def test_weights_of_the_bound_are_checked_when_they_are_set(name):
    elbo = TraceConjugate_ELBO()
    with pytest.raises(ValueError, match=f"^{name}: expected a number"):
        setattr(elbo, name, -1.0)
