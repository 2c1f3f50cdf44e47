"""A family that the library does not have, made here alone: a Gamma prior on the rate of an Exponential."""

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Exponential,
    Gamma,
    Pareto,
    TransformedDistribution,
    constraints,
)
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    ExponentialFamily,
    MixtureComponent,
    NaturalDistribution,
    component_table,
    register_expected_log_prob,
    register_family,
)
from tests.distributions.family_case import FamilyCase, assert_mean, tensors
from tests.infer.conjugate_case import ConjugateCase


class GammaFamily(ExponentialFamily):
    """Gamma(a, rate b) with t = (log θ, θ) and λ = (a, -b); the prior of Exponential observations."""

    distribution = dist.Gamma
    names = ("concentration", "rate")

    def natural(self, *standard):
        a, b = standard
        return torch.stack(torch.broadcast_tensors(a, -b), -1)

    def unpack(self, natural):
        a, negative = natural.unbind(-1)
        return a, -negative

    def event_shape(self, size):
        if size != 2:
            raise ValueError(f"natural: expected shape [..., 2], got {size} as the last size")
        return torch.Size()

    def stats(self, value):
        return torch.stack([value.log(), value], -1)

    def log_normalizer(self, natural):
        a, b = self.unpack(natural)
        return torch.lgamma(a) - a * b.log()

    def mean_stats(self, natural):
        a, b = self.unpack(natural)
        return torch.stack([torch.digamma(a) - b.log(), a / b], -1)

    def inverse_fisher(self, standard, grads):
        (a, b), (grad_a, grad_b) = standard, grads
        curvature = torch.polygamma(1, a)
        first = (a * grad_a + b * grad_b) / (a * curvature - 1)
        second = -b * (grad_a + b * curvature * grad_b) / (a * curvature - 1)
        return torch.stack([first, second], -1)

    def in_domain(self, natural):
        a, b = self.unpack(natural)
        return (a > 0) & (b > 0)

    def data_stats(self, mean, variance):
        return torch.stack([torch.ones_like(mean), -mean], -1)

    def random_start(self, prior, count, generator):
        a, b = self.unpack(prior)
        spread = torch.randn(a.shape, dtype=a.dtype, generator=generator).exp()
        return self.natural(a + count, b + count * spread * b / a)

    def predictive(self, standard, dtype):
        a, b = (parameter.to(dtype) for parameter in standard)
        return TransformedDistribution(Pareto(b, a), AffineTransform(-b, 1.0), validate_args=False)


GAMMA = GammaFamily()


@register_family(Gamma)
class NaturalGamma(NaturalDistribution, dist.Gamma):
    family = GAMMA


class Waiting(MixtureComponent):
    """A waiting time whose rate is that of its component."""

    parents, family = ("rate", "assignment"), GAMMA
    support = constraints.positive
    has_rsample = True

    def given(self, parameter):
        return dist.Exponential(parameter)


register_expected_log_prob(dist.LogNormal, Waiting)(component_table)


class TestGamma(FamilyCase):
    kind = NaturalGamma
    moderate = {  # noqa: RUF012
        "many": (tensors(30.0, 12.0), tensors(2.0, 1.0)),
        "few": (tensors(0.7, 3.0), tensors(1.0, 0.5)),
    }
    extreme = {"sharp": tensors(1e5, 3e4), "vague": tensors(0.01, 0.01)}  # noqa: RUF012
    outside = {"a": tensors([-0.1, -1.0])[0], "b": tensors([1.0, 0.0])[0]}  # noqa: RUF012
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, -1.0, 1.0])[0]}  # noqa: RUF012

    def log_density(self, standard, value):
        return Gamma(*standard).log_prob(value)

    def draw(self, standard, count):
        return Gamma(*standard).sample((count,)).clamp(min=1e-10)

    def observe(self, value, count):
        return Exponential(value).sample((count,))

    def log_likelihood(self, value, x):
        return Exponential(value).log_prob(x)


class TestExponentialMixture(ConjugateCase):
    kind, component = NaturalGamma, Waiting
    parameters = ["log_concentration", "log_rate"]  # noqa: RUF012

    def prior(self):
        return dist.Gamma(torch.tensor(2.0), torch.tensor(1.5))

    def q(self, loc, scale):
        return dist.LogNormal(0.1 * loc, scale / (1 + scale))  # finite moments

    def observe(self, count):
        return Exponential(torch.tensor([0.3, 1.0, 4.0]).repeat(count)[:count]).sample()

    def clusters(self, count):
        index = torch.arange(count) % 3
        return torch.tensor([0.01, 10.0, 1000.0])[index] * (1 + 0.1 * torch.rand(count)), index


def test_points_are_scored_and_drawn_by_their_own_rates():
    """Rates [I, K] and assignments [I, B], or all of them enumerated: [K, I, B]."""
    rate, x = torch.tensor([[0.01, 1.0, 100.0], [2.0, 200.0, 0.02]]), torch.rand(2, 4)
    r = torch.tensor([[0, 1, 2, 0], [2, 2, 0, 1]])
    fn = Waiting(rate, r).expand(torch.Size((2, 4)))
    assert fn.rate is rate and fn.assignment is r
    expected = Exponential(rate.unsqueeze(1)).log_prob(x.unsqueeze(-1))  # [I, B, K]
    assert_close(fn.log_prob(x), expected.gather(-1, r.unsqueeze(-1)).squeeze(-1))
    enumerated = Waiting(rate, torch.arange(3).view(3, 1, 1).expand(3, 2, 4))
    assert_close(enumerated.log_prob(x), expected.movedim(-1, 0))
    draws = fn.sample((20_000,))
    own = rate.gather(-1, r)
    assert_mean(own * draws, torch.ones(2, 4))


@pytest.mark.parametrize(
    ("rate", "assignment", "message"),
    [
        ((), (4,), r"rate: expected components in a batch dimension, got \[\]"),
        ((2, 3), (5, 4), r"assignment: expected a shape .* left of the components in rate, got \[5, 4\]"),
    ],
)
def test_shapes_that_do_not_fit(rate, assignment, message):
    with pytest.raises(ValueError, match=message):
        Waiting(torch.ones(rate), torch.zeros(assignment).long())
