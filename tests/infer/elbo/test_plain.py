"""The bound of plain programs, against TraceEnum_ELBO at the same q and by brute force."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch.testing import assert_close

from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO, with_assignments
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
