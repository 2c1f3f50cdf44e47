"""The autoguide for conjugate globals."""

import copy
import math
import re
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, Label, NaturalParameter, NormalGamma
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
    with_assignments,
)
from pyro_fmvae.infer.posteriors import to_standard
from tests.infer.programs import C0, Toy, bound, nodes, seeded

frozen = partial(torch.optim.SGD, lr=0.0)


class Combined(nn.Module):
    """The autoguide with the user's own amortised guide, which enters the model's plates itself."""

    def __init__(self, toy):
        super().__init__()
        self.toy = toy
        self.conjugate = AutoConjugate(toy.model)

    def forward(self, x, labels=None):
        self.conjugate(x)
        x, data, factors, _ = self.toy.plates(x)
        loc, scale = self.toy.encode(x)
        with data, factors:
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


@pytest.fixture
def toy():
    return Toy()


def adopt(toy, conjugate):
    """Let the hand-written guide have the same posteriors."""
    toy.weights, toy.loc_precision = conjugate.posterior("weights"), conjugate.posterior("loc_precision")


def test_one_full_step_is_the_exact_posterior(toy):
    x, elbo = toy.data(), TraceConjugate_ELBO()
    guide = Combined(toy)
    seeded(guide, x)
    adopt(toy, guide.conjugate)
    brute = bound(toy, elbo, x)
    svi = pyro.infer.SVI(toy.model, guide, NaturalGradient(1.0, frozen), elbo)
    assert seeded(svi.step, x) == pytest.approx(brute.total.item(), rel=1e-12)
    for name, optimum in zip(("weights", "loc_precision"), brute.optimum(x, toy), strict=True):
        assert_close(guide.conjugate.posterior(name).natural_value(), optimum, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("vectorize", [False, True])
def test_particles(toy, vectorize):
    x = toy.data()
    guide = Combined(toy)
    elbo = TraceConjugate_ELBO(num_particles=3, vectorize_particles=vectorize, max_plate_nesting=2)
    elbo.loss(toy.model, guide, x)
    adopt(toy, guide.conjugate)
    brute = bound(toy, TraceConjugate_ELBO(), x)
    sites = elbo.loss_per_site(toy.model, guide, x)
    for name in ("z", "assignment", "weights", "loc_precision"):
        assert_close(sites[name], brute.per_site[name], rtol=1e-11, atol=1e-11)


def test_sites_are_those_of_the_model_without_its_plates_index_sites(toy):
    x = toy.data()
    model, guide = nodes(toy.model, x), nodes(AutoConjugate(toy.model), x)
    for name in ("weights", "loc_precision"):
        assert guide[name]["cond_indep_stack"] == model[name]["cond_indep_stack"]
        assert guide[name]["fn"].shape() == model[name]["fn"].shape()
    assert "factors" not in guide
    assert {name for name, site in guide.items() if site["type"] == "param"} == {
        "AutoConjugate$$$posteriors.weights.natural",
        "AutoConjugate$$$posteriors.loc_precision.natural",
    }


def sequential(z):
    for i in pyro.plate("factors", 2):
        weights = pyro.sample(f"weights_{i}", dist.Dirichlet(torch.ones(3)))
        with pyro.plate(f"components_{i}", 3, dim=-1):
            loc_precision = pyro.sample(f"loc_precision_{i}", NormalGamma(torch.zeros(2), 1.0, 1.0, 1.0))
        with pyro.plate(f"data_{i}", len(z[i]), dim=-1):
            assignment = pyro.sample(f"assignment_{i}", Assignment(weights), infer={"enumerate": "parallel"})
            pyro.sample(f"z_{i}", Component(loc_precision, assignment), obs=z[i])


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide:UserWarning")
def test_several_mixtures_and_sequential_plates():
    z = torch.randn(2, 7, 2)
    guide = AutoConjugate(sequential)
    guide(z)
    names = {f"{site}_{i}" for site in ("weights", "loc_precision") for i in range(2)}
    assert set(guide.posteriors) == names
    model, trace = nodes(sequential, z), nodes(guide, z)
    for name in names:
        assert trace[name]["cond_indep_stack"] == model[name]["cond_indep_stack"]
    conjugate = TraceConjugate_ELBO().loss(sequential, guide, z)
    single = sum(TraceConjugate_ELBO().loss_per_site(sequential, guide, z).values())
    assert conjugate == pytest.approx(single.item())
    pyro.infer.TraceEnum_ELBO(max_plate_nesting=1).loss(sequential, with_assignments(sequential, guide), z)


def test_state_dict_and_deep_copy(toy):
    x = toy.data()
    guide, other = AutoConjugate(toy.model), AutoConjugate(toy.model)
    guide.setup(x)
    other.setup(x)
    other.load_state_dict(guide.state_dict())
    clone = copy.deepcopy(guide)
    for name in ("weights", "loc_precision"):
        for same in (other, clone):
            assert torch.equal(same.posterior(name).natural, guide.posterior(name).natural)
            assert same.posterior(name).natural is not guide.posterior(name).natural
            assert isinstance(same.posterior(name).natural, NaturalParameter)
    assert clone(x).keys() == guide(x).keys()
    assert not any(name.startswith("_model") for name, _ in guide.named_parameters())


def test_float_leaves_natural_parameters_in_float64(toy):
    guide = Combined(toy)
    guide(toy.data())
    guide.conjugate.posteriors["weights"] = to_standard(guide.conjugate.posterior("weights"))
    guide.float()
    assert toy.encoder.weight.dtype == torch.float32
    assert all(p.dtype == torch.float64 for p in guide.conjugate.parameters())
    assert (
        guide.conjugate.posterior("loc_precision").natural
        is dict(guide.named_parameters())["conjugate.posteriors.loc_precision.natural"]
    )


def test_components_start_apart(toy):
    guide = AutoConjugate(toy.model, count=50.0)
    guide.setup(toy.data())
    q = guide.posterior("loc_precision")()
    assert torch.pdist(q.loc[0].detach()).min() > 0.01
    assert_close(q.mean_concentration.detach(), torch.full((2, 3), 50.6))


def test_observed_globals_have_no_posterior(toy):
    weights = torch.full((2, 1, 3), 1 / 3)
    guide = AutoConjugate(poutine.condition(toy.model, {"weights": weights}))
    guide.setup(toy.data())
    assert set(guide.posteriors) == {"loc_precision"}


@pytest.mark.parametrize("count", [0.0, -1.0])
def test_count_out_of_range(toy, count):
    with pytest.raises(ValueError, match="count: expected a number > 0, got"):
        AutoConjugate(toy.model, count=count)


def test_a_model_without_conjugate_sites_is_left_to_the_fallback():
    guide = AutoConjugate(lambda: pyro.sample("x", dist.Cauchy(0.0, 1.0)))
    assert set(guide()) == {"x"} and not len(guide.posteriors)
    assert isinstance(guide.fallback, AutoNormal)


def test_strict_names_every_drawn_site_and_the_reason():
    def model():
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        free = pyro.sample("free", dist.Cauchy(0.0, 1.0))
        pyro.sample("x", dist.Normal(loc, scale), obs=torch.tensor(0.5))
        pyro.sample("y", dist.Normal(free.tanh(), 1.0), obs=torch.tensor(0.5))

    found = TraceConjugate_ELBO().plan(model, AutoConjugate(model))
    reasons = "; ".join(f"site '{name}' ({found[name].why})" for name in ("scale", "free"))
    with pytest.raises(ValueError) as error:
        AutoConjugate(model, strict=True)()
    assert str(error.value) == f"strict: expected only sites with conjugate posteriors, got {reasons}"


def test_strict_takes_a_model_that_is_conjugate():
    guide = AutoConjugate(lambda: pyro.sample("loc", dist.Normal(0.0, 1.0)), strict=True)
    assert set(guide()) == {"loc"}


def test_parameters_of_the_model_are_no_part_of_the_fallback():
    decoder = torch.nn.Linear(2, 3)

    def model(x):
        pyro.module("decoder", decoder)
        scale = pyro.param("scale", torch.ones(3), constraint=dist.constraints.positive)
        loc = pyro.sample("loc", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(loc + decoder(z.tanh()), scale).to_event(1), obs=x)

    guide = AutoConjugate(model)
    assert set(guide(torch.randn(5, 3))) == {"loc", "z"}
    names = {name.split(".")[0] for name, _ in guide.named_parameters()}
    assert names == {"posteriors", "fallback"}
    assert set(pyro.get_param_store().keys()) == {"decoder$$$weight", "decoder$$$bias", "scale"}


def test_a_model_that_hides_the_children_of_its_conjugate_sites(toy):
    hidden = poutine.block(toy.model, hide=["assignment", "z", "x"])
    with pytest.raises(ValueError, match=r"give it the whole model: none of these may be hidden"):
        AutoConjugate(hidden)(toy.data())


def test_a_parent_of_another_class():
    def model():
        weights = pyro.sample("weights", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", 2, dim=-1):
            pyro.sample("assignment", Assignment(weights))

    with pytest.raises(NotImplementedError, match="'weights': no conjugate posterior is known for LogNormal"):
        AutoConjugate(model)()


def test_a_subsampled_plate_of_globals():
    def model():
        with pyro.plate("factors", 4, subsample_size=2, dim=-2):
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
            with pyro.plate("data", 5, dim=-1):
                pyro.sample("assignment", Assignment(weights))

    with pytest.raises(ValueError, match="site 'weights': plate 'factors' is subsampled"):
        AutoConjugate(model)()


def encodings(factors=2, components=3, size=30, dim=2):
    """Three far groups of points per factor, [I, M, D], with their groups [I, M]."""
    groups = torch.arange(components).repeat(size // components).expand(factors, -1)
    centres = 10 * torch.randn(factors, components, dim)
    points = centres.gather(1, groups.unsqueeze(-1).expand(-1, -1, dim))
    return points + 0.1 * torch.randn(factors, size, dim), groups


def test_seed_is_the_exact_posterior_given_the_clusters(toy):
    conjugate = AutoConjugate(toy.model)
    conjugate.setup(toy.data())
    parameter = conjugate.posterior("loc_precision").natural
    loc, groups = encodings()
    scale = 0.1 + torch.rand_like(loc)
    conjugate.seed("z", loc, scale, torch.Generator().manual_seed(0), num_data=60)
    assert conjugate.posterior("loc_precision").natural is parameter
    q, prior = conjugate.posterior("loc_precision")(), toy.prior()
    s0 = prior.mean_concentration
    for factor in range(2):
        sums = [2 * loc[factor, groups[factor] == k].sum(0) for k in range(3)]
        expected = torch.stack([(s0 * prior.loc + total) / (s0 + 20) for total in sums])
        assert_close(q.loc[factor].sort(0).values, expected.sort(0).values)
    assert_close(q.mean_concentration, s0 + torch.full((2, 3), 20.0))
    counts = conjugate.posterior("weights").natural_value()
    assert_close(counts, torch.full_like(counts, C0 + 20.0))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("x", (2, 30, 2), r"name: expected the components of a mixture, one of \['z'\], got 'x'"),
        ("z", (3, 30, 2), r"loc, scale: expected shape \[2, 'M', 2\] for 'z', got \[3, 30, 2\]"),
        ("z", (2, 30, 4), r"loc, scale: expected shape \[2, 'M', 2\] for 'z', got \[2, 30, 4\]"),
    ],
)
def test_seed_refuses(toy, name, shape, message):
    conjugate = AutoConjugate(toy.model)
    conjugate.setup(toy.data())
    with pytest.raises(ValueError, match=message):
        conjugate.seed(name, torch.zeros(shape), torch.ones(shape), torch.Generator())


def test_seed_refuses_posteriors_of_another_kind(toy):
    conjugate = AutoConjugate(toy.model)
    conjugate.setup(toy.data())
    conjugate.posteriors["loc_precision"] = to_standard(conjugate.posterior("loc_precision"))
    loc, _ = encodings()
    with pytest.raises(ValueError, match="the posterior of 'loc_precision' was replaced"):
        conjugate.seed("z", loc, torch.ones_like(loc), torch.Generator())


@pytest.mark.parametrize("name", ["part.weights", "values", "training", "a%2Eb", "50%", "ä"])
def test_names_that_modules_may_not_have(name):
    def model(x):
        weights = pyro.sample(name, dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", 6, dim=-1):
            pyro.sample("r", Assignment(weights), obs=x)

    x = torch.tensor([0, 1, 2, 0, 0, 0])
    guide, other = AutoConjugate(model), AutoConjugate(model)
    assert set(guide(x)) == {name}
    assert list(guide.posteriors) == list(guide.posteriors.keys()) == [name] and name in guide.posteriors
    assert dict(guide.posteriors.items()) == {name: guide.posterior(name)}
    pyro.infer.SVI(model, guide, NaturalGradient(1.0, frozen), TraceConjugate_ELBO()).step(x)
    assert_close(guide.posterior(name).natural_value(), torch.tensor([5.0, 2.0, 2.0]))
    other.setup(x)
    other.load_state_dict(guide.state_dict())
    assert_close(other.posterior(name).natural_value(), guide.posterior(name).natural_value())
    guide.posteriors[name] = to_standard(guide.posterior(name))
    del guide.posteriors[name]
    assert name not in guide.posteriors and len(guide.posteriors) == 0


def test_seed_where_one_tensor_is_observed_at_several_sites():
    z, y = torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])

    def model():
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("components", 3, dim=-1):
            loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(2), 1.0, 1.0, 1.0))
        with pyro.plate("data", 6, dim=-1):
            r = pyro.sample("r", Assignment(weights), obs=y)
            pyro.sample("label", Label(r), obs=y)
            pyro.sample("z", Component(loc_precision, r), obs=z)

    guide = AutoConjugate(model)
    guide.setup()
    guide.seed("z", z, torch.ones_like(z), torch.Generator().manual_seed(0))
    assert_close(guide.posterior("weights").natural_value().sum(), torch.tensor(9.0))


@pytest.mark.parametrize("standard", [False, True])
def test_a_state_is_loaded_before_the_first_call(standard):
    toy = Toy()
    x = toy.data(6)
    kept, fresh = AutoConjugate(toy.model), AutoConjugate(toy.model)
    kept.setup(x)
    if standard:
        kept.posteriors["weights"] = to_standard(kept.posterior("weights"))
    state = {name: value.clone() for name, value in kept.state_dict().items()}
    assert fresh.load_state_dict(state) == ([], [])
    assert fresh.state_dict().keys() == state.keys()  # nothing is lost if it is saved as it is
    fresh(x)
    assert type(fresh.posterior("weights")) is type(kept.posterior("weights"))
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, state[name])
    with torch.no_grad():
        fresh.posterior("loc_precision").natural.zero_()  # the state that was given is another's
    assert state["posteriors.loc_precision.natural"].any()


def test_a_state_of_other_sizes_is_refused_at_the_first_call():
    states = AutoConjugate(Toy(components=3).model), AutoConjugate(Toy(components=4).model)
    x = Toy().data(6)
    states[0].setup(x)
    states[1].load_state_dict(states[0].state_dict())
    message = re.escape(
        "site 'weights': 'natural' is of shape (2, 1, 3) in the state, but (2, 1, 4) in this guide; load it "
        "into the guide of a model of the same sizes"
    )
    with pytest.raises(ValueError, match=message):
        states[1].setup(x)


def test_nothing_of_a_state_of_other_sizes_is_loaded():
    small, large = AutoConjugate(Toy(components=3).model), AutoConjugate(Toy(components=4).model)
    x = Toy().data(6)
    for guide in (small, large):
        guide.setup(x)
    state = {name: value.clone() for name, value in large.state_dict().items()}
    state["posteriors.weights.natural"] += 1
    small_state = small.state_dict()
    state["posteriors.loc_precision.natural"] = small_state["posteriors.loc_precision.natural"]
    before = {name: value.clone() for name, value in large.state_dict().items()}
    with pytest.raises(ValueError, match="site 'loc_precision': 'natural' is of shape"):
        large.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in large.state_dict().items())


@pytest.mark.parametrize("first", [True, False], ids=["after a call", "before a call"])
def test_a_state_of_a_fallback_of_another_size(first):
    def of_size(size):
        def model(x):
            scale = pyro.sample("scale", dist.LogNormal(torch.zeros(size), 1.0).to_event(1))
            loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("x", dist.Normal(loc, scale.sum()), obs=x)

        return AutoConjugate(model)

    x = torch.zeros(4)
    other, guide = of_size(2), of_size(3)
    other(x)
    if first:
        guide(x)
    message = (
        r"fallback: 'locs\.scale_unconstrained' is of shape \(2,\) in the state, but \(3,\) in this guide"
    )
    with pytest.raises(ValueError, match=message):
        guide.load_state_dict(other.state_dict())
        guide(x)


def test_a_state_waits_for_the_fallback():
    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc, scale), obs=x)

    x = torch.randn(5)
    trained = AutoConjugate(model)
    trained(x)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter *= 1.5
    state = trained.state_dict()
    fresh = AutoConjugate(model)
    fresh.load_state_dict(state)
    assert fresh.state_dict().keys() == state.keys()
    fresh(x)
    loaded = fresh.state_dict()
    assert loaded.keys() == state.keys() and any(name.startswith("fallback") for name in state)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def noisy(x, n):
    """Conjugate globals with a joint posterior, rates in a plate, and a site that the fallback draws."""
    with pyro.plate("kinds", 2):
        precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
        loc = pyro.sample("loc", dist.Normal(0.0, (0.1 * precision).rsqrt()))
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    bend = pyro.sample("bend", dist.LogNormal(0.0, 1.0))
    with pyro.plate("n", n):
        kind = pyro.sample("kind", dist.Categorical(torch.ones(2) / 2))
        pyro.sample("y", dist.Normal(loc[kind] + bend, precision[kind].rsqrt()), obs=None if x is None else x)
        return pyro.sample("count", dist.Poisson(rate), obs=None if x is None else x.square().round())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("standard", [False, True])
def test_a_loaded_guide_needs_no_data(tmp_path, standard, dtype):
    torch.set_default_dtype(dtype)
    pyro.set_rng_seed(0)
    x, trained = torch.linspace(-2.0, 3.0, 20), AutoConjugate(noisy, structured=True)
    optim = NaturalGradient(0.5, partial(torch.optim.Adam, lr=0.1))
    svi = ConjugateSVI(noisy, trained, optim, TraceConjugate_ELBO())
    for _ in range(3):
        svi.step(x, len(x))
    if standard:
        trained.posteriors["rate"] = to_standard(trained.posterior("rate"))
    save_file(trained.state_dict(), tmp_path / "guide.safetensors")

    guide = AutoConjugate(noisy, structured=True)
    guide.load_state_dict(load_file(tmp_path / "guide.safetensors"))
    for name in ("precision", "loc", "rate"):
        assert_close(guide.marginal(name).mean, trained.marginal(name).mean)
    found = Predictive(noisy, guide=guide, num_samples=300)(None, 4)
    assert found["count"].shape == (300, 4) and found["count"].dtype == dtype
    for name in ("loc", "rate"):
        marginal = trained.marginal(name)
        error = 5 * marginal.stddev.squeeze() / 300**0.5
        assert ((found[name].mean(0).squeeze() - marginal.mean).abs() < error).all()
    assert_close(
        found["bend"].log().mean(), trained.fallback.locs.bend_unconstrained.detach(), rtol=0.1, atol=0.1
    )

    expected = TraceConjugate_ELBO(num_particles=2)
    losses = []
    for each in (trained, guide):  # the first call with data finds all else
        pyro.set_rng_seed(1)
        each(x, len(x))
        pyro.set_rng_seed(1)
        losses.append(expected.loss(noisy, each, x, len(x)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    state = guide.state_dict()
    assert state.keys() == trained.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in trained.state_dict().items())


def test_a_loaded_guide_that_draws_all_sites_needs_no_data():
    def model(x, n):
        width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", n):
            return pyro.sample("x", dist.Laplace(0.0, width), obs=x)

    x, trained = torch.linspace(-2.0, 3.0, 20), AutoConjugate(model)
    trained(x, len(x))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.fill_(0.01)
    guide = AutoConjugate(model)
    guide.load_state_dict(trained.state_dict())
    assert Predictive(model, guide=guide, num_samples=3)(None, 4)["x"].shape == (3, 4)
    assert TraceConjugate_ELBO().loss(model, guide, x, len(x)) > 0
    state = trained.state_dict()
    assert guide.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in guide.state_dict().items())


@pytest.mark.parametrize(
    "letters", [b"", b"{", b"[]", b'{"sites": {}, "posteriors": {"a": ["Unheard", null]}}']
)
def test_descriptions_in_a_state_that_are_refused(letters):
    guide = AutoConjugate(noisy)
    state = {"description": torch.tensor(list(letters), dtype=torch.uint8)}
    with pytest.raises(ValueError, match="description: expected that of an AutoConjugate"):
        guide.load_state_dict(state)


def test_guides_made_one_after_another_start_apart():
    """The ELBO runs a plain program before it knows it; no start is drawn from those numbers twice."""

    def model(x):
        with pyro.plate("topics", 2):
            rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        with pyro.plate("data", len(x)):
            which = pyro.sample("which", dist.Categorical(torch.ones(2) / 2))
            pyro.sample("x", dist.Poisson(rate[which]), obs=x)

    x = torch.tensor([1.0, 2.0, 7.0])
    starts = []
    for _ in range(2):
        guide = AutoConjugate(model)
        TraceConjugate_ELBO().loss(model, guide, x)
        starts.append(guide.posterior("rate").natural_value())
    assert not torch.equal(*starts)


def test_predictions_in_parallel():
    """One run of the model, with the samples in front, where the model broadcasts."""

    def model(x, y=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        precision = pyro.sample("precision", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(slope * x, precision.rsqrt()), obs=y)

    x, guide = torch.linspace(-1.0, 1.0, 5), AutoConjugate(model)
    guide(x, x)
    pyro.set_rng_seed(0)
    one, other = (
        Predictive(model, guide=guide, num_samples=1000, parallel=parallel)(x) for parallel in (False, True)
    )
    for name, size in {"slope": 1, "precision": 1, "y": 5}.items():
        assert one[name].shape == other[name].shape == (1000, size)
        error = (one[name].var(0) + other[name].var(0)).div(1000).sqrt()
        assert ((one[name].mean(0) - other[name].mean(0)).abs() < 4 * error).all()


def test_a_posterior_that_is_not_there():
    guide, toy = AutoConjugate(Toy().model), Toy()
    with pytest.raises(KeyError, match="site 'z' has no natural posterior: call the guide first"):
        guide.posterior("z")
    guide.setup(toy.data(6))
    with pytest.raises(KeyError, match=r"those that have one are \['weights', 'loc_precision'\]"):
        guide.posterior("z")


def test_a_model_that_was_called():
    with pytest.raises(ValueError, match="model: expected a function, got NoneType; do not call it"):
        AutoConjugate(None)


POINTS = 12
DATA = torch.linspace(-3.0, 3.0, POINTS)


def point_by_point(subsample, value):
    """Latents of single points, after a global one, which the fallback draws on minibatches."""

    def model(x, rows):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.01))
        with pyro.plate("points", POINTS, subsample=subsample(x, rows)) as index:
            z = pyro.sample("z", dist.Normal(0.0, 10.0 * scale))
            pyro.sample("x", dist.Laplace(z, 0.3), obs=value(x, index))

    return model


@pytest.mark.parametrize("size", [4, 5, POINTS])
@pytest.mark.parametrize("kind", [ConjugateSVI, CapturedSVI])
@pytest.mark.parametrize("value", [lambda x, index: x, lambda x, index: DATA[index]], ids=["batch", "index"])
def test_the_fallback_has_the_rows_of_the_models_batch(value, kind, size):
    pyro.set_rng_seed(0)
    model = point_by_point(lambda x, rows: rows, value)
    guide = AutoConjugate(model)
    svi = kind(model, guide, NaturalGradient(1.0, partial(torch.optim.Adam, lr=0.1)), TraceConjugate_ELBO())
    for _ in range(25 * size):
        for rows in torch.randperm(POINTS).split(size):
            svi.step(DATA[rows], rows)
    found = guide.fallback.locs.z_unconstrained.detach().to(DATA)
    assert_close(found, DATA, rtol=0.0, atol=0.5)


@pytest.mark.parametrize("data", [DATA[:4], torch.tensor([3, 1, 3, 2]), torch.tensor([0, 1, 2, POINTS])])
def test_a_minibatch_of_data_in_the_place_of_rows_is_refused(data):
    guide = AutoConjugate(point_by_point(lambda x, rows: x, lambda x, index: x.float()))
    with pytest.raises(
        ValueError, match=r"site 'z': plate 'points' has data .* give it row .* local=\['points'\]"
    ):
        guide(data, None)


def test_data_of_all_points_need_no_rows():
    model = point_by_point(lambda x, rows: x, lambda x, index: x)
    guide = AutoConjugate(model)
    assert guide(DATA, None)["z"].shape == (POINTS,)


@pytest.mark.parametrize("of_data", [False, True])
@pytest.mark.parametrize("noise", [dist.Normal, partial(dist.StudentT, 5.0)])
def test_posteriors_of_all_points_keep_their_order(noise, of_data):
    """Exact ones, and drawn ones, whose guide has a parameter for each row number."""

    def model(x, rows):
        with pyro.plate("points", POINTS, subsample=x if of_data else rows):
            z = pyro.sample("z", dist.Normal(0.0, 2.0))
            pyro.sample("x", noise(z, 0.5), obs=x)

    elbo, rows, guide = TraceConjugate_ELBO(), torch.arange(POINTS), AutoConjugate(model)
    for x in (DATA, DATA.clone(), DATA + 1.0):
        elbo.loss(model, guide, x, rows)
    if noise is not dist.Normal and not of_data:
        elbo.loss(model, guide, DATA.flip(0), rows.flip(0))
        return
    with pytest.raises(ValueError, match="site 'z': plate 'points' has its 12 rows in another order"):
        elbo.loss(model, guide, DATA.flip(0), rows.flip(0))


def by_hand(model):
    """A fallback in plain Pyro, which returns nothing."""

    def guide(x):
        pyro.sample("bend", dist.LogNormal(0.3, 0.5))

    return guide


def test_a_fallback_may_be_a_function():
    def model(x):
        bend = pyro.sample("bend", dist.LogNormal(0.0, 1.0))
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc * torch.tanh(bend), 1.0), obs=x)

    x, guide = torch.linspace(-1.0, 2.0, 5), AutoConjugate(model, fallback=by_hand)
    values = guide(x)
    trace = poutine.trace(guide).get_trace(x)
    assert values.keys() == {"bend", "loc"}
    assert trace.nodes["bend"]["fn"].loc == 0.3
    assert math.isfinite(TraceConjugate_ELBO().loss(model, guide, x))
    with pytest.raises(ValueError, match="fallback: a guide that has no median; take one of Pyro's"):
        guide.median(x)
