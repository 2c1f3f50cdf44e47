"""Gibbs sampling: draws of the joint distribution stay such draws, and posteriors are those of NUTS."""

from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import HMC, MCMC
from pyro.infer.autoguide.initialization import init_to_mean, init_to_uniform

from pyro_fmvae import CapturedNUTS, ConjugateGibbs
from pyro_fmvae.capture import kernels
from pyro_fmvae.capture.playback import compiles, plain
from pyro_fmvae.distributions import (
    Assignment,
    HiddenMarkov,
    LinearDynamics,
    LinearGaussianChain,
    RateWishart,
)
from pyro_fmvae.distributions.joint_parts import NormalBlock
from pyro_fmvae.infer.elbo.structure import sample_sites

# Programs: each takes its observations by name.


def hierarchy(data):
    mu = pyro.sample("mu", dist.Normal(1.0, 2.0))
    tau = pyro.sample("tau", dist.Gamma(3.0, 2.0))
    variance = pyro.sample("variance", dist.InverseGamma(4.0, 3.0))
    with pyro.plate("groups", 3, dim=-2):
        theta = pyro.sample("theta", dist.Normal(mu, tau.rsqrt()))
        with pyro.plate("points", 2, dim=-1):
            pyro.sample("y", dist.Normal(theta, variance.sqrt()), obs=data.get("y"))


def regression(data):
    x = torch.linspace(-1.0, 1.0, 15).view(5, 3).sin()
    with pyro.plate("columns", 3):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 2.0))
    precision = pyro.sample("precision", dist.Gamma(3.0, 2.0))
    with pyro.plate("rows", 5):
        pyro.sample("y", dist.Normal(x @ w + intercept, precision.rsqrt()), obs=data.get("y"))


def scaled_rates(data):
    with pyro.plate("rates", 3):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    factor = pyro.sample("factor", dist.Gamma(3.0, 1.5))
    p = pyro.sample("p", dist.Beta(2.0, 3.0))
    with pyro.plate("rows", 4, dim=-2), pyro.plate("columns", 3, dim=-1):
        pyro.sample("y", dist.Poisson(rate * factor), obs=data.get("y"))
        pyro.sample("b", dist.Bernoulli(p), obs=data.get("b"))


def covariance(data):
    mean = pyro.sample("mean", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))
    matrix = pyro.sample("matrix", RateWishart(torch.tensor(3.0), torch.eye(2)))
    with pyro.plate("rows", 4):
        pyro.sample("y", dist.MultivariateNormal(mean, precision_matrix=matrix), obs=data.get("y"))


def mixture(data):
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([1.0, 2.0, 1.5])))
    with pyro.plate("components", 3):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
        precision = pyro.sample("precision", dist.Gamma(3.0, 2.0))
    with pyro.plate("rows", 4):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(loc[z], precision[z].rsqrt()), obs=data.get("y"))


def summed_mixture(data):
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([1.0, 2.0])))
    with pyro.plate("components", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", 4):
        components = dist.Normal(loc, 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), components), obs=data.get("y"))


def admixture(data):
    with pyro.plate("topics", 2):
        words = pyro.sample("words", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("documents", 2, dim=-1):
        shares = pyro.sample("shares", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("tokens", 3, dim=-2):
            topic = pyro.sample("topic", dist.Categorical(shares))
            pyro.sample("word", dist.Categorical(words[topic]), obs=data.get("word"))


def markov(data):
    rows = pyro.sample("rows", dist.Dirichlet(torch.tensor([[2.0, 1.0], [1.0, 3.0]])).to_event(1))
    p = pyro.sample("p", dist.Beta(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])).to_event(1))
    z = 0
    for t in pyro.markov(range(4)):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y_{t}", dist.Bernoulli(p[z]), obs=data.get(f"y_{t}"))


def hidden_markov(data):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("states", 2):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2)))
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    lengths = torch.tensor([4, 3])
    with pyro.plate("sequences", 2):
        fn = HiddenMarkov(start, rows, dist.Normal(loc, 1.0), 4, lengths)
        pyro.sample("y", fn, obs=data.get("y"))


def linear_chain(data):
    matrix = pyro.sample("matrix", dist.Normal(torch.zeros(1, 1), 0.5).to_event(2))
    precision = pyro.sample("precision", dist.Gamma(4.0, 3.0))
    first, noise = dist.MultivariateNormal(torch.zeros(1), torch.eye(1)), dist.Normal(torch.zeros(1), 1.0)
    dynamics = LinearDynamics(first, matrix, noise.to_event(1), 3)
    observed = dist.Normal(torch.zeros(1), precision.rsqrt()).to_event(1)
    pyro.sample("y", LinearGaussianChain(dynamics, torch.eye(1), observed), obs=data.get("y"))


def walk(data):
    precision = pyro.sample("precision", dist.Gamma(3.0, 2.0))
    x = torch.tensor(0.0)
    for t in pyro.markov(range(3)):
        x = pyro.sample(f"x_{t}", dist.Normal(x, precision.rsqrt()))
        pyro.sample(f"y_{t}", dist.Normal(x, 1.0), obs=data.get(f"y_{t}"))


def missing(data):
    loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    precision = pyro.sample("precision", dist.Gamma(3.0, 2.0))
    if data:
        there, y = torch.tensor([True, True, False]), torch.nn.functional.pad(data["y"], (0, 1))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Normal(loc, precision.rsqrt()), obs=y, obs_mask=there)
    else:
        pyro.sample("y", dist.Normal(loc, precision.rsqrt()).expand([2]).to_event(1))
        pyro.sample("y_unobserved", dist.Normal(loc, precision.rsqrt()).expand([3]).to_event(1))


def masked(data):
    loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", 3), poutine.mask(mask=torch.tensor([True, True, False])):
        theta = pyro.sample("theta", dist.Normal(loc, 1.0))
        pyro.sample("y", dist.Normal(theta, 0.5), obs=data.get("y"))


def indicators(data):
    x = torch.linspace(-1.0, 1.0, 15).view(5, 3).sin()
    share = pyro.sample("share", dist.Beta(2.0, 2.0))
    with pyro.plate("columns", 3):
        is_in = pyro.sample("is_in", dist.Bernoulli(share))
        w = pyro.sample("w", dist.Normal(0.0, 1.5))
    with pyro.plate("rows", 5):
        pyro.sample("y", dist.Normal(x @ (is_in * w), 0.5), obs=data.get("y"))


def with_fallback(data):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    pyro.sample("leaf", dist.StudentT(10.0, loc, 1.0))
    with pyro.plate("rows", 4):
        pyro.sample("y", dist.Normal(loc, scale), obs=data.get("y"))


PROGRAMS = {
    program.__name__: program
    for program in (
        *(hierarchy, regression, scaled_rates, covariance, mixture, summed_mixture, admixture),
        *(markov, hidden_markov, linear_chain, walk, missing, masked, indicators),
    )
}


def prior_draw(model):
    """Values of all latent sites and observations by name, drawn from the joint distribution."""
    with torch.no_grad():
        sites = sample_sites(poutine.trace(model).get_trace({}))
    return {name: site["value"] for name, site in sites.items()}


def numbers(values):
    """All values one after another, [n]."""
    return torch.cat([value.double().flatten() for value in values.values()]).clamp(-5, 5)


def features(sizes, values, data):
    """Numbers that a wrong joint distribution moves: of each site, of the data, and of both together.

    ``sizes`` are those of the sites; values and data have a row for each draw.
    """
    result, both = [], data.mean(1)
    for x in values.split(sizes, 1):
        means = x.mean(1)
        result += [means, x.square().mean(1), (x > 1).double().mean(1), means * both, x[:, 0] * x[:, -1]]
    return torch.stack(result, 1)


def stays_in_the_joint_distribution(model, count, **options):
    """Largest z of the change of features by two sweeps that begin at draws of the joint distribution.

    Geweke (2004), Getting it right: joint distribution tests of posterior simulators. Every pair of values
    and data is drawn anew, so that changes are independent. The data are changed in place.
    """
    pyro.set_rng_seed(0)
    first = prior_draw(model)
    data = {name: torch.zeros_like(first[name]) for name in observed_names(model)}
    kernel = ConjugateGibbs(model, **options)
    kernel.setup(0, data)
    latent = list(kernel.initial_params)
    rows = []
    for _ in range(count):
        drawn = prior_draw(model)
        for name, value in data.items():
            value.copy_(drawn[name])
        values = {name: drawn.get(name, kernel.initial_params[name]) for name in latent}
        after = kernel.sample(kernel.sample(values))
        in_both = [name for name in latent if name in drawn]
        before, changed = ({name: each[name] for name in in_both} for each in (values, after))
        rows.append([numbers(each) for each in (before, changed, data)])
    sizes = [value.numel() for value in before.values()]
    start, end, observed = (torch.stack(each) for each in zip(*rows, strict=True))
    changes = features(sizes, end, observed) - features(sizes, start, observed)
    spread = changes.std(0)
    assert bool((spread > 0).any())  # it moves
    return (changes.mean(0).abs() / (spread / count**0.5).clamp(min=1e-12)).max().item()


def observed_names(model):
    return [
        name
        for name in prior_draw(model)
        if name in ("y", "b", "word") or (name[2:].isdigit() and name[0] == "y")
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_joint_distribution(name):
    torch.set_default_dtype(torch.float64)
    assert stays_in_the_joint_distribution(PROGRAMS[name], 200) < 4.5


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_in_single_precision_are_those_in_double(name, monkeypatch):
    multinomial = torch.multinomial  # in torch 2.6, its numbers depend on the dtype
    monkeypatch.setattr(torch, "multinomial", lambda p, *args: multinomial(p.double(), *args))
    pyro.set_rng_seed(0)
    first, after = prior_draw(PROGRAMS[name]), []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        drawn = {each: v.to(dtype) if v.is_floating_point() else v for each, v in first.items()}
        kernel = ConjugateGibbs(PROGRAMS[name])
        kernel.setup(0, {each: drawn[each] for each in observed_names(PROGRAMS[name])})
        pyro.set_rng_seed(2)
        values = kernel.sample({each: drawn.get(each, v) for each, v in kernel.initial_params.items()})
        after.append(numbers(values))
    torch.testing.assert_close(after[0], after[1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_joint_distribution_with_many_draws(name):
    assert stays_in_the_joint_distribution(PROGRAMS[name], 5000) < 4.5


def test_joint_distribution_with_a_fallback():
    fallback = partial(HMC, step_size=0.3, num_steps=4, adapt_step_size=False)
    assert stays_in_the_joint_distribution(with_fallback, 100, fallback=fallback) < 4.5


@pytest.mark.parametrize("model", [regression, hierarchy])
def test_joint_distribution_by_turns(model, monkeypatch):
    """Gaussian blocks that are too large: one site at a time, coupled numbers by turns."""
    monkeypatch.setattr(NormalBlock, "of", lambda *args: None)
    assert stays_in_the_joint_distribution(model, 200) < 4.5


def many_groups(data):
    mu = pyro.sample("mu", dist.Normal(1.0, 2.0))
    tau = pyro.sample("tau", dist.Gamma(3.0, 2.0))
    with pyro.plate("groups", 80):
        theta = pyro.sample("theta", dist.Normal(mu, tau.rsqrt()))
        pyro.sample("y", dist.Normal(theta, 0.7), obs=data.get("y"))


def long_walk(data):
    start = pyro.sample("start", dist.Normal(1.0, 2.0))
    with pyro.plate("times", 80):
        noise = pyro.sample("noise", dist.Normal(0.0, 1.0))
        x = start + 0.5 * noise + 0.5 * noise.roll(1)
        pyro.sample("y", dist.Normal(x, 0.7), obs=data.get("y"))


def groups_that_pick(data):
    with pyro.plate("kinds", 2):
        mu = pyro.sample("mu", dist.Normal(1.0, 2.0))
    with pyro.plate("groups", 80):
        z = pyro.sample("z", dist.Categorical(torch.ones(2) / 2))
        theta = pyro.sample("theta", dist.Normal(mu[z], 0.6))
        pyro.sample("y", dist.Normal(theta, 0.7), obs=data.get("y"))


def rare_pairs(data):
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.3, 0.1, 0.2])))
    with pyro.plate("columns", 20):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 80):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        column = torch.where(z == 2, 7, 0) + torch.arange(80)
        pyro.sample("y", dist.Normal(a + b[column % 20], 0.7), obs=data.get("y"))


def a_mixture_apart(data):
    z = pyro.sample("z", dist.Categorical(torch.ones(3)))
    pyro.sample("x", dist.Normal(z.to(torch.get_default_dtype()), 1.0), obs=data.get("x"))
    many_groups(data)


@pytest.mark.parametrize(
    ("model", "posterior"),
    [
        (rare_pairs, "MultivariateNormal"),  # whichever value of z comes first
        (a_mixture_apart, "SparseNormal"),
        (many_groups, "SparseNormal"),
        (long_walk, "SparseNormal"),
        (groups_that_pick, "MultivariateNormal"),  # what depends on what is another matter in each sweep
    ],
)
def test_joint_distribution_of_many_numbers(model, posterior):
    plan = ConjugateGibbs(model).plan({"y": torch.zeros(80), "x": torch.tensor(1.0)})
    assert posterior in [row.posterior for row in plan]
    assert stays_in_the_joint_distribution(model, 120) < 4.5


def test_hundreds_of_groups_are_drawn_together():
    y, kernel = 2 + torch.randn(400, 3), ConjugateGibbs(group_means)
    assert kernel.plan(y)["theta"].why == "jointly with 'mu'"
    assert kernel.plan(y)["theta"].posterior == "SparseNormal"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_are_uniform(name):
    """Simulation-based calibration: Talts et al. (2018), algorithm 1, ranks among thinned draws."""
    model, count, draws = PROGRAMS[name], 150, 19
    pyro.set_rng_seed(1)
    first = prior_draw(model)
    data = {name: torch.zeros_like(first[name]) for name in observed_names(model)}
    kernel = ConjugateGibbs(model)
    kernel.setup(0, data)
    ranks = []
    for _ in range(count):
        drawn = prior_draw(model)
        for name, value in data.items():
            value.copy_(drawn[name])
        values, below = {name: drawn[name] for name in kernel.initial_params}, 0
        sizes, observed = [value.numel() for value in values.values()], numbers(data)[None]
        own = features(sizes, numbers(values)[None], observed)[0]
        for _ in range(draws):
            for _ in range(4):
                values = kernel.sample(values)
            other = features(sizes, numbers(values)[None], observed)[0]
            below = below + (other < own).double() + 0.5 * (other == own).double()
        ranks.append(below)
    ranks = torch.stack(ranks) / draws
    for moment, (mean, variance) in {1: (1 / 2, 1 / 12), 2: (1 / 3, 4 / 45)}.items():
        z = (ranks.pow(moment).mean(0) - mean) / (variance / count) ** 0.5
        moved = ranks.std(0) > 0.2  # not features that are nearly constant
        assert z[moved].abs().max() < 4.5 + 0.7 * (moment == 2)


def groups_of(values):
    pyro.set_rng_seed(1)
    return 2 + torch.randn(6, 1) + 0.7 * torch.randn(6, values)


def group_means(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("groups", len(y), dim=-2):
        theta = pyro.sample("theta", dist.Normal(mu, tau.rsqrt()))
        with pyro.plate("points", y.shape[-1], dim=-1):
            pyro.sample("y", dist.Normal(theta, precision.rsqrt()), obs=y)


def test_posterior_of_nuts():
    y = groups_of(5)
    gibbs = MCMC(ConjugateGibbs(group_means), num_samples=2000, warmup_steps=100, disable_progbar=True)
    gibbs.run(y)
    nuts = MCMC(CapturedNUTS(group_means), num_samples=150, warmup_steps=100, disable_progbar=True)
    nuts.run(y)
    ours, theirs, known = gibbs.get_samples(), nuts.get_samples(), nuts.diagnostics()
    assert {name: draws.shape[1:] for name, draws in ours.items()} == {
        name: draws.shape[1:] for name, draws in theirs.items()
    }
    assert all(draws.dtype == theirs[name].dtype for name, draws in ours.items())
    for name, draws in theirs.items():
        error = draws.std(0) * (1 / known[name]["n_eff"].clamp(30.0) + 1 / 700) ** 0.5
        assert ((ours[name].mean(0) - draws.mean(0)).abs() < 4.5 * error).all()
        assert ((ours[name].std(0) / draws.std(0) - 1).abs() < 0.35).all()
    assert max(own["r_hat"].max() for own in gibbs.diagnostics().values()) < 1.05


def test_chains_together():
    y = groups_of(5)
    kernel = ConjugateGibbs(group_means)
    draws = kernel.draw(y, num_samples=500, warmup_steps=100, num_chains=3)
    assert {name: values.shape for name, values in draws.items()} == {
        "mu": (3, 500),
        "tau": (3, 500),
        "precision": (3, 500),
        "theta": (3, 500, 6, 1),
    }
    one = kernel.draw(y, num_samples=1500, warmup_steps=100, num_chains=1)
    for name, values in draws.items():
        means = values.mean(1)
        assert means.unique(dim=0).shape[0] == 3  # random numbers of their own
        assert ((means - one[name].mean(1)).abs() < 0.35 * one[name].std(1)).all()


@pytest.mark.parametrize("first", [init_to_uniform, init_to_mean])  # one number for a whole plate
def test_eager_draws_are_recorded_ones(first):
    y = groups_of(4)
    runs = []
    for eager in (False, True):
        kernel = ConjugateGibbs(group_means, eager=eager, init_strategy=first)
        pyro.set_rng_seed(3)
        kernel.setup(0, y)
        pyro.set_rng_seed(3)
        values = {name: torch.ones_like(value) for name, value in kernel.initial_params.items()}
        runs.append(kernel.sample(kernel.sample(kernel.sample(values))))
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(bool(compiles(torch.device("cpu"))), reason="needs a C++ compiler")
def test_compiled_draws_have_the_moments_of_the_recording():
    """Compilers of some versions of torch draw the same random numbers in another order."""
    y, draws = groups_of(4), []
    for compile in (False, True):
        pyro.set_rng_seed(3)
        kernel = ConjugateGibbs(group_means, compile=compile)
        draws.append(kernel.draw(y, num_samples=2000, warmup_steps=100, num_chains=4))
    for name, value in draws[0].items():
        spread = value.std((0, 1))
        assert ((value - draws[1][name]).mean((0, 1)).abs() < 0.1 * spread).all(), name
        torch.testing.assert_close(draws[1][name].std((0, 1)), spread, rtol=0.1, atol=0.0)


def test_sweeps_and_potentials_are_compiled_on_request(monkeypatch):
    def program(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        pyro.sample("y", dist.Normal(loc, scale), obs=y)

    fused = []
    monkeypatch.setattr(kernels, "compiled", lambda recording: fused.append(recording) or plain(recording))
    for compile in (False, True):
        ConjugateGibbs(program, compile=compile).draw(
            torch.tensor(0.3), num_samples=1, warmup_steps=0, num_chains=1
        )
        assert len(fused) == 2 * compile  # the sweep, and the potential of the scale


def test_potentials_of_a_fallback_are_recorded_with_the_other_sites_as_they_are():
    runs, counts = [], []

    def program(y):
        runs.append(y)
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(loc, scale), obs=y)

    y = torch.tensor([0.3, -1.0, 2.0, 0.7])
    kernel = ConjugateGibbs(program)
    kernel.setup(0, y)
    for loc in (0.0, 1.5):
        given = kernel._values = {**kernel.initial_params, "loc": torch.tensor(loc)}
        at = torch.tensor(0.4, requires_grad=True)  # the logarithm of the scale
        value = kernel._inner.potential_fn({"scale": at})
        assert kernel._values is given
        density = dist.Normal(loc, at.exp()).log_prob(y).sum() + dist.Normal(0.0, 0.5).log_prob(at)
        density = density + dist.Normal(0.0, 1.0).log_prob(torch.tensor(loc))
        torch.testing.assert_close(-value, density, rtol=1e-5, atol=1e-5)
        (slope,), (exact,) = torch.autograd.grad(value, at), torch.autograd.grad(density, at)
        torch.testing.assert_close(-slope, exact, rtol=1e-5, atol=1e-5)
        counts.append(len(runs))
    assert counts[0] == counts[1]  # the second potential is a replay


def test_chains_of_known_emissions_are_recorded_together():
    def model(y):
        with pyro.plate("states", 3):
            rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3)))
        emissions = dist.Normal(torch.tensor([0.0, 1.0, 2.0]), 1.0)
        pyro.sample("y", HiddenMarkov(torch.ones(3) / 3, rows, emissions, 20), obs=y)

    draws = ConjugateGibbs(model).draw(torch.randn(20), num_samples=3, warmup_steps=0, num_chains=2)
    assert draws["rows"].shape == (2, 3, 3, 3)  # without a warning


def test_a_sweep_is_recorded_though_the_program_asks_its_data_for_numbers():
    def model(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        scale = 2.0 if y.max() > 1 else 1.0
        pyro.sample("y", dist.Normal(loc, scale).expand([2]).to_event(1), obs=y)

    draws = ConjugateGibbs(model).draw(torch.tensor([1.0, 3.0]), num_samples=1000, warmup_steps=0)["loc"]
    assert draws.mean().item() == pytest.approx(2 / 3, abs=5 * (2 / 3 / 4000) ** 0.5)
    assert draws.var().item() == pytest.approx(2 / 3, abs=0.08)  # of precision 1 + 2 / 4


# Discrete sites: frequencies of draws against sums over all values.


def chain_of_states(y):
    rows, p = torch.tensor([[0.8, 0.2], [0.3, 0.7]]), torch.tensor([0.1, 0.6])
    z = torch.tensor(0)
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y_{t}", dist.Bernoulli(p[z]), obs=y[t])


def coins_in_a_sum(y):
    with pyro.plate("coins", 3):
        z = pyro.sample("z", dist.Bernoulli(torch.tensor([0.3, 0.5, 0.7])))
    pyro.sample("y", dist.Normal((z * torch.tensor([1.0, 2.0, -1.0])).sum(), 1.0), obs=y)


def of_all_values(model, y, shapes):
    """Exact probabilities of all values of the discrete sites together."""
    names, sizes = list(shapes), [shape.numel() for shape in shapes.values()]
    values = torch.cartesian_prod(*[torch.arange(2.0)] * sum(sizes))
    logs = []
    for row in values:
        parts = zip(shapes.items(), row.split(sizes), strict=True)
        own = {name: part.view(shape) for (name, shape), part in parts}
        own = {name: value.long() if names != ["z"] else value for name, value in own.items()}
        logs.append(poutine.trace(poutine.condition(model, own)).get_trace(y).log_prob_sum())
    return torch.stack(logs).softmax(0)


def test_a_mixture_of_one_component():
    def single(y):
        mu = pyro.sample("mu", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.ones(1)))
            pyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    draws = ConjugateGibbs(single).draw(torch.ones(5), num_samples=500, warmup_steps=5, num_chains=2)
    assert draws["z"].shape == (2, 500, 5) and not draws["z"].any()
    assert abs(draws["mu"].mean() - 5 / 6) < 0.07


def test_weights_are_integrated_out_while_their_indicators_are_drawn():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    x = torch.randn(8, 3)
    x[:, 1] = x[:, 0] + 0.2 * torch.randn(8)
    y = x @ torch.tensor([1.0, 0.0, 0.3]) + 0.3 * torch.randn(8)

    def model(x, y):
        with pyro.plate("columns", 3):
            is_in = pyro.sample("is_in", dist.Bernoulli(0.3))
            weights = pyro.sample("weights", dist.Normal(0.0, 5.0))
        with pyro.plate("rows", 8):
            pyro.sample("y", dist.Normal(x @ (is_in * weights), 0.3), obs=y)

    subsets = torch.cartesian_prod(*[torch.arange(2.0)] * 3)
    logs = []
    for inside in subsets:
        covariance = 25 * (x * inside) @ x.T + 0.09 * torch.eye(8)
        evidence = dist.MultivariateNormal(torch.zeros(8), covariance).log_prob(y)
        logs.append(evidence + dist.Bernoulli(0.3).log_prob(inside).sum())
    exact = torch.stack(logs).softmax(0) @ subsets
    found = ConjugateGibbs(model).draw(x, y, num_samples=400, warmup_steps=20, num_chains=4)["is_in"]
    assert ((found.mean((0, 1)) - exact).abs() < 0.06).all()


def test_indicators_beside_outliers():
    """The weights are not integrated out there: given the indicators alone, they have no normal posterior."""
    torch.set_default_dtype(torch.float64)
    x = torch.tensor([[1.0, 0.9], [-0.5, -0.6], [2.0, 1.8], [0.3, -0.2]])
    y, scales = torch.tensor([1.0, -0.4, 4.5, 0.2]), torch.tensor([0.3, 2.0])
    shares = torch.tensor([0.7, 0.3])

    def model():
        with pyro.plate("columns", 2):
            is_in = pyro.sample("is_in", dist.Bernoulli(0.4))
            weights = pyro.sample("weights", dist.Normal(0.0, 1.5))
        with pyro.plate("rows", 4):
            of_scales = dist.Normal((x @ (is_in * weights)).unsqueeze(-1), scales)
            pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(shares), of_scales), obs=y)

    subsets, logs = torch.cartesian_prod(*[torch.arange(2.0)] * 2), []
    for inside in subsets:
        each = []
        for chosen in torch.cartesian_prod(*[torch.arange(2)] * 4):
            covariance = 2.25 * (x * inside) @ x.T + scales[chosen].square().diag()
            evidence = dist.MultivariateNormal(torch.zeros(4), covariance).log_prob(y)
            each.append(evidence + shares[chosen].log().sum())
        logs.append(torch.stack(each).logsumexp(0) + dist.Bernoulli(0.4).log_prob(inside).sum())
    exact = torch.stack(logs).softmax(0) @ subsets
    pyro.set_rng_seed(0)
    found = ConjugateGibbs(model).draw(num_samples=500, warmup_steps=50, num_chains=64)["is_in"]
    assert ((found.mean((0, 1)) - exact).abs() < 0.02).all()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_is_masked_out_is_drawn_from_its_prior(one_by_one):
    mask, x = torch.tensor([True, True, False]), torch.tensor([1.0, 2.0, 0.0])
    prior = torch.tensor([0.8, 0.15, 0.05])

    def model():
        share = pyro.sample("share", dist.Beta(2.0, 6.0))
        with pyro.plate("numbers", 3), poutine.mask(mask=mask):
            z = pyro.sample("z", dist.Bernoulli(share))
            category = pyro.sample("category", dist.Categorical(prior))
            if not one_by_one:
                pyro.sample("y", dist.Normal(z + category, 1.0), obs=torch.tensor([1.0, 2.0, 100.0]))
        if one_by_one:
            pyro.sample("y", dist.Normal((x * (z + category)).sum(), 1.0), obs=torch.tensor(3.0))

    pyro.set_rng_seed(0)
    found = ConjugateGibbs(model).draw(num_samples=1000, warmup_steps=50, num_chains=8)
    assert found["z"][..., 2].mean() == pytest.approx(float(found["share"].mean()), abs=0.03)
    frequencies = torch.bincount(found["category"][..., 2].flatten(), minlength=3) / 8000
    assert ((frequencies - prior).abs() < 0.03).all()


@pytest.mark.parametrize("by_poutine", [False, True])
def test_a_latent_that_is_masked_out_links_its_parents_to_data(by_poutine):
    locs = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])

    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5)).long()
        with poutine.mask(mask=not by_poutine):
            fn = dist.Normal(locs[z], 1.0)
            x = pyro.sample("x", (fn if by_poutine else fn.mask(False)).to_event(1))
        pyro.sample("y", dist.Normal(x[..., 0], 1.0), obs=torch.tensor(2.0))

    pyro.set_rng_seed(0)
    found = ConjugateGibbs(model).draw(num_samples=1000, warmup_steps=50, num_chains=8)
    exact = dist.Normal(locs[:, 0], 2**0.5).log_prob(torch.tensor(2.0)).softmax(0)
    assert found["z"].mean() == pytest.approx(float(exact[1]), abs=0.015)
    assert found["x"][..., 0].mean() == pytest.approx(float(exact @ (locs[:, 0] + 2) / 2), abs=0.06)


def test_a_scaled_coin_outside_of_plates():
    def model():
        with poutine.scale(scale=2.0):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    odds = (0.3 / 0.7) ** 2 * torch.tensor(1.0).exp()
    pyro.set_rng_seed(0)
    found = ConjugateGibbs(model).draw(num_samples=1000, warmup_steps=1, num_chains=4)["z"].mean()
    assert found == pytest.approx(float(odds / (1 + odds)), abs=0.03)


@pytest.mark.parametrize("model", [chain_of_states, coins_in_a_sum])
def test_discrete_sites(model):
    y = torch.tensor([1.0, 0.0, 1.0, 1.0]) if model is chain_of_states else torch.tensor(1.2)
    kernel, draws = ConjugateGibbs(model), 2000
    kernel.setup(0, y)
    shapes = {name: value.shape for name, value in kernel.initial_params.items()}
    exact, numbers, values = of_all_values(model, y, shapes), [], kernel.initial_params
    for _ in range(draws):
        values = kernel.sample(values)
        bits = torch.cat([value.flatten() for value in values.values()]).long().tolist()
        numbers.append(int("".join(map(str, bits)), 2))
    found = torch.bincount(torch.tensor(numbers), minlength=len(exact)) / draws
    spread = (exact * (1 - exact) / draws).sqrt()
    assert ((found - exact).abs() < (4 if model is chain_of_states else 9) * spread + 1e-3).all()


def test_pairs_that_discrete_sites_may_pick_are_drawn_in_turn():
    """Other numbers depend on each other in the next sweep than at the first values."""

    def model():
        with pyro.plate("groups", 257):  # too many for one vector
            theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.Bernoulli(0.5)).long()
            rows = torch.arange(3)
            pyro.sample("y", dist.Normal(theta[rows] + theta[rows + 1 + z], 1.0), obs=torch.zeros(3))

    assert ConjugateGibbs(model).plan()["theta"].why == "its numbers in 257 turns"


def test_discrete_sites_that_pick_a_scale_leave_the_pairs_as_they_are():
    def model():
        with pyro.plate("steps", 300):
            theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
            z = pyro.sample("z", dist.Bernoulli(0.1)).long()
            pyro.sample("y", dist.Normal(theta, torch.tensor([0.3, 3.0])[z]), obs=torch.zeros(300))
        with pyro.plate("moves", 299):
            pyro.sample("move", dist.Normal(theta[1:] - theta[:-1], 0.1), obs=torch.zeros(299))

    assert ConjugateGibbs(model).plan()["theta"].why == "its numbers in 2 turns"


def test_plan():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        tau, alpha = pyro.sample("tau", dist.Gamma(1.0, 1.0)), pyro.sample("alpha", dist.Gamma(2.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("leaf", dist.StudentT(4.0, mu, 1.0))
        with pyro.plate("rows", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau.rsqrt()))
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(theta + z, scale), obs=y)
            pyro.sample("n", dist.Poisson(alpha), obs=torch.ones(len(y)))

    plan = ConjugateGibbs(model).plan(torch.zeros(3))
    assert [(row.site, row.posterior, row.treatment) for row in plan] == [
        ("mu", "NUTS", "fallback"),
        ("tau", "Gamma", "Gibbs"),
        ("alpha", "Gamma", "Gibbs"),
        ("scale", "NUTS", "fallback"),
        ("leaf", "StudentT", "Gibbs"),
        ("theta", "Normal", "Gibbs"),
        ("z", "Bernoulli", "Gibbs"),
        ("y", "", "observed"),
        ("n", "", "observed"),
    ]
    assert plan["alpha"].why == "at once with 'tau'"
    assert "scale of Normal at 'y'" in plan["scale"].why
    states = ConjugateGibbs(hidden_markov).plan({"y": torch.zeros(2, 4)})
    assert states["start"].why == "at once with 'rows', 'loc'"  # given the states
    of_components = ConjugateGibbs(mixture).plan({"y": torch.zeros(4)})
    whys = [of_components[name].why for name in ("weights", "loc", "precision")]
    assert whys == ["at once with 'loc'", "at once with 'weights'", ""]  # a precision multiplies its location
    hierarchy_plan = ConjugateGibbs(group_means).plan(groups_of(3))
    assert hierarchy_plan["theta"].why == "jointly with 'mu'"
    one_by_one = ConjugateGibbs(coins_in_a_sum).plan(torch.tensor(0.0))["z"].why
    assert one_by_one == "one by one, as they depend on each other"
    collapsed = ConjugateGibbs(indicators).plan({"y": torch.zeros(5)})["is_in"].why
    assert collapsed == "one by one, as they depend on each other, with 'w' integrated out"


def subsampled(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 10, subsample_size=5) as rows:
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])


def counts(y):
    n = pyro.sample("n", dist.Poisson(3.0))
    pyro.sample("y", dist.Normal(n, 1.0), obs=y[0])


def shorthand(y):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("rows", 10):
        pyro.sample("z", Assignment(weights))


def improper(y):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    pyro.factor("none", -5 * rate.log())
    pyro.sample("y", dist.Poisson(rate), obs=y[0])


def overflowing(y):
    loc = pyro.sample("loc", dist.Normal(1e4, 1.0))
    pyro.sample("leaf", dist.LogNormal(loc, 1.0))
    pyro.sample("y", dist.Normal(loc, 1.0), obs=y[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (overflowing, "site 'leaf': its draw is not finite; give the sites before it proper priors"),
        (subsampled, "site 'y': plate 'rows' is subsampled; a posterior's draws need all data"),
        (counts, "site 'n': Poisson has no finite number of values to draw from"),
        (shorthand, "site 'z': expected Pyro's own distributions, got Assignment"),
        (improper, "site 'rate': its conditional is no proper Gamma given the other sites"),
    ],
)
def test_refusals(model, message):
    mcmc = MCMC(ConjugateGibbs(model), num_samples=2, warmup_steps=0, disable_progbar=True)
    with pytest.raises(ValueError, match=f"^{message}"):
        mcmc.run(torch.ones(10))


@pytest.mark.parametrize(("name", "number"), [("num_samples", 0), ("num_chains", 0), ("warmup_steps", -1)])
def test_draws_need_sensible_counts(name, number):
    with pytest.raises(ValueError, match=f"^{name}: expected at least {0 if number else 1}, got {number}$"):
        ConjugateGibbs(group_means).draw(groups_of(3), **{name: number})


def test_not_a_model():
    with pytest.raises(ValueError, match=r"^model: expected a function, got int"):
        ConjugateGibbs(3)


def test_unknown_first_value():
    kernel = ConjugateGibbs(group_means)
    kernel.initial_params = {"nu": torch.tensor(1.0)}
    with pytest.raises(ValueError, match=r"^initial_params: the model has no latent site 'nu'"):
        kernel.setup(0, groups_of(3))
