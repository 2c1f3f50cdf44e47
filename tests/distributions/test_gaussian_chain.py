"""Chains of Gaussian vectors, against normal distributions of all numbers of a path at once."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions.gaussian_chain import GaussianChain

B, T, D = 3, 4, 2


def made(batch=(B,), duration=T, dim=D, seed=0):
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn((*batch, *shape), generator=source, dtype=torch.float64)

    root = normal(duration, dim, dim)
    precision = root @ root.mT + 3 * torch.eye(dim, dtype=torch.float64)
    return GaussianChain(precision, 0.7 * normal(duration - 1, dim, dim), normal(duration, dim), normal())


def dense(chain):
    """The whole matrix and vector, [..., T·D, T·D] and [..., T·D]."""
    *batch, duration, dim = chain.linear.shape
    matrix = torch.zeros(*batch, duration * dim, duration * dim, dtype=torch.float64)
    for t in range(duration):
        here, after = slice(t * dim, (t + 1) * dim), slice((t + 1) * dim, (t + 2) * dim)
        matrix[..., here, here] = chain.precision[..., t, :, :]
        if t < duration - 1:
            matrix[..., after, here] = -chain.link[..., t, :, :]
            matrix[..., here, after] = -chain.link[..., t, :, :].mT
    return matrix, chain.linear.flatten(-2)


def as_one(chain):
    """The distribution of all numbers of a path."""
    matrix, linear = dense(chain)
    mean = torch.linalg.solve(matrix, linear.unsqueeze(-1)).squeeze(-1)
    return dist.MultivariateNormal(mean, precision_matrix=matrix)


@pytest.mark.parametrize("duration", [1, 2, 5])
def test_evidence_mean_and_covariances_are_those_of_a_dense_matrix(duration):
    chain = made(duration=duration)
    whole = as_one(chain)
    matrix, linear = dense(chain)
    square = (linear * whole.mean).sum(-1)
    known = chain.constant + 0.5 * (square - matrix.logdet() + duration * D * math.log(2 * math.pi))
    assert_close(chain.log_evidence(), known)
    assert_close(chain.mean_path, whole.mean.unflatten(-1, (duration, D)))
    blocks = whole.covariance_matrix.unflatten(-1, (duration, D)).unflatten(-3, (duration, D))
    own, across = chain.covariances
    for t in range(duration):
        assert_close(own[..., t, :, :], blocks[..., t, :, t, :])
        if t:
            assert_close(across[..., t - 1, :, :], blocks[..., t, :, t - 1, :])
    assert across.shape == (B, duration - 1, D, D)


def test_density_entropy_and_divergence_are_those_of_a_dense_matrix():
    chain, other = made(), made(seed=1)
    path, whole = chain.posterior(torch.float64), as_one(chain)
    values = torch.randn(5, B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert_close(path.log_prob(values), whole.log_prob(values.flatten(-2)))
    assert_close(path.entropy(), whole.entropy())
    divergence = other.log_evidence() - other.mean_log_weight(chain) - path.entropy()
    assert_close(divergence, torch.distributions.kl_divergence(whole, as_one(other)))
    assert_close(path.mean.flatten(-2), whole.mean)
    assert_close(path.variance.flatten(-2), whole.variance)


def test_integral_over_a_grid():
    """Brute force for three numbers, over weights that are no density."""
    chain = made(batch=(), duration=3, dim=1)
    axis = torch.linspace(-6, 6, 121, dtype=torch.float64)
    paths = torch.cartesian_prod(axis, axis, axis).unsqueeze(-1)
    weights = chain.log_weight(paths).exp() * (axis[1] - axis[0]) ** 3
    assert_close(chain.log_evidence(), weights.sum().log())
    assert_close(chain.mean_path, (weights[:, None, None] * paths).sum(0) / weights.sum())


def test_gradients_are_those_of_finite_differences():
    chain = made(batch=(2,), duration=3)
    parts = torch.linalg.cholesky(chain.precision), chain.link, chain.linear, chain.constant
    noise = torch.randn(2, 3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def everything(root, link, linear, constant):
        chain = GaussianChain(root @ root.mT, link, linear, constant)
        return (
            chain.log_evidence(), chain.entropy, chain.mean_path, chain.solve(noise), *chain.covariances
        )  # fmt: skip

    assert torch.autograd.gradcheck(everything, [part.requires_grad_() for part in parts])


def test_slopes_of_the_evidence_are_expected_statistics():
    parts = {name: part.requires_grad_() for name, part in vars(made()).items()}
    chain = GaussianChain(**parts)
    slopes = torch.autograd.grad(chain.log_evidence().sum(), list(parts.values()))
    mean, (own, across) = chain.mean_path, chain.covariances
    expected = (
        -0.5 * (own + mean.unsqueeze(-1) * mean.unsqueeze(-2)),
        across + mean[:, 1:].unsqueeze(-1) * mean[:, :-1].unsqueeze(-2),
        mean,
        torch.ones(B, dtype=torch.float64),
    )
    for slope, known in zip(slopes, expected, strict=True):
        assert_close(0.5 * (slope + slope.mT) if slope is slopes[0] else slope, known)


def test_draws_have_the_moments_of_the_chain():
    torch.manual_seed(0)
    path, count = made(batch=()).posterior(), 20_000
    draws = path.rsample((count,))
    assert draws.shape == (count, T, D)
    whole = as_one(path.chain)
    draws = draws.double().flatten(-2)
    assert ((draws.mean(0) - whole.mean).abs() < 4 * (whole.variance / count).sqrt()).all()
    products = (draws - whole.mean).unsqueeze(-1) * (draws - whole.mean).unsqueeze(-2)
    error = products.std(0) / math.sqrt(count)
    assert ((products.mean(0) - whole.covariance_matrix).abs() < 4 * error).all()


def test_sequences_may_share_their_precisions():
    chain = made()
    shared = GaussianChain(chain.precision[0], chain.link[0], chain.linear, chain.constant)
    precision, link = (table[:1].expand(B, -1, -1, -1) for table in (chain.precision, chain.link))
    apart = GaussianChain(precision, link, chain.linear, chain.constant)
    assert shared.batch_shape == (B,)
    assert_close(shared.log_evidence(), apart.log_evidence())
    assert_close(shared.mean_path, apart.mean_path)
    assert_close(shared.posterior().covariance_matrix, apart.posterior().covariance_matrix)
    assert_close(shared.posterior().entropy(), apart.posterior().entropy())
    assert shared.posterior().expand((2, B)).rsample().shape == (2, B, T, D)


def test_weights_without_an_integral_are_nan():
    chain = made(batch=())
    endless = GaussianChain(-chain.precision, chain.link, chain.linear, chain.constant)
    assert endless.log_evidence().isnan()
