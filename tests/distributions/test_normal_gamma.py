import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch.distributions import Gamma, Normal, kl_divergence

from pyro_fmvae.distributions import NORMAL_GAMMA, NaturalNormalGamma, NaturalParameter, NormalGamma


def natural_of(standard):
    return NORMAL_GAMMA.natural(*standard)


def both(standard, dtype=torch.float64):
    """One distribution, by standard and by natural parameters."""
    natural = NaturalNormalGamma(natural_of(standard), dtype=dtype)
    return NormalGamma(*(t.to(dtype) for t in standard)), natural


def reference_log_prob(standard, value):
    (m, s, a, b), (loc, precision) = standard, value.unbind(-2)
    scale = (s.unsqueeze(-1) * precision).rsqrt()
    return (Gamma(a.unsqueeze(-1), b).log_prob(precision) + Normal(m, scale).log_prob(loc)).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_and_shapes(dtype, random_standard, device):
    standard = [t.to(device) for t in random_standard(4, 2)]
    for fn in both(standard, dtype):
        assert (fn.batch_shape, fn.event_shape) == ((4, 2), (2, 3))
        assert fn.sample().shape == fn.mean.shape == (4, 2, 2, 3)
        draws = fn.sample((5,))
        assert draws.shape == (5, 4, 2, 2, 3)
        assert draws.dtype == fn.mean.dtype == fn.log_prob(draws).dtype == dtype
        rtol = 1e-4 if dtype == torch.float32 else 1e-10
        expected = reference_log_prob(standard, draws.double())
        torch.testing.assert_close(fn.log_prob(draws).double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("which", [0, 1])
def test_moments(which, random_standard, assert_mean, device):
    m, s, a, b = (t.to(device) for t in random_standard(2))
    fn = both((m, s, a + 2, b))[which]
    draws = fn.sample((50_000,))
    loc, precision = draws.unbind(-2)
    a_d, s_d = a.unsqueeze(-1) + 2, s.unsqueeze(-1)
    assert_mean(draws, torch.stack([m, a_d / b], -2))
    assert_mean(draws, fn.mean)
    assert_mean((precision - a_d / b) ** 2, a_d / b**2)
    assert_mean(precision * (loc - m) ** 2, (1 / s_d).expand_as(m))


def test_gradient_of_draws(random_standard):
    """E[α (μ - 1)²] = 1/s + (a/b)(m - 1)² and E[α²] = a(a + 1)/b², in closed form and through draws."""
    count = 100_000
    standard = random_standard(dim=2)
    leaves = [t.expand(count, *t.shape).clone().requires_grad_() for t in standard]
    loc, precision = NormalGamma(*leaves).rsample().unbind(-2)
    (precision * (loc - 1) ** 2 + 0.1 * precision**2).sum().backward()
    exact = [t.clone().requires_grad_() for t in standard]
    m, s, a, b = exact
    (1 / s + a / b * (m - 1) ** 2 + 0.1 * a * (a + 1) / b**2).sum().backward()
    for leaf, one in zip(leaves, exact, strict=True):
        error = leaf.grad.std(0) / count**0.5
        assert ((leaf.grad.mean(0) - one.grad).abs() < 5 * error).all()


def test_gradient_of_natural_draws_is_natural(random_standard):
    standard = random_standard(dim=2)
    weight = torch.randn(2, 2)
    natural, plain = (natural_of(standard).requires_grad_() for _ in range(2))
    torch.manual_seed(1)
    (NaturalNormalGamma(natural).rsample() * weight).sum().backward()
    torch.manual_seed(1)
    (NormalGamma(*NORMAL_GAMMA.unpack(plain)).rsample() * weight).sum().backward()
    fisher = torch.autograd.functional.jacobian(NORMAL_GAMMA.mean_stats, plain.detach())
    torch.testing.assert_close(natural.grad, torch.linalg.solve(fisher, plain.grad), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("natural", [False, True])
def test_draws_and_gradients_at_the_prior_are_finite_in_float32(natural):
    leaves = [
        torch.full(shape, value) for shape, value in (((4000, 1), 0.0), ((4000,), 1.0), ((4000,), 0.01))
    ]
    standard = [*leaves, torch.full((4000, 1), 0.01)]
    if natural:
        leaves = [NaturalParameter(natural_of(standard))]
        fn = NaturalNormalGamma(*leaves, dtype=torch.float32)
    else:
        leaves = [t.float().requires_grad_() for t in standard]
        fn = NormalGamma(*leaves)
    draws = fn.rsample()
    assert draws.dtype == torch.float32
    assert draws.isfinite().all() and (draws[..., 1, :] > 0).all()
    z = torch.randn(4000, 1, dtype=torch.float32)
    loc, precision = draws.unbind(-2)
    log_prob = 0.5 * (precision.log() - precision * (z - loc) ** 2).sum() + fn.log_prob(draws).sum()
    log_prob.backward()
    assert log_prob.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_expand(random_standard):
    standard = random_standard(2, 1)
    natural = NaturalParameter(natural_of(standard))
    for fn in (NormalGamma(*standard), NaturalNormalGamma(natural)):
        wide = fn.expand(torch.Size((3, 2, 4)))
        assert type(wide) is type(fn)
        assert (wide.batch_shape, wide.event_shape) == ((3, 2, 4), (2, 3))
        assert wide.sample((6,)).shape == (6, 3, 2, 4, 2, 3)
        assert wide.mean.shape == (3, 2, 4, 2, 3)
        value = wide.sample()
        expected = reference_log_prob([t.expand(3, 2, 4, *t.shape[2:]) for t in standard], value)
        torch.testing.assert_close(wide.log_prob(value), expected)
        torch.testing.assert_close(
            wide.log_prob(value[0, :, :1]), fn.log_prob(value[0, :, :1]).expand(3, 2, 4)
        )
    assert wide.natural is natural
    assert NaturalNormalGamma(natural, torch.float32).expand(torch.Size((2, 5))).dtype == torch.float32


def test_to_event_and_mask(random_standard):
    for fn in both(random_standard(4, 2)):
        value = fn.sample()
        summed = fn.to_event(1)
        assert (summed.batch_shape, summed.event_shape) == ((4,), (2, 2, 3))
        torch.testing.assert_close(summed.log_prob(value), fn.log_prob(value).sum(-1))
        mask = torch.tensor([True, False])
        torch.testing.assert_close(fn.mask(mask).log_prob(value), fn.log_prob(value) * mask)


@pytest.mark.parametrize("natural", [False, True])
def test_in_a_program(natural, random_standard):
    standard = random_standard(2, 3)
    parameter = NaturalParameter(natural_of(standard))

    def model():
        with pyro.plate("factors", 2, dim=-2), pyro.plate("components", 3, dim=-1):
            return pyro.sample("lp", NaturalNormalGamma(parameter) if natural else NormalGamma(*standard))

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["lp"]
    torch.testing.assert_close(site["log_prob"], reference_log_prob(standard, site["value"]))
    assert not natural or site["fn"].natural is parameter
    assert Predictive(model, num_samples=7)()["lp"].shape == (7, 2, 3, 2, 3)
    assert Predictive(model, num_samples=7, parallel=True)()["lp"].shape == (7, 2, 3, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl(dtype, random_standard, assert_mean):
    standard, prior = (
        random_standard(2),
        [torch.zeros(3), torch.tensor(2.0), torch.tensor(1.5), torch.ones(3)],
    )
    q, natural = both(standard, dtype)
    p = NormalGamma(*(t.to(dtype) for t in prior))
    kl = kl_divergence(natural, p)
    assert kl.dtype == torch.float64
    assert kl_divergence(q, p).dtype == dtype
    torch.testing.assert_close(kl_divergence(q, p).double(), kl, rtol=1e-5, atol=1e-5)
    draws = both(standard)[0].sample((50_000,))
    assert_mean(reference_log_prob(standard, draws) - reference_log_prob(prior, draws), kl)
    assert kl_divergence(natural.expand(torch.Size((4, 2))), p).shape == (4, 2)
    assert kl_divergence(natural, p.expand(torch.Size((4, 2)))).shape == (4, 2)
    zero = torch.zeros(2)
    torch.testing.assert_close(kl_divergence(natural, natural), zero, rtol=0, atol=1e-12)


def test_kl_of_many_observations_in_float32():
    """Each log Γ is 1e6 here, of which float32 keeps a tenth of a nat."""
    standard = [torch.zeros(64), torch.tensor(2e5), torch.tensor(1e5), torch.full((64,), 1e5)]
    standard = [t.float() for t in standard]
    p = NormalGamma(torch.zeros(64), 1.0, 0.01, 0.01)
    exact = kl_divergence(NormalGamma(*(t.double() for t in standard)), p)
    kl = kl_divergence(NormalGamma(*standard), NormalGamma(*(t.float() for t in p.standard)))
    torch.testing.assert_close(kl.double(), exact, rtol=1e-6, atol=0)


def test_gradients_of_kl(random_standard, finite_differences):
    standard, prior = random_standard(), random_standard()
    natural = NaturalParameter(natural_of(standard))
    leaves = [t.clone().requires_grad_() for t in prior]
    kl_divergence(NaturalNormalGamma(natural), NormalGamma(*leaves)).backward()
    torch.testing.assert_close(natural.grad, natural_of(standard) - natural_of(prior))
    for i, leaf in enumerate(leaves):

        def kl(x, i=i):
            return kl_divergence(NormalGamma(*standard), NormalGamma(*prior[:i], x, *prior[i + 1 :]))

        torch.testing.assert_close(leaf.grad, finite_differences(kl, prior[i]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_stats(dtype, random_standard):
    standard = random_standard(2)
    q, natural = both([t.to(dtype).double() for t in standard], dtype)
    expected = NORMAL_GAMMA.mean_stats(natural.natural)
    for fn in (q, natural, q.expand(torch.Size((2,)))):
        assert fn.expected_stats().dtype == torch.float64
        torch.testing.assert_close(fn.expected_stats(), expected)
    for got, kept in zip(natural.standard, NORMAL_GAMMA.unpack(natural.natural), strict=True):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, kept, rtol=0, atol=0)


def test_gradient_scale(random_standard):
    natural = NaturalParameter(natural_of(random_standard(2)))
    q = NaturalNormalGamma(natural, dtype=torch.float32).expand(torch.Size((4, 2)))
    scaled = q.with_gradient_scale(torch.tensor(0.25))
    assert scaled.batch_shape == (4, 2) and scaled.dtype == torch.float32
    for fn in (q, scaled):
        fn.expected_stats().sin().sum().backward()
    torch.testing.assert_close(natural.grad, 1.25 * NORMAL_GAMMA.mean_stats(natural).cos().detach())
