"""Steps with recomputed responsibilities."""

import copy
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import NaturalGamma, NaturalNormal
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    NaturalPosterior,
    TraceConjugate_ELBO,
)
from tests.infer.programs import Toy, bound, seeded

RATE = 0.4
adam = partial(torch.optim.Adam, lr=1e-2)


def assert_same(one, other, **tolerance):
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert_close(p, q, **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda text, n=name: f"{n}: {text}")


def two_passes(toy, x, labels=()):
    """The paper's order by hand: networks, then γ at the new encoder, then λ by equation 13."""
    elbo = TraceConjugate_ELBO()
    networks = [*toy.encoder.parameters(), *toy.decoder.parameters()]
    optim = adam(networks)
    seeded(elbo.differentiable_loss, toy.model, toy.guide, x, *labels).backward()
    optim.step()
    kwargs = {"labels": labels[0]} if labels else {}
    for posterior, best in zip(
        (toy.weights, toy.loc_precision), bound(toy, elbo, x, **kwargs).optimum(x, toy), strict=True
    ):
        with torch.no_grad():
            posterior.natural.mul_(1 - RATE).add_(best, alpha=RATE)


@pytest.mark.parametrize("labels", [(), (torch.arange(12).reshape(2, 6) % 4 - 1,)], ids=["free", "labelled"])
def test_recompute_is_the_order_of_the_paper(labels):
    toy = Toy()
    by_hand, x = copy.deepcopy(toy), toy.data(6)
    two_passes(by_hand, x, labels)
    optim = NaturalGradient(RATE, adam)
    svi = ConjugateSVI(toy.model, toy.guide, optim, TraceConjugate_ELBO(), recompute=True)
    seeded(svi.step, x, *labels)
    assert_same(toy, by_hand, rtol=1e-11, atol=1e-11)
    assert optim.steps == 1


@pytest.mark.parametrize("vectorize", [False, True])
def test_recompute_with_particles(vectorize):
    """q(z) has no random inputs here, so λ moves as with one particle, at whatever encoder results."""
    toy = Toy()
    x = toy.data(6)
    before = [p.natural_value().clone() for p in (toy.weights, toy.loc_precision)]
    elbo = TraceConjugate_ELBO(num_particles=3, vectorize_particles=vectorize, max_plate_nesting=2)
    ConjugateSVI(toy.model, toy.guide, NaturalGradient(RATE, adam), elbo, recompute=True).step(x)
    after = [p.natural_value().clone() for p in (toy.weights, toy.loc_precision)]
    for posterior, value in zip((toy.weights, toy.loc_precision), before, strict=True):
        with torch.no_grad():
            posterior.natural.copy_(value)
    optima = bound(toy, TraceConjugate_ELBO(), x).optimum(x, toy)
    for start, best, end in zip(before, optima, after, strict=True):
        assert_close(end, (1 - RATE) * start + RATE * best, rtol=1e-11, atol=1e-11)


def test_recompute_stays_on_the_minibatch_that_the_plate_chose():
    toy = Toy(num_data=12)
    by_hand, x = copy.deepcopy(toy), toy.data(12)
    toy.batch_size = 4
    with torch.no_grad():
        guide = seeded(TraceConjugate_ELBO().trace, toy.model, toy.guide, x)[1]
    batch = x[guide.nodes["data"]["value"]]
    svi = ConjugateSVI(
        toy.model, toy.guide, NaturalGradient(RATE, no_steps), TraceConjugate_ELBO(), recompute=True
    )
    seeded(svi.step, x)
    optima = bound(by_hand, TraceConjugate_ELBO(), batch).optimum(batch, by_hand)
    for name, best in zip(("weights", "loc_precision"), optima, strict=True):
        start, end = (getattr(t, name).natural_value() for t in (by_hand, toy))
        assert_close(end, (1 - RATE) * start + RATE * best, rtol=1e-11, atol=1e-11)


no_steps = partial(torch.optim.SGD, lr=0.0)


@pytest.mark.parametrize("steps", [1, 3])
def test_without_recompute_it_is_svi(steps):
    toy = Toy()
    other, x = copy.deepcopy(toy), toy.data(6)
    svis = [
        make(t.model, t.guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO())
        for make, t in ((ConjugateSVI, toy), (SVI, other))
    ]
    for step in range(steps):
        values = [seeded(svi.step, x, seed=step) for svi in svis]
        assert values[0] == values[1]
    assert_same(toy, other)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_parameter_with_two_names_moves_once(recompute):
    toy = Toy()
    other, x = copy.deepcopy(toy), toy.data(6)

    def twice(x):
        pyro.module("again", toy.weights)
        toy.guide(x)

    for t, guide in ((toy, twice), (other, other.guide)):
        svi = ConjugateSVI(
            t.model, guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO(), recompute=recompute
        )
        seeded(svi.step, x)
    assert_same(toy, other)


@pytest.mark.parametrize("recompute", [False, True])
def test_standard_posteriors_take_first_order_steps(recompute):
    toy = Toy(standard=True)
    x, labels = toy.data(6), torch.zeros(2, 6, dtype=torch.int64)
    before = toy.loc_precision.loc.detach().clone()
    elbo = TraceConjugate_ELBO(label_weight=1000.0)
    svi = ConjugateSVI(toy.model, toy.guide, NaturalGradient(RATE, adam), elbo, recompute=recompute)
    svi.step(x, labels)
    assert_close((toy.loc_precision.loc - before).abs(), torch.full_like(before, 1e-2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_networks_leave_natural_parameters_in_float64(recompute):
    torch.set_default_dtype(torch.float32)
    toy = Toy()
    x = toy.data()

    def autocast(program):
        def run(*args):
            with torch.autocast("cpu", torch.bfloat16):
                return program(*args)

        return run

    encode, likelihood = toy.encode, toy.likelihood
    seen = []

    def encode_in_bfloat16(x):
        with torch.autocast("cpu", torch.bfloat16):
            loc, scale = encode(x)
        seen.append(loc.dtype)
        return loc.float(), scale.float()

    toy.encode, toy.likelihood = encode_in_bfloat16, autocast(likelihood)
    before = toy.loc_precision.natural_value().clone()
    optima = bound(toy, TraceConjugate_ELBO(), x).optimum(x, toy)
    optim = NaturalGradient(1.0, partial(torch.optim.SGD, lr=0.0))
    ConjugateSVI(toy.model, toy.guide, optim, TraceConjugate_ELBO(), recompute=recompute).step(x)
    assert torch.bfloat16 in seen
    assert toy.loc_precision.natural.dtype == toy.weights.natural.dtype == torch.float64
    assert not torch.equal(before, toy.loc_precision.natural_value())
    for posterior, best in zip((toy.weights, toy.loc_precision), optima, strict=True):
        assert_close(posterior.natural_value(), best, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
def test_a_step_that_is_refused_leaves_nothing_behind(kind, recompute):
    toy = Toy()
    other, x = copy.deepcopy(toy), toy.data(6)
    svi, plain = (
        kind(t.model, t.guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO(), recompute)
        for t in (toy, other)
    )
    svi.optim.rate = 2.0
    for _ in range(2):
        with pytest.raises(ValueError, match="rate: expected a step size"):
            svi.step(x)
    assert_same(toy, other)
    assert all(p.grad is None for p in toy.parameters())
    svi.optim.rate = RATE
    assert seeded(svi.step, x) == seeded(plain.step, x)
    assert_same(toy, other)


@pytest.mark.parametrize("kind", [SVI, ConjugateSVI, CapturedSVI])
def test_networks_need_an_optimiser_and_posteriors_none(kind):
    toy = Toy()
    other, x = copy.deepcopy(toy), toy.data(6)
    with pytest.raises(TypeError, match=r"others: expected a function .* got none for the 4 parameters"):
        kind(toy.model, toy.guide, NaturalGradient(RATE), TraceConjugate_ELBO()).step(x)
    assert_same(toy, other)
    for network in (toy.encoder, toy.decoder):
        network.requires_grad_(False)
    svi = kind(toy.model, toy.guide, NaturalGradient(RATE), TraceConjugate_ELBO())
    optima = bound(other, TraceConjugate_ELBO(), x).optimum(x, other)
    svi.step(x)
    for name, best in zip(("weights", "loc_precision"), optima, strict=True):
        start, end = (getattr(t, name).natural_value() for t in (other, toy))
        assert_close(end, (1 - RATE) * start + RATE * best, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
def test_what_is_no_natural_gradient_or_no_conjugate_elbo_is_refused(kind):
    toy, optim = Toy(), NaturalGradient(RATE, adam)
    with pytest.raises(ValueError, match=r"^optim: expected a NaturalGradient, .*, got PyroOptim"):
        kind(toy.model, toy.guide, pyro.optim.Adam({}), TraceConjugate_ELBO())
    with pytest.raises(ValueError, match=r"^loss: expected a TraceConjugate_ELBO, got TraceEnum_ELBO"):
        kind(toy.model, toy.guide, optim, TraceEnum_ELBO())


@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_copy_goes_on_by_itself(kind, steps):
    toy = Toy()
    x = toy.data(6)
    svi = kind(toy.model, toy.guide, NaturalGradient(RATE, adam, toy.parameters()), TraceConjugate_ELBO())
    for step in range(steps):
        seeded(svi.step, x, seed=step)
    before = copy.deepcopy(toy)
    other = copy.deepcopy(svi)
    assert other.elbo.label_weight == svi.elbo.label_weight and other.elbo is not svi.elbo
    copied = other.model.__self__
    assert other.guide.__self__ is copied
    losses = [seeded(other.step, x, seed=9 + step) for step in range(3)]
    assert_same(toy, before)
    assert other.optim.steps == steps + 3 and svi.optim.steps == steps
    assert losses == [seeded(svi.step, x, seed=9 + step) for step in range(3)]
    assert_same(toy, copied)


@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
def test_programs_that_no_copy_could_have_for_itself(kind):
    toy = Toy()

    def model(x):
        return toy.model(x)

    svi = kind(model, toy.guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO())
    with pytest.raises(TypeError, match=r"model: expected .*, got a function that uses the module 'toy'"):
        copy.deepcopy(svi)

    def guide(x):
        scale = pyro.param("scale", torch.tensor(1.0), constraint=pyro.distributions.constraints.positive)
        pyro.sample("z", pyro.distributions.Normal(0.0, scale))

    def observed(x):
        pyro.sample(
            "x", pyro.distributions.Normal(pyro.sample("z", pyro.distributions.Normal(0.0, 1.0)), 1.0), obs=x
        )

    svi = kind(observed, guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO())
    svi.step(torch.tensor(0.3))
    with pytest.raises(ValueError, match="deepcopy: the parameter 'scale' is in Pyro's global store"):
        copy.deepcopy(svi)


@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
def test_a_copy_of_a_function_that_handlers_wrap(kind):
    @config_enumerate
    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.tensor([-1.0, 1.0]), 3.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(locs[pyro.sample("z", dist.Categorical(torch.ones(2)))], 1.0), obs=x)

    svi = kind(model, AutoConjugate(model), NaturalGradient(RATE), TraceConjugate_ELBO())
    svi.step(POINTS)
    other = copy.deepcopy(svi)
    before = svi.guide.posterior("locs").natural.clone()
    losses = [other.step(POINTS) for _ in range(3)]
    assert_close(svi.guide.posterior("locs").natural, before, rtol=0, atol=0)
    assert losses == [svi.step(POINTS) for _ in range(3)]


POINTS = torch.tensor([0.3, 1.7, -0.4, 0.9], dtype=torch.float64)


def normal(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(loc, precision.rsqrt()), obs=x)


class OfNormal(torch.nn.Module):
    """Natural posteriors of both sites, or of the location alone, the precision being known."""

    def __init__(self, known_precision=False):
        super().__init__()
        self.loc = NaturalPosterior(NaturalNormal, torch.tensor([1.0, -2.0]))
        self.precision = NaturalPosterior(NaturalGamma, torch.tensor([4.0, -3.0]))
        self.known_precision = known_precision

    def forward(self, x):
        pyro.module("guide", self)
        pyro.sample("loc", self.loc())
        pyro.sample("precision", dist.Delta(torch.tensor(1.5)) if self.known_precision else self.precision())


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_pyros_own_elbos_give_natural_gradients(elbo):
    """The inverse of the Fisher matrix times the finite differences of the loss, at the same draws."""
    guide, elbo = OfNormal(known_precision=True), elbo(num_particles=5)
    seeded(elbo.loss_and_grads, normal, guide, POINTS)
    natural = guide.loc.natural

    def slope(function):
        """Derivatives by each number of λ, in rows."""
        rows = []
        for i in range(2):
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    natural[i] += step
                    ends.append(torch.as_tensor(function()))
                    natural[i] -= step
            rows.append((ends[0] - ends[1]) / 2e-5)
        return torch.stack(rows)

    fisher = slope(lambda: guide.loc.kind.family.mean_stats(natural.detach()))
    ordinary = slope(lambda: seeded(elbo.loss, normal, guide, POINTS))
    assert_close(natural.grad, torch.linalg.solve(fisher, ordinary), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_natural_gradients_of_pyros_own_elbos_are_unbiased(elbo):
    """Their mean is the exact one, also where draws are made by rejection."""

    def gradient(elbo):
        guide = OfNormal()
        elbo.loss_and_grads(normal, guide, POINTS)
        return torch.cat([guide.loc.natural.grad, guide.precision.natural.grad])

    pyro.set_rng_seed(0)
    noisy = elbo(num_particles=100, vectorize_particles=True, max_plate_nesting=1)
    found = torch.stack([gradient(noisy) for _ in range(100)])
    exact, error = gradient(TraceConjugate_ELBO()), found.std(0) / 10
    assert ((found.mean(0) - exact).abs() < 4 * error).all()
    assert (error < 0.1).all() and (exact.abs() > 4 * error).sum() == 3, "noise hides the gradient"


def test_pyros_own_elbo_under_natural_steps():
    """Noisy steps of a small rate end where the exact ones do."""
    pyro.set_rng_seed(0)
    exact, noisy = OfNormal(), OfNormal()
    svi = ConjugateSVI(normal, exact, NaturalGradient(1.0), TraceConjugate_ELBO())
    for _ in range(30):
        svi.step(POINTS)
    pyro.clear_param_store()
    elbo = TraceMeanField_ELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(normal, noisy, NaturalGradient(lambda t: 1 / (t + 5)), elbo)
    for _ in range(200):
        svi.step(POINTS)
    assert_close(noisy.loc.natural, exact.loc.natural, rtol=0.05, atol=0.05)
    assert_close(noisy.precision.natural, exact.precision.natural, rtol=0.05, atol=0.05)


def test_steps_along_draws_that_leave_the_domain_are_told_in_one_line():
    svi = SVI(normal, AutoConjugate(normal), NaturalGradient(1.0), Trace_ELBO())
    with pytest.raises(
        ValueError, match=r"site '(loc|precision)': natural: .* a smaller rate and more"
    ) as error:
        for _ in range(50):
            svi.step(POINTS)
    assert "\n" not in str(error.value)
