"""The bound of plain programs: single properties that the table of programs does not show."""

import itertools
import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalGamma
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO, natural_prior
from tests.infer.plain.mixtures import mixture_same_family
from tests.infer.plain.oracles import standard, step
from tests.infer.plain.sequences import gaussian_hidden_markov_model


def after_a_step(entry):
    args, guide = entry.setup()
    step(entry.model, guide, *args, rate=0.6)
    return args, guide


def test_hidden_markov_model_by_brute_force():
    """The sum over all paths, each with expected log-densities, to the last digits."""
    (y,), guide = after_a_step(gaussian_hidden_markov_model)
    rows, locs, precisions = (guide.posterior(name)() for name in ("rows", "locs", "precisions"))
    log_rows, (loc, square), (log_precision, precision) = (
        rows.expected_stats(),
        locs.expected_stats().unbind(-1),
        precisions.expected_stats().unbind(-1),
    )
    gap = y[:, None] ** 2 - 2 * y[:, None] * loc + square
    table = 0.5 * (log_precision - precision * gap - math.log(2 * math.pi))  # [T, states]
    paths = [
        sum(log_rows[before, z] + table[t, z] for t, (before, z) in enumerate(itertools.pairwise((0, *path))))
        for path in itertools.product(range(3), repeat=len(y))
    ]
    priors = dist.Dirichlet(torch.ones(3, 3)), dist.Normal(0.0, 10.0).expand([3]), dist.Gamma(2.0, 1.0)
    kl = sum(
        torch.distributions.kl_divergence(standard(q), p).sum()
        for q, p in zip((rows, locs, precisions), priors, strict=True)
    )
    loss = TraceConjugate_ELBO().differentiable_loss(gaussian_hidden_markov_model.model, guide, y)
    assert_close(loss, kl - torch.stack(paths).logsumexp(0), rtol=0, atol=1e-11)


def test_mixture_distribution_is_summed_over_as_an_assignment():
    args, guide = after_a_step(mixture_same_family)
    losses = [
        TraceConjugate_ELBO().differentiable_loss(model, guide, *args)
        for model in (mixture_same_family.model, mixture_same_family.twin)
    ]
    assert_close(*losses, rtol=0, atol=1e-10)


def gradient(elbo, model, guide, conjugate, *args):
    elbo.differentiable_loss(model, guide, *args).backward()
    grads = torch.cat([p.grad.flatten() for p in conjugate.parameters()])
    conjugate.zero_grad()
    return grads


def subsampled(x, rows, scale=1.0):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("components", 3):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x), subsample=rows):
        a = pyro.sample("a", dist.Categorical(weights))
        with pyro.poutine.mask(mask=rows % 3 > 0):
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x[rows])


def test_natural_gradients_of_minibatches_average_to_that_of_all_data():
    """Masked numbers may be NaN."""
    x = torch.linspace(-5, 5, 20).where(torch.arange(20) % 3 > 0, torch.nan)
    conjugate, elbo = AutoConjugate(subsampled), TraceConjugate_ELBO()
    whole = gradient(elbo, subsampled, conjugate, conjugate, x, torch.arange(20))
    parts = [
        gradient(elbo, subsampled, conjugate, conjugate, x, torch.arange(5) + i) for i in range(0, 20, 5)
    ]
    assert_close(sum(parts) / 4, whole, rtol=1e-12, atol=1e-10)


def test_a_common_scale_leaves_natural_gradients_as_they_are():
    x, rows = torch.linspace(-5, 5, 20), torch.arange(20)
    conjugate, elbo = AutoConjugate(subsampled), TraceConjugate_ELBO()
    plain = gradient(elbo, subsampled, conjugate, conjugate, x, rows)
    loss = elbo.loss(subsampled, conjugate, x, rows)
    scaled = pyro.poutine.scale(subsampled, scale=0.01)
    assert_close(gradient(elbo, scaled, conjugate, conjugate, x, rows), plain, rtol=1e-12, atol=1e-10)
    assert_close(elbo.loss(scaled, conjugate, x, rows), 0.01 * loss)


def test_probabilities_of_the_guide():
    """A discrete site that the guide has: the bound at its probabilities, which gets a gradient."""
    x, rows = torch.linspace(-5, 5, 8), torch.arange(8)
    logits = torch.randn(8, 3, requires_grad=True)
    conjugate, elbo = AutoConjugate(subsampled), TraceConjugate_ELBO()

    def guide(x, rows):
        conjugate(x, rows)
        with pyro.plate("data", len(x), subsample=rows):
            pyro.sample("a", dist.Categorical(logits=logits))

    optimal = elbo.loss(subsampled, conjugate, x, rows)
    best = elbo.responsibilities(subsampled, conjugate, x, rows)["a"]
    assert elbo.loss(subsampled, guide, x, rows) > optimal
    logits.data = best.log()
    loss = elbo.differentiable_loss(subsampled, guide, x, rows)
    assert_close(loss.item(), optimal)
    loss.backward()
    assert_close(logits.grad, torch.zeros(8, 3), rtol=0, atol=1e-9)
    assert_close(elbo.responsibilities(subsampled, guide, x, rows)["a"], best)


def poisson_rate(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    pyro.sample("x", dist.Poisson(rate), obs=x)


def test_one_elbo_serves_several_programs():
    elbo, x = TraceConjugate_ELBO(), torch.ones(())

    def guide(x):
        pyro.sample("rate", NaturalGamma(torch.tensor([1.0, -1.0])))

    losses = [elbo.loss(model, guide, x) for model in (poisson_rate, nested, poisson_rate)]
    assert losses[0] == losses[2]


def nested(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
        a = pyro.sample("a", dist.Bernoulli(0.5))
        pyro.sample("x", dist.Poisson(rate * (1 + a)), obs=x)


def test_a_stick_breaking_process_of_one_component_is_that_component():
    """It has no sticks: one step of rate 1 finds the exact posterior, and the bound is the evidence."""
    x = torch.randn(7)

    def model(x):
        none = torch.ones(0)
        sticks = pyro.sample("sticks", dist.Beta(none, none, validate_args=False).to_event(1))
        weights = F.pad(sticks, (0, 1), value=1) * F.pad((1 - sticks).cumprod(-1), (1, 0), value=1)
        with pyro.plate("components", 1):
            loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(x)):
            kind = pyro.sample("kind", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(loc[kind], 1.0), obs=x)

    svi = ConjugateSVI(model, AutoConjugate(model), NaturalGradient(1.0), TraceConjugate_ELBO())
    svi.step(x)
    evidence = dist.MultivariateNormal(torch.zeros(7), 4 * torch.ones(7, 7) + torch.eye(7)).log_prob(x)
    assert svi.step(x) == pytest.approx(-evidence.item())


@pytest.mark.parametrize(
    ("prior", "density", "x"),
    [
        (dist.InverseGamma(2.0, 3.0), lambda end: dist.Uniform(0.0, end), torch.linspace(0.5, 0.9, 7)),
        (dist.Gamma(2.0, 1.0), lambda end: dist.Pareto(end, 3.0), torch.linspace(5.0, 9.0, 7)),
    ],
    ids=["upper end", "lower end"],
)
def test_what_a_support_ends_at_is_drawn(prior, density, x):
    """The density is 0 beyond, which no sum of products says."""

    def model(x):
        end = pyro.sample("end", prior)
        with pyro.plate("data", len(x)):
            pyro.sample("x", density(end), obs=x)

    def guide(x):
        pyro.sample("end", natural)

    assert TraceConjugate_ELBO().plan(model, AutoConjugate(model), x)["end"].treatment == "drawn"
    natural = natural_prior(prior)
    with pytest.raises(ValueError, match=r"site 'end': its value is needed \(for an end of a support"):
        TraceConjugate_ELBO().loss(model, guide, x)


@dataclass
class Program:
    """A model whose class has no hash."""

    scale: float

    def __call__(self, x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(loc, self.scale), obs=x)


def test_a_program_may_have_no_hash():
    elbo, x = TraceConjugate_ELBO(), torch.tensor(1.5)
    for scale in (1.0, 2.0, 1.0):
        model = Program(scale)
        svi = ConjugateSVI(model, AutoConjugate(model), NaturalGradient(1.0), elbo)
        svi.step(x)
        evidence = dist.Normal(0.0, (1 + scale**2) ** 0.5).log_prob(x)
        assert svi.step(x) == pytest.approx(-evidence.item())
