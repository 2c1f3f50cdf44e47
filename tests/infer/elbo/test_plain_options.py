"""Weights, particles and the order of steps in plain programs, and shorthands beside plain sites."""

import copy
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, Label, NaturalGamma, NormalGamma
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    NaturalPosterior,
    TraceConjugate_ELBO,
)
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.structure import Role, Structure
from pyro_fmvae.infer.posteriors import param_statements
from tests.infer.plain.oracles import posteriors, standard
from tests.infer.plain.structure import MixtureGuide, mixture_behind_a_decoder
from tests.infer.programs import Toy, bound, draw_z, gradients, seeded

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SGD = partial(torch.optim.SGD, lr=0.05)
N, K, D = 12, 3, 2
NORMAL = natural_prior(dist.Normal(0.0, 1.0))


def through_the_plain_engine(elbo, model, guide, plates):
    """The ELBO, for which a program is plain that it would take for one of shorthands."""
    elbo._kinds._plates[model, guide] = plates
    return elbo


def losses_and_gradients(elbo, module, *args):
    loss = seeded(elbo.differentiable_loss, module.model, module.guide, *args)
    return loss, gradients(loss, module)


OPTIONS = {
    "as it is": {},
    "weighted": {"kl_weight": 0.3},
    "weighted by a tensor": {"kl_weight": torch.tensor(4.0)},
    "particles": {"num_particles": 3},
    "vectorised particles": {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 2},
    "all": {"kl_weight": 0.3, "num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 2},
}


@pytest.mark.parametrize(
    ("case", "given", "labelled"),
    [
        *((case, False, True) for case in OPTIONS),
        ("as it is", False, False),
        ("as it is", True, False),
        ("weighted", True, False),
    ],
)
def test_shorthands_have_the_same_bound_on_both_paths(case, given, labelled):
    """The fast path's formulas share the sum over assignments, weights and particles with no other code."""
    toy = Toy()
    x = toy.data(6)
    if given:
        toy.logits = nn.Parameter(torch.randn(2, 6, 3))
        toy.assigned = lambda: dist.Categorical(logits=toy.logits)
    args = (x, torch.randint(-1, 3, (2, 6))) if labelled else (x,)
    fast, slow = (TraceConjugate_ELBO(**OPTIONS[case]) for _ in range(2))
    through_the_plain_engine(slow, toy.model, toy.guide, 3 if slow.vectorize_particles else 2)
    assert isinstance(slow.traces(toy.model, toy.guide, *args)[0][0], PlainProgram)
    assert isinstance(fast.traces(toy.model, toy.guide, *args)[0][0], Structure)
    expected, found = (losses_and_gradients(elbo, toy, *args) for elbo in (fast, slow))
    assert_close(found, expected, **CLOSE)
    if not given:
        gamma = [elbo.responsibilities(toy.model, toy.guide, *args) for elbo in (fast, slow)]
        assert_close(gamma[1], gamma[0], **CLOSE)


class FixedComponents(Toy):
    """The toy with points in the place of components' posteriors, with shorthands or in Pyro's own classes.

    Args:
        plain: True for the latter.
        is_natural: False for points in the place of the weights' posteriors, too.
    """

    def __init__(self, plain, is_natural=True):
        super().__init__()
        self.plain = plain
        self.pairs = nn.Parameter(0.5 + torch.rand(2, 3, 2, 2))
        self.point = None if is_natural else nn.Parameter(torch.randn(2, 1, 3))

    def model(self, x, labels=None):
        x, data, factors, components = self.plates(x)
        with factors:
            weights = pyro.sample("weights", dist.Dirichlet(torch.full((3,), 0.7)))
            with components:
                pairs = pyro.sample("loc_precision", self.prior())
        with data:
            with factors:
                a = pyro.sample("assignment", (dist.Categorical if self.plain else Assignment)(weights))
                if labels is not None:
                    pyro.sample("label", Label(a), obs=labels)
                if self.plain:
                    loc, precision = pairs[torch.arange(2)[:, None], a].unbind(-2)
                    z = pyro.sample("z", dist.Normal(loc, precision.rsqrt()).to_event(1))
                else:
                    z = pyro.sample("z", Component(pairs, a))
            pyro.sample("x", self.likelihood(z), obs=x)

    def sample_globals(self, factors, components):
        with factors:
            weights = (
                self.weights() if self.point is None else dist.Delta(self.point.softmax(-1), event_dim=1)
            )
            pyro.sample("weights", weights)
            with components:
                pyro.sample("loc_precision", dist.Delta(self.pairs, event_dim=2))


def both_ways(**options):
    torch.manual_seed(1)
    fast = FixedComponents(False, **options)
    plain = FixedComponents(True, **options)
    plain.load_state_dict(fast.state_dict())
    return fast, plain


@pytest.mark.parametrize("weight", [0.3, 20.0])
def test_kl_weight_is_the_one_of_shorthands(weight):
    """The likelihood, the assignments and natural gradients of the weights do not see it."""
    fast, plain = both_ways()
    x = fast.data(6)
    elbo, unweighted = TraceConjugate_ELBO(kl_weight=weight), TraceConjugate_ELBO()
    expected, found = (losses_and_gradients(elbo, each, x) for each in (fast, plain))
    before = losses_and_gradients(unweighted, plain, x)
    assert_close(found[0], expected[0], **CLOSE)
    for name in found[1]:
        if name != "pairs":  # in shorthands, points are parents that the weight is divided out of
            assert_close(found[1][name], expected[1][name], **CLOSE)
    assert_close(found[1]["weights.natural"], before[1]["weights.natural"], **CLOSE)
    assert not torch.allclose(found[1]["encoder.weight"], before[1]["encoder.weight"])


def test_kl_weight_weights_the_latents_of_each_data_set():
    """Of users and of items, which have plates of their own; not of all, nor of a plate without data."""

    def model(ratings, prices):
        everything = pyro.sample("everything", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 2):
            groups = pyro.sample("groups_", dist.Normal(0.0, 1.0))
        with pyro.plate("users", 3):
            user = pyro.sample("user", dist.Normal(0.0, 1.0))
            pyro.sample("rating", dist.Normal(user.tanh() + groups.tanh().sum(), 1.0), obs=ratings)
        with pyro.plate("items", 4):
            item = pyro.sample("item", dist.Normal(0.0, 1.0))
            pyro.sample("price", dist.Normal(item.tanh() + everything.tanh(), 1.0), obs=prices)
        pyro.sample("single", dist.Normal(everything.tanh(), 1.0), obs=torch.tensor(0.5))
        a = pyro.sample("a", dist.Bernoulli(0.5))  # makes the program a plain one
        pyro.sample("b", dist.Normal(a, 1.0), obs=torch.tensor(0.5))

    args = torch.randn(3), torch.randn(4)
    guide = AutoConjugate(model)
    guide(*args)
    one, weighted = (
        seeded(TraceConjugate_ELBO(kl_weight=weight).loss_per_site, model, guide, *args)
        for weight in (1.0, 0.3)
    )
    for name, value in one.items():
        assert_close(weighted[name], value * (0.3 if name in ("user", "item") else 1.0), **CLOSE)


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_label_weight_is_the_one_of_shorthands(kl_weight):
    fast, plain = both_ways(is_natural=False)
    x, labels = fast.data(6), torch.randint(-1, 3, (2, 6))
    elbo = TraceConjugate_ELBO(label_weight=0.7, kl_weight=kl_weight)
    expected, found = (losses_and_gradients(elbo, each, x, labels) for each in (fast, plain))
    roles = [seeded(elbo.loss_per_role, each.model, each.guide, x, labels) for each in (fast, plain)]
    assert_close(roles[1][Role.LABEL], roles[0][Role.LABEL], **CLOSE)
    assert roles[0][Role.LABEL] > 1
    assert_close(found[0], expected[0], **CLOSE)
    for name in ("encoder.weight", "decoder.weight", "point"):
        assert_close(found[1][name], expected[1][name], **CLOSE)


def test_label_weight_refuses_what_it_can_not_weight():
    _, natural = both_ways()
    x, elbo = natural.data(6), TraceConjugate_ELBO(label_weight=0.7)
    with pytest.raises(ValueError, match="label_weight: expected 0 in a program without a Label, which"):
        elbo.loss(natural.model, natural.guide, x)
    with pytest.raises(ValueError, match="site 'weights': while label_weight > 0, the posterior"):
        elbo.loss(natural.model, natural.guide, x, torch.zeros(2, 6, dtype=torch.long))


@pytest.mark.parametrize("vectorize", [False, True])
def test_particles_are_averaged(vectorize):
    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(weights))
            z = pyro.sample("z", dist.Normal(Vindex(locs)[..., a], 1.0))
            pyro.sample("x", dist.Normal(z + z.tanh(), 0.5), obs=x)

    guide, x = MixtureGuide(model), torch.randn(3)
    guide(x)
    elbo = TraceConjugate_ELBO(num_particles=4, vectorize_particles=vectorize)
    elbo.loss(model, guide, x)  # which counts the plates
    runs = seeded(elbo.traces, model, guide, x)
    z = torch.cat([trace.nodes["z"]["value"].reshape(-1, 3) for _, trace in runs])
    assert z.shape == (4, 3)
    per_site = seeded(elbo.loss_per_site, model, guide, x)
    assert_close(per_site["x"], -dist.Normal(z + z.tanh(), 0.5).log_prob(x).sum(-1).mean(), **CLOSE)
    single = TraceConjugate_ELBO()
    one = single.loss_per_site(model, guide, x)
    for name in ("a", "weights", "locs"):
        assert_close(per_site[name], one[name], **CLOSE)
    grads = [gradients(e.differentiable_loss(model, guide, x), guide) for e in (elbo, single)]
    for name in ("weights", "locs"):
        name = f"conjugate.posteriors.{name}.natural"
        assert_close(grads[0][name], grads[1][name], **CLOSE)


class Registered(MixtureGuide):
    """A guide whose points' parameter is found by an optimiser."""

    def forward(self, x):
        param_statements("guide", self)
        super().forward(x)


@pytest.mark.parametrize("particles", [1, 3])
def test_recompute_takes_the_natural_step_at_the_updated_networks(particles):
    """One step of rate 1 is the update derived by hand, at the q(z) after the networks' step."""
    (x,), guide = mixture_behind_a_decoder.arguments(), Registered(mixture_behind_a_decoder.model)
    guide(x)
    optim, elbo = NaturalGradient(1.0, SGD), TraceConjugate_ELBO(num_particles=particles)
    svi = ConjugateSVI(mixture_behind_a_decoder.model, guide, optim, elbo, recompute=True)
    before = posteriors(copy.deepcopy(guide), x)
    svi.step(x)
    after = posteriors(guide, x)
    assert (before["z"].mean - after["z"].mean).abs().max() > 0.01
    expected = mixture_behind_a_decoder.update({**before, "z": after["z"]}, x)
    assert_close(after["weights"].concentration, expected["weights"].concentration, **CLOSE)
    assert_close(after["locs"].mean, expected["locs"].mean, **CLOSE)
    stale = mixture_behind_a_decoder.update(before, x)
    assert not torch.allclose(stale["locs"].mean, expected["locs"].mean)


def test_recompute_sees_the_same_minibatch():
    """The model chooses it, and the second pass takes the first one's."""
    rows = []

    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x), subsample_size=3) as chosen:
            rows.append(chosen)
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x[chosen])

    guide = AutoConjugate(model)
    x = torch.randn(50)
    svi = ConjugateSVI(model, guide, NaturalGradient(0.5), TraceConjugate_ELBO(), recompute=True)
    svi.step(x)
    rows.clear()
    svi.step(x)
    assert len(rows) == 2 and rows[0].tolist() == rows[1].tolist()


def test_captured_steps_are_the_eager_ones():
    losses = []
    for kind in (ConjugateSVI, CapturedSVI):
        (x,), guide = mixture_behind_a_decoder.arguments(), Registered(mixture_behind_a_decoder.model)
        seeded(guide, x)
        optim = NaturalGradient(0.5, SGD)
        elbo = TraceConjugate_ELBO(kl_weight=0.3)
        svi = kind(mixture_behind_a_decoder.model, guide, optim, elbo, recompute=True)
        pyro.set_rng_seed(1)
        losses.append([svi.step(x) for _ in range(4)])
    assert losses[0] == losses[1]


class NoisyToy(Toy):
    """The toy with real data, whose precision has a Gamma prior in Pyro's own class."""

    def __init__(self):
        super().__init__()
        self.precision = NaturalPosterior(NaturalGamma, torch.tensor([2.0, -3.0]))
        self.drawn = None

    def data(self, size=20):
        return torch.randn(size, 5)

    def model(self, x, labels=None):
        self.drawn = pyro.sample("precision", dist.Gamma(2.0, 1.5))
        return super().model(x, labels)

    def likelihood(self, z):
        mean = self.decoder(z.transpose(-3, -2).flatten(-2))
        return dist.Normal(mean, self.drawn.rsqrt()).to_event(1)

    def guide(self, x, labels=None):
        pyro.sample("precision", self.precision())
        super().guide(x, labels)


def test_a_plain_precision_beside_a_factorial_mixture():
    toy = NoisyToy()
    x, elbo = toy.data(6), TraceConjugate_ELBO()
    z = draw_z(elbo, toy.model, toy.guide, x)
    mixture = bound(toy, elbo, x)
    q, prior = standard(toy.precision()), torch.distributions.Gamma(2.0, 1.5)
    gap = (x - toy.decoder(z.transpose(0, 1).flatten(1))).square().sum()
    log_mean = q.concentration.digamma() - q.rate.log()
    count, scale = x.numel(), toy.num_data / 6
    likelihood = 0.5 * (count * (log_mean - torch.tensor(2 * torch.pi).log()) - q.mean * gap)
    expected = mixture.kl_z + mixture.kl_r + mixture.kl_weights + mixture.kl_components
    expected = expected + kl_divergence(q, prior) - scale * likelihood
    loss, grads = losses_and_gradients(elbo, toy, x)
    assert_close(loss, expected, **CLOSE)
    moved = standard(NaturalGamma(toy.precision.natural.detach() - grads["precision.natural"]))
    assert_close(moved.concentration, torch.tensor(2 + scale * count / 2), **CLOSE)
    assert_close(moved.rate, 1.5 + scale * gap / 2, **CLOSE)
    for name, best in zip(("weights", "loc_precision"), mixture.optimum(x, toy), strict=True):
        natural = toy.get_parameter(f"{name}.natural").detach()
        assert_close(natural - grads[f"{name}.natural"], best, **CLOSE)


def mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        pairs = pyro.sample("pairs", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", Assignment(weights))
        pyro.sample("x", Component(pairs, a), obs=x)


def regression(y, inputs):
    coefficients = pyro.sample("coefficients", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("measurements", len(y)):
        pyro.sample("y", dist.Normal(inputs @ coefficients, precision.rsqrt()), obs=y)


def test_a_mixture_and_a_regression_in_one_program():
    """They have nothing in common, so the loss of both is the sum, and so are the posteriors after a step."""

    def both(x, y):
        mixture(x)
        regression(y, x)

    x, y = torch.randn(N, D), torch.randn(N)
    programs = ((mixture, (x,)), (regression, (y, x)), (both, (x, y)))
    guides = [AutoConjugate(model) for model, _ in programs]
    elbos = [TraceConjugate_ELBO() for _ in programs]
    for guide, (_, args) in zip(guides, programs, strict=True):
        guide(*args)
    assert set(guides[2].posteriors) == {"weights", "pairs", "coefficients", "precision"}
    for part in guides[:2]:
        for name in part.posteriors:
            part.posterior(name).natural.data.copy_(guides[2].posterior(name).natural)
    losses = []
    for elbo, guide, (model, args) in zip(elbos, guides, programs, strict=True):
        losses.append(elbo.differentiable_loss(model, guide, *args))
        losses[-1].backward()
    assert_close(losses[2], losses[0] + losses[1], **CLOSE)
    for part in guides[:2]:
        for name in part.posteriors:
            assert_close(guides[2].posterior(name).natural.grad, part.posterior(name).natural.grad, **CLOSE)
    plan = elbos[2].plan(both, guides[2], x, y)
    assert {row.site: row.treatment for row in plan} == {
        "weights": "exact",
        "pairs": "exact",
        "a": "summed out",
        "x": "observed",
        "coefficients": "exact",
        "precision": "exact",
        "y": "observed",
    }


@pytest.mark.parametrize("kinds", [(dist.Categorical, Component), (Assignment, dist.Normal)])
def test_shorthands_and_plain_sites_in_one_mixture(kinds):
    """A component of a Categorical, and a Normal whose location an Assignment picks."""
    assigned, child = kinds

    def model(x, assigned=assigned):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            if child is Component:
                theta = pyro.sample("theta", NormalGamma(torch.zeros(1), 1.0, 1.0, 1.0))
            else:
                theta = pyro.sample("theta", dist.Normal(0.0, 5.0))
        with pyro.plate("data", N):
            a = pyro.sample("a", assigned(weights))
            if child is Component:
                pyro.sample("x", Component(theta, a), obs=x.unsqueeze(-1))
            else:
                pyro.sample("x", dist.Normal(theta[a], 1.0), obs=x)

    pure = partial(model, assigned=Assignment if child is Component else dist.Categorical)
    guide, x = AutoConjugate(pure), torch.randn(N)
    guide(x)
    expected, found = (TraceConjugate_ELBO().differentiable_loss(each, guide, x) for each in (pure, model))
    assert_close(found, expected, **CLOSE)
    assert_close(gradients(found, guide), gradients(expected, guide), **CLOSE)


WRAPPED = {
    "masked": lambda loc, y: (dist.Normal(loc, 1.0).mask(torch.ones(N, dtype=torch.bool)), y),
    "expanded": lambda loc, y: (dist.Normal(loc, 1.0).mask(True).expand([N]), y),
    "transformed": lambda loc, y: (dist.LogNormal(loc, 1.0), y.exp()),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_a_plain_site_inside_of_a_wrapped_distribution_beside_a_mixture(case):
    def model(x, y, wrapped):
        mixture(x)
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.deterministic("same", loc)
        with pyro.plate("measurements", len(y)):
            fn, value = wrapped(loc, y)
            pyro.sample("y", fn, obs=value)

    x, y = torch.randn(N, D), torch.randn(N)
    guide, elbos = AutoConjugate(model), (TraceConjugate_ELBO(), TraceConjugate_ELBO())
    plain, wrapped = lambda loc, y: (dist.Normal(loc, 1.0), y), WRAPPED[case]
    guide(x, y, plain)
    expected, found = (
        elbo.differentiable_loss(model, guide, x, y, each)
        for elbo, each in zip(elbos, (plain, wrapped), strict=True)
    )
    assert_close(gradients(found, guide), gradients(expected, guide), **CLOSE)
    jacobian = y.sum() if case == "transformed" else 0.0
    assert_close(found, expected + jacobian, **CLOSE)


def test_parameters_made_in_the_first_run_and_later_draws_differ():
    """The first run is thrown away with its draws, unless parameters came from them."""

    class Program:
        start = None

        def guide(self, y):
            if self.start is None:
                self.module = nn.Linear(3, 1)
                self.start = self.module.weight.detach().clone()
            pyro.sample("loc", NaturalPosterior(type(NORMAL), NORMAL.natural)())

        def model(self, y):
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(y)):
                pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    program = Program()
    TraceConjugate_ELBO().loss(program.model, program.guide, torch.randn(N))
    assert not torch.equal(nn.Linear(3, 1).weight, program.start)


def latents_around_a_joint_location(x, y):
    """A mixture of shorthands; and latents of single points in two groups, around a location."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        pairs = pyro.sample("pairs", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    loc = pyro.sample("loc", dist.Normal(0.5, (0.7 * precision).rsqrt()))
    with pyro.plate("data", N):
        pyro.sample("x", Component(pairs, pyro.sample("a", Assignment(weights))), obs=x)
        group = pyro.sample("group", dist.Bernoulli(0.4))
        z = pyro.sample("z", dist.Normal(loc + 1.5 * group, precision.rsqrt()))
        pyro.sample("y", dist.Normal(z.exp(), 1.0), obs=y)


class LatentsGuide(nn.Module):
    def __init__(self):
        super().__init__()
        self.conjugate = AutoConjugate(latents_around_a_joint_location, structured=True, fallback=None)
        self.loc, self.scale = nn.Parameter(torch.randn(N)), 1e-30

    def forward(self, x, y):
        self.conjugate(x, y)
        with pyro.plate("data", N):
            pyro.sample("z", dist.Normal(self.loc, self.scale))


def test_options_do_not_touch_a_joint_posterior_beside_a_mixture():
    """No weight of latents moves λ; particles of a guide without noise are all equal."""
    model, guide, args = latents_around_a_joint_location, LatentsGuide(), (torch.randn(N, D), torch.randn(N))
    guide(*args)
    assert "precision" not in guide.conjugate.posteriors
    found = {}
    for case, options in OPTIONS.items():
        loss = TraceConjugate_ELBO(**options).differentiable_loss(model, guide, *args)
        found[case] = loss, gradients(loss, guide)
    for case, (loss, grads) in found.items():
        natural = {name: grad for name, grad in grads.items() if name != "loc"}
        assert_close(natural, {name: found["as it is"][1][name] for name in natural}, **CLOSE)
        if "particles" in case:
            assert_close((loss, grads), found["as it is"], **CLOSE)
    assert_close(found["all"], found["weighted"], **CLOSE)
    assert not torch.allclose(found["weighted"][1]["loc"], found["as it is"][1]["loc"])


POINTS = torch.tensor([0.2, -0.5, 1.1, 6.0, 7.1, 5.2], dtype=torch.float64)


def weighted_mixture(x, weights):
    """A mixture whose points count several times."""
    p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(x)), pyro.poutine.scale(scale=weights):
        a = pyro.sample("a", dist.Categorical(p))
        pyro.sample("x", dist.Normal(locs[a], 1.5), obs=x)


def test_a_weight_of_a_row_is_that_many_rows():
    times = torch.tensor([1.0, 2.0, 3.0, 1.0, 1.0, 2.0])
    repeated = POINTS.repeat_interleave(times.long())
    guide, elbo = AutoConjugate(weighted_mixture), TraceConjugate_ELBO()
    found = []
    for args in ((POINTS, times), (repeated, torch.ones(len(repeated)))):
        guide.zero_grad()
        loss = elbo.differentiable_loss(weighted_mixture, guide, *args)
        loss.backward()
        found.append((loss.detach(), *(p.grad for p in guide.parameters())))
    torch.testing.assert_close(*found)
    shares = [
        elbo.responsibilities(weighted_mixture, guide, POINTS, weights)["a"]
        for weights in (times, torch.ones(6))
    ]
    torch.testing.assert_close(*shares)


def kind_of_all(x, free=True):
    """One discrete site for all data, of which there are 12."""
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.3, 0.7])))
    with pyro.plate("data", 12, subsample=x):
        if not free:
            z = pyro.sample("z", dist.Categorical(torch.tensor([[0.5, 0.5], [0.2, 0.8]])[a]))
        loc = torch.tensor([1.0, 2.2])[a] + (0.0 if free else z)
        pyro.sample("x", dist.Normal(loc, 1.0), obs=x)


def nothing(x, free=True):
    """A guide of nothing."""


def test_a_discrete_site_of_all_data_on_minibatches_is_bayes_rule():
    elbo = TraceConjugate_ELBO()
    joint = torch.tensor([0.3, 0.7]).log() + 2 * torch.stack(
        [dist.Normal(loc, 1.0).log_prob(POINTS).sum() for loc in (1.0, 2.2)]
    )
    assert -elbo.loss(kind_of_all, nothing, POINTS) == pytest.approx(joint.logsumexp(0).item(), rel=1e-6)
    torch.testing.assert_close(
        elbo.responsibilities(kind_of_all, nothing, POINTS)["a"], joint.softmax(0), rtol=1e-6, atol=1e-6
    )


def test_discrete_sites_of_all_data_and_of_single_points_need_all_data():
    with pytest.raises(ValueError, match="site 'z': it is summed out together with 'a'"):
        TraceConjugate_ELBO().loss(kind_of_all, nothing, POINTS, False)
    data = POINTS.repeat(2)
    first, second = ((1.0, 0.5), (2.2, 0.2))

    def of_kind(loc, p):
        parts = [p, 1 - p]
        densities = [dist.Normal(loc + k, 1.0).log_prob(data) + torch.tensor(parts[k]).log() for k in (0, 1)]
        return torch.stack(densities).logsumexp(0).sum()

    joint = torch.stack([of_kind(*first), of_kind(*second)]) + torch.tensor([0.3, 0.7]).log()
    loss = TraceConjugate_ELBO().loss(kind_of_all, nothing, data, False)
    assert -loss == pytest.approx(joint.logsumexp(0).item(), rel=1e-6)


def test_a_mask_of_points_around_the_whole_model_is_refused_with_what_to_write():
    masked = pyro.poutine.mask(weighted_mixture, mask=POINTS > 0)
    with pytest.raises(
        ValueError, match=r"site 'p': its mask .* mask only sites in the plate that the mask is of"
    ):
        TraceConjugate_ELBO().loss(masked, AutoConjugate(masked), POINTS, torch.ones(6))
