"""Importance weights of draws from a posterior."""

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.infer.importance import log_weights


def standard_normal(z):
    return dist.Normal(0.0, 1.0).expand(z.shape[-1:]).to_event(1).log_prob(z)


def gaussian(x, z):
    """x = (z_1 + z_2) + noise of variance 1/4: log p(x) is that of N(0, 2.25)."""
    return dist.Normal(z.sum(-1, keepdim=True), 0.5).to_event(1).log_prob(x)


def exact_posterior(x):
    covariance = torch.linalg.inv(torch.eye(2) + 4 * torch.ones(2, 2))
    loc = 4 * x * covariance.sum(-1)
    return dist.MultivariateNormal(loc, covariance_matrix=covariance)


def test_at_the_exact_posterior_every_weight_is_the_evidence():
    x = torch.tensor([[0.3], [-2.0], [5.0]])
    weights = log_weights(x, exact_posterior(x), standard_normal, gaussian, 4)
    evidence = dist.Normal(0.0, 1.5).log_prob(x).squeeze(-1)
    assert weights.shape == (4, 3)
    torch.testing.assert_close(weights, evidence.expand(4, 3))


COPIES = 10_000  # of each point: more draws in one go


def weights_of(x, loc, scale):
    """Two weights for each copy: [2 · COPIES, B]."""
    x, loc, scale = (t.repeat(COPIES, 1) for t in (x, loc, scale))
    weights = log_weights(x, dist.Normal(loc, scale).to_event(1), standard_normal, gaussian, 2)
    return weights.view(2 * COPIES, -1)


def test_weights_are_unbiased_for_the_evidence():
    x = torch.tensor([[0.3], [-2.0]])
    weights = weights_of(x, exact_posterior(x).loc, torch.full((2, 2), 0.7)).exp()
    evidence = dist.Normal(0.0, 1.5).log_prob(x).squeeze(-1).exp()
    error = weights.std(0) / math.sqrt(2 * COPIES)
    assert ((weights.mean(0) - evidence).abs() < 4 * error).all()


def test_mean_is_the_bound():
    x = torch.tensor([[0.3], [-2.0]])
    loc, scale = torch.tensor([[0.2, -0.1], [-1.0, -0.8]]), torch.tensor([[0.4, 0.9], [0.5, 0.3]])
    weights = weights_of(x, loc, scale)
    kl = 0.5 * (loc**2 + scale**2 - 1 - 2 * scale.log()).sum(-1)
    square = (x.squeeze(-1) - loc.sum(-1)) ** 2 + scale.square().sum(-1)
    reconstruction = -square / (2 * 0.25) - 0.5 * math.log(2 * math.pi * 0.25)
    error = weights.std(0) / math.sqrt(2 * COPIES)
    assert ((weights.mean(0) - (reconstruction - kl)).abs() < 4 * error).all()


def test_one_sample_of_all_points_is_drawn_at_a_time():
    x, loc = torch.zeros(3, 1), torch.randn(3, 2)
    seen = []

    def likelihood(x, z):
        seen.append(z)
        return gaussian(x, z)

    torch.manual_seed(5)
    log_weights(x, dist.Normal(loc, 1.0).to_event(1), standard_normal, likelihood, 2)
    torch.manual_seed(5)
    assert torch.equal(torch.stack(seen), torch.stack([torch.normal(loc, torch.ones(3, 2)) for _ in "12"]))


def test_nothing_is_differentiated():
    x = torch.zeros(3, 1)
    q = dist.Normal(torch.zeros(3, 2, requires_grad=True), 1.0).to_event(1)
    assert not log_weights(x, q, standard_normal, gaussian, 2).requires_grad


def test_refuses():
    x, q = torch.zeros(3, 1), dist.Normal(torch.zeros(3, 2), 1.0)
    with pytest.raises(ValueError, match=r"^num_samples: expected a number >= 1, got 0"):
        log_weights(x, q.to_event(1), standard_normal, gaussian, 0)
    with pytest.raises(ValueError, match=r"^q: expected batch shape \(3,\), got \(3, 2\)"):
        log_weights(x, q, standard_normal, gaussian, 1)
