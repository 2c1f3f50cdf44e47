"""Components with full covariances: densities, draws, and expectations under a Normal-Wishart."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    NORMAL_WISHART,
    FullComponent,
    NaturalNormalWishart,
    NaturalParameter,
    NormalWishart,
    expected_log_prob,
)
from tests.distributions.family_case import assert_mean, finite_differences
from tests.distributions.test_normal_wishart import precision_of, random_standard, textbook

I, K, B, D = 2, 3, 5, 3  # noqa: E741
DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def standard():
    return random_standard(I, K, dim=D)


@pytest.fixture
def loc_precision(standard):
    return NormalWishart(*standard).sample()


@pytest.fixture
def q():
    return dist.Normal(torch.randn(I, B, D), 0.2 + torch.rand(I, B, D)).to_event(1)


def normal(loc_precision):
    return MultivariateNormal(loc_precision[..., 0, :], precision_matrix=precision_of(loc_precision))


def log_probs(loc_precision, z):
    """Of every point under every component: [I, B, K]."""
    return normal(loc_precision.unsqueeze(-4)).log_prob(z.unsqueeze(-2))


# Densities and draws


def test_log_prob(loc_precision):
    r, z = torch.randint(K, (I, B)), torch.randn(I, B, D)
    fn, table = FullComponent(loc_precision, r), log_probs(loc_precision, z)
    assert (fn.batch_shape, fn.event_shape) == ((I, B), (D,))
    assert_close(fn.log_prob(z), table.gather(-1, r.unsqueeze(-1)).squeeze(-1))
    enumerated = FullComponent(loc_precision, torch.arange(K).view(K, 1, 1)).expand(torch.Size((K, I, B)))
    assert_close(enumerated.log_prob(z), table.movedim(-1, 0))
    assert_close(fn.log_prob(z[0, 0]), fn.log_prob(z[0, 0].expand(I, B, D)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws(loc_precision, dtype, device):
    r = torch.tensor([[0, 1], [2, 2]], device=device)
    chosen = loc_precision.to(device, dtype)
    draws = FullComponent(chosen, r).sample((20_000,))
    assert draws.dtype == dtype and draws.shape == (20_000, I, 2, D)
    chosen = chosen[torch.arange(I, device=device)[:, None], r].double()
    white = (chosen[..., 1:, :] @ (draws.double() - chosen[..., 0, :]).unsqueeze(-1)).squeeze(-1)
    assert_mean(white, torch.zeros_like(white[0]))
    identity = torch.eye(D, device=device).expand(I, 2, D, D)
    assert_mean(white.unsqueeze(-1) * white.unsqueeze(-2), identity)


def test_gradient_of_draws(loc_precision):
    """That of the same draw as N(μ, Λ⁻¹) by torch, for the component that was chosen and no other."""
    leaf, other = (loc_precision[0].clone().requires_grad_() for _ in range(2))
    torch.manual_seed(1)
    FullComponent(leaf, torch.tensor([1])).rsample().sin().sum().backward()
    torch.manual_seed(1)
    scale_tril = other[1, 1:].inverse().tril()
    MultivariateNormal(other[1, 0], scale_tril=scale_tril).rsample((1,)).sin().sum().backward()
    assert_close(leaf.grad[1, 0], other.grad[1, 0])
    assert_close(leaf.grad[1, 1:].tril(), other.grad[1, 1:].tril())
    assert leaf.grad[[0, 2]].abs().max() == 0 < leaf.grad[1].abs().max()


def test_gradient_near_a_vague_prior_is_finite_in_float32():
    loc_precision = torch.tensor([[[1e15], [1e-15]]], dtype=torch.float32, requires_grad=True)
    fn = FullComponent(loc_precision, torch.tensor([0]))
    fn.log_prob(torch.zeros(1, 1, dtype=torch.float32)).sum().backward()
    assert loc_precision.grad.isfinite().all()


def test_shapes_that_do_not_fit():
    for shape in ((D + 1, D), (K, 2, D), (K, D, D)):
        with pytest.raises(ValueError, match=r"loc_precision: expected shape \[..., K, D\+1, D\], got"):
            FullComponent(torch.ones(shape), torch.zeros(B).long())


# Expectations


def table_of(q, posterior, leading=(I,)):
    """From a component whose parents were never drawn, as the ELBO has it."""
    loc_precision = torch.full((*leading, K, D + 1, D), torch.nan)
    p = FullComponent(loc_precision, torch.zeros(*leading, B).long())
    return expected_log_prob(q, p, {"loc_precision": posterior, "assignment": None})


def bishop(mean, covariance, standard):
    """Bishop (2006), equations 10.64 and 10.65, with the covariance of z: [..., B, K]."""
    m, s, dof, inverse_scale = textbook(standard)
    scale = inverse_scale.inverse()
    order = torch.arange(D, device=dof.device)
    log_precision = torch.digamma(0.5 * (dof.unsqueeze(-1) - order)).sum(-1) + scale.logdet()
    log_precision = log_precision + D * math.log(2)
    gap = mean.unsqueeze(-2) - m.unsqueeze(-3)
    quadratic = (gap * (scale.unsqueeze(-4) @ gap.unsqueeze(-1)).squeeze(-1)).sum(-1)
    trace = torch.einsum("...nij,...kji->...nk", covariance, scale)
    square = dof.unsqueeze(-2) * (quadratic + trace) + D / s.unsqueeze(-2)
    return 0.5 * (log_precision.unsqueeze(-2) - D * math.log(2 * math.pi) - square)


def natural_posterior(standard, dtype=None):
    return NaturalNormalWishart(NaturalParameter(NORMAL_WISHART.natural(*standard)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("natural", [False, True])
def test_table_is_that_of_the_textbook(dtype, natural, standard, q, device):
    standard = [t.to(device) for t in standard]
    mean, scale = (t.to(device, dtype) for t in (q.mean, q.stddev))
    own = NormalWishart(*(t.to(dtype) for t in standard))
    table = table_of(dist.Normal(mean, scale).to_event(1), natural_posterior(standard) if natural else own)
    assert table.dtype == dtype
    expected = bishop(mean.double(), scale.double().square().diag_embed(), standard)
    rtol = 1e-4 if dtype == torch.float32 and not natural else 1e-6 if dtype == torch.float32 else 1e-11
    assert_close(table.double(), expected, rtol=rtol, atol=rtol)


def test_z_with_covariances(standard, q):
    root, point = torch.randn(I, B, D, 2), dist.Delta(q.mean, event_dim=1)
    low_rank = dist.LowRankMultivariateNormal(q.mean, root, q.variance)
    full = dist.MultivariateNormal(q.mean, low_rank.covariance_matrix)
    expected = bishop(q.mean, low_rank.covariance_matrix, standard)
    for z in (low_rank, full):
        assert_close(table_of(z, NormalWishart(*standard)), expected)
    assert_close(table_of(point, NormalWishart(*standard)), bishop(q.mean, torch.zeros(I, B, D, D), standard))


@pytest.mark.parametrize("leading", [(), (1,), (3, I)])
def test_leading_dimensions(leading):
    standard = random_standard(*leading, K, dim=D)
    mean, scale = torch.randn(*leading, B, D), torch.rand(*leading, B, D) + 0.1
    table = table_of(dist.Normal(mean, scale).to_event(1), NormalWishart(*standard), leading)
    assert_close(table, bishop(mean, scale.square().diag_embed(), standard))


@pytest.mark.parametrize("with_covariances", [False, True])
def test_gradients(standard, q, with_covariances):
    """In z by differences of the textbook's formula; natural ones by those in λ and the Fisher matrix."""
    weight, leaf = torch.randn(I, B, K), q.mean.clone().requires_grad_()
    scale = (0.3 * torch.randn(I, B, D, D)).tril() + torch.eye(D) if with_covariances else torch.eye(D)
    scale = scale.expand(I, B, D, D).clone().requires_grad_()
    z = dist.Normal(leaf, scale.diagonal(dim1=-2, dim2=-1)).to_event(1)
    z = dist.MultivariateNormal(leaf, scale_tril=scale) if with_covariances else z
    posterior = natural_posterior(standard)
    (weight * table_of(z, posterior)).sum().backward()

    def loss(mean, scale, standard):
        return (weight * bishop(mean, scale @ scale.mT, standard)).sum()

    mean, root, natural = leaf.detach(), scale.detach(), posterior.natural.detach()
    assert_close(leaf.grad, finite_differences(lambda x: loss(x, root, standard), mean), rtol=1e-6, atol=1e-6)
    there = finite_differences(lambda x: loss(mean, x, standard), root)
    there = there.tril() if with_covariances else there.diagonal(dim1=-2, dim2=-1).diag_embed()
    assert_close(scale.grad.tril(), there, rtol=1e-6, atol=1e-6)
    gradient = finite_differences(lambda x: loss(mean, root, NORMAL_WISHART.unpack(x)), natural)
    for at in ((i, k) for i in range(I) for k in range(K)):
        fisher = torch.autograd.functional.jacobian(NORMAL_WISHART.mean_stats, natural[at])
        expected = torch.linalg.solve(fisher, gradient[at])
        assert_close(posterior.natural.grad[at], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("with_covariances", [False, True])
def test_one_component_alone_has_its_column_of_the_table(standard, q, with_covariances):
    """One component of three dimensions is summed in another order than three components are."""
    stats, weight = NORMAL_WISHART.stats_from_standard(*standard), torch.randn(I, B, 1)
    variance = q.stddev.unsqueeze(-1) * q.stddev.unsqueeze(-2) if with_covariances else q.variance
    found = []
    for kept in (1, K):
        leaves = [t.clone().requires_grad_() for t in (q.mean, variance, stats[:, :kept])]
        column = NORMAL_WISHART.expected_log_likelihood(*leaves)[..., :1]
        gradients = torch.autograd.grad((weight * column).sum(), leaves)
        found.append((column, *gradients[:2], gradients[2][:, :1]))
    for alone, among_others in zip(*found, strict=True):
        assert_close(alone, among_others)


@pytest.mark.parametrize("autocast", [False, True])
def test_digits_far_from_the_origin(standard, autocast):
    """Points 1000 standard deviations from the origin, in float32, keep the digits that they have."""
    m, s, a, tril = standard
    mean = (torch.randn(I, B, D) + 1000).float()
    moved = m + 1000, s, a, tril
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        table = table_of(dist.Delta(mean, event_dim=1), natural_posterior(moved))
    assert table.dtype == torch.float32
    assert_close(table.double(), bishop(mean.double(), torch.zeros(I, B, D, D), moved), rtol=1e-5, atol=1e-5)


def test_point_estimate_of_the_components(loc_precision, q):
    z, point = dist.Delta(q.mean, event_dim=1), dist.Delta(loc_precision, event_dim=2)
    assert_close(table_of(z, point), log_probs(loc_precision, q.mean))


def test_what_has_no_closed_form(standard, q):
    with pytest.raises(ValueError, match="loc_precision has 3 dimensions, z has 4"):
        table_of(dist.Normal(torch.zeros(I, B, D + 1), 1.0).to_event(1), NormalWishart(*standard))
    with pytest.raises(NotImplementedError, match=r"loc_precision: no closed form .* under Gamma"):
        table_of(q, dist.Gamma(1.0, 1.0))
    with pytest.raises(NotImplementedError, match="q = Laplace and p = FullComponent"):
        table_of(dist.Laplace(q.mean, 1.0).to_event(1), NormalWishart(*standard))
