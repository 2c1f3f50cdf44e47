"""Points far from the origin, where λ loses the digits of the spread: exact, or refused by name."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, FullComponent, NormalGamma, NormalWishart
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO

K, D, N = 3, 2, 300
KINDS = {"diagonal": (Component, NormalGamma), "full": (FullComponent, NormalWishart)}
REFUSED = r"site '{}': .*the domain of .* within 300,000 spreads of 0; standardise the data, or subtract"


def program(kind, offset):
    """A mixture of points around an offset, which the prior knows, and its guide at the exact posterior."""
    component, prior = KINDS[kind]
    theta = prior(torch.full((D,), offset), 1.0, 1.0 * D, 1.0)
    source = torch.Generator().manual_seed(0)
    x = offset + 10 * (torch.arange(N) % K).unsqueeze(-1) + torch.randn(N, D, generator=source)

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            loc_precision = pyro.sample("loc_precision", theta)
        with pyro.plate("data", N):
            pyro.sample("x", component(loc_precision, pyro.sample("r", Assignment(weights))), obs=x)

    return model, x


def fitted(kind, offset, make=ConjugateSVI):
    """The losses of exact updates."""
    model, x = program(kind, offset)
    guide = AutoConjugate(model)
    guide(program(kind, 0.0)[1] + offset)
    guide.seed("x", x, torch.zeros_like(x), torch.Generator().manual_seed(0))
    svi = make(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    return torch.tensor([svi.step(x) for _ in range(4)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("offset", "error"), [(1e3, 1e-6), (1e4, 1e-4), (1e5, 1e-2)])
def test_the_bound_moves_along(kind, offset, error):
    """Within 1e-5 nats per point and less, as the numbers that cancel are smaller."""
    near, far = fitted(kind, 0.0), fitted(kind, offset)
    assert (near - far).abs().max() < error


@pytest.mark.parametrize("make", [ConjugateSVI, CapturedSVI])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [1e6, 1e7, 1e9])
def test_too_far_is_refused(kind, offset, make):
    with pytest.raises(ValueError, match=REFUSED.format("loc_precision")):
        fitted(kind, offset, make)


@pytest.mark.parametrize("make", [ConjugateSVI, CapturedSVI])
@pytest.mark.parametrize("kind", KINDS)
def test_a_posterior_that_wanders_off_is_refused(kind, make):
    """The prior is at the origin, and so vague that it does not hold the posterior there."""
    component, prior = KINDS[kind]
    theta, x = prior(torch.zeros(D), 1e-9, 1.0 * D, 1.0), 1e7 + torch.randn(N, D)

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            loc_precision = pyro.sample("loc_precision", theta)
        with pyro.plate("data", N):
            pyro.sample("x", component(loc_precision, pyro.sample("r", Assignment(weights))), obs=x)

    guide = AutoConjugate(model)
    svi = make(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    with pytest.raises(ValueError, match=REFUSED.format("loc_precision")):
        for _ in range(4):
            svi.step(x)


def test_without_validation_nothing_is_silently_wrong():
    with pyro.validation_enabled(False):
        model, x = program("diagonal", 1e7)
        guide = AutoConjugate(model)
        guide(x)
        assert TraceConjugate_ELBO().differentiable_loss(model, guide, x).isnan()


def test_a_prior_too_far_out_is_named():
    """Of a guide by hand, whose posterior is near the origin."""
    extreme = NormalGamma(torch.full((D,), 1e6), 413.0, 1.0, 1.3e-6).expand([K])
    near = AutoConjugate(program("diagonal", 0.0)[0])
    _, x = program("diagonal", 0.0)
    near(x)

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            loc_precision = pyro.sample("loc_precision", extreme)
        with pyro.plate("data", N):
            pyro.sample("x", Component(loc_precision, pyro.sample("r", Assignment(weights))), obs=x)

    for guide in (near, AutoConjugate(model)):
        with pytest.raises(ValueError, match=REFUSED.format("loc_precision")):
            TraceConjugate_ELBO().loss(model, guide, x)


# Locations with posteriors of their own, in plain programs


def known_scale(x, origin):
    with pyro.plate("components", K):
        mu = pyro.sample("mu", dist.Normal(origin, 3.0))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(torch.ones(K)), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(mu[r], 1.0), obs=x)


def unknown_scale(x, origin):
    with pyro.plate("components", K):
        mu = pyro.sample("mu", dist.Normal(origin, 3.0))
        tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(torch.ones(K)), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(mu[r], tau[r].rsqrt()), obs=x)


def full_covariances(x, origin):
    x = torch.stack([x, origin + (x - origin).sin()], -1)
    with pyro.plate("components", K):
        mu = pyro.sample("mu", dist.MultivariateNormal(origin.expand(2), 9 * torch.eye(2)))
        tau = pyro.sample("tau", dist.Wishart(torch.tensor(4.0), torch.eye(2)))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(torch.ones(K)), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.MultivariateNormal(mu[r], precision_matrix=tau[r]), obs=x)


def regression(x, origin):
    features = torch.stack([torch.ones(len(x)), torch.arange(len(x)) / len(x)], -1)
    loc = torch.stack([origin, torch.zeros(())])
    mu = pyro.sample("mu", dist.MultivariateNormal(loc, 9 * torch.eye(2)))
    tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(features @ mu, tau.rsqrt()), obs=x)


def hierarchy(x, origin):
    centre = pyro.sample("centre", dist.Normal(origin, 10.0))
    tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
    with pyro.plate("groups", K):
        mu = pyro.sample("mu", dist.Normal(centre, tau.rsqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu[torch.arange(len(x)) % K], 1.0), obs=x)


def around(model, x, origin, structured=False):
    """The losses of exact updates, and the posterior mean against the origin."""
    pyro.set_rng_seed(0)
    guide = AutoConjugate(model, structured=structured)
    guide(x, origin)
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    losses = [svi.step(x, origin) for _ in range(4)]
    mean = guide.marginal("mu").mean.detach()
    mean = mean - torch.stack([origin, torch.zeros(())]) if model is regression else mean - origin
    return torch.tensor(losses), mean


@pytest.mark.parametrize("model", [known_scale, unknown_scale, full_covariances, regression, hierarchy])
@pytest.mark.parametrize("offset", [1e6, 1e7])
def test_plain_locations_far_from_the_origin_lose_no_digits(model, offset):
    """The bound to nine digits and means within 1e-6, where squares of 1e7 alone are rounded at 0.01."""
    torch.set_default_dtype(torch.float64)
    noise = torch.randn(N, generator=torch.Generator().manual_seed(0))
    x = offset + 6 * (torch.arange(N) % K) + noise
    origin = torch.tensor(offset)
    losses, mean = around(model, x, origin)
    expected, nearby = around(model, x - origin, torch.zeros(()))
    assert_close(losses, expected, rtol=1e-9, atol=1e-5)
    assert (mean - nearby).abs().max() < 1e-6


@pytest.mark.parametrize("offset", [1e6, 1e7])
def test_joint_posteriors_too_far_out_are_refused_by_name(offset):
    torch.set_default_dtype(torch.float64)

    def model(x, origin):
        tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
        mu = pyro.sample("mu", dist.Normal(origin, (0.1 * tau) ** -0.5))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x)

    x = torch.randn(N, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=REFUSED.format("tau")):
        around(model, offset + x, torch.tensor(offset), structured=True)


COUNTS = {
    "Poisson": (dist.Gamma(2.0, 0.5), lambda rate, y: dist.Poisson(rate)),
    "binomial": (dist.Beta(2.0, 3.0), lambda share, y: dist.Binomial(2 * y.max(), share)),
    "mixture": (dist.Gamma(2.0, 0.5), lambda rate, y: dist.Poisson(rate * torch.ones(2)[either()])),
}


def either():
    return pyro.sample("z", dist.Categorical(torch.ones(2) / 2), infer={"enumerate": "parallel"})


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("count", [1e2, 1e4, 1e6])
def test_large_counts_in_float32(kind, count):
    """The bound is log p(y), by Bayes' rule at any θ, in float64."""
    torch.set_default_dtype(torch.float32)
    y = torch.poisson(torch.full((100,), count), generator=torch.Generator().manual_seed(0))
    prior, likelihood = COUNTS[kind]

    def model(y):
        theta = pyro.sample("theta", prior)
        with pyro.plate("data", len(y)):
            pyro.sample("y", likelihood(theta, y), obs=y)

    guide = AutoConjugate(model)
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    loss = [svi.step(y) for _ in range(2)][-1]
    family, q = guide.posterior("theta").kind.family, guide.posterior("theta")()
    own, before = (family.member(*(p.detach() for p in family.standard_of(each))) for each in (q, prior))
    theta, y = own.mean, y.double()
    density = COUNTS["Poisson" if kind == "mixture" else kind][1](theta, y).log_prob(y).sum()
    evidence = density + before.log_prob(theta) - own.log_prob(theta)
    assert loss == pytest.approx(-evidence.item(), abs=1e-3 if kind == "mixture" else 1e-6, rel=0)


def test_polynomials_in_float32_are_those_of_float64():
    """Sums of their products cancel to 1e-13 of themselves; no step leaves the domain or raises the loss."""
    losses = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        X = torch.linspace(0, 1, 30, dtype=torch.float32).unsqueeze(-1) ** torch.arange(10)
        y, X = torch.sin(6 * X[:, 1]).to(dtype), X.to(dtype)

        def model(X, y):
            w = pyro.sample("w", dist.Normal(torch.zeros(10), 100.0).to_event(1))
            p = pyro.sample("p", dist.Gamma(1.0, 1.0))
            with pyro.plate("n", len(y)):
                pyro.sample("y", dist.Normal(X @ w, p.rsqrt()), obs=y)

        svi = ConjugateSVI(model, AutoConjugate(model), NaturalGradient(1.0), TraceConjugate_ELBO())
        losses.append(torch.tensor([svi.step(X, y) for _ in range(40)], dtype=torch.float64))
        assert losses[-1].diff().max() < 1e-10 * losses[-1].abs().max()
    assert_close(losses[1][-1], losses[0][-1], rtol=0, atol=1e-4)
