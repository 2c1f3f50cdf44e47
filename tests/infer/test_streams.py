"""The posterior as the next prior: batches in turn against all data at once, quadrature, and other ELBOs."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, NormalGamma, RateWishart
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
    posterior_as_prior,
    with_assignments,
)
from tests.infer.programs import estimate


def counts(x):
    rate = pyro.sample("rate", dist.Gamma(1.5, 0.7).expand([2]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate).to_event(1), obs=x)


def coins(x):
    with pyro.plate("coins", 2):
        p = pyro.sample("p", dist.Beta(1.5, 0.7))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Bernoulli(p).to_event(1), obs=(x > 1).double())


def numbers(x):
    tau = pyro.sample("tau", dist.Gamma(1.5, 0.7))
    mu = pyro.sample("mu", dist.Normal(0.5, (0.3 * tau) ** -0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x[:, 0])


def vectors(x):
    tau = pyro.sample("tau", RateWishart(torch.tensor(1.5), math.sqrt(0.7) * torch.eye(2)))
    mu = pyro.sample("mu", dist.MultivariateNormal(torch.full((2,), 0.5), precision_matrix=0.3 * tau))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mu, precision_matrix=tau), obs=x)


def regression(x):
    w = pyro.sample("w", dist.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=x.sum(-1).sin())


def classes(x):
    """A mixture of shorthands with known components, of which the weights are learnt."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([0.5, 1.0, 2.0])))
    with pyro.plate("components", 3, dim=-1):
        components = pyro.sample("loc_precision", NormalGamma(torch.zeros(2), 0.3, 1.5, 0.7))
    with pyro.plate("data", len(x), dim=-1):
        assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", Component(components, assignment), obs=x)


PROGRAMS = [counts, coins, numbers, vectors, regression]
DATA = torch.tensor([[0, 2], [3, 1], [1, 1], [5, 0], [2, 4], [0, 3], [1, 2]]).double()


def fit(program, guide, x, rate=1.0, steps=2):
    """The bound after some steps."""
    svi = ConjugateSVI(program, guide, NaturalGradient(rate), TraceConjugate_ELBO())
    for _ in range(steps):
        svi.step(x)
    return -svi.evaluate_loss(x)


def fitted(model, x=DATA, **options):
    guide = AutoConjugate(model, structured=True, **options)
    fit(model, guide, x)
    return guide


@pytest.mark.parametrize("model", PROGRAMS)
def test_three_batches_in_turn_equal_one(model):
    whole, parts = AutoConjugate(model, structured=True), AutoConjugate(model, structured=True)
    evidence = fit(model, whole, DATA)
    bounds = [fit(model, parts, DATA[:2])]
    for batch in (DATA[2:3], DATA[3:]):
        bounds.append(fit(posterior_as_prior(parts)(model), parts, batch))
    assert_close(sum(bounds), evidence, rtol=1e-12, atol=0.0)
    for name, posterior in whole.posteriors.items():
        assert_close(parts.posteriors[name].natural, posterior.natural, rtol=1e-12, atol=1e-12)


def test_labelled_mixture_of_shorthands_in_turn():
    """With every assignment known, the posterior of a mixture is exact."""
    known = {"assignment": torch.tensor([0, 1, 1, 2, 0, 2, 2])}

    def labelled(start, stop):
        return poutine.condition(classes, data={"assignment": known["assignment"][start:stop]})

    whole, parts = AutoConjugate(classes), AutoConjugate(classes)
    with poutine.block():
        whole(DATA), parts(DATA)
    fit(labelled(0, 7), whole, DATA)
    fit(labelled(0, 4), parts, DATA[:4])
    fit(posterior_as_prior(parts)(labelled(4, 7)), parts, DATA[4:])
    for name, posterior in whole.posteriors.items():
        assert_close(parts.posteriors[name].natural, posterior.natural, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("power", [0.3, 0.9])
def test_power_is_a_geometric_mean_of_densities(power):
    """Against quadrature over the rate of counts."""

    def prior_alone(x):
        return pyro.sample("rate", dist.Gamma(1.5, 0.7))

    def model(x):
        rate = prior_alone(x)
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Poisson(rate), obs=x[:, 0])

    guide = fitted(model)
    program = posterior_as_prior(guide, power=power)(prior_alone)
    prior = poutine.trace(program).get_trace(DATA).nodes["rate"]["fn"]
    grid = torch.linspace(1e-6, 40.0, 400_001)
    own = dist.Gamma(1.5, 0.7).log_prob(grid)
    log_density = power * guide.posterior("rate")().log_prob(grid) + (1 - power) * own
    normaliser = torch.trapezoid(log_density.exp(), grid).log()
    assert_close(prior.log_prob(grid), log_density - normaliser, rtol=1e-6, atol=1e-6)


def test_fading_mixture_of_shorthands_against_its_own_prior():
    """A power near 0 gives the model's own prior back, a power of 1 the posterior."""
    guide = AutoConjugate(classes)
    fit(classes, guide, DATA, steps=5)
    for power, wanted in [(1e-12, classes), (1.0, None)]:
        faded = posterior_as_prior(guide, power=power)(classes)
        nodes = poutine.trace(faded).get_trace(DATA).nodes
        own = poutine.trace(wanted or guide).get_trace(DATA).nodes
        for name in ("weights", "loc_precision"):
            value = own[name]["value"]
            assert_close(nodes[name]["fn"].log_prob(value), own[name]["fn"].log_prob(value))


def test_bound_is_that_of_pyro():
    """Under TraceEnum_ELBO, which draws from the prior's class in standard parameters."""
    guide = AutoConjugate(classes)
    fit(classes, guide, DATA, rate=0.5, steps=3)
    program = posterior_as_prior(guide, power=0.5)(classes)
    fit(program, guide, DATA[:3], rate=0.5, steps=1)
    ours = TraceConjugate_ELBO().loss(program, guide, DATA)
    pyro_elbo = TraceEnum_ELBO(max_plate_nesting=1)
    mean, error = estimate(lambda: pyro_elbo.loss(program, with_assignments(program, guide), DATA), 300)
    assert abs(mean - ours) < 4 * error < 0.1 * abs(ours)


def test_update_reaches_a_captured_step():
    guide, eager = fitted(counts), fitted(counts)
    prior, its_prior = posterior_as_prior(guide), posterior_as_prior(eager)
    captured = CapturedSVI(prior(counts), guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    svi = ConjugateSVI(its_prior(counts), eager, NaturalGradient(1.0), TraceConjugate_ELBO())
    for batch in (DATA[:3], DATA[3:6], DATA[1:4]):
        for _ in range(2):
            captured.step(batch), svi.step(batch)
        prior.update(), its_prior.update()
        assert_close(guide.posterior("rate").natural, eager.posterior("rate").natural, rtol=0.0, atol=0.0)
    assert len(captured._captures) == 1 and set(captured._captures.values()) == {1}


def test_a_saved_guide_goes_on():
    guide = fitted(counts)
    again = AutoConjugate(counts)
    again.load_state_dict(guide.state_dict())
    with poutine.block():
        again(DATA)
    bounds = [fit(posterior_as_prior(each)(counts), each, DATA[:3]) for each in (guide, again)]
    assert bounds[0] == bounds[1]


def hierarchy(x):
    top = pyro.sample("top", dist.Normal(0.0, 1.0))
    low = pyro.sample("low", dist.Normal(top, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        each = pyro.sample("each", dist.Normal(low, 1.0))
        pyro.sample("x", dist.Normal(each, scale), obs=x[:, 0])


def test_sites_that_are_left_out_keep_their_prior():
    guide = AutoConjugate(hierarchy)
    with poutine.block():
        guide(DATA)
    program = posterior_as_prior(guide, sites=["top", "low"])(hierarchy)
    nodes = poutine.trace(program).get_trace(DATA[:3]).nodes
    assert_close(nodes["top"]["fn"].natural, guide.posterior("top").natural)
    assert isinstance(nodes["each"]["fn"], dist.Normal)
    assert math.isfinite(TraceConjugate_ELBO().loss(program, AutoConjugate(hierarchy), DATA[:3]))


def refused(guide, x=DATA, model=hierarchy, **options):
    with pytest.raises(ValueError) as caught:
        poutine.trace(posterior_as_prior(guide, **options)(model)).get_trace(x)
    return str(caught.value)


def test_refusals():
    guide = AutoConjugate(hierarchy)
    assert refused(guide) == "guide: expected one that has been called with the arguments of the model"
    with poutine.block():
        guide(DATA)
    assert refused(AutoNormal(hierarchy)) == "guide: expected an AutoConjugate, got AutoNormal"
    assert refused(guide, power=0) == "power: expected 0 < power <= 1, got 0"
    assert refused(guide).startswith("sites: the guide draws some of its sites")
    assert refused(guide, sites=["scale"]).startswith("sites: ['scale'] have no natural posterior")
    assert refused(guide, DATA[:3], sites=["each"]).startswith(
        "site 'each': batch and event shape are (7,) and () in the guide, but (3,) and () in the model"
    )
    assert refused(guide, sites=["low"], power=0.5, model=drawn_top).startswith("site 'low': power < 1 needs")


def drawn_top(x):
    pyro.sample("low", dist.Laplace(0.0, 1.0))
