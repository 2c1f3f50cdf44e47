"""Losses and gradients that are not finite, and the names of what is to blame."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI

from pyro_fmvae.infer import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import check_gradients
from tests.infer.programs import Toy


def test_a_loss_that_is_not_finite_names_the_site():
    toy = Toy()
    x = toy.data()
    toy.likelihood = lambda z: (
        dist.Normal(z.sum() + torch.inf, 1.0, validate_args=False).expand([5]).to_event(1)
    )
    with pytest.raises(ValueError, match=r"the loss is not finite \(inf\), because of the sites 'x' \(inf\)"):
        TraceConjugate_ELBO().loss(toy.model, toy.guide, x)


class Spoilt(torch.autograd.Function):
    """The identity, whose gradient is NaN."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.nan


@pytest.mark.parametrize("make", [SVI, ConjugateSVI])
def test_a_gradient_that_is_not_finite_names_parameter_and_site(make):
    toy = Toy()
    x = toy.data()
    toy.decoder.register_forward_hook(lambda module, inputs, output: output + Spoilt.apply(module.bias))
    before = [p.detach().clone() for p in toy.parameters()]
    svi = make(toy.model, toy.guide, NaturalGradient(0.5, torch.optim.Adam), TraceConjugate_ELBO())
    message = r"the gradient of decoder\$\$\$bias is not finite; sites that it comes from: 'x'$"
    with pytest.raises(ValueError, match=message):
        svi.step(x)
    for parameter, value in zip(toy.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None


def test_finite_gradients_whose_norm_overflows_are_fine():
    scale = torch.ones(2, dtype=torch.float32, requires_grad=True)
    scale.grad = torch.full_like(scale, 1e30)
    check_gradients({"scale": scale}, list)
    assert scale.grad is not None


def test_no_gradients_at_all_are_fine():
    def program():
        pyro.sample("u", dist.Normal(0.0, 1.0))

    assert (
        TraceConjugate_ELBO().loss_and_grads(poutine.condition(program, {"u": torch.ones(())}), lambda: None)
        > 0
    )
