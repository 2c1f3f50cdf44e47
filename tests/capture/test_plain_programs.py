"""Captured steps of plain programs are eager ones, to the bit: recognition leaves tensor operations alone."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.capture import CapturedSVI, CaptureError
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from tests.infer.plain.idioms import affine_function_of_a_normal, weibull_of_known_shape, weibull_of_shape_one
from tests.infer.plain.mixtures import dirichlet_process_mixture, mixture_of_unknown_common_scale
from tests.infer.plain.regressions import regression_of_unknown_noise
from tests.infer.plain.sequences import poisson_hidden_markov_model
from tests.infer.plain.structure import masked_observations, subsample

ENTRIES = (
    mixture_of_unknown_common_scale,
    dirichlet_process_mixture,
    regression_of_unknown_noise,
    poisson_hidden_markov_model,
    masked_observations,
    subsample,
    weibull_of_known_shape,
    weibull_of_shape_one,
    affine_function_of_a_normal,
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_captured_steps_are_eager_ones(entry):
    args, runs = entry.arguments(), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        guide = AutoConjugate(entry.model)
        guide(*args)
        adam = partial(torch.optim.Adam, lr=0.01)
        svi = kind(entry.model, guide, NaturalGradient(0.5, adam), TraceConjugate_ELBO())
        pyro.set_rng_seed(2)
        losses = [svi.step(*args) for _ in range(4)]
        runs.append((losses, [p.detach().clone() for p in guide.parameters()]))
    (eager, expected), (captured, found) = runs
    assert eager == captured and all(map(torch.equal, expected, found))
    assert len(set(eager)) == 4


def starting_in(state, x):
    """A Markov model; tensors pick the first row of the transition matrix, and a row of locations."""
    transition = pyro.sample("transition", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    for t in pyro.markov(range(len(x))):
        state = pyro.sample(
            f"state_{t}", dist.Categorical(transition[state]), infer={"enumerate": "parallel"}
        )
        pyro.sample(f"x_{t}", dist.Normal(locs[torch.tensor(-2), state], 1.0), obs=x[t])


def test_a_tensor_as_a_position_is_read_anew():
    x, losses = torch.tensor([-1.0, 0.5, 2.0]), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        svi = kind(starting_in, AutoConjugate(starting_in), NaturalGradient(0.5), TraceConjugate_ELBO())
        losses.append([svi.step(torch.tensor(state), x) for state in (0, 1, 1, 0)])
    assert losses[0] == losses[1]


def switched(choose):
    """Counts of an unknown rate or of rate 1/2, by a coin."""

    def model(x):
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Bernoulli(p))
            pyro.sample("x", dist.Poisson(choose(a, rate)), obs=x)

    return model


def by_a_sum(a, rate):
    return a * rate + (1 - a) * 0.5


def by_where(a, rate):
    return torch.where(a == 1, rate, 0.5)


COUNTS = torch.tensor([0.0, 1.0, 4.0, 2.0])
CHOSEN = torch.tensor([1.0, 0.0, 1.0, 1.0])


def steps(kind, choose):
    pyro.set_rng_seed(0)
    model = switched(choose)
    svi = kind(model, AutoConjugate(model), NaturalGradient(0.5), TraceConjugate_ELBO())
    return [svi.step(COUNTS) for _ in range(4)]


def by_chosen_rows(_, rate):
    return CHOSEN * rate + (1 - CHOSEN) * 0.5


def test_a_sum_may_be_read_by_numbers_of_the_program():
    eager = steps(ConjugateSVI, by_a_sum)
    assert steps(CapturedSVI, by_a_sum) == eager
    torch.testing.assert_close(steps(CapturedSVI, by_where), eager, rtol=1e-6, atol=1e-6)


def test_a_sum_that_is_read_by_numbers_from_outside_is_refused():
    """Eager steps may look at numbers; the message says what a captured step can do without."""
    assert len(set(steps(ConjugateSVI, by_chosen_rows))) > 1
    message = r"site 'rate' .* write torch\.where\(a == 1, x, y\) for a \* x \+ \(1 - a\) \* y"
    with pytest.raises(CaptureError, match=message):
        steps(CapturedSVI, by_chosen_rows)


def losses_of(kind, model, between, *args):
    """Losses of six steps of rate 0.5, with a change after three."""
    svi = kind(model, AutoConjugate(model), NaturalGradient(0.5), TraceConjugate_ELBO())
    before = [svi.step(*args) for _ in range(3)]
    between()
    return before + [svi.step(*args) for _ in range(3)]


def test_a_part_of_the_same_memory_is_captured_anew():
    found = []
    for kind in (ConjugateSVI, CapturedSVI):
        data = torch.linspace(0.0, 7.0, 8)

        def model(x, data=data):
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x * data.sum() / len(data))

        def shorten(data=data):
            data.data = data.data[:5]

        pyro.set_rng_seed(1)
        found.append(losses_of(kind, model, shorten, torch.tensor(1.5)))
    assert found[0] == pytest.approx(found[1])
    assert found[0][2] != pytest.approx(found[0][3])


def test_a_prior_that_was_expanded_outside_is_captured():
    """Its density is asked for, since the posterior of the weights is of another family."""
    prior, x = dist.Normal(0.0, 1.0).expand([3]).to_event(1), torch.arange(12.0).view(4, 3) / 5

    def model(x):
        weights = pyro.sample("weights", prior)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x * weights).sum(-1), 1.0), obs=x[:, 0])

    found = []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        found.append(losses_of(kind, model, lambda: None, x))
    assert found[0] == pytest.approx(found[1])
