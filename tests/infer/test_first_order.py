"""Natural parameters under optimisers that would take their natural gradients for ordinary ones."""

import pyro
import pytest
import torch
from pyro.infer import SVI
from torch.nn import Parameter
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from tests.infer.programs import Toy

REFUSED = (
    r"NaturalParameter of shape \[.*\], .*: train the program by SVI\(model, guide, NaturalGradient\(rate\)"
)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS])
def test_optimisers_of_torch_refuse_natural_parameters(make):
    natural, other = NaturalParameter(torch.ones(3)), Parameter(torch.ones(2))
    optim = make([other, natural], lr=0.1)
    natural.grad, other.grad = torch.ones(3), torch.ones(2)
    with pytest.raises(TypeError, match=f"{make.__name__} was given a {REFUSED}"):
        optim.step(lambda: torch.zeros(()))
    assert torch.equal(other, torch.ones(2)) and torch.equal(natural, torch.ones(3))


def test_parameters_that_are_not_learnt_may_be_among_them():
    """As in a model whose natural posteriors are frozen while its networks learn."""
    natural, other = NaturalParameter(torch.ones(3)), Parameter(torch.ones(2))
    other.grad = torch.ones(2)
    torch.optim.SGD([other, natural], lr=0.1).step()
    assert_close(other.detach(), torch.full((2,), 0.9))


@pytest.mark.parametrize("make", [pyro.optim.Adam, pyro.optim.ClippedAdam])
def test_optimisers_of_pyros_refuse_them_in_svi(make):
    toy = Toy()
    svi = SVI(toy.model, toy.guide, make({"lr": 0.1}), TraceConjugate_ELBO())
    with pytest.raises(TypeError, match=f"{make.__name__} was given a {REFUSED}"):
        svi.step(toy.data())


def test_standard_parameters_are_learnt_by_any_optimiser():
    toy = Toy(standard=True)
    before = toy.weights.log_concentration.detach().clone()
    SVI(toy.model, toy.guide, pyro.optim.Adam({"lr": 0.1}), TraceConjugate_ELBO()).step(toy.data())
    assert not torch.equal(toy.weights.log_concentration, before)


def test_natural_parameters_alone_need_no_other_optimiser():
    natural, frozen = NaturalParameter(torch.ones(3)), Parameter(torch.ones(2))
    natural.grad = torch.ones(3)
    optim = NaturalGradient(0.5)
    optim([natural, frozen])
    assert_close(natural.detach(), torch.full((3,), 0.5).double())
    assert optim.state_dict() == {"steps": 1, "others": None}


def test_other_parameters_need_one():
    natural, other = params = NaturalParameter(torch.ones(3)), Parameter(torch.ones(2))
    for p in params:
        p.grad = torch.ones_like(p)
    message = (
        r"others: expected .* partial\(torch.optim.Adam, lr=1e-3\), got none for the 1 parameters of shape"
    )
    with pytest.raises(TypeError, match=message + r" .*elbo.plan\("):
        NaturalGradient(0.5)(params)
    assert torch.equal(natural, torch.ones(3)) and other.grad is None
