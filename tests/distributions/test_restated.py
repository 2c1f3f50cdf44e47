"""Restated log-densities are those of torch and Pyro."""

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions.restated import restated_log_prob

P = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
A = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.7]], dtype=torch.float64)


@pytest.mark.parametrize(
    "fn",
    [
        dist.Bernoulli(P),
        dist.Bernoulli(logits=P),
        dist.Binomial(7, P),
        dist.Geometric(P),
        dist.NegativeBinomial(3.5, P),
        dist.Multinomial(9, P),
        dist.Multinomial(9, logits=P),
        dist.MultivariateNormal(P, A),
        dist.MultivariateNormal(P, precision_matrix=A),
        dist.Wishart(torch.tensor(5.0, dtype=torch.float64), A),
        dist.InverseGamma(1 + P, P),
        dist.LogNormal(P, P),
        dist.HalfNormal(P),
        dist.Uniform(-P, 3.0),
        dist.Beta(P, 2 * P),
        dist.Normal(P, 1.0),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_same_log_density(fn):
    torch.manual_seed(0)
    value = A + A @ A if isinstance(fn, dist.Wishart) else fn.sample((6,))
    assert_close(restated_log_prob(fn, value), fn.log_prob(value), rtol=1e-10, atol=1e-10)


def test_a_half_normal_is_positive():
    assert restated_log_prob(dist.HalfNormal(P), -P).tolist() == [-torch.inf] * 3
