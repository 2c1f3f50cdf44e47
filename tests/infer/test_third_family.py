"""A family that the library does not have, made by an example, and components of a mixture made here."""

import importlib.util
import math
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Gamma, HalfNormal, TransformedDistribution, constraints
from torch.distributions.transforms import PowerTransform
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    MixtureComponent,
    NaturalDistribution,
    component_table,
    register_expected_log_prob,
    register_family,
)
from tests.distributions.family_case import AlgebraCase, FamilyCase, Likelihood, assert_mean, tensors
from tests.infer.conjugate_case import ConjugateCase

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/own_family.py"
_spec = importlib.util.spec_from_file_location("own_family", EXAMPLE)
own_family = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own_family)


class SizePrior(own_family.ScalePrior):
    """The same distribution, of a family that has components."""


class SizeFamily(own_family.ScaleFamily):
    """With sizes of errors for observations: log p(x | σ) = -log σ - x²/(2σ²) + log(2/π)/2."""

    distribution = SizePrior

    def data_stats(self, mean, variance):
        return torch.stack([-torch.ones_like(mean), -0.5 * (mean.square() + variance)], -1)

    def expected_log_likelihood(self, mean, variance, stats):
        return super().expected_log_likelihood(mean, variance, stats) + 0.5 * math.log(2 / math.pi)

    def predictive(self, standard, dtype):
        a, b = (parameter.to(dtype) for parameter in standard)
        return dist.FoldedDistribution(dist.StudentT(2 * a, 0.0, (b / a).sqrt()))


SIZE = SizeFamily()


@register_family(SizePrior)
class NaturalSize(NaturalDistribution, SizePrior):
    family = SIZE


class ErrorSize(MixtureComponent):
    """The size of an error, whose scale is that of its component."""

    parents, family = ("scale", "assignment"), SIZE
    support = constraints.positive
    has_rsample = True

    def given(self, parameter):
        return dist.HalfNormal(parameter)


register_expected_log_prob(dist.LogNormal, ErrorSize)(component_table)


class TestScaleFamily(FamilyCase):
    kind = NaturalSize
    moderate = {  # noqa: RUF012
        "many": (tensors(30.0, 12.0), tensors(2.0, 1.0)),
        "few": (tensors(1.7, 3.0), tensors(1.5, 0.5)),
    }
    extreme = {"sharp": tensors(1e5, 3e4), "vague": tensors(0.01, 0.01)}  # noqa: RUF012
    outside = {"a": tensors([0.1, -1.0])[0], "b": tensors([-1.0, 0.0])[0]}  # noqa: RUF012
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, -1.0, 1.0])[0]}  # noqa: RUF012

    likelihoods = {  # noqa: RUF012
        "Normal": Likelihood(
            lambda scale: dist.Normal(1.5, scale),
            lambda x: torch.stack([-torch.ones_like(x), -0.5 * (x - 1.5).square()], -1),
        )
    }
    test_one_step_of_a_plain_program_is_exact = AlgebraCase.test_one_step_of_a_plain_program_is_exact

    def log_density(self, standard, value):
        return TransformedDistribution(Gamma(*standard), PowerTransform(-0.5)).log_prob(value)

    def draw(self, standard, count):
        return Gamma(*standard).sample((count,)).clamp(min=1e-10).rsqrt()

    def observe(self, value, count):
        return HalfNormal(value).sample((count,))

    def log_likelihood(self, value, x):
        return HalfNormal(value).log_prob(x)


class TestMixtureOfScales(ConjugateCase):
    kind, component = NaturalSize, ErrorSize
    parameters = ["log_concentration", "log_rate"]  # noqa: RUF012

    def prior(self):
        return SizePrior(torch.tensor(2.0), torch.tensor(1.5))

    def q(self, loc, scale):
        return dist.LogNormal(0.1 * loc, scale / (1 + scale))  # finite moments

    def observe(self, count):
        return HalfNormal(torch.tensor([0.3, 1.0, 4.0]).repeat(count)[:count]).sample()

    def clusters(self, count):
        index = torch.arange(count) % 3
        return torch.tensor([0.01, 10.0, 1000.0])[index] * (1 + 0.1 * torch.rand(count)), index


def test_points_are_scored_and_drawn_by_their_own_scales():
    """Scales [I, K] and assignments [I, B], or all of them enumerated: [K, I, B]."""
    scale, x = torch.tensor([[0.01, 1.0, 100.0], [2.0, 200.0, 0.02]]), torch.rand(2, 4)
    r = torch.tensor([[0, 1, 2, 0], [2, 2, 0, 1]])
    fn = ErrorSize(scale, r).expand(torch.Size((2, 4)))
    assert fn.scale is scale and fn.assignment is r
    expected = HalfNormal(scale.unsqueeze(1)).log_prob(x.unsqueeze(-1))  # [I, B, K]
    assert_close(fn.log_prob(x), expected.gather(-1, r.unsqueeze(-1)).squeeze(-1))
    enumerated = ErrorSize(scale, torch.arange(3).view(3, 1, 1).expand(3, 2, 4))
    assert_close(enumerated.log_prob(x), expected.movedim(-1, 0))
    draws = fn.sample((20_000,))
    assert_mean((draws / scale.gather(-1, r)).square(), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("scale", "assignment", "message"),
    [
        ((), (4,), r"scale: expected components in a batch dimension, got \[\]"),
        ((2, 3), (5, 4), r"assignment: expected a shape .* left of the components in scale, got \[5, 4\]"),
    ],
)
def test_shapes_that_do_not_fit(scale, assignment, message):
    with pytest.raises(ValueError, match=message):
        ErrorSize(torch.ones(scale), torch.zeros(assignment).long())
