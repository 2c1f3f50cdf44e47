"""Parents that no site returned, against a sum written down for them."""

import copy

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, NormalGamma
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
    with_assignments,
)
from tests.infer.elbo.test_shorthand_structure import log_evidence, table
from tests.infer.programs import Toy, bound, globals_of, seeded

K, D, N = 3, 2, 7
EXACT = {"rtol": 1e-11, "atol": 1e-11}
PROBS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
POINTS = torch.tensor(
    [[[0.3, -1.2], [2.0, 1.0]], [[1.1, 0.4], [0.5, 3.0]], [[-0.7, 0.9], [1.5, 2.5]]]
).double()


def model(x):
    weights, loc_precision = globals_of()
    with pyro.plate("data", N, dim=-1):
        r = pyro.sample("r", Assignment(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", Component(loc_precision, r), obs=x)


@pytest.fixture
def x():
    return torch.randn(N, D)


@pytest.fixture
def guide(x):
    guide = AutoConjugate(model)
    guide(x)
    return guide


def log_normal(x):
    """Of every point under every component of POINTS, [N, K]."""
    loc, precision = POINTS.unbind(1)
    return dist.Normal(loc, precision.rsqrt()).log_prob(x.unsqueeze(-2)).sum(-1)


def test_weights_by_do(x, guide):
    losses = TraceConjugate_ELBO().loss_per_site(poutine.do(model, {"weights": PROBS}), guide, x)
    expected = (PROBS.log() + table(guide.posterior("loc_precision"), x)).logsumexp(-1).sum()
    assert_close(losses["x"] + losses["r"], -expected, **EXACT)
    assert losses["weights"] > 0  # the site is still there, with nothing below it


def test_components_by_do(x, guide):
    losses = TraceConjugate_ELBO().loss_per_site(poutine.do(model, {"loc_precision": POINTS}), guide, x)
    assert_close(
        losses["x"] + losses["r"], -log_evidence(guide.posterior("weights"), [log_normal(x)]), **EXACT
    )


@pytest.mark.parametrize("r", [torch.arange(N) % K, torch.tensor(2), 1])
def test_assignments_by_do(x, guide, r):
    intervened, elbo = poutine.do(model, {"r": r}), TraceConjugate_ELBO(label_weight=3.0)
    losses = elbo.loss_per_site(intervened, guide, x)
    expected = table(guide.posterior("loc_precision"), x)[torch.arange(N), r].sum()
    assert_close(losses["x"], -expected, **EXACT)
    r = torch.as_tensor(r).expand(N)
    optim = NaturalGradient(1.0)
    elbo.differentiable_loss(intervened, guide, x).backward()
    optim(guide.parameters())
    prior, gamma = (
        NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0).expand([K]),
        nn.functional.one_hot(r, K).double(),
    )
    family = guide.posterior("loc_precision").kind.family
    exact = family.conjugate_update(family.pack(prior), gamma, x, torch.zeros_like(x))
    assert_close(guide.posterior("loc_precision").natural_value(), exact, **EXACT)
    assert_close(guide.posterior("weights").natural_value(), torch.ones(K).double(), **EXACT)


def test_assignments_of_latent_points_by_do():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x, r = toy.data(6), torch.arange(12).reshape(2, 6) % 3
    found = seeded(elbo.loss_per_site, poutine.do(toy.model, {"assignment": r}), toy.guide, x)
    expected = bound(toy, elbo, x, gamma=nn.functional.one_hot(r, 3).double()).kl_z
    assert_close(found["z"], expected, **EXACT)


@pytest.mark.parametrize("data", [{"weights": PROBS}, {"loc_precision": POINTS}, {"r": torch.arange(N) % K}])
def test_trace_enum_is_equal_in_expectation(x, guide, data):
    """All that is drawn here are globals, from concentrated posteriors."""
    for posterior in guide.posteriors.values():
        posterior.natural.data.mul_(1e6)
    intervened, elbo = poutine.do(model, data), TraceEnum_ELBO(max_plate_nesting=1)
    enumerated = with_assignments(intervened, guide)
    theirs = torch.tensor([elbo.loss(intervened, enumerated, x) for _ in range(50)])
    ours = TraceConjugate_ELBO().loss(intervened, guide, x)
    assert abs(theirs.mean() - ours) < 5 * theirs.std() / 50**0.5


def test_parameters_are_learnt_where_they_are_parents(x):
    """Maximum likelihood of the weights: π_k is the mean responsibility at the optimum."""
    free = nn.Parameter(torch.zeros(K))

    def learnt(x):
        pi = pyro.module("weights", holder).free.softmax(-1)
        with pyro.plate("components", K, dim=-1):
            loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
        with pyro.plate("data", N, dim=-1):
            pyro.sample("x", Component(loc_precision, pyro.sample("r", Assignment(pi))), obs=x)

    holder = nn.Module()
    holder.free = free
    guide, elbo = AutoConjugate(poutine.block(learnt, hide_types=["param"])), TraceConjugate_ELBO()
    guide(x)
    (grad,) = torch.autograd.grad(elbo.differentiable_loss(learnt, guide, x), [free])
    gamma = elbo.responsibilities(learnt, guide, x)["r"]
    assert_close(grad, (N * free.softmax(-1) - gamma.sum(0)).detach(), **EXACT)


def test_assignments_that_are_no_integers(x, guide):
    with pytest.raises(ValueError, match="site 'x': expected integers as its assignment, got"):
        TraceConjugate_ELBO().loss(poutine.do(model, {"r": torch.zeros(N)}), guide, x)


def test_a_mean_and_a_precision_of_their_own_are_taken_at_their_draws(x):
    """Where the guide draws them; a natural posterior is never drawn silently."""

    def stacked(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K, dim=-1):
            loc = pyro.sample("loc", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            precision = pyro.sample("precision", dist.Gamma(torch.ones(D), 1.0).to_event(1))
        with pyro.plate("data", N, dim=-1):
            r = pyro.sample("r", Assignment(weights))
            pyro.sample("x", Component(torch.stack([loc, precision], -2), r), obs=x)

    def guide(x):
        pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K, dim=-1):
            pyro.sample("loc", dist.Delta(POINTS[:, 0], event_dim=1))
            pyro.sample("precision", dist.Delta(POINTS[:, 1], event_dim=1))

    losses = TraceConjugate_ELBO().loss_per_site(stacked, guide, x)
    log_weights = torch.ones(K).digamma() - torch.tensor(1.0 * K).digamma()
    assert_close(losses["x"] + losses["r"], -(log_weights + log_normal(x)).logsumexp(-1).sum(), **EXACT)


def masked(x):
    """The mixture, with every other point unobserved."""
    weights, loc_precision = globals_of()
    with pyro.plate("data", N, dim=-1):
        r = pyro.sample("r", Assignment(weights))
        pyro.sample("x", Component(loc_precision, r), obs=x, obs_mask=torch.arange(N) % 2 > 0)


@pytest.mark.parametrize(
    "program",
    [masked, *(poutine.do(model, data) for data in ({"weights": PROBS}, {"r": torch.arange(N) % K}))],
)
def test_captured_steps_are_those_of_svi(program, x, guide):
    guides = guide, copy.deepcopy(guide)
    steps = [
        kind(program, each, NaturalGradient(0.5), TraceConjugate_ELBO()).step
        for kind, each in zip((ConjugateSVI, CapturedSVI), guides, strict=True)
    ]
    for _ in range(3):
        ours, theirs = (step(x) for step in steps)
        assert ours == theirs
    assert all(torch.equal(p, q) for p, q in zip(*(each.parameters() for each in guides), strict=True))
