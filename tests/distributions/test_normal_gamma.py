import math

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch.distributions import Gamma, Normal, kl_divergence

from pyro_fmvae.distributions import NORMAL_GAMMA, NaturalNormalGamma, NaturalParameter, NormalGamma
from tests.distributions.family_case import EPS, FamilyCase, tensors


class TestNormalGamma(FamilyCase):
    kind = NaturalNormalGamma
    moderate = {  # noqa: RUF012
        "1": (tensors([1.0], 50.0, 30.0, [12.0]), tensors([0.0], 1.0, 0.01, [0.01])),
        "3": (
            tensors([1.0, -2.0, 0.3], 4.0, 2.5, [1.0, 3.0, 0.2]),
            tensors([0.5, 0.0, 0.1], 2.0, 1.5, [1.0, 0.5, 2.0]),
        ),
        "small": (
            tensors([0.2, 0.0], 0.3, 0.4, [0.1, 0.7]),
            tensors([0.0, 1.0], 1.0, 1.0, [1.0, 2.0]),
        ),
    }
    extreme = {  # noqa: RUF012
        "prior": tensors([0.0, 0.0], 1.0, 0.01, [0.01, 0.01]),
        "many": tensors([0.3, -1.0], 2e5, 1e5, [3e4, 2e5]),
        "many-1": tensors([2.0], 1.0, 1e5, [1e5]),
        "sharp": tensors([1.0, 0.0, -1.0, 2.0], 1e3, 500.0, [0.5] * 4),
    }
    outside = {  # noqa: RUF012
        name: torch.tensor(natural, dtype=torch.float64)
        for name, natural in {
            "m": [2.5, -1.0, -math.inf, math.inf],
            "s": [1.0, 0.5, -1.0, 0.0],
            "a": [-0.6, -0.5, -1.0, 0.0],
            "b": [1.0, -0.5, -1.0, 2.0],  # b = 1 - 2²/2
        }.items()
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (2,), (5,))}  # noqa: RUF012

    def log_density(self, standard, value):
        return reference_log_prob(standard, value)

    def draw(self, standard, count):
        m, s, a, b = standard
        precision = Gamma(a, b).sample((count,)).clamp(min=1e-10)
        return torch.stack([Normal(m, (s * precision).rsqrt()).sample(), precision], -2)

    def observe(self, value, count):
        loc, precision = value
        return Normal(loc, precision.rsqrt()).sample((count,))

    def log_likelihood(self, value, x):
        loc, precision = value.unbind(-2)
        return Normal(loc, precision.rsqrt()).log_prob(x).sum(-1)


def test_kl_of_the_paper_with_its_error_corrected():
    standard, prior = TestNormalGamma.moderate["1"]
    kl = NORMAL_GAMMA.kl(NORMAL_GAMMA.natural(*standard), NORMAL_GAMMA.natural(*prior))
    assert round(kl.item(), 2) == 7.65


def test_round_trip_keeps_the_digits_that_float64_has():
    standard = tensors([1000.0, -1000.0], 1e5, 5e4, [50.0, 50.0])
    for got, expected in zip(NORMAL_GAMMA.unpack(NORMAL_GAMMA.natural(*standard)), standard, strict=True):
        # b is what is left of s m²/2 = 5e10
        torch.testing.assert_close(got, expected, rtol=4 * EPS * 5e10 / 50, atol=0)


def test_conjugate_update_equals_a_loop_in_numpy():
    m0, s0, a0, b0 = 0.3, 0.6, 1.2, 0.8
    prior = NORMAL_GAMMA.natural(torch.full((2,), m0), *tensors(s0, a0), torch.full((2,), b0))
    gamma, mean, variance = torch.rand(7, 3), torch.randn(7, 2), torch.rand(7, 2)
    natural = NORMAL_GAMMA.conjugate_update(prior.expand(3, 6), gamma, mean, variance, scale=2.5)
    m, s, a, b = (t.numpy() for t in NORMAL_GAMMA.unpack(natural))
    for k in range(3):
        weight = 2.5 * gamma[:, k].numpy()
        count = weight.sum()
        np.testing.assert_allclose(s[k], s0 + count, rtol=1e-13)
        np.testing.assert_allclose(a[k], a0 + count / 2, rtol=1e-13)
        for d in range(2):
            z, v = mean[:, d].numpy(), variance[:, d].numpy()
            expected = (s0 * m0 + (weight * z).sum()) / (s0 + count)
            np.testing.assert_allclose(m[k, d], expected, rtol=1e-12)
            centre = (weight * z).sum() / count
            spread = (weight * ((z - centre) ** 2 + v)).sum()
            shrink = s0 * count / (s0 + count) * (centre - m0) ** 2
            np.testing.assert_allclose(b[k, d], b0 + 0.5 * (spread + shrink), rtol=1e-12)


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
