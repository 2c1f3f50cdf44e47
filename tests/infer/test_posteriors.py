import pytest
import torch
from pyro.distributions import Dirichlet, Gamma
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalDirichlet, NaturalNormalGamma, NaturalParameter, NormalGamma
from pyro_fmvae.infer.posteriors import (
    NaturalPosterior,
    StandardDirichlet,
    StandardNormalGamma,
    natural_prior,
    random_natural,
    to_natural,
    to_standard,
)
from tests.infer.programs import natural_components, natural_weights, standard

NATURAL = {
    NaturalDirichlet: (StandardDirichlet, natural_weights(2, 3).double()),
    NaturalNormalGamma: (StandardNormalGamma, natural_components(2, 3, 4).double()),
}


@pytest.mark.parametrize("kind", NATURAL)
def test_round_trip_between_natural_and_standard(kind):
    standard_class, natural = NATURAL[kind]
    posterior = NaturalPosterior(kind, natural)
    there = to_standard(posterior)
    back = to_natural(there)
    assert type(there) is standard_class
    assert type(back) is NaturalPosterior
    assert back.kind is kind
    assert isinstance(back.natural, NaturalParameter)
    for same in (there.natural_value(), back.natural_value()):
        assert same.dtype == torch.float64
        assert not same.requires_grad
        assert_close(same, natural, rtol=1e-14, atol=1e-14)  # a logarithm and its inverse
    assert to_standard(there) is there
    assert to_natural(posterior) is posterior


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standard_distributions_are_in_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    natural = NATURAL[NaturalNormalGamma][1]
    q = StandardNormalGamma(natural)()
    for ours, expected in zip(
        (q.loc, q.mean_concentration, q.concentration, q.rate), standard(natural), strict=True
    ):
        assert ours.dtype == dtype
        assert_close(ours.detach(), expected.to(dtype))
    c = StandardDirichlet(NATURAL[NaturalDirichlet][1])().concentration
    assert_close(c.detach(), NATURAL[NaturalDirichlet][1].to(dtype))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", NATURAL)
def test_what_is_loaded_stays_a_natural_parameter(kind, assign):
    natural = NATURAL[kind][1]
    state = torch.nn.ModuleList([NaturalPosterior(kind, natural + 1)]).state_dict()
    posterior = NaturalPosterior(kind, natural)
    torch.nn.ModuleList([posterior]).load_state_dict(state, assign=assign)
    assert type(posterior.natural) is NaturalParameter
    assert torch.equal(posterior.natural_value(), natural + 1)
    assert set(state) == {"0.natural"}
    assert type(state["0.natural"]) is torch.Tensor


@pytest.mark.parametrize("kind", NATURAL)
def test_a_module_made_without_memory_is_loaded_by_assignment(kind):
    natural = NATURAL[kind][1]
    state = NaturalPosterior(kind, natural + 1).state_dict()
    posterior = NaturalPosterior(kind, natural).to("meta")
    posterior.load_state_dict(state, assign=True)
    assert type(posterior.natural) is NaturalParameter
    assert torch.equal(posterior.natural_value(), natural + 1)
    with pytest.raises(RuntimeError, match="natural"):
        posterior.load_state_dict({"natural": "text"}, assign=True)


@pytest.mark.parametrize("kind", NATURAL)
def test_ordinary_parameters_are_refused(kind):
    posterior = NaturalPosterior(kind, NATURAL[kind][1])
    posterior.natural = torch.nn.Parameter(posterior.natural_value())
    with pytest.raises(TypeError, match="natural: expected a NaturalParameter, got a Parameter"):
        posterior()


@pytest.mark.parametrize("kind", NATURAL)
@pytest.mark.parametrize("convert", [to_natural, to_standard])
def test_conversion_of_a_module_keeps_float64_and_type(kind, convert):
    posterior = convert(NaturalPosterior(kind, NATURAL[kind][1]))
    parameters = list(posterior.parameters())
    holder = torch.nn.ModuleDict({"posterior": posterior, "network": torch.nn.Linear(2, 2)})
    holder.half()
    assert holder["network"].weight.dtype == torch.float16
    for before, after in zip(parameters, posterior.parameters(), strict=True):
        assert before is after
        assert after.dtype == torch.float64
        assert type(before) is type(after)


def test_natural_priors():
    kind, natural = natural_prior(Dirichlet(torch.tensor([0.5, 2.0])).expand([3]).to_event(1))
    assert kind is NaturalDirichlet
    assert_close(natural, torch.tensor([[0.5, 2.0]]).expand(3, 2).double())
    kind, natural = natural_prior(NormalGamma(torch.tensor([1.0, -1.0]), 0.5, 2.0, 3.0))
    assert kind is NaturalNormalGamma
    assert_close(natural, torch.tensor([1.5, -0.25, -3.25, -3.25, 0.5, -0.5]).double())
    with pytest.raises(NotImplementedError, match="no conjugate posterior is known for Gamma"):
        natural_prior(Gamma(1.0, 1.0))


def test_random_natural():
    prior = NormalGamma(torch.full((4,), 0.5), 2.0, 1.0, 3.0).expand([2, 3])
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    first, second = (random_natural(prior, 10.0, generator) for generator in generators)
    assert torch.equal(first, second)
    m, s, a, b = standard(first)
    assert_close(s, torch.full((2, 3), 12.0).double())
    assert_close(a, torch.full((2, 3), 6.0).double())
    assert_close(b, torch.full((2, 3, 4), 8.0).double())
    assert m.unique().numel() == m.numel()
    concentration = random_natural(Dirichlet(torch.full((5,), 0.1)), 10.0)
    assert_close(concentration, torch.full((5,), 10.1).double())
