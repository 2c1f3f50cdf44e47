import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence

from pyro_fmvae.distributions import (
    NORMAL_GAMMA,
    Assignment,
    Component,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
    NormalGamma,
    expected_log_prob,
    register_expected_log_prob,
)
from pyro_fmvae.distributions.expected_log_prob import _FORMULAS

I, K, B, D = 2, 4, 5, 3  # noqa: E741


@pytest.fixture
def standard(random_standard):
    return random_standard(I, K, dim=D)


@pytest.fixture
def q():
    return dist.Normal(torch.randn(I, B, D), 0.2 + torch.rand(I, B, D)).to_event(1)


def component(dim=D, leading=(I,)):
    """A component whose parents were never drawn, as the ELBO has it."""
    loc_precision = torch.full((*leading, K, 2, dim), torch.nan)
    return Component(loc_precision, torch.zeros(*leading, B).long())


def table_of(q, posterior, **kwargs):
    return expected_log_prob(q, component(**kwargs), {"loc_precision": posterior, "assignment": None})


def equation_6(mean, variance, standard):
    """The paper's formula as it is printed, on tensors [..., B, K, D]."""
    m, s, a, b = standard
    m, b = m.unsqueeze(-3), b.unsqueeze(-3)
    s, a = s[..., None, :, None], a[..., None, :, None]
    gap = (mean.unsqueeze(-2) - m).square() + variance.unsqueeze(-2)
    return 0.5 * (a.digamma() - b.log() - math.log(2 * math.pi) - 1 / s - a / b * gap).sum(-1)


def natural_posterior(standard, dtype=None):
    return NaturalNormalGamma(NaturalParameter(NORMAL_GAMMA.natural(*standard)), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("natural", [False, True])
def test_equation_6(dtype, natural, standard, q, device):
    standard = [t.to(device) for t in standard]
    mean, scale = (t.to(device, dtype) for t in (q.mean, q.stddev))
    posterior = (
        natural_posterior(standard, dtype) if natural else NormalGamma(*(t.to(dtype) for t in standard))
    )
    table = table_of(dist.Normal(mean, scale).to_event(1), posterior)
    assert table.shape == (I, B, K) and table.dtype == dtype
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    expected = equation_6(mean.double(), scale.double().square(), standard)
    torch.testing.assert_close(table.double(), expected, rtol=rtol, atol=10 * rtol)


def test_monte_carlo(standard, q, assert_mean):
    count = 20_000
    posterior = NormalGamma(*standard)
    loc, precision = posterior.sample((count,)).unbind(-2)
    z = q.sample((count,))
    draws = torch.distributions.Normal(loc.unsqueeze(-3), precision.rsqrt().unsqueeze(-3)).log_prob(
        z.unsqueeze(-2)
    )
    assert_mean(draws.sum(-1), table_of(q, posterior))


def test_gradients_in_q(standard, q, finite_differences):
    weight = torch.randn(I, B, K)
    leaves = [t.clone().requires_grad_() for t in (q.mean, q.stddev)]

    def loss(mean, scale):
        return (weight * equation_6(mean, scale**2, standard)).sum()

    (weight * table_of(dist.Normal(*leaves).to_event(1), NormalGamma(*standard))).sum().backward()
    mean, scale = q.mean, q.stddev
    expected = (
        finite_differences(lambda x: loss(x, scale), mean),
        finite_differences(lambda x: loss(mean, x), scale),
    )
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-6, atol=1e-6)


def test_gradients_in_the_standard_parameters(standard, q, finite_differences):
    weight = torch.randn(I, B, K)
    leaves = [t.clone().requires_grad_() for t in standard]
    (weight * table_of(q, NormalGamma(*leaves))).sum().backward()
    for i, leaf in enumerate(leaves):

        def loss(x, i=i):
            return (weight * equation_6(q.mean, q.variance, [*standard[:i], x, *standard[i + 1 :]])).sum()

        torch.testing.assert_close(leaf.grad, finite_differences(loss, leaf), rtol=1e-5, atol=1e-5)


def test_natural_gradient(standard, q, finite_differences):
    """F⁻¹ times the finite-difference gradient in λ, component by component."""
    weight = torch.randn(I, B, K)
    posterior = natural_posterior(standard)
    (weight * table_of(q, posterior)).sum().backward()

    def loss(natural):
        return (weight * equation_6(q.mean, q.variance, NORMAL_GAMMA.unpack(natural))).sum()

    gradient = finite_differences(loss, posterior.natural)
    for i in range(I):
        for k in range(K):
            natural = posterior.natural[i, k].detach()
            fisher = torch.autograd.functional.jacobian(NORMAL_GAMMA.mean_stats, natural)
            expected = torch.linalg.solve(fisher, gradient[i, k])
            torch.testing.assert_close(posterior.natural.grad[i, k], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_of_rate_1_is_equation_13(dtype, standard, random_standard, q):
    """λ - ∂(KL - Σ γ E[log N])/∂λ is the exact posterior, written out in the paper's own terms."""
    gamma = torch.randn(I, B, K).softmax(-1)
    m0, s0, a0, b0 = random_standard(dim=D)
    posterior = natural_posterior(standard, dtype)
    mean, scale = q.mean.to(dtype), q.stddev.to(dtype)
    table = table_of(dist.Normal(mean, scale).to_event(1), posterior)
    kl = kl_divergence(posterior, NormalGamma(m0, s0, a0, b0).expand(torch.Size((I, K))))
    (kl.sum() - (gamma * table).sum()).backward()
    got = (posterior.natural - posterior.natural.grad).detach()
    count = gamma.sum(1).unsqueeze(-1)
    square, linear = gamma.mT @ (mean.double() ** 2 + scale.double() ** 2), gamma.mT @ mean.double()
    lambda_2 = -(b0 + 0.5 * s0 * m0**2 + 0.5 * square)
    expected = torch.cat([a0 + count / 2 - 0.5, -(s0 + count) / 2, lambda_2, s0 * m0 + linear], -1)
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol)


def test_other_distributions_of_z(standard, q):
    posterior = NormalGamma(*standard)
    root = torch.randn(I, B, D, 2)
    low_rank = dist.LowRankMultivariateNormal(q.mean, root, q.variance)
    full = dist.MultivariateNormal(q.mean, low_rank.covariance_matrix)
    expected = equation_6(q.mean, (root**2).sum(-1) + q.variance, standard)
    torch.testing.assert_close(table_of(low_rank, posterior), expected)
    torch.testing.assert_close(table_of(full, posterior), expected)
    point = equation_6(q.mean, torch.zeros(I, B, D), standard)
    torch.testing.assert_close(table_of(dist.Delta(q.mean, event_dim=1), posterior), point)
    torch.testing.assert_close(table_of(dist.Delta(q.mean).to_event(1), posterior), point)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_point_estimate_of_the_components(standard, q, dtype):
    value = NormalGamma(*standard).sample()
    loc, precision = (t.unsqueeze(-3) for t in value.unbind(-2))
    normal = torch.distributions.Normal(loc, precision.rsqrt())
    z = dist.Delta(q.mean.to(dtype), event_dim=1)
    for posterior in (dist.Delta(value.to(dtype), event_dim=2), dist.Delta(value.to(dtype)).to_event(2)):
        table = table_of(z, posterior)
        assert table.dtype == dtype
        rtol = 1e-5 if dtype == torch.float32 else 1e-12
        expected = normal.log_prob(q.mean.unsqueeze(-2)).sum(-1)
        torch.testing.assert_close(table.double(), expected, rtol=rtol, atol=10 * rtol)
        moments = table_of(q, posterior)
        expected = expected - 0.5 * (precision * q.variance.unsqueeze(-2)).sum(-1)
        torch.testing.assert_close(moments, expected, rtol=rtol, atol=10 * rtol)


@pytest.mark.parametrize("leading", [(), (1,), (3, I)])
def test_leading_dimensions(leading, random_standard):
    standard = random_standard(*leading, K, dim=D)
    mean, scale = torch.randn(*leading, B, D), torch.rand(*leading, B, D) + 0.1
    table = table_of(dist.Normal(mean, scale).to_event(1), NormalGamma(*standard), leading=leading)
    torch.testing.assert_close(table, equation_6(mean, scale**2, standard))


def test_particles_share_components(standard):
    """Means [P, I, B, D] against components [I, K]: forwards, and summed over particles backwards."""
    mean, scale = torch.randn(3, I, B, D), torch.rand(3, I, B, D) + 0.1
    together, apart = natural_posterior(standard), natural_posterior(standard)
    table = table_of(dist.Normal(mean, scale).to_event(1), together)
    torch.testing.assert_close(table, equation_6(mean, scale**2, standard))
    table.sin().sum().backward()
    for p in range(3):
        table_of(dist.Normal(mean[p], scale[p]).to_event(1), apart).sin().sum().backward()
    torch.testing.assert_close(together.natural.grad, apart.natural.grad)


def test_dimensions_that_differ(standard, q):
    wide = dist.Normal(torch.zeros(I, B, D + 1), 1.0).to_event(1)
    with pytest.raises(ValueError, match="loc_precision has 3 dimensions, z has 4"):
        table_of(wide, NormalGamma(*standard))


@pytest.mark.parametrize(
    ("make_q", "make_p", "posteriors", "message"),
    [
        (
            dist.Laplace,
            component,
            {},
            "q = Laplace and p = Component; add one with register_expected_log_prob",
        ),
        (dist.Normal, lambda: dist.Normal(0.0, 1.0), {}, "q = Normal and p = Normal"),
        (dist.Normal, component, {"loc_precision": dist.Gamma(1.0, 1.0)}, "loc_precision: .* under Gamma"),
        (
            dist.Normal,
            component,
            {"loc_precision": NaturalDirichlet},
            "loc_precision: .* under NaturalDirichlet",
        ),
        (
            None,
            lambda: Assignment(torch.ones(2)),
            {"weights": dist.Gamma(1.0, 1.0)},
            "weights: .* under Gamma",
        ),
    ],
)
def test_unregistered(make_q, make_p, posteriors, message):
    p = make_p()
    q = make_q(torch.zeros(I, B, D), 1.0).to_event(1) if make_q else p
    made = {
        n: fn(torch.ones(3, dtype=torch.float64)) if isinstance(fn, type) else fn
        for n, fn in posteriors.items()
    }
    with pytest.raises(NotImplementedError, match=message):
        expected_log_prob(q, p, made)


@pytest.fixture
def registry():
    """Give registrations back at the end."""
    before = dict(_FORMULAS)
    yield
    _FORMULAS.clear()
    _FORMULAS.update(before)


class MyNormal(dist.Normal):
    pass


class MyComponent(Component):
    pass


def test_register(registry, standard):
    mine = MyNormal(torch.zeros(I, B, D), 1.0).to_event(1)
    nan = torch.full((I, K, 2, D), torch.nan)
    p = MyComponent(nan, torch.zeros(I, B).long())
    posteriors = {"loc_precision": NormalGamma(*standard)}
    inherited = expected_log_prob(mine, p, posteriors)
    torch.testing.assert_close(inherited, equation_6(mine.mean, mine.variance, standard))

    @register_expected_log_prob(MyNormal, Component)
    def by_q(q, p, posteriors):
        assert type(q) is MyNormal and set(posteriors) == {"loc_precision"}
        return torch.tensor([1.0])

    @register_expected_log_prob(MyNormal, MyComponent)
    def by_both(q, p, posteriors):
        return torch.tensor([2.0])

    assert callable(by_q) and callable(by_both)
    assert expected_log_prob(mine, p, posteriors).item() == 2.0
    assert expected_log_prob(mine, component(), posteriors).item() == 1.0
    plain = dist.Normal(torch.zeros(I, B, D), 1.0).to_event(1)
    torch.testing.assert_close(expected_log_prob(plain, p, posteriors), inherited)
