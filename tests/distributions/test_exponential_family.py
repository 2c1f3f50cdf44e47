import copy
import math

import pytest
import torch
from torch.distributions import Dirichlet, Gamma, Normal, kl_divergence

from pyro_fmvae.distributions import (
    DIRICHLET,
    NORMAL_GAMMA,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
)
from pyro_fmvae.distributions.exponential_family import check_natural, scale_gradient, to_float64

EPS = torch.finfo(torch.float64).eps


def tensors(*values):
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


# (family, standard parameters of λ, of λ₀)
MODERATE = {
    "ng-1": (NORMAL_GAMMA, tensors([1.0], 50.0, 30.0, [12.0]), tensors([0.0], 1.0, 0.01, [0.01])),
    "ng-3": (
        NORMAL_GAMMA,
        tensors([1.0, -2.0, 0.3], 4.0, 2.5, [1.0, 3.0, 0.2]),
        tensors([0.5, 0.0, 0.1], 2.0, 1.5, [1.0, 0.5, 2.0]),
    ),
    "ng-small": (
        NORMAL_GAMMA,
        tensors([0.2, 0.0], 0.3, 0.4, [0.1, 0.7]),
        tensors([0.0, 1.0], 1.0, 1.0, [1.0, 2.0]),
    ),
    "dirichlet-2": (DIRICHLET, tensors([0.4, 3.0]), tensors([1.0, 1.0])),
    "dirichlet-5": (DIRICHLET, tensors([1.0, 0.2, 30.0, 4.0, 7.0]), tensors([0.5, 1.0, 2.0, 3.0, 4.0])),
}
EXTREME = {
    "ng-prior": (NORMAL_GAMMA, tensors([0.0, 0.0], 1.0, 0.01, [0.01, 0.01])),
    "ng-many": (NORMAL_GAMMA, tensors([0.3, -1.0], 2e5, 1e5, [3e4, 2e5])),
    "ng-many-1": (NORMAL_GAMMA, tensors([2.0], 1.0, 1e5, [1e5])),
    "ng-sharp": (NORMAL_GAMMA, tensors([1.0, 0.0, -1.0, 2.0], 1e3, 500.0, [0.5] * 4)),
    "dirichlet-many": (DIRICHLET, tensors([1e5, 2e5, 0.1])),
    "dirichlet-wide": (DIRICHLET, tensors([1.0 + k for k in range(20)])),
}
ALL = {**{name: case[:2] for name, case in MODERATE.items()}, **EXTREME}
moderate = pytest.mark.parametrize(("family", "standard", "prior"), MODERATE.values(), ids=MODERATE)
every = pytest.mark.parametrize(("family", "standard"), ALL.values(), ids=ALL)


def draw(family, standard, count):
    """Draws of θ as a tuple of tensors, from torch's own distributions."""
    if family is DIRICHLET:
        return (Dirichlet(*standard).sample((count,)),)
    m, s, a, b = standard
    precision = Gamma(a, b).sample((count,))
    return Normal(m, (s * precision).rsqrt()).sample(), precision


def stats(family, theta):
    """The sufficient statistics t(θ)."""
    if family is DIRICHLET:
        return theta[0].log()
    loc, precision = theta
    sums = torch.stack([precision.log().sum(-1), (precision * loc**2).sum(-1)], -1)
    return torch.cat([sums, precision, precision * loc], -1)


def log_base(family, theta):
    """The base measure log h(θ)."""
    return (
        -theta[0].log().sum(-1) if family is DIRICHLET else -0.5 * theta[0].shape[-1] * math.log(2 * math.pi)
    )


def log_density(family, standard, theta):
    """The density by torch's own distributions."""
    if family is DIRICHLET:
        return Dirichlet(*standard).log_prob(*theta)
    (m, s, a, b), (loc, precision) = standard, theta
    return (Gamma(a, b).log_prob(precision) + Normal(m, (s * precision).rsqrt()).log_prob(loc)).sum(-1)


def solve_fisher(family, natural, gradient):
    """F⁻¹ g with F = ∂E[t]/∂λ by autograd, and how far floating point lets us trust it."""
    fisher = torch.autograd.functional.jacobian(family.mean_stats, natural.detach())
    scale = fisher.diagonal().rsqrt()
    scaled = scale[:, None] * fisher * scale
    return scale * torch.linalg.solve(scaled, scale * gradient), 10 * EPS * torch.linalg.cond(scaled).item()


def assert_solves(family, natural, gradient, result, rtol=0.0):
    expected, error = solve_fisher(family, natural, gradient)
    assert error < 1e-3
    torch.testing.assert_close(
        result, expected, rtol=max(rtol, error), atol=max(rtol, error) * expected.abs().max().item()
    )


def leaf(family, standard):
    return family.natural(*standard).clone().requires_grad_()


@every
def test_standard_round_trip(family, standard):
    natural = family.natural(*standard)
    for back in (family.unpack(natural), family.standard(natural)):
        for got, expected in zip(back, standard, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(family.natural(*family.unpack(natural)), natural)
    assert family.in_domain(natural)


@every
def test_mean_of_statistics_is_gradient_of_log_normalizer(family, standard):
    natural = leaf(family, standard)
    (gradient,) = torch.autograd.grad(family.log_normalizer(natural), natural)
    torch.testing.assert_close(family.mean_stats(natural), gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(family.expected_stats(natural), family.mean_stats(natural), rtol=0, atol=0)


@moderate
def test_mean_of_statistics_by_monte_carlo(family, standard, prior, assert_mean):
    assert_mean(stats(family, draw(family, standard, 100_000)), family.mean_stats(family.natural(*standard)))


@moderate
def test_exponential_form_is_the_density(family, standard, prior):
    natural, theta = family.natural(*standard), draw(family, prior, 50)
    theta = tuple(t.clamp(min=1e-10) if i or family is DIRICHLET else t for i, t in enumerate(theta))
    form = stats(family, theta) @ natural - family.log_normalizer(natural) + log_base(family, theta)
    if family is DIRICHLET:
        theta = (theta[0] / theta[0].sum(-1, keepdim=True),)
    torch.testing.assert_close(form, log_density(family, standard, theta), rtol=1e-6, atol=1e-6)


@moderate
def test_kl(family, standard, prior, assert_mean):
    natural, natural_prior = family.natural(*standard), family.natural(*prior)
    kl = family.kl(natural, natural_prior)
    generic = (natural - natural_prior) @ family.mean_stats(natural)
    generic = generic - family.log_normalizer(natural) + family.log_normalizer(natural_prior)
    torch.testing.assert_close(kl, generic, rtol=1e-9, atol=1e-9)
    theta = draw(family, standard, 200_000)
    assert_mean(log_density(family, standard, theta) - log_density(family, prior, theta), kl)
    torch.testing.assert_close(family.kl(natural, natural), torch.zeros(()), rtol=0, atol=1e-11)


def test_kl_of_the_paper_with_its_error_corrected():
    _, standard, prior = MODERATE["ng-1"]
    kl = NORMAL_GAMMA.kl(NORMAL_GAMMA.natural(*standard), NORMAL_GAMMA.natural(*prior))
    assert round(kl.item(), 2) == 7.65


def test_dirichlet_kl_is_torchs():
    for name in ("dirichlet-2", "dirichlet-5"):
        _, (q,), (p,) = MODERATE[name]
        torch.testing.assert_close(DIRICHLET.kl(q, p), kl_divergence(Dirichlet(q), Dirichlet(p)))


@moderate
def test_gradient_of_kl(family, standard, prior, finite_differences):
    natural, natural_prior = leaf(family, standard), leaf(family, prior)
    (3 * family.kl(natural, natural_prior)).backward()
    gradient = finite_differences(lambda x: 3 * family.relative_entropy(x, natural_prior.detach()), natural)
    assert_solves(family, natural, gradient, natural.grad, rtol=1e-5)
    gradient = finite_differences(lambda x: 3 * family.relative_entropy(natural.detach(), x), natural_prior)
    torch.testing.assert_close(natural_prior.grad, gradient, rtol=1e-5, atol=1e-5)


@moderate
def test_gradient_of_kl_is_summed_where_it_was_broadcast(family, standard, prior):
    natural, natural_prior = leaf(family, standard), leaf(family, prior)
    weight = torch.rand(4)
    (weight * family.kl(natural.expand(4, -1), natural_prior)).sum().backward()
    one, one_prior = leaf(family, standard), leaf(family, prior)
    (weight * family.kl(one, one_prior.expand(4, -1))).sum().backward()
    torch.testing.assert_close(one.grad, weight.sum() * (natural - natural_prior).detach())
    torch.testing.assert_close(natural.grad, one.grad)
    torch.testing.assert_close(natural_prior.grad, one_prior.grad)


@moderate
def test_gradient_of_expected_statistics(family, standard, prior, finite_differences):
    natural = leaf(family, standard)
    weight = torch.randn_like(natural)

    def loss(statistics):
        return (weight * statistics).sum() + (weight * statistics).sin().sum()

    loss(family.expected_stats(natural)).backward()
    gradient = finite_differences(lambda x: loss(family.mean_stats(x)), natural)
    assert_solves(family, natural, gradient, natural.grad, rtol=1e-5)


@every
def test_gradient_of_standard_parameters(family, standard):
    natural, plain = leaf(family, standard), leaf(family, standard)
    weights = [torch.randn_like(t) / t.abs().clamp(min=1e-2) for t in standard]
    sum((w * t).sum() for w, t in zip(weights, family.standard(natural), strict=True)).backward()
    sum((w * t).sum() for w, t in zip(weights, family.unpack(plain), strict=True)).backward()
    assert_solves(family, natural, plain.grad, natural.grad)


def test_gradient_of_standard_parameters_where_only_one_is_used():
    family, standard = ALL["ng-3"]
    for i in range(4):
        natural, plain = leaf(family, standard), leaf(family, standard)
        family.standard(natural)[i].sum().backward()
        family.unpack(plain)[i].sum().backward()
        assert_solves(family, natural, plain.grad, natural.grad)


def test_dirichlet_over_one_component_has_no_gradient():
    natural = torch.tensor([3.0], requires_grad=True)
    Dirichlet(*DIRICHLET.standard(natural)).rsample().sum().backward()
    assert natural.grad.tolist() == [0.0]


def test_batches_are_independent(random_standard):
    standard = random_standard(2, 5)
    natural = NORMAL_GAMMA.natural(*standard)
    assert natural.shape == (2, 5, 8)
    for function in (NORMAL_GAMMA.log_normalizer, NORMAL_GAMMA.mean_stats, NORMAL_GAMMA.in_domain):
        torch.testing.assert_close(function(natural)[1, 3], function(natural[1, 3]))
    one = leaf(NORMAL_GAMMA, [t[1, 3] for t in standard])
    batch = natural.clone().requires_grad_()
    for x in (one, batch):
        sum(t.sin().sum() for t in NORMAL_GAMMA.standard(x)).backward()
    torch.testing.assert_close(batch.grad[1, 3], one.grad)


@pytest.mark.parametrize("entry", range(4))
def test_outside_the_domain(entry):
    outside = list(tensors([1.0], 2.0, 3.0, [4.0]))
    outside[entry] = torch.full_like(outside[entry], math.inf if entry == 0 else -0.1)
    assert not NORMAL_GAMMA.in_domain(NORMAL_GAMMA.natural(*outside))
    assert not DIRICHLET.in_domain(torch.tensor([1.0, 0.0]))


def test_round_trip_keeps_the_digits_that_float64_has():
    standard = tensors([1000.0, -1000.0], 1e5, 5e4, [50.0, 50.0])
    for got, expected in zip(NORMAL_GAMMA.unpack(NORMAL_GAMMA.natural(*standard)), standard, strict=True):
        # b is what is left of s m²/2 = 5e10
        torch.testing.assert_close(got, expected, rtol=4 * EPS * 5e10 / 50, atol=0)


@pytest.mark.parametrize("factor", [0.25, torch.tensor([1.0, 2.0, -3.0])])
def test_scale_gradient(factor):
    x = torch.randn(2, 3, requires_grad=True)
    scaled = scale_gradient(x, factor)
    torch.testing.assert_close(scaled, x, rtol=0, atol=0)
    scaled.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * factor)


def test_scale_gradient_by_a_factor_of_more_dimensions():
    """Each part of the gradient is multiplied by its own factor, and only then are they added up."""
    x, weight, factor = torch.randn(3, requires_grad=True), torch.randn(4, 2, 3), torch.randn(2, 1)
    scaled = scale_gradient(x, factor)
    torch.testing.assert_close(scaled, x.expand(2, 3), rtol=0, atol=0)
    (weight * scaled).sum().backward()
    torch.testing.assert_close(x.grad, (factor * weight).sum((0, 1)))


def test_float64_is_asked_for():
    check_natural(torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="natural: expected float64"):
        check_natural(torch.ones(2, dtype=torch.float32))
    assert to_float64(torch.ones(2, dtype=torch.float32)).dtype == torch.float64


@moderate
def test_expected_statistics_are_remembered_for_as_long_as_they_hold(family, standard, prior):
    natural = NaturalParameter(family.natural(*standard))
    q = (NaturalDirichlet if family is DIRICHLET else NaturalNormalGamma)(natural)
    assert q.expected_stats() is q.expected_stats()
    natural.requires_grad_(False)
    assert not q.expected_stats().requires_grad
    natural.requires_grad_(True)
    q.expected_stats().sum().backward()
    assert torch.equal(natural.grad, torch.ones_like(natural))


def test_copies_of_distributions_whose_statistics_are_known():
    q = NaturalNormalGamma(NaturalParameter(NORMAL_GAMMA.natural(*MODERATE["ng-3"][1])))
    expected = q.expected_stats()
    torch.testing.assert_close(copy.deepcopy(q).expected_stats(), expected, rtol=0, atol=0)
