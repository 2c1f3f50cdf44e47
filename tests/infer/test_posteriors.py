"""Posteriors as modules, and what inference does for the library's own families."""

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    Component,
    FullComponent,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalNormalWishart,
    NormalGamma,
    NormalWishart,
)
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer.posteriors import random_posterior
from tests.infer.conjugate_case import ConjugateCase, PosteriorCase
from tests.infer.programs import standard


class TestDirichlet(PosteriorCase):
    """Its part in programs is that of the weights in every mixture."""

    kind = NaturalDirichlet
    parameters = ["log_concentration"]  # noqa: RUF012

    def prior(self):
        return dist.Dirichlet(torch.tensor([0.5, 2.0, 1.0]))


class TestGaussianMixture(ConjugateCase):
    kind, component = NaturalNormalGamma, Component
    parameters = ["loc", "log_mean_concentration", "log_concentration", "log_rate"]  # noqa: RUF012

    def prior(self):
        return NormalGamma(torch.tensor([0.3, -0.5]), 0.6, 2.2, 0.8)

    def q(self, loc, scale):
        return dist.Normal(loc, scale).to_event(1)

    def observe(self, count):
        return 2 * torch.randn(count, 2)

    def clusters(self, count):
        index = torch.arange(count) % 3
        return 30 * torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]])[index] + torch.randn(count, 2), index


class TestFullGaussianMixture(TestGaussianMixture):
    kind, component = NaturalNormalWishart, FullComponent
    parameters = ["loc", "log_mean_concentration", "log_concentration", "unconstrained_rate_tril"]  # noqa: RUF012

    def prior(self):
        rate_tril = torch.tensor([[0.9, 0.0], [0.5, 0.7]])
        return NormalWishart(torch.tensor([0.3, -0.5]), 0.6, 2.2, rate_tril)


def test_a_prior_without_a_family():
    with pytest.raises(NotImplementedError, match="no conjugate posterior is known for Cauchy"):
        natural_prior(dist.Cauchy(0.0, 1.0))


def test_random_posteriors():
    prior = NormalGamma(torch.full((4,), 0.5), 2.0, 1.0, 3.0).expand([2, 3])
    m, s, a, b = standard(random_posterior(prior, 10.0).natural_value())
    assert_close(s, torch.full((2, 3), 12.0).double())
    assert_close(a, torch.full((2, 3), 6.0).double())
    assert_close(b, torch.full((2, 3, 4), 8.0).double())
    assert m.unique().numel() == m.numel()
    concentration = random_posterior(dist.Dirichlet(torch.full((5,), 0.1)), 10.0).natural_value()
    assert_close(concentration, torch.full((5,), 10.1).double())
