"""The bound of plain programs, against TraceEnum_ELBO at the same q and by brute force."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.distributions import Component, NaturalDirichlet, NaturalGamma, NaturalNormal, NormalGamma
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalPosterior,
    TraceConjugate_ELBO,
    with_assignments,
)
from pyro_fmvae.optim import NaturalGradient
from tests.infer.plain_programs import PROGRAMS, hidden_markov

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fitted(case, steps=3, rate=0.5):
    """A guide some steps after its random start, with fixed distributions for what is drawn."""
    pyro.set_rng_seed(3)
    conjugate, args = AutoConjugate(case.model, fallback=None), case.arguments()

    def guide(*args):
        conjugate(*args)
        for name, make in case.drawn.items():
            pyro.sample(name, make())

    elbo = TraceConjugate_ELBO()
    guide(*args)
    for _ in range(steps):
        elbo.differentiable_loss(case.model, guide, *args).backward()
        for parameter in conjugate.parameters():
            parameter.data -= rate * parameter.grad
            parameter.grad = None
    return conjugate, guide, args


@pytest.mark.parametrize("case", PROGRAMS.values(), ids=PROGRAMS)
def test_families(case):
    conjugate = AutoConjugate(case.model, fallback=None)
    conjugate.setup(*case.arguments())
    found = {
        name: posterior.kind.__name__.removeprefix("Natural")
        for name, posterior in conjugate.posteriors.items()
    }
    assert found == case.families


COMPARED = {title: case for title, case in PROGRAMS.items() if case.independent}


@pytest.mark.parametrize("case", COMPARED.values(), ids=COMPARED)
def test_bound_is_that_of_trace_enum_at_the_same_posterior(case):
    """Its mean over draws of all that is drawn, within four standard errors."""
    _, guide, args = fitted(case)
    elbo, enum = TraceConjugate_ELBO(), TraceEnum_ELBO(strict_enumeration_warning=False)
    model, complete = pyro.infer.config_enumerate(case.model), with_assignments(case.model, guide)
    if not case.drawn:  # the probabilities are the same each time
        complete = with_discrete(case.model, guide, elbo.responsibilities(case.model, guide, *args))
    with torch.no_grad():
        ours = torch.tensor([elbo.loss(case.model, guide, *args) for _ in range(60 if case.drawn else 1)])
        theirs = torch.tensor([enum.loss(model, complete, *args) for _ in range(120)])
    error = math.hypot(
        theirs.std() / len(theirs) ** 0.5, ours.std() / len(ours) ** 0.5 if len(ours) > 1 else 0
    )
    assert abs(theirs.mean() - ours.mean()) < 4 * error
    assert error < 0.05 * abs(ours.mean())


def with_discrete(model, guide, probabilities):
    """The guide, with the discrete sites of the model at given probabilities."""

    def complete(*args):
        guide(*args)
        with pyro.poutine.block(expose=[*probabilities]), FromTable(probabilities):
            model(*args)

    return complete


class FromTable(pyro.poutine.messenger.Messenger):
    """Gives discrete sites their probabilities in a table, and every other site a mean."""

    def __init__(self, probabilities):
        super().__init__()
        self.probabilities = probabilities

    def _pyro_sample(self, msg):
        if msg["name"] in self.probabilities:
            msg["fn"] = dist.Categorical(self.probabilities[msg["name"]])
            msg["infer"] = {"enumerate": "parallel"}
        elif not msg["is_observed"] and type(msg["fn"]).__name__ != "_Subsample":
            msg["value"], msg["done"] = msg["fn"].mean.expand(msg["fn"].shape()), True


def test_hidden_markov_model_by_brute_force():
    case = PROGRAMS["hidden Markov model"]
    conjugate, guide, (y,) = fitted(case)
    rows, locs = (conjugate.posterior(name)() for name in ("rows", "locs"))
    log_rows, stats = rows.expected_stats(), locs.expected_stats()
    paths = []
    for path in itertools.product(range(2), repeat=4):
        total, previous = torch.zeros(()), 0
        for t, state in enumerate(path):
            square = y[t] ** 2 - 2 * y[t] * stats[state, 0] + stats[state, 1]
            total = total + log_rows[previous, state] - 0.5 * square - 0.5 * math.log(2 * math.pi)
            previous = state
        paths.append(total)
    priors = dist.Dirichlet(torch.ones(2, 2)), dist.Normal(0.0, 10.0).expand([2])
    kl = sum(torch.distributions.kl_divergence(q, p).sum() for q, p in zip((rows, locs), priors, strict=True))
    expected = kl - torch.stack(paths).logsumexp(0)
    loss = TraceConjugate_ELBO().differentiable_loss(hidden_markov, guide, y)
    assert_close(loss, expected, rtol=0, atol=1e-12)


def test_mixture_distribution_is_summed_over_as_an_assignment():
    case = PROGRAMS["mixture distribution"]
    _, guide, (x,) = fitted(case)

    def written_out(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([1.0, 2.0, 0.5])))
        locs = pyro.sample("locs", dist.Normal(torch.zeros(3), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)

    losses = [
        TraceConjugate_ELBO().differentiable_loss(model, guide, x) for model in (case.model, written_out)
    ]
    assert_close(*losses, rtol=0, atol=1e-10)


def test_one_step_is_the_update_by_hand():
    """The coordinate update of a Gaussian mixture, all blocks from the old expectations: Bishop, 10.2."""
    case = PROGRAMS["Gaussian mixture, means and precisions"]
    conjugate, guide, (x,) = fitted(case)
    names = ("weights", "locs", "precisions")
    before = {name: conjugate.posterior(name)().expected_stats().detach() for name in names}
    log_weights, (loc, square), (log_precision, precision) = (
        before["weights"],
        before["locs"].unbind(-1),
        before["precisions"].unbind(-1),
    )
    gap = x[:, None] ** 2 - 2 * x[:, None] * loc + square
    gamma = (log_weights + 0.5 * log_precision - 0.5 * precision * gap).softmax(-1)
    count = gamma.sum(0)
    expected = {
        "weights": torch.tensor([1.0, 2.0, 0.5]) + count,
        "locs": torch.stack([precision * (gamma.mT @ x), -0.5 / 100 - 0.5 * precision * count], -1),
        "precisions": torch.stack([2 + 0.5 * count, -1.5 - 0.5 * (gamma * gap).sum(0)], -1),
    }
    TraceConjugate_ELBO().differentiable_loss(case.model, guide, x).backward()
    for name in names:
        natural = conjugate.posterior(name).natural
        assert_close((natural - natural.grad).detach(), expected[name], rtol=1e-10, atol=1e-10)


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


def decoded(x):
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 3.0).to_event(1))
        precisions = pyro.sample("precisions", dist.Gamma(torch.ones(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(torch.ones(2)))
        z = pyro.sample("z", dist.Normal(locs[a], precisions[a].rsqrt()).to_event(1))
        pyro.sample("x", dist.Normal(z.relu(), 0.5).to_event(1), obs=x)


def test_a_latent_under_a_decoder_counts_in_closed_form():
    """The assignments see the moments of q(z), not its draw, so the bound is that of TraceEnum_ELBO."""
    torch.manual_seed(0)
    x = torch.randn(5, 2)
    mean = torch.randn(5, 2, requires_grad=True)
    conjugate = AutoConjugate(decoded, fallback=None)

    def guide(x):
        conjugate(x)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(mean, 0.4).to_event(1))

    elbo, enum = TraceConjugate_ELBO(), TraceEnum_ELBO(max_plate_nesting=1)
    guide(x)
    complete = with_assignments(decoded, guide)
    with torch.no_grad():
        ours = torch.tensor([elbo.loss(decoded, guide, x) for _ in range(150)])
        theirs = torch.tensor(
            [enum.loss(pyro.infer.config_enumerate(decoded), complete, x) for _ in range(150)]
        )
    error = math.hypot(ours.std(), theirs.std()) / 150**0.5
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    per_site = [elbo.loss_per_site(decoded, guide, x) for _ in range(2)]
    assert per_site[0]["a"] == per_site[1]["a"] and per_site[0]["x"] != per_site[1]["x"]
    elbo.differentiable_loss(decoded, guide, x).backward()
    assert mean.grad.isfinite().all()


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


def mixed(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        pair = pyro.sample("pair", NormalGamma(torch.zeros(1), 1.0, 1.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", Component(pair, a), obs=x)


def poisson(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    count = pyro.sample("count", dist.Poisson(rate))
    pyro.sample("x", dist.Normal(count, 1.0), obs=x)


def missing(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    mean = pyro.sample("mean", dist.Normal(loc, 1.0))
    pyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def guide_of(**posteriors):
    def guide(*args):
        for name, q in posteriors.items():
            pyro.sample(name, q)

    return guide


D = torch.float64
NORMAL = NaturalNormal(torch.tensor([0.0, -0.5], dtype=D), D)
GAMMA = NaturalGamma(torch.tensor([1.0, -1.0], dtype=D), D)
PAIR = NormalGamma(torch.zeros(1), 1.0, 1.0, 1.0).expand([2])
WEIGHTS = NaturalDirichlet(torch.ones(2, dtype=D), D)


@pytest.mark.parametrize(
    ("model", "guide", "message"),
    [
        (
            poisson,
            guide_of(rate=GAMMA),
            "site 'count': Poisson has no finite support to sum over; write the density",
        ),
        (missing, guide_of(loc=NORMAL), "site 'mean': it is neither observed nor in the guide"),
        (missing, guide_of(loc=NORMAL, mean=NORMAL.expand([2])), "site 'mean': batch and event shape"),
        (mixed, guide_of(weights=WEIGHTS, pair=PAIR), "site '.*': .*"),
    ],
)
def test_refused_programs(model, guide, message):
    with pytest.raises(ValueError, match=message):
        TraceConjugate_ELBO().loss(model, guide, torch.ones(3, 1) if model is mixed else torch.ones(()))


def poisson_rate(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    pyro.sample("x", dist.Poisson(rate), obs=x)


@pytest.mark.parametrize(
    "option", ["label_weight", "kl_weight", "independence_weight", "vectorize_particles"]
)
def test_options_of_shorthands_alone(option):
    elbo = TraceConjugate_ELBO(
        **{option: True if option == "vectorize_particles" else 0.5}, max_plate_nesting=1
    )
    with pytest.raises(ValueError, match=f"{option}: expected"):
        elbo.loss(poisson_rate, guide_of(rate=GAMMA), torch.ones(()))


def test_recompute_is_refused():
    conjugate = AutoConjugate(poisson_rate)
    svi = ConjugateSVI(poisson_rate, conjugate, NaturalGradient(0.5), TraceConjugate_ELBO(), recompute=True)
    with pytest.raises(ValueError, match="recompute: expected False"):
        svi.step(torch.ones(()))


def test_one_elbo_serves_several_programs():
    elbo, x = TraceConjugate_ELBO(), torch.ones(())
    guide = guide_of(rate=GAMMA)
    losses = [elbo.loss(model, guide, x) for model in (poisson_rate, nested, poisson_rate)]
    assert losses[0] == losses[2]


def nested(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
        a = pyro.sample("a", dist.Bernoulli(0.5))
        pyro.sample("x", dist.Poisson(rate * (1 + a)), obs=x)


def test_float32_far_from_zero():
    """5,000 standard deviations away, where squares of data have lost all digits behind the point."""
    x = torch.cat([torch.randn(30), 8 + 2 * torch.randn(30), -9 + 0.5 * torch.randn(20)]) + 5000.0
    x = x.float().double()
    posterior = NaturalPosterior(
        NaturalNormal, torch.stack([4 * torch.tensor([4991.0, 5000.0, 5008.0]), torch.full((3,), -2.0)], -1)
    )

    def model(x):
        with pyro.plate("components", 3):
            locs = pyro.sample("locs", dist.Normal(0.0, 1e4))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(torch.ones(3)))
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)

    def guide(x):
        with pyro.plate("components", 3):
            pyro.sample("locs", posterior())

    losses, grads = [], []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        loss = TraceConjugate_ELBO().differentiable_loss(model, guide, x.to(dtype))
        loss.backward()
        losses.append(loss.item())
        grads.append(posterior.natural.grad.clone())
        posterior.zero_grad()
    assert abs(losses[0] - losses[1]) < 0.02
    assert_close(grads[1], grads[0], rtol=1e-5, atol=0)
