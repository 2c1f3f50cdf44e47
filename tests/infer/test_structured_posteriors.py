"""Joint posteriors of locations and precisions in plain programs, against closed forms and other programs."""

import copy
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import scipy.stats
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from torch.testing import assert_close

from pyro_fmvae import collapse
from pyro_fmvae import log_evidence as exact_evidence
from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import (
    MULTIVARIATE_NORMAL_GAMMA,
    NORMAL_GAMMA,
    NORMAL_WISHART,
    Assignment,
    Component,
    FullComponent,
    NormalGamma,
    NormalWishart,
    RateWishart,
)
from pyro_fmvae.distributions.joint_parts import NormalBlock
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.expectation import Moments
from pyro_fmvae.infer.elbo.sums import Factor
from pyro_fmvae.infer.posteriors import to_standard
from tests.infer.plain.oracles import assert_gradient, step
from tests.infer.programs import assert_equal_in_expectation, estimate

K, D, N = 3, 2, 30
M0, S0, A0, B0 = 0.5, 0.3, 1.5, 0.7
NUMBERS = torch.tensor([0.2, -0.5, 1.1, 3.0, 2.1])
POINTS = torch.tensor([[0.2, -0.5], [1.1, 0.3], [0.4, 2.1], [2.0, 1.1]])


def by_precision(x):
    tau = pyro.sample("tau", dist.Gamma(A0, B0))
    mu = pyro.sample("mu", dist.Normal(M0, (S0 * tau) ** -0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x)


def by_variance(x):
    tau = pyro.sample("tau", dist.InverseGamma(A0, B0))
    mu = pyro.sample("mu", dist.Normal(M0, (tau / S0).sqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.sqrt()), obs=x)


def by_matrix(x):
    tau = pyro.sample("tau", RateWishart(torch.tensor(A0), math.sqrt(B0) * torch.eye(D)))
    mu = pyro.sample("mu", dist.MultivariateNormal(torch.full((D,), M0), precision_matrix=S0 * tau))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mu, precision_matrix=tau), obs=x)


def by_torch_wishart(x):
    tau = pyro.sample(
        "tau", dist.Wishart(torch.tensor(2 * A0 + D - 1), precision_matrix=2 * B0 * torch.eye(D))
    )
    mu = pyro.sample("mu", dist.MultivariateNormal(torch.full((D,), M0), precision_matrix=tau * S0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mu, precision_matrix=tau), obs=x)


FEATURES = torch.tensor([[1.0, 0.2], [1.0, -1.0], [1.0, 0.4], [1.0, 2.0], [1.0, 1.5]])
SPREAD = torch.tensor([[2.0, 0.3], [0.3, 1.0]])  # covariance matrix of weights where the noise has variance 1


def regression(prior, by_variance=False):
    """Of five numbers, with weights whose prior is a function of the precision of the noise."""

    def model(x):
        noise = pyro.sample("tau", dist.InverseGamma(A0, B0) if by_variance else dist.Gamma(A0, B0))
        tau = 1 / noise if by_variance else noise
        mu = pyro.sample("mu", prior(tau[..., None, None]))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal((mu * FEATURES.to(mu.dtype)).sum(-1), tau.rsqrt()), obs=x)

    return model


def of_weights(**matrix):
    return dist.MultivariateNormal(torch.full((D,), M0), **matrix)


REGRESSIONS = {
    "precision matrix": lambda tau: of_weights(precision_matrix=tau * SPREAD.to(tau.dtype).inverse()),
    "factor": lambda tau: of_weights(scale_tril=tau.rsqrt() * torch.linalg.cholesky(SPREAD.to(tau.dtype))),
    "covariance matrix": lambda tau: of_weights(covariance_matrix=SPREAD.to(tau.dtype) / tau),
}
by_weights = regression(REGRESSIONS["precision matrix"])
by_weights_and_variance = regression(REGRESSIONS["covariance matrix"], by_variance=True)
WEIGHTS = [(by_weights, NUMBERS), (by_weights_and_variance, NUMBERS)]
PROGRAMS = [(by_precision, NUMBERS), (by_variance, NUMBERS), (by_matrix, POINTS), (by_torch_wishart, POINTS)]
programs = pytest.mark.parametrize(("model", "x"), PROGRAMS, ids=[model.__name__ for model, _ in PROGRAMS])


def made(model, *args, **options):
    """A guide with joint posteriors that are not the best ones."""
    pyro.set_rng_seed(3)
    guide = AutoConjugate(model, structured=True, **options)
    with poutine.block():
        guide(*args)
    return guide


def log_evidence(x):
    """log p(x): Bernardo and Smith (1994), pages 439-441; of numbers a multivariate Student-t, by scipy."""
    count = len(x)
    if x.dim() == 1:
        scale = B0 / A0 * (torch.eye(count) + torch.ones(count, count) / S0)
        student = scipy.stats.multivariate_t(torch.full((count,), M0), scale, df=2 * A0)
        return float(student.logpdf(x))
    log_p = 0.0  # point by point, each a Student-t given those before it
    m, s, a, rate = torch.full((D,), M0).double(), S0, A0, B0 * torch.eye(D).double()
    for point in x.double():
        scale = (s + 1) / s * rate / a
        log_p += scipy.stats.multivariate_t(m, scale, df=2 * a).logpdf(point)
        gap = point - m
        rate = rate + 0.5 * s / (s + 1) * torch.outer(gap, gap)
        m, s, a = (s * m + point) / (s + 1), s + 1, a + 0.5
    return float(log_p)


@programs
def test_one_step_is_the_exact_posterior_and_reaches_the_evidence(model, x):
    guide = made(model, x)
    before = TraceConjugate_ELBO().loss(model, guide, x)
    step(model, guide, x, rate=1.0)
    loss = TraceConjugate_ELBO().loss(model, guide, x)
    assert -loss == pytest.approx(log_evidence(x), rel=1e-6) and before > loss + 0.1
    data, count = x.double(), len(x)
    mean, s = data.mean(0), S0 + count
    gap, spread = mean - M0, data - data.mean(0)
    m, a = (S0 * M0 + count * mean) / s, torch.tensor(A0 + 0.5 * count).double()
    s, shrunk = torch.tensor(s).double(), S0 * count / s
    if x.dim() == 1:
        rate = B0 + 0.5 * (spread.square().sum() + shrunk * gap**2)
        expected = NORMAL_GAMMA.natural(m.reshape(1), s, a, rate.reshape(1))
    else:
        rate = B0 * torch.eye(D) + 0.5 * (spread.mT @ spread + shrunk * torch.outer(gap, gap))
        expected = NORMAL_WISHART.natural(m, s, a, torch.linalg.cholesky(rate))
    assert_close(guide.posterior("mu").natural_value(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("by_variance", [False, True])
@pytest.mark.parametrize("prior", REGRESSIONS)
def test_one_step_of_a_regression_is_the_exact_posterior(prior, by_variance):
    """Evidence and predictive density are multivariate Student-t's of scipy's."""
    torch.set_default_dtype(torch.float64)
    model, x, features = regression(REGRESSIONS[prior], by_variance), NUMBERS.double(), FEATURES.double()
    guide = made(model, x)
    before = TraceConjugate_ELBO().loss(model, guide, x)
    step(model, guide, x, rate=1.0)
    loss = TraceConjugate_ELBO().loss(model, guide, x)

    def evidence(features, x):
        scale = B0 / A0 * (torch.eye(len(x)) + features @ SPREAD.double() @ features.mT)
        return scipy.stats.multivariate_t(features @ torch.full((D,), M0), scale, df=2 * A0).logpdf(x)

    assert -loss == pytest.approx(evidence(features, x), rel=1e-9) and before > loss + 1
    new, y = torch.tensor([[1.0, 3.0], [1.0, -2.0]]).double(), torch.tensor([0.5, 1.0]).double()
    standard = guide.posterior("mu")().standard
    predictive = MULTIVARIATE_NORMAL_GAMMA.predictive_linear(standard, torch.float64, new)
    both = evidence(torch.cat([features, new]), torch.cat([x, y]))
    assert predictive.log_prob(y).item() == pytest.approx(both - evidence(features, x), rel=1e-9)
    assert TraceConjugate_ELBO().plan(model, guide, x)["mu"].why == "jointly with 'tau'"


def test_draws_have_the_type_of_the_program(single_precision):
    x, rows = NUMBERS.double(), torch.arange(10.0, dtype=torch.float64).view(5, 2)

    def model(x):
        tau = pyro.sample("tau", dist.Gamma(*torch.tensor([A0, B0], dtype=torch.float64)))
        prior = dist.MultivariateNormal(torch.zeros(2).double(), precision_matrix=tau * torch.eye(2).double())
        w = pyro.sample("w", prior)
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(rows @ w, tau.rsqrt()), obs=x)

    guide = AutoConjugate(model, structured=True)
    step(model, guide, x, rate=1.0)
    draws = Predictive(model, guide=guide, num_samples=2)(x)
    assert {draws[name].dtype for name in ("tau", "w")} == {torch.float64}
    scale = B0 / A0 * (torch.eye(5) + rows @ rows.mT)
    evidence = scipy.stats.multivariate_t(shape=scale, df=2 * A0).logpdf(x)
    assert -TraceConjugate_ELBO().loss(model, guide, x) == pytest.approx(evidence, rel=1e-9)


@pytest.mark.parametrize(("model", "x"), [*PROGRAMS[:3], *WEIGHTS])
def test_independent_posteriors_have_the_looser_bound(model, x):
    guide, joint = AutoConjugate(model), made(model, x)
    guide(x)
    for _ in range(25):
        step(model, guide, x, rate=1.0)
    step(model, joint, x, rate=1.0)
    losses = [TraceConjugate_ELBO().loss(model, each, x) for each in (guide, joint)]
    assert losses[0] > losses[1] + 0.03


@pytest.mark.parametrize(("model", "x"), [*PROGRAMS, *WEIGHTS])
def test_it_is_trace_elbo_in_expectation(model, x):
    """Value and natural gradients of Pyro's own ELBO, which draws both sites, at float64."""
    torch.set_default_dtype(torch.float64)
    x = x.double()
    guide = made(model, x)
    step(model, guide, x, rate=0.7)
    natural = guide.posterior("mu").natural

    def evaluate(elbo):
        loss = elbo.differentiable_loss(model, guide, x)
        (grad,) = torch.autograd.grad(loss, natural)
        return torch.cat([loss.detach().reshape(1), grad.flatten()])

    elbo = Trace_ELBO(num_particles=2000, vectorize_particles=True, max_plate_nesting=1)
    theirs = estimate(lambda: evaluate(elbo), 20)
    ours = estimate(lambda: evaluate(TraceConjugate_ELBO()), 2)
    assert_equal_in_expectation(theirs, ours, sigmas=5)
    assert (theirs[1] < 0.2 * ours[0].abs().clamp(min=0.5)).all()  # so that the comparison has power


def plain_diagonal(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        tau = pyro.sample("tau", dist.Gamma(A0 * torch.ones(D), B0).to_event(1))
        mu = pyro.sample("mu", dist.Normal(M0, (S0 * tau) ** -0.5).to_event(1))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(mu[r], tau[r].rsqrt()).to_event(1), obs=x)


def plain_full(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        tau = pyro.sample("tau", RateWishart(torch.tensor(A0), math.sqrt(B0) * torch.eye(D)))
        mu = pyro.sample("mu", dist.MultivariateNormal(torch.full((D,), M0), precision_matrix=S0 * tau))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.MultivariateNormal(mu[r], precision_matrix=tau[r]), obs=x)


def shorthand(component, prior):
    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            theta = pyro.sample("theta", prior)
        with pyro.plate("data", len(x)):
            pyro.sample("x", component(theta, pyro.sample("r", Assignment(weights))), obs=x)

    return model


def clusters(offset=0.0, dtype=torch.float64):
    """Three clusters, [N, D]."""
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (offset + noise + 5 * (torch.arange(N) % K).unsqueeze(-1)).to(dtype)


def per_number(natural):
    """λ of K Normal-Gammas of D dimensions as λ of K·D ones of one dimension."""
    first, fourth, second, third = natural.split([1, 1, D, D], -1)
    return torch.stack([first.expand(-1, D), fourth.expand(-1, D), second, third], -1)


MIXTURES = {
    "diagonal": (plain_diagonal, Component, NormalGamma, per_number),
    "full": (plain_full, FullComponent, NormalWishart, lambda natural: natural),
}
mixtures = pytest.mark.parametrize("kind", MIXTURES)


@mixtures
def test_a_mixture_is_that_of_the_shorthands(kind):
    torch.set_default_dtype(torch.float64)
    model, component, prior, layout = MIXTURES[kind]
    rate = B0 if prior is NormalGamma else math.sqrt(B0)
    twin, x = shorthand(component, prior(torch.full((D,), M0), S0, A0, rate)), clusters()
    guides = made(model, x), AutoConjugate(twin)
    guides[1](x)
    guides[1].seed("x", x, torch.zeros_like(x), torch.Generator().manual_seed(0))
    for name, twin_name in (("weights", "weights"), ("mu", "theta")):
        start = guides[1].posterior(twin_name).natural_value()
        guides[0].posterior(name).natural.data.copy_(start if name == "weights" else layout(start))
    svis = [
        SVI(program, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
        for program, guide in zip((model, twin), guides, strict=True)
    ]
    for _ in range(4):
        ours, theirs = (svi.step(x) for svi in svis)
        assert ours == pytest.approx(theirs, abs=1e-10)
    theirs = layout(guides[1].posterior("theta").natural_value())
    assert_close(guides[0].posterior("mu").natural_value(), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("model", "x"), [*PROGRAMS[:3], *WEIGHTS, (plain_diagonal, clusters())])
def test_gradient_is_the_change_of_the_bound(model, x):
    torch.set_default_dtype(torch.float64)
    guide, x = made(model, x.double()), x.double()
    step(model, guide, x, rate=0.6)
    assert_gradient(model, guide, x)


@pytest.mark.parametrize(
    ("model", "x"),
    [*PROGRAMS[:3], *WEIGHTS, *((MIXTURES[kind][0], clusters(dtype=torch.float32)) for kind in MIXTURES)],
)
def test_captured_steps_are_eager_ones(model, x):
    runs = []
    for make in (ConjugateSVI, CapturedSVI):
        guide = made(model, x)
        svi = make(model, guide, NaturalGradient(0.3), TraceConjugate_ELBO())
        runs.append(([svi.step(x) for _ in range(4)], [p.detach().clone() for p in guide.parameters()]))
    assert runs[0][0] == runs[1][0] and all(map(torch.equal, runs[0][1], runs[1][1]))
    assert len(set(runs[0][0])) == 4


def around(offset, kind):
    """λ of the clusters' posteriors, about."""
    m = offset + 5 * torch.arange(K, dtype=torch.float64).unsqueeze(-1).expand(K, D)
    s, a = torch.full((2, K), 5.0, dtype=torch.float64)
    if kind == "diagonal":
        return per_number(NORMAL_GAMMA.natural(m, s, a, torch.full_like(m, 5.0)))
    return NORMAL_WISHART.natural(m, s, a, math.sqrt(5.0) * torch.eye(D, dtype=torch.float64).expand(K, D, D))


@mixtures
def test_float32_far_from_the_origin(kind):
    """Squares are about the mean location, as those of independent posteriors are."""
    losses = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        x = clusters(3000.0, torch.float32).to(dtype)
        model = MIXTURES[kind][0]
        guide = made(model, x)
        with torch.no_grad():  # no random start: torch 2.6 draws other numbers in another dtype
            guide.posterior("weights").natural.copy_(torch.tensor([10.0, 11.0, 12.0]))
            guide.posterior("mu").natural.copy_(around(3000.0, kind))
        losses.append(TraceConjugate_ELBO().loss_per_site(model, guide, x)["r"])
    assert_close(losses[1].double(), losses[0], rtol=0, atol=0.01)


def test_scale_around_everything_leaves_natural_gradients_alone():
    x, elbo = clusters(), TraceConjugate_ELBO()
    guide = made(plain_diagonal, x)
    results = []
    for scale in (1.0, 0.05, torch.tensor(3.0)):
        programs = (poutine.scale(program, scale=scale) for program in (plain_diagonal, guide))
        loss = elbo.differentiable_loss(*programs, x)
        results.append((loss / scale, *torch.autograd.grad(loss, [*guide.parameters()])))
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_other_sites_may_be_in_the_location_too():
    """The slope has a posterior of its own; observed groups pick locations and precisions together."""
    x, group = torch.tensor([0.1, 1.0, 2.0, 2.5]), torch.tensor([0, 1, 1, 0])

    def model(y):
        with pyro.plate("groups", 2):
            tau = pyro.sample("tau", dist.Gamma(A0, B0))
            mu = pyro.sample("mu", dist.Normal(0.0, (S0 * tau) ** -0.5))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(2 * mu[group] + slope * x, tau[group].rsqrt()), obs=y)

    torch.set_default_dtype(torch.float64)
    guide, y = made(model, NUMBERS[:4].double()), NUMBERS[:4].double()
    assert {row.site: row.posterior for row in TraceConjugate_ELBO().plan(model, guide, y)} == {
        "tau": "JointGamma",
        "mu": "JointNormal",
        "slope": "NaturalNormal",
        "y": "",
    }
    step(model, guide, y, rate=0.6)
    assert_gradient(model, guide, y)


# Where there is none


def independent_prior(x):
    tau = pyro.sample("tau", dist.Gamma(A0, B0))
    mu = pyro.sample("mu", dist.Normal(M0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x)


def shared_precision(x):
    tau = pyro.sample("tau", dist.Gamma(A0, B0))
    with pyro.plate("groups", 2):
        mu = pyro.sample("mu", dist.Normal(M0, tau.rsqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu[torch.arange(len(x)) % 2], tau.rsqrt()), obs=x)


def crossed(x):
    with pyro.plate("groups", 2):
        tau = pyro.sample("tau", dist.Gamma(A0, B0))
        mu = pyro.sample("mu", dist.Normal(M0, tau.rsqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu.flip(0)[0], tau[0].rsqrt()), obs=x)


def masked_precision(x):
    with poutine.mask(mask=torch.tensor(True)):
        tau = pyro.sample("tau", dist.Gamma(A0, B0))
    mu = pyro.sample("mu", dist.Normal(M0, tau.rsqrt()))
    pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x[0])


def rotated(x):
    tau = pyro.sample("tau", RateWishart(torch.tensor(A0), torch.eye(D)))
    mu = pyro.sample("mu", dist.MultivariateNormal(torch.zeros(D), precision_matrix=tau))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mu * torch.tensor([1.0, 2.0]), precision_matrix=tau), obs=x)


def two_locations(x):
    tau = pyro.sample("tau", dist.Gamma(A0, B0))
    mu = pyro.sample("mu", dist.Normal(M0, tau.rsqrt()))
    nu = pyro.sample("nu", dist.Normal(M0, tau.rsqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu + nu, tau.rsqrt()), obs=x)


@pytest.mark.parametrize(
    ("model", "x", "site", "why"),
    [
        (independent_prior, NUMBERS, "mu", "the density of 'mu' has 'mu' without 'tau'"),
        (shared_precision, NUMBERS, "mu", r"'tau' has another shape, \[\] for \[2\]"),
        (crossed, NUMBERS, "mu", "the density of 'x' has products with 'tau' without a joint expectation"),
        (masked_precision, NUMBERS, "mu", "'tau' is in other plates, or has another scale or mask"),
        (rotated, POINTS, "mu", "the density of 'x' has products with 'tau' without a joint expectation"),
        (two_locations, NUMBERS, "nu", "'tau' has a joint posterior with another site"),
    ],
)
def test_what_the_joint_family_does_not_have_stays_apart_and_is_told(model, x, site, why):
    guide, elbo = made(model, x), TraceConjugate_ELBO()
    plan = elbo.plan(model, guide, x)
    assert plan[site].treatment == "exact" and not plan[site].posterior.startswith("Joint")
    with pytest.raises(AssertionError, match=f"^apart: {why}$"):
        raise AssertionError(plan[site].why)
    step(model, guide, x, rate=0.5)
    assert_gradient(model, guide, x)


def test_the_plan_of_independent_posteriors_says_that_a_joint_one_is_to_be_had():
    guide = AutoConjugate(by_precision)
    plan = TraceConjugate_ELBO().plan(by_precision, guide, NUMBERS)
    assert plan["mu"].why == "may be joint with 'tau': AutoConjugate(model, structured=True)"
    plan = TraceConjugate_ELBO().plan(by_precision, made(by_precision, NUMBERS), NUMBERS)
    assert plan["mu"].why == "jointly with 'tau'"


def test_indices_that_part_after_the_first_call_spoil_no_bound():
    """Where locations and precisions are picked apart, the loss is an error, no wrong number."""

    def model(x, one, other):
        with pyro.plate("groups", 2):
            tau = pyro.sample("tau", dist.Gamma(A0, B0))
            mu = pyro.sample("mu", dist.Normal(M0, tau.rsqrt()))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mu[one], tau[other].rsqrt()), obs=x)

    same, another = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 1, 1, 0, 1])
    guide = made(model, NUMBERS, same, same)
    assert math.isfinite(TraceConjugate_ELBO().loss(model, guide, NUMBERS, same, same))
    with pytest.raises(ValueError, match=r"'x'.*nan"):
        TraceConjugate_ELBO().loss(model, guide, NUMBERS, same, another)


# The guide


@pytest.mark.parametrize(("model", "x"), [*PROGRAMS[:3], *WEIGHTS])
def test_draws_have_the_moments_of_the_marginals(model, x):
    torch.set_default_dtype(torch.float64)
    x, count = x.double(), 4000
    guide = made(model, x)
    step(model, guide, x, rate=1.0)
    with torch.no_grad(), pyro.plate("draws", count, dim=-2):
        draws = {site: value.squeeze(1) for site, value in guide(x).items()}
    for site in ("mu", "tau"):
        marginal = guide.marginal(site)
        assert ((draws[site].mean(0) - marginal.mean).abs() < 5 * draws[site].std(0) / count**0.5).all()
    spread = draws["mu"].var(0) / guide.marginal("mu").variance
    assert_close(spread, torch.ones_like(spread), rtol=0.2, atol=0)
    found = Predictive(model, guide=guide, num_samples=3, return_sites=["mu", "tau"])(x)
    for site, value in found.items():
        assert value.squeeze().shape == draws[site][:3].shape and value.isfinite().all()


def test_states_and_copies():
    x = clusters()
    guide, other = made(plain_diagonal, x), AutoConjugate(plain_diagonal, structured=True)
    assert list(guide.state_dict()) == ["description", "posteriors.weights.natural", "posteriors.mu.natural"]
    other.load_state_dict(guide.state_dict())
    other(x)
    for same in (other, copy.deepcopy(guide)):
        assert torch.equal(same.posterior("tau").natural, guide.posterior("mu").natural)
        assert same(x).keys() == {"weights", "tau", "mu"}


def test_a_posterior_of_another_kind_is_refused():
    guide = made(by_precision, NUMBERS)
    guide.posteriors["mu"] = to_standard(guide.posterior("mu"))
    with pytest.raises(
        ValueError, match="joint posterior of 'mu' and 'tau' was replaced by another than a nat"
    ):
        guide(NUMBERS)


@pytest.mark.parametrize(("model", "x"), PROGRAMS[:3])
def test_quantiles_are_those_of_each_site_by_itself(model, x):
    guide = made(model, x)
    step(model, guide, x, rate=1.0)
    found = guide.quantiles([0.1, 0.5], x)
    m, s, a, rate = (parameter.detach() for parameter in guide.posterior("mu")().standard)
    squared = (rate @ rate.mT).diagonal() if rate.dim() > 1 else rate
    student = scipy.stats.t(2 * a, m, (squared / (a * s)).sqrt())
    expected = torch.stack([torch.as_tensor(student.ppf(p)) for p in (0.1, 0.5)])
    assert_close(found["mu"], expected.view_as(found["mu"]), check_dtype=False, rtol=1e-5, atol=1e-5)
    if x.dim() == 1:
        kind = scipy.stats.gamma if model is by_precision else scipy.stats.invgamma
        size = 1 / rate if model is by_precision else rate
        expected = torch.stack([torch.as_tensor(kind(a, scale=size).ppf(p)) for p in (0.1, 0.5)])
        assert_close(found["tau"], expected.view(2), check_dtype=False, rtol=1e-5, atol=1e-5)
    else:
        assert found["tau"].shape == (2, D, D)


# Several Normal sites with one posterior.


def groups(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with pyro.plate("groups", y.shape[1]):
        theta = pyro.sample("theta", dist.Normal(mu, 1.0))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def precision_of_groups(size, n):
    """The exact posterior precision matrix of mu and theta."""
    matrix = (1 + n) * torch.eye(size + 1)
    matrix[0, 1:] = matrix[1:, 0] = -1
    matrix[0, 0] = 0.01 + size
    return matrix


@pytest.mark.parametrize("joint", ["auto", [["mu", "theta"]], [["theta", "mu"]]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_group_means_and_their_mean_have_the_exact_posterior_after_one_step(joint, dtype):
    torch.set_default_dtype(dtype)
    y = 2 + torch.randn(4, 6)
    guide, elbo = AutoConjugate(groups, joint=joint), TraceConjugate_ELBO()
    svi = ConjugateSVI(groups, guide, NaturalGradient(1.0, torch.optim.Adam), elbo)
    svi.step(y)
    covariance = torch.linalg.inv(precision_of_groups(6, 4).double())
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    assert_close(guide.marginal("mu").stddev.double(), covariance[0, 0].sqrt(), **close)
    assert_close(guide.marginal("theta").stddev.double(), covariance.diag()[1:].sqrt(), **close)
    assert_close(-elbo.loss(groups, guide, y), float(exact_evidence(groups, y)), rtol=1e-6, atol=1e-6)
    draws = Predictive(guide, num_samples=3000, parallel=True)(y)
    vectors = torch.cat([draws["mu"].reshape(-1, 1), draws["theta"].reshape(-1, 6)], -1).double()
    assert_close(torch.cov(vectors.T), covariance, rtol=0.0, atol=0.03)
    assert elbo.plan(groups, guide, y)["mu"].why == "jointly with 'theta'"


def test_the_density_of_a_block_is_that_of_its_vector():
    y = torch.randn(4, 6)
    guide = AutoConjugate(groups, joint="auto")
    trace = poutine.trace(guide).get_trace(y)
    vector = torch.cat([trace.nodes["mu"]["value"].reshape(1), trace.nodes["theta"]["value"]])
    assert_close(trace.log_prob_sum(), guide.posterior("mu")().log_prob(vector))
    again = AutoConjugate(groups, joint="auto")
    again.load_state_dict(guide.state_dict())
    assert_close(again.marginal("theta").mean, guide.marginal("theta").mean)
    noisy = Trace_ELBO(num_particles=2000, vectorize_particles=True, max_plate_nesting=2)
    assert abs(noisy.loss(groups, guide, y) - TraceConjugate_ELBO().loss(groups, guide, y)) < 1.5


# Many sites with one posterior, whose precision matrix is sparse.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hundreds_of_groups_have_the_exact_posterior_after_one_step(dtype):
    torch.set_default_dtype(dtype)
    y = 2 + torch.randn(4, 400)
    guide, elbo = AutoConjugate(groups, joint="auto"), TraceConjugate_ELBO()
    svi = ConjugateSVI(groups, guide, NaturalGradient(1.0, torch.optim.Adam), elbo)
    svi.step(y)
    variance = 1 / (0.01 + 400 * 4 / 5)
    close = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    assert_close(guide.marginal("mu").mean, variance * 4 / 5 * y.double().mean(0).sum(), **close)
    assert_close(guide.marginal("mu").stddev, torch.tensor(variance**0.5), **close)
    wanted = torch.full([400], (1 / 5 + variance / 25) ** 0.5)
    assert_close(guide.marginal("theta").stddev, wanted, **close)
    centred = y.double() - y.double().mean(0)  # n observations of a group: their mean, and what is left
    left = -0.5 * centred.square().sum() - 0.5 * 400 * (3 * math.log(2 * math.pi) + math.log(4))
    of_means = 1.25 * torch.eye(400, dtype=torch.float64) + 100
    zero = torch.zeros(400, dtype=torch.float64)
    evidence = left + dist.MultivariateNormal(zero, of_means).log_prob(y.double().mean(0))
    assert_close(-elbo.loss(groups, guide, y), float(evidence), rtol=1e-6, atol=1e-3)
    assert elbo.plan(groups, guide, y)["theta"].why == "jointly with 'mu'"
    assert_close(float(exact_evidence(groups, y)), float(evidence), rtol=1e-6, atol=1e-3)


TIMES = torch.linspace(-1.0, 1.0, 5).view(5, 1) + torch.arange(40.0).sin()
FIRST, SECOND = torch.arange(300) % 70, (torch.arange(300) * 7) % 9


def schools(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with pyro.plate("schools", 20):
        a = pyro.sample("a", dist.Normal(mu, 1.0))
        with pyro.plate("classes", 5):
            b = pyro.sample("b", dist.Normal(a, 0.5))
            pyro.sample("y", dist.Normal(b, 1.0), obs=y[:, :20])


def slopes(y):
    m = pyro.sample("m", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("groups", 40):
        a = pyro.sample("a", dist.MultivariateNormal(m, torch.tensor([[1.0, 0.3], [0.3, 0.5]])))
        with pyro.plate("n", 5):
            pyro.sample("y", dist.Normal(a[..., 0] + a[..., 1] * TIMES, 1.0), obs=y)


def two_ways(y):
    with pyro.plate("first", 70):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("second", 9):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with pyro.plate("n", 300):
        pyro.sample("y", dist.Normal(mu + a[FIRST] + b[SECOND], 1.0), obs=y.repeat(2, 1).reshape(-1)[:300])


def random_walk(y):
    level = pyro.sample("level", dist.Normal(0.0, 10.0))
    with pyro.plate("times", 200):
        x = pyro.sample("x", dist.Normal(level, 10.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y.reshape(-1))
    with pyro.plate("steps", 199):
        pyro.sample("steps_", dist.Normal(x[1:] - x[:-1], 0.5), obs=torch.zeros(199))


@pytest.mark.parametrize("program", [schools, slopes, two_ways, random_walk])
def test_sparse_posteriors_are_dense_ones(program, monkeypatch):
    y = 1 + torch.randn(5, 40)
    fitted = []
    for few in (64, 1000):
        monkeypatch.setattr("pyro_fmvae.distributions.joint_parts.FEW", few)
        guide, elbo = AutoConjugate(program, joint="auto"), TraceConjugate_ELBO()
        svi = ConjugateSVI(program, guide, NaturalGradient(1.0, torch.optim.Adam), elbo)
        svi.step(y)
        fitted.append((guide, elbo.loss(program, guide, y)))
    (guide, loss), (dense, of_dense) = fitted
    kinds = [next(iter(each.posteriors.values())).kind.__name__ for each, _ in fitted]
    assert kinds == ["NaturalSparseNormal", "NaturalMultivariateNormal"]
    assert_close(loss, of_dense)
    again = AutoConjugate(program, joint="auto")
    again.load_state_dict(guide.state_dict())
    draws = Predictive(guide, num_samples=3000, parallel=True)(y)
    for name in guide.natural_sites:
        own, other = guide.marginal(name), dense.marginal(name)
        assert_close((own.mean, own.stddev), (other.mean, other.stddev))
        assert_close(again.marginal(name).mean, own.mean)
        spread = draws[name].reshape(3000, *own.stddev.shape).std(0)
        assert_close(spread, own.stddev, rtol=0.08, atol=0.0)
    trace = poutine.trace(guide).get_trace(y)
    (block,) = guide._known.joint.blocks
    vector = torch.cat([trace.nodes[name]["value"].reshape(-1) for name in block.names])
    q = copy.deepcopy(guide).posterior(block.names[0])()
    assert_close(trace.log_prob_sum(), q.log_prob(vector))
    assert_close(exact_evidence(program, y).double(), torch.tensor(-loss).double())


def test_pairs_that_differ_between_minibatches_are_not_left_out():
    def program(y, rows):
        a = pyro.sample("a", dist.Normal(torch.zeros(100), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(torch.zeros(90), 1.0).to_event(1))
        with pyro.plate("n", 300, subsample=rows):
            pyro.sample("y", dist.Normal(a[rows % 100] + b[rows % 90], 1.0), obs=y[rows])

    y = torch.randn(300)
    guide, elbo = AutoConjugate(program, joint="auto"), TraceConjugate_ELBO()
    for first in (0, 150):
        assert math.isfinite(elbo.loss(program, guide, y, torch.arange(first, first + 150)))


def crossed_by_argument(y, one, other):
    with pyro.plate("first", 70):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("second", 50):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 150):
        pyro.sample("y", dist.Normal(a[one] + b[other], 1.0), obs=y)


def slopes_by_argument(y, one, other):
    m = pyro.sample("m", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("groups", 200):
        a = pyro.sample("a", dist.MultivariateNormal(m, torch.eye(2)))
        c = pyro.sample("c", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 150):
        x = torch.arange(150) / 50
        pyro.sample("y", dist.Normal(a[one, 0] + a[one, 1] * x + c[one], 1.0), obs=y)


def walk_by_rows(y, one, other):
    with pyro.plate("times", 100):
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
    pyro.sample("steps", dist.Normal(x[1:] - x[:-1], 0.5).to_event(1), obs=torch.zeros(99))
    with pyro.plate("n", 300, subsample=one):
        pyro.sample("y", dist.Normal(x[one % 70] + x[(other + 1) % 70], 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (crossed_by_argument, "NaturalMultivariateNormal"),
        (slopes_by_argument, "NaturalSparseNormal"),
        (walk_by_rows, "NaturalMultivariateNormal"),
    ],
)
def test_other_indices_may_pair_other_elements(program, kind):
    y, first = torch.randn(150), torch.arange(150) % 50
    later = y, 20 + first, (first + 7) % 50
    guide, elbo = AutoConjugate(program, joint="auto"), TraceConjugate_ELBO()
    svi = ConjugateSVI(program, guide, NaturalGradient(1.0, torch.optim.Adam), elbo)
    svi.step(y, first, first)
    assert next(iter(guide.posteriors.values())).kind.__name__ == kind
    svi.step(*later)
    if program is not walk_by_rows:  # that has a part of the points
        again = AutoConjugate(program, joint="auto")
        ConjugateSVI(program, again, NaturalGradient(1.0, torch.optim.Adam), elbo).step(*later)
        names = guide.natural_sites
        for name in names:
            assert_close(guide.marginal(name).mean, again.marginal(name).mean)
        collapsed = collapse(program)
        losses = []
        for data in ((y, first, first), later):
            losses.append(poutine.trace(collapsed).get_trace(*data).log_prob_sum())
        assert_close(losses[1].double(), torch.tensor(-elbo.loss(program, guide, *later)).double())


@pytest.mark.parametrize("method", [ConjugateSVI, CapturedSVI])
def test_indices_that_are_no_integers_may_not_pair_other_elements(method):
    def program(y, one, other):
        crossed_by_argument(y, one.long(), other.long())

    y, first = torch.randn(150), (torch.arange(150) % 50).double()
    guide, elbo = AutoConjugate(program, joint="auto"), TraceConjugate_ELBO()
    svi = method(program, guide, NaturalGradient(1.0, torch.optim.Adam), elbo)
    losses = [float(svi.step(y, first, first)) for _ in range(4)]
    assert losses[-1] < losses[0]
    message = "site 'a', 'b': expected products of the pairs of elements that the first call had, got further"
    with pytest.raises(ValueError, match=message):
        svi.step(y, 20 + first, (first + 7) % 50)


def test_a_product_that_a_block_lacks_poisons_gradients():
    pairs = torch.stack([torch.zeros(99, dtype=torch.int64), torch.arange(1, 100)])
    block = NormalBlock.of({"x": torch.zeros(100)}, pairs)
    stats = block.kind.family.stats(torch.zeros(100, dtype=torch.float64)).requires_grad_()
    one, other = (Factor("x", "x", 1.0, torch.tensor([n]), (-1,)) for n in (3, 4))
    value, _ = Moments(block.kind.family, stats, torch.Size([100])).expected([one, other])
    (slope,) = torch.autograd.grad(value.sum(), stats)
    assert value.isnan().all()
    assert slope.isnan().any()


def test_chains_of_many_sites_have_no_sparse_block():
    """Each of its sites would go through the rounds of all."""
    pairs = torch.stack([torch.arange(299), torch.arange(1, 300)])
    assert NormalBlock.of({f"x{n}": torch.zeros(()) for n in range(300)}, pairs) is None
    assert NormalBlock.of({"x": torch.zeros(300)}, pairs) is not None


def test_draws_of_sites_with_other_event_dimensions_side_by_side():
    def program(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        b = pyro.sample("b", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        with pyro.plate("groups", 5):
            theta = pyro.sample("theta", dist.Normal(mu, 2.0))
        with pyro.plate("n", 40):
            x = torch.arange(40) / 20
            pyro.sample("y", dist.Normal(theta[torch.arange(40) % 5] + b[0] * x + b[1] * x**2, 1.0), obs=y)

    y = torch.randn(40)
    guide = AutoConjugate(program, joint="auto")
    ConjugateSVI(program, guide, NaturalGradient(1.0, torch.optim.Adam), TraceConjugate_ELBO()).step(y)
    draws = Predictive(guide, num_samples=3000, parallel=True)(y)
    for name in ("mu", "b", "theta"):
        spread = guide.marginal(name).stddev
        assert_close(draws[name].reshape(3000, *spread.shape).std(0), spread, rtol=0.08, atol=0.0)


def test_the_plan_says_where_a_posterior_is_too_narrow():
    y = torch.randn(4, 6)
    plan = TraceConjugate_ELBO().plan(groups, AutoConjugate(groups), y)
    assert plan["mu"].why == "too narrow, as 'theta' depends on it: AutoConjugate(model, joint='auto')"

    def dense(y):
        with pyro.plate("columns", 300):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("n", 4):
            pyro.sample("y", dist.Normal(torch.ones(4, 300) @ w + b, 1.0), obs=y[:, 0])

    plan = TraceConjugate_ELBO().plan(dense, AutoConjugate(dense, joint="auto"), y)
    how = "AutoConjugate(model, joint=[['w', 'b']]), with a dense matrix"
    assert plan["b"].why == f"too narrow, as 'w' depends on it: {how}"


@pytest.mark.parametrize(
    ("joint", "message"),
    [
        ("mu", "joint: expected 'auto' or lists of names of sites, got 'mu'"),
        (["mu"], r"joint: expected 'auto' or lists of names of sites, got \['mu'\]"),
        ([["mu", "nu"]], "joint: expected conjugate sites that are jointly Normal given all others, .* 'nu'"),
        ([["mu", "theta"], ["mu"]], "joint: expected conjugate sites .*, each in one list, got 'mu'"),
        ([["mu", "tau"]], "joint: expected conjugate sites .* got 'tau' and 'mu'"),
    ],
)
def test_sites_that_are_not_jointly_normal_are_refused(joint, message):
    program = by_precision if "tau" in str(joint) else groups
    data = NUMBERS if program is by_precision else torch.randn(4, 6)
    with pytest.raises(ValueError, match=f"^{message}"):
        AutoConjugate(program, joint=joint)(data)
