"""Tests that every exponential family inherits; a family's own test brings its numbers and densities."""

import copy
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import mpmath
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.distributions.exponential_family import event_dim_of, natural_class, stats_under
from pyro_fmvae.infer import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.posteriors import StandardPosterior

EPS = torch.finfo(torch.float64).eps
FUNCTIONS = {
    "x": lambda x: x,
    "1/x": torch.reciprocal,
    "log": torch.log,
    "log1m": lambda x: torch.log1p(-x),
}
DTYPES = (torch.float32, torch.float64)


def tensors(*values):
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


def in_many_digits(tensor):
    """A matrix, vector or number of mpmath, of 60 digits."""
    return mpmath.matrix(tensor.tolist()) if tensor.dim() else mpmath.mpf(tensor.item())


def assert_mean(draws, expected):
    """Check that draws (first dimension) have the expected mean, within five standard errors."""
    error = draws.std(0) / len(draws) ** 0.5
    gap = (draws.mean(0) - expected).abs()
    assert (gap <= 5 * error + 1e-12).all(), f"off by {(gap / error).max():.1f} standard errors"


def finite_differences(f, x, step=1e-6):
    """Gradient of a scalar function by central differences, in steps relative to each entry."""
    x = x.detach()
    result = torch.zeros_like(x)
    for i in range(x.numel()):
        h = torch.zeros_like(x)
        h.view(-1)[i] = step * max(1.0, float(x.reshape(-1)[i].abs()))
        result.view(-1)[i] = (f(x + h) - f(x - h)) / (2 * h.sum())
    return result


class Likelihood(NamedTuple):
    """Observations that a family is the conjugate prior of."""

    given: Callable  # θ → p(x | θ), a distribution of Pyro
    stats: Callable  # x → T(x) by hand, what an observation adds to λ
    predictive: Callable | None = None  # family, standard parameters, dtype → p(x), where it has a name


class AlgebraCase:
    """Proves the closed forms of a family by other routes: autograd, Bayes' theorem, draws, differences."""

    kind: ClassVar  # the class in natural parameters
    moderate: ClassVar[dict]  # name → standard parameters of λ, of λ₀
    extreme: ClassVar[dict] = {}  # name → standard parameters that need care
    outside: ClassVar[dict]  # name → λ outside the domain
    misshapen: ClassVar[dict] = {}  # name → λ of a shape that no member has
    near: ClassVar[dict] = {}  # name → standard parameters of λ, of λ₀, whose KL is small against A(λ)
    likelihoods: ClassVar[dict] = {}  # name → Likelihood
    shift: ClassVar[float] = 3.0  # of free parameters that still leaves λ its digits

    def log_density(self, standard, value):
        """Log p(θ) by distributions of torch."""
        raise NotImplementedError

    def draw(self, standard, count):
        """Draws of θ, from distributions of torch."""
        raise NotImplementedError

    def exact_kl(self, standard, prior):
        """KL(λ || λ₀) from mpmath's numbers."""
        raise NotImplementedError

    @property
    def family(self):
        return self.kind.family

    def leaf(self, standard):
        return self.family.natural(*standard).clone().requires_grad_()

    def pytest_generate_tests(self, metafunc):
        if "likelihood" in metafunc.fixturenames:
            metafunc.parametrize("likelihood", self.likelihoods.values(), ids=self.likelihoods)
        if "predicted" in metafunc.fixturenames:
            known = {name: each for name, each in self.likelihoods.items() if each.predictive is not None}
            metafunc.parametrize("predicted", known.values(), ids=known)
        if "near" in metafunc.fixturenames:
            metafunc.parametrize("near", self.near.values(), ids=self.near)
        if "prior" in metafunc.fixturenames:
            metafunc.parametrize(("standard", "prior"), self.moderate.values(), ids=self.moderate)
        elif "standard" in metafunc.fixturenames:
            every = {**{name: case[0] for name, case in self.moderate.items()}, **self.extreme}
            metafunc.parametrize("standard", every.values(), ids=every)
        for name in ("outside", "misshapen"):
            if f"natural_{name}" in metafunc.fixturenames:
                cases = getattr(self, name)
                metafunc.parametrize(f"natural_{name}", cases.values(), ids=cases)

    def assert_solves(self, natural, gradient, result, rtol=0.0):
        """That a result is F⁻¹ g with F = ∂E[t]/∂λ by autograd, as far as floating point lets us tell."""
        fisher = torch.autograd.functional.jacobian(self.family.mean_stats, natural.detach())
        scale = fisher.diagonal().rsqrt()
        scaled = scale[:, None] * fisher * scale
        expected = scale * torch.linalg.solve(scaled, scale * gradient)
        error = 10 * EPS * torch.linalg.cond(scaled).item()
        assert error < 1e-3
        rtol = max(rtol, error)
        assert_close(result, expected, rtol=rtol, atol=rtol * expected.abs().max().item())

    # The algebra

    def test_standard_round_trip(self, standard):
        family, natural = self.family, self.family.natural(*standard)
        for back in (family.unpack(natural), family.standard(natural)):
            for got, expected in zip(back, standard, strict=True):
                assert_close(got, expected, rtol=1e-9, atol=1e-12)
        assert_close(family.natural(*family.unpack(natural)), natural)
        assert family.in_domain(natural)

    def test_mean_of_statistics_is_gradient_of_log_normalizer(self, standard):
        natural = self.leaf(standard)
        (gradient,) = torch.autograd.grad(self.family.log_normalizer(natural), natural)
        assert_close(self.family.mean_stats(natural), gradient, rtol=1e-9, atol=1e-9)
        assert_close(self.family.stats_from_standard(*standard), gradient, rtol=1e-9, atol=1e-9)
        assert_close(self.family.expected_stats(natural), self.family.mean_stats(natural), rtol=0, atol=0)

    def test_mean_of_statistics_by_monte_carlo(self, standard, prior):
        draws = self.draw(standard, 100_000)
        assert_mean(self.family.stats(draws), self.family.mean_stats(self.family.natural(*standard)))

    def test_exponential_form_is_the_density(self, standard, prior):
        """Up to the base measure, which is the same for all members."""
        family, value = self.family, self.draw(prior, 50)
        natural, other = family.natural(*standard), family.natural(*prior)
        form = family.stats(value) @ (natural - other)
        form = form - family.log_normalizer(natural) + family.log_normalizer(other)
        expected = self.log_density(standard, value) - self.log_density(prior, value)
        assert_close(form, expected, rtol=1e-7, atol=1e-7)

    # Plain programs

    def test_base_measure(self, standard, prior):
        family, value = self.family, self.draw(standard, 50)
        if not family.monomials:
            pytest.skip("takes no part in plain programs")
        natural, stats = family.natural(*standard), family.stats(value)
        density = stats @ natural - family.log_normalizer(natural) + family.log_base_measure(stats)
        assert_close(density, self.log_density(standard, value), rtol=1e-7, atol=1e-7)

    def test_monomials_are_where_they_are_located(self, standard, prior):
        """Every product of elements that can be located is in t, and they are all of t."""
        family, value = self.family, self.draw(standard, 20)
        if not family.monomials:
            pytest.skip("takes no part in plain programs")
        event, natural = value.shape[1:], family.natural(*standard)
        assert family.size(event) == natural.shape[-1] and family.event_shape(natural.shape[-1]) == event
        assert event_dim_of(family) == len(event)
        stats, times = family.stats(value), family.multiplicity(event)
        stats = stats if times is None else stats / times
        flat, found = value.reshape(len(value), -1), set()
        for monomial in family.monomials:
            assert tuple(sorted(monomial)) == monomial
            numbers = torch.arange(event.numel())
            elements = tuple(
                grid.flatten() for grid in torch.meshgrid(*[numbers] * len(monomial), indexing="ij")
            )
            positions = family.locate(monomial, elements, event)
            assert positions.shape == elements[0].shape and positions.dtype == torch.int64
            product = torch.ones(len(value), len(positions), dtype=value.dtype)
            for name, index in zip(monomial, elements, strict=True):
                determinant = name == "logdet"
                product *= value.logdet().unsqueeze(-1) if determinant else FUNCTIONS[name](flat)[:, index]
            held = positions >= 0
            assert_close(stats[:, positions[held]], product[:, held])
            found |= set(positions[held].tolist())
        assert found == set(range(natural.shape[-1]))

    def test_kl(self, standard, prior):
        family = self.family
        natural, natural_prior = family.natural(*standard), family.natural(*prior)
        kl = family.kl(natural, natural_prior)
        generic = (natural - natural_prior) @ family.mean_stats(natural)
        generic = generic - family.log_normalizer(natural) + family.log_normalizer(natural_prior)
        assert_close(kl, generic, rtol=1e-9, atol=1e-9)
        value = self.draw(standard, 200_000)
        assert_mean(self.log_density(standard, value) - self.log_density(prior, value), kl)
        assert_close(family.kl(natural, natural), torch.zeros(()), rtol=0, atol=1e-11)

    def test_kl_keeps_its_digits(self, near):
        """Against 60 digits of the same numbers, as λ has them."""
        natural, prior = (self.family.natural(*each) for each in near)
        exact = self.exact_kl(*(tuple(map(in_many_digits, self.family.unpack(x))) for x in (natural, prior)))
        plain = (natural - prior) @ self.family.mean_stats(natural)
        plain = plain - self.family.log_normalizer(natural) + self.family.log_normalizer(prior)
        assert abs(plain.item() / exact - 1) > 1e-6  # so the other way matters
        assert self.family.kl(natural, prior).item() == pytest.approx(float(exact), rel=1e-9, abs=0)

    def test_gradient_of_kl(self, standard, prior):
        family, natural, natural_prior = self.family, self.leaf(standard), self.leaf(prior)
        (3 * family.kl(natural, natural_prior)).backward()
        assert_close(natural.grad, 3 * (natural - natural_prior).detach())
        there = finite_differences(lambda x: 3 * family.relative_entropy(x, natural_prior.detach()), natural)
        self.assert_solves(natural, there, natural.grad, rtol=1e-5)
        there = finite_differences(lambda x: 3 * family.relative_entropy(natural.detach(), x), natural_prior)
        assert_close(natural_prior.grad, there, rtol=1e-5, atol=1e-5)

    def test_gradient_of_kl_is_summed_where_it_was_broadcast(self, standard, prior):
        family, natural, natural_prior = self.family, self.leaf(standard), self.leaf(prior)
        weight = torch.rand(4)
        (weight * family.kl(natural.expand(4, -1), natural_prior)).sum().backward()
        one, one_prior = self.leaf(standard), self.leaf(prior)
        (weight * family.kl(one, one_prior.expand(4, -1))).sum().backward()
        assert_close(one.grad, weight.sum() * (natural - natural_prior).detach())
        assert_close(natural.grad, one.grad)
        assert_close(natural_prior.grad, one_prior.grad)

    def test_gradient_of_expected_statistics(self, standard, prior):
        natural = self.leaf(standard)
        weight = torch.randn_like(natural)

        def loss(statistics):
            return (weight * statistics).sum() + (weight * statistics).sin().sum()

        loss(self.family.expected_stats(natural)).backward()
        gradient = finite_differences(lambda x: loss(self.family.mean_stats(x)), natural)
        self.assert_solves(natural, gradient, natural.grad, rtol=1e-5)

    def test_gradient_of_standard_parameters(self, standard):
        """Of all of them together, and of each alone."""
        scales = [torch.randn_like(t) / t.abs().clamp(min=1e-2) for t in standard]
        alone = [[scale if i == j else 0.0 for j in range(len(scales))] for i, scale in enumerate(scales)]
        for weights in (scales, *alone):
            natural, plain = self.leaf(standard), self.leaf(standard)
            for function, x in ((self.family.standard, natural), (self.family.unpack, plain)):
                sum((w * t).sum() for w, t in zip(weights, function(x), strict=True)).backward()
            self.assert_solves(natural, plain.grad, natural.grad)

    def test_batches_are_independent(self):
        naturals = [self.family.natural(*case[0]) for case in self.moderate.values()]
        naturals = [natural for natural in naturals if natural.shape == naturals[0].shape]
        batch = torch.stack([(1 + 0.1 * i) * naturals[i % len(naturals)] for i in range(6)]).view(2, 3, -1)
        for function in (self.family.log_normalizer, self.family.mean_stats, self.family.in_domain):
            assert_close(function(batch)[1, 2], function(batch[1, 2]))
        batch.requires_grad_()
        one = batch.detach()[1, 2].clone().requires_grad_()
        for x in (one, batch):
            sum(t.sin().sum() for t in self.family.standard(x)).backward()
        assert_close(batch.grad[1, 2], one.grad)

    def test_random_start(self, standard, prior):
        natural = self.family.natural(*prior).expand(2, 3, -1)
        starts = [
            self.family.random_start(natural, 10.0, torch.Generator().manual_seed(s)) for s in (1, 1, 2)
        ]
        assert torch.equal(starts[0], starts[1])
        assert starts[0].shape == natural.shape and starts[0].dtype == torch.float64
        assert self.family.in_domain(starts[0]).all()
        assert not torch.equal(starts[0], natural)

    # What it is the conjugate prior of

    def test_posterior_is_that_of_bayes_theorem(self, standard, prior, likelihood):
        """log p(θ | x) - log p(θ) - log p(x | θ) is one number, whatever θ is: the log evidence."""
        x = likelihood.given(self.draw(standard, 1)[0]).sample((7,))
        posterior = self.family.unpack(self.family.natural(*prior) + likelihood.stats(x).sum(0))
        value = self.draw(standard, 20)
        log_likelihood = likelihood.given(value.unsqueeze(1)).log_prob(x).sum(-1)
        evidence = self.log_density(posterior, value) - self.log_density(prior, value) - log_likelihood
        assert_close(evidence, evidence[:1].expand(20), rtol=1e-9, atol=1e-7)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_predictive_is_that_of_bayes_theorem(self, standard, prior, predicted, dtype):
        """p(x) = p(x | θ) p(θ) / p(θ | x), whatever θ is."""
        likelihood, (value,) = predicted, self.draw(standard, 1)
        x, natural = likelihood.given(value).sample((5,)), self.family.natural(*standard)
        predictive = likelihood.predictive(self.family, standard, dtype)
        posteriors = [self.family.unpack(natural + stats) for stats in likelihood.stats(x)]
        gap = torch.stack([self.log_density(each, value) for each in posteriors])
        expected = likelihood.given(value).log_prob(x) + self.log_density(standard, value) - gap
        rtol = 1e-3 if dtype == torch.float32 else 1e-9
        found = torch.stack([predictive.log_prob(each) for each in x.to(dtype)])
        assert found.dtype == dtype
        assert_close(found.double(), expected, rtol=rtol, atol=rtol)

    def test_one_step_of_a_plain_program_is_exact(self, standard, prior, likelihood):
        """The posterior is λ₀ + Σ T(x), and the bound is the log evidence."""
        (value,) = self.draw(standard, 1)
        x = likelihood.given(value).sample((7,))

        def model():
            theta = pyro.sample("theta", self.family.member(*prior))
            with pyro.plate("data", 7):
                pyro.sample("x", likelihood.given(theta), obs=x)

        guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
        SVI(model, guide, NaturalGradient(1.0, partial(torch.optim.SGD, lr=0.0)), elbo).step()
        posterior = self.family.natural(*prior) + likelihood.stats(x).sum(0)
        assert_close(guide.posterior("theta").natural_value(), posterior)
        joint = likelihood.given(value).log_prob(x).sum() + self.log_density(prior, value)
        evidence = joint - self.log_density(self.family.unpack(posterior), value)
        assert -elbo.loss(model, guide) == pytest.approx(evidence.item(), rel=1e-9, abs=1e-7)

    # Members in natural parameters

    def member(self, standard, dtype=None):
        return self.kind(NaturalParameter(self.family.natural(*standard)), dtype)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_member_is_the_distribution_in_its_own_dtype(self, standard, prior, dtype):
        q = self.member(standard, dtype)
        value = self.draw(standard, 20_000)
        for name, expected in zip(self.family.names, standard, strict=True):
            assert_close(getattr(q, name).detach(), expected.to(dtype))
        inside = value[:10].to(dtype)
        rtol = 1e-3 if dtype == torch.float32 else 1e-9
        log_prob = q.log_prob(inside)
        assert log_prob.dtype == dtype
        assert_close(log_prob.double(), self.log_density(standard, inside.double()), rtol=rtol, atol=rtol)
        draws = q.sample((20_000,))
        assert draws.dtype == dtype
        assert_mean(self.family.stats(draws.double()), self.family.mean_stats(q.natural.detach()))

    def test_default_dtype(self, standard, prior):
        assert self.member(standard).sample().dtype == torch.float64
        torch.set_default_dtype(torch.float32)
        assert self.member(standard).sample().dtype == torch.float32

    def test_gradient_of_draws_is_natural(self, standard, prior):
        natural, plain = self.leaf(standard), self.leaf(standard)
        given = self.family.member(*self.family.unpack(plain))
        weight = torch.randn_like(given.sample())
        for q in (self.kind(natural), given):
            torch.manual_seed(1)
            (q.rsample() * weight).sum().backward()
        self.assert_solves(natural, plain.grad, natural.grad, rtol=1e-8)

    def test_expansion_keeps_the_very_parameter(self, standard, prior):
        natural = NaturalParameter(self.family.natural(*standard).expand(2, 1, -1))

        def guide():
            with pyro.plate("outer", 3, dim=-3), pyro.plate("factors", 2, dim=-2):
                pyro.sample("site", self.kind(natural, torch.float32))

        q = poutine.trace(guide).get_trace().nodes["site"]["fn"]
        assert q.natural is natural and q.dtype == torch.float32
        assert (q.batch_shape, q.event_shape) == ((3, 2, 1), self.draw(standard, 1).shape[1:])
        assert q.sample((4,)).shape == (4, 3, 2, 1, *q.event_shape)
        assert q.to_event(1).batch_shape == (3, 2)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_registered_divergence(self, standard, prior, dtype):
        q, p = self.member(standard).expand(torch.Size((4,))), tuple(t.to(dtype) for t in prior)
        kl = kl_divergence(q, self.family.member(*p))
        exact = self.family.kl(q.natural, self.family.natural(*(t.double() for t in p)))
        assert kl.shape == (4,) and kl.dtype == torch.float64
        assert_close(kl, exact.expand(4))
        kl[0].backward()
        assert_close(q.natural.grad, (q.natural - self.family.natural(*(t.double() for t in p))).detach())
        between = kl_divergence(q, self.member(prior, dtype))  # whose own type of numbers does not matter
        assert_close(between, self.family.kl(q.natural, self.family.natural(*prior)).expand(4))
        assert_close(kl_divergence(q, q), torch.zeros(4), rtol=0, atol=1e-11)
        in_standard = (self.family.member(*(t.to(dtype) for t in each)) for each in (standard, prior))
        assert_close(kl_divergence(*in_standard).double(), exact, rtol=1e-4, atol=1e-4)

    def test_expected_statistics_in_every_form(self, standard, prior):
        exact, q = self.family.stats_from_standard(*standard), self.member(standard, torch.float32)
        assert_close(stats_under(q, self.family), exact, rtol=1e-9, atol=1e-9)
        assert_close(stats_under(self.family.member(*standard), self.family), exact)
        point = self.draw(standard, 1)[0]
        assert_close(stats_under(pyro.distributions.Delta(point), self.family), self.family.stats(point))
        with pytest.raises(NotImplementedError, match="under LogNormal"):
            stats_under(pyro.distributions.LogNormal(0.0, 1.0), self.family)

    def test_expected_statistics_are_remembered_for_as_long_as_they_hold(self, standard, prior):
        q = self.member(standard)
        assert q.expected_stats() is q.expected_stats()
        assert_close(copy.deepcopy(q).expected_stats(), q.expected_stats(), rtol=0, atol=0)
        q.natural.requires_grad_(False)
        assert not q.expected_stats().requires_grad
        q.natural.requires_grad_(True)
        q.expected_stats().sum().backward()
        assert torch.equal(q.natural.grad, torch.ones_like(q.natural))

    @pytest.mark.parametrize("factor", [0.25, torch.tensor(0.25)])
    def test_gradient_scale(self, standard, prior, factor):
        q = self.member(standard, torch.float32).expand(torch.Size((4,)))
        scaled = q.with_gradient_scale(factor)
        assert scaled.batch_shape == (4,) and scaled.dtype == torch.float32
        for fn in (q, scaled):
            fn.expected_stats().sin().sum().backward()
        assert_close(q.natural.grad, 1.25 * self.family.mean_stats(q.natural).cos().detach())

    def test_posterior_in_standard_parameters(self, standard, prior):
        """For a first-order optimiser: any real numbers stand for a member."""
        natural = self.family.natural(*standard)
        posterior = StandardPosterior(self.kind, natural.expand(2, 3, -1))
        assert_close(posterior.natural_value(), natural.expand(2, 3, -1))
        assert type(posterior()) is self.family.distribution and posterior().batch_shape == (2, 3)
        value = self.draw(standard, 1)[0]
        assert_close(posterior().log_prob(value), self.log_density(standard, value).expand(2, 3))
        for parameter in posterior.parameters():
            parameter.data += self.shift * torch.randn_like(parameter)
        assert self.family.in_domain(posterior.natural_value()).all()

    def test_the_registry_knows_its_priors(self, standard, prior):
        assert natural_class(self.family.member(*prior)) is self.kind
        assert natural_class(self.member(prior)) is self.kind

    def test_outside_the_domain(self, natural_outside):
        assert not self.family.in_domain(natural_outside)
        message = f"natural: expected parameters in the domain of {type(self.family).__name__}"
        with pytest.raises(ValueError, match=message):
            self.kind(natural_outside)
        self.kind(natural_outside, validate_args=False)

    def test_misshapen(self, natural_misshapen):
        with pytest.raises(ValueError, match="natural: expected shape"):
            self.kind(natural_misshapen)

    def test_natural_parameters_that_are_not_in_float64_are_refused(self, standard, prior):
        natural = self.family.natural(*standard)
        for other, got in ((natural.float(), "torch.float32"), (natural.tolist(), "list|float")):
            with pytest.raises(ValueError, match=f"natural: expected float64 .* got ({got})"):
                self.kind(other)


class FamilyCase(AlgebraCase):
    """Families of mixture components, whose observations have a mean and a variance."""

    test_kl_keeps_its_digits = None  # only in families of their own
    test_one_step_of_a_plain_program_is_exact = None

    def observe(self, value, count):
        """Draws of x given one θ, [count, *shape of x]."""
        raise NotImplementedError

    def log_likelihood(self, value, x):
        """Log p(x | θ), by distributions of torch."""
        raise NotImplementedError

    def as_event(self, x):
        """The observations as the predictive distribution has them."""
        return x

    # Instead of likelihoods with names

    def test_posterior_is_that_of_bayes_theorem(self, standard, prior):
        """log p(θ | x) - log p(θ) - Σ w log p(x | θ) is one number, whatever θ is: the log evidence."""
        x, weights, scale = self.observe(self.draw(standard, 1)[0], 7), torch.rand(7, 1), 2.5
        natural = self.family.natural(*prior)
        update = self.family.conjugate_update(natural.unsqueeze(0), weights, x, torch.zeros_like(x), scale)
        posterior = self.family.unpack(update.squeeze(0))
        value = self.draw(standard, 20)
        likelihood = scale * (weights.T * self.log_likelihood(value.unsqueeze(1), x)).sum(-1)
        evidence = self.log_density(posterior, value) - self.log_density(prior, value) - likelihood
        assert_close(evidence, evidence[:1].expand(20), rtol=1e-9, atol=1e-7)

    def test_update_adds_weighted_statistics(self, standard, prior):
        mean = self.observe(self.draw(standard, 1)[0], 7)
        variance, weights = torch.rand_like(mean), torch.rand(7, 3)
        start = self.family.natural(*prior).expand(3, -1)
        stats = self.family.data_stats(mean, variance)
        expected = start + 2.5 * torch.stack([(weights[:, k, None] * stats).sum(0) for k in range(3)])
        for dtype in DTYPES:
            data = (tensor.to(dtype) for tensor in (weights, mean, variance))
            update = self.family.conjugate_update(start, *data, 2.5)
            assert update.dtype == torch.float64
            rtol = 1e-5 if dtype == torch.float32 else 1e-12
            assert_close(update, expected, rtol=rtol, atol=rtol)

    def test_expected_log_likelihood_by_monte_carlo(self, standard, prior):
        x = self.observe(self.draw(standard, 1)[0], 4)
        stats = torch.stack([self.family.stats_from_standard(*each) for each in (standard, prior)])
        table = self.family.expected_log_likelihood(x, torch.zeros_like(x), stats)
        assert table.shape == (4, 2)
        value = self.draw(standard, 100_000)
        assert_mean(self.log_likelihood(value.unsqueeze(1), x), table[:, 0])
        single = self.family.expected_log_likelihood(x.float(), torch.zeros_like(x).float(), stats)
        assert single.dtype == torch.float32
        assert_close(single.double(), table, rtol=1e-4, atol=1e-4)

    def test_predictive_is_that_of_bayes_theorem(self, standard, prior):
        """p(x) = p(x | θ) p(θ) / p(θ | x), whatever θ is."""
        value, natural = self.draw(standard, 1)[0], self.family.natural(*standard)
        x, predictive = self.observe(value, 5), self.family.predictive(standard, torch.float64)
        for each in x:
            update = natural + self.family.data_stats(each, torch.zeros_like(each))
            posterior = self.log_density(self.family.unpack(update), value)
            expected = self.log_likelihood(value, each) + self.log_density(standard, value) - posterior
            assert_close(predictive.log_prob(self.as_event(each)), expected, rtol=1e-9, atol=1e-9)
