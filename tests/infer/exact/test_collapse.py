"""Sites integrated out of programs, against closed forms, quadrature, finite differences and draws."""

import math
import pickle
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation, AutoNormal
from pyro.infer.autoguide.initialization import init_to_median
from torch.testing import assert_close

from pyro_fmvae import CapturedNUTS, collapse, log_evidence
from pyro_fmvae.capture import kernels
from pyro_fmvae.capture.playback import plain

EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
NUMBERS = [0.2, -0.5, 1.1, 3.0, 2.1]


@pytest.fixture(params=[torch.float32, torch.float64], ids=str, autouse=True)
def dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def schools(y=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(ERRORS)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        return pyro.sample("y", dist.Normal(theta, torch.tensor(ERRORS)), obs=y)


double_precision = pytest.mark.parametrize("dtype", [torch.float64], ids=str, indirect=True)


def log_density(program, values, *args):
    return poutine.trace(poutine.condition(program, data=values)).get_trace(*args).log_prob_sum()


def assert_same(value, exact):
    close = 1e-12 if torch.get_default_dtype() == torch.float64 else 2e-6
    assert_close(value.double(), torch.as_tensor(exact).double(), rtol=close, atol=close)


def marginal_of_schools(values, sites):
    """The log-density of eight schools without some sites, by the covariance matrix of the data."""
    y, sd = torch.tensor(EFFECTS), torch.tensor(ERRORS)
    tau = values["tau"].double()
    variance = tau**2 + sd.double() ** 2
    prior = dist.HalfCauchy(torch.tensor(5.0).double()).log_prob(tau)
    if "mu" in sites:
        covariance = variance.diag() + 25
        return prior + dist.MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(y.double())
    mu = values["mu"].double()
    prior = prior + dist.Normal(0.0, torch.tensor(5.0).double()).log_prob(mu)
    return prior + dist.Normal(mu, variance.sqrt()).log_prob(y.double()).sum()


@pytest.mark.parametrize("sites", [["theta"], ["mu", "theta"], None])
@pytest.mark.parametrize("tau", [0.01, 2.3, 400.0])
def test_schools_have_the_density_of_the_closed_form_with_two_derivatives(sites, tau):
    leaves = {"mu": torch.tensor(1.3, requires_grad=True), "tau": torch.tensor(tau, requires_grad=True)}
    collapsed = collapse(schools, sites)
    density = log_density(collapsed, leaves, torch.tensor(EFFECTS))
    exact = marginal_of_schools(leaves, sites or ["mu", "theta"])
    assert collapsed.sites == (sites or ["mu", "theta"])
    assert_same(density, exact)
    if leaves["tau"].dtype == torch.float32 and tau < 0.1:
        return  # its slope is a difference of numbers of 1e6
    for name in ["tau"] if "mu" in collapsed.sites else ["mu", "tau"]:
        first, other = (torch.autograd.grad(f, leaves[name], create_graph=True)[0] for f in (density, exact))
        assert_close(first, other, rtol=1e-4, atol=1e-5)
        second, other = (torch.autograd.grad(f, leaves[name], retain_graph=True)[0] for f in (first, other))
        assert_close(second, other, rtol=2e-3, atol=1e-4)


def binomial(k):
    p = pyro.sample("p", dist.Beta(2.0, 3.0))
    pyro.sample("k", dist.Binomial(12, p), obs=k)


def categories(x):
    w = pyro.sample("w", dist.Dirichlet(torch.tensor([1.0, 2.0, 0.5])))
    with pyro.plate("n", len(x)):
        pyro.sample("x", dist.Categorical(w), obs=x)


def counts(x):
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.7))
    with pyro.plate("n", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


def normal_gamma(x):
    tau = pyro.sample("tau", dist.Gamma(1.5, 0.7))
    mu = pyro.sample("mu", dist.Normal(0.5, (0.3 * tau).rsqrt()))
    with pyro.plate("n", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x)


def of_normal_gamma(x):
    x, n = x.double(), len(x)
    a, k = 1.5 + n / 2, 0.3 + n
    b = 0.7 + 0.5 * ((x - x.mean()) ** 2).sum() + 0.5 * 0.3 * n * (x.mean() - 0.5) ** 2 / k
    shape = math.lgamma(a) - math.lgamma(1.5) + 1.5 * math.log(0.7)
    return shape - a * b.log() + 0.5 * math.log(0.3 / k) - n / 2 * math.log(2 * math.pi)


def by_quadrature(prior, likelihood, low, high):
    return math.log(scipy.integrate.quad(lambda t: prior.pdf(t) * likelihood(t), low, high, epsabs=0)[0])


EVIDENCE = {
    "Beta and binomial": (
        binomial,
        5.0,
        lambda k: scipy.stats.betabinom.logpmf(int(k), 12, 2, 3),
    ),
    "Beta and binomial, by quadrature": (
        binomial,
        3.0,
        lambda k: by_quadrature(scipy.stats.beta(2, 3), lambda p: scipy.stats.binom.pmf(3, 12, p), 0, 1),
    ),
    "Dirichlet": (
        categories,
        [0, 1, 1, 2, 0, 1],
        lambda x: scipy.stats.dirichlet_multinomial.logpmf([2, 3, 1], [1, 2, 0.5], 6) - math.log(60),
    ),
    "Gamma and Poisson, by quadrature": (
        counts,
        [0.0, 3.0, 1.0, 2.0],
        lambda x: by_quadrature(
            scipy.stats.gamma(2, scale=1 / 0.7),
            lambda rate: math.prod(scipy.stats.poisson.pmf(k, rate) for k in (0, 3, 1, 2)),
            0,
            30,
        ),
    ),
    "Normal-Gamma": (normal_gamma, NUMBERS, of_normal_gamma),
}


@pytest.mark.parametrize("case", EVIDENCE)
def test_evidence_is_that_of_a_closed_form_or_of_quadrature(case):
    program, data, exact = EVIDENCE[case]
    data = torch.tensor(data)
    assert_same(log_evidence(program, data), exact(data))


def regression(x, y):
    with pyro.plate("columns", x.shape[1]):
        w = pyro.sample("w", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(1.0, 3.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w + b, 0.3), obs=y)


def crossed(y):
    m = pyro.sample("m", dist.Normal(0.0, 5.0))
    rows, columns = pyro.plate("rows", 4, dim=-2), pyro.plate("columns", 3, dim=-1)
    with rows:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with columns:
        b = pyro.sample("b", dist.Normal(m, 2.0))
    with rows, columns:
        pyro.sample("y", dist.Normal(a + b, 0.5), obs=y)


def level(y):
    h = pyro.sample("h", dist.Normal(0.0, 1.0))
    for t in range(len(y)):
        h = pyro.sample(f"h{t}", dist.Normal(0.9 * h, 0.5))
        pyro.sample(f"y{t}", dist.Normal(h, 0.7), obs=y[t])


def of_normals(y, mean, covariance):
    return scipy.stats.multivariate_normal.logpdf(y.double().reshape(-1), mean, covariance)


def test_sites_that_are_jointly_normal_are_integrated_out_together():
    pyro.set_rng_seed(0)
    x, y = torch.randn(20, 3), 2 + torch.randn(20)
    wide = x.double()
    covariance = 4 * wide @ wide.T + 9 + 0.09 * torch.eye(20)
    assert_same(log_evidence(regression, x, y), of_normals(y, torch.ones(20), covariance))
    table = torch.randn(4, 3) + 30
    i, j = torch.arange(12) // 3, torch.arange(12) % 3
    covariance = 1.0 * (i[:, None] == i) + 4 * (j[:, None] == j) + 25 + 0.25 * torch.eye(12)
    assert_same(log_evidence(crossed, table), of_normals(table, torch.zeros(12), covariance))
    steps = torch.randn(6)
    loadings = torch.zeros(6, 7).double()
    for t in range(6):
        loadings[t, 0] = 0.9 ** (t + 1)
        loadings[t, 1 : t + 2] = 0.5 * 0.9 ** torch.arange(t, -1, -1)
    covariance = loadings @ loadings.T + 0.49 * torch.eye(6)
    assert_same(log_evidence(level, steps), of_normals(steps, torch.zeros(6), covariance))


def test_data_far_from_zero_keep_their_digits():
    def program(y):
        mu = pyro.sample("mu", dist.Normal(1e5, 10.0))
        with pyro.plate("groups", 3):
            theta = pyro.sample("theta", dist.Normal(mu, 2.0))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    y = torch.tensor([100003.0, 99998.0, 100001.0])
    covariance = 100 + 5 * torch.eye(3)
    assert_close(
        log_evidence(program, y).double(),
        torch.tensor(of_normals(y - 1e5, torch.zeros(3), covariance)).double(),
        rtol=1e-6,
        atol=1e-6,
    )


def mixed(x, y):
    """A Gamma and a Dirichlet in plates, whose parents are left."""
    a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
    with pyro.plate("groups", 3):
        rate = pyro.sample("rate", dist.Gamma(a, 2.0))
        share = pyro.sample("share", dist.Dirichlet(a * torch.ones(3, 2)))
        with pyro.plate("n", 4):
            pyro.sample("x", dist.Poisson(rate), obs=x)
            pyro.sample("y", dist.Categorical(share), obs=y)


@double_precision
def test_gradients_are_those_of_finite_differences():
    x = torch.tensor([[0.0, 2, 1], [3, 1, 0], [2, 2, 5], [1, 0, 0]])
    y = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1], [0, 1, 0]])
    collapsed = collapse(mixed)
    assert collapsed.sites == []

    def density(a):
        return log_density(collapsed, {"a": a}, x, y)

    a = torch.tensor(1.7, requires_grad=True)
    exact = dist.LogNormal(0.0, 1.0).log_prob(a)
    total = x.sum(0)
    exact = exact + dist.GammaPoisson(a, torch.tensor(2.0)).log_prob(x[:1]).sum() * 0
    exact = (
        exact
        + (torch.lgamma(a + total) - torch.lgamma(a) + a * math.log(2.0) - (a + total) * math.log(6.0)).sum()
    )
    exact = exact - torch.lgamma(x + 1).sum()
    n = torch.stack([(y == 0).sum(0), (y == 1).sum(0)], -1)
    exact = exact + (torch.lgamma(2 * a) - torch.lgamma(2 * a + 4)) * 3
    exact = exact + (torch.lgamma(a + n) - torch.lgamma(a)).sum()
    assert_close(density(a), exact)
    assert set(collapsed.sites) == {"rate", "share"}
    assert torch.autograd.gradcheck(density, (a,), check_undefined_grad=False)
    assert torch.autograd.gradgradcheck(density, (a,), check_undefined_grad=False)


@double_precision
def test_draws_of_what_was_integrated_out_have_the_moments_of_the_closed_form():
    pyro.set_rng_seed(0)
    y, sd = torch.tensor(EFFECTS), torch.tensor(ERRORS)
    collapsed = collapse(schools, ["theta"])
    samples = {"mu": torch.full((100,), 4.0), "tau": torch.full((100,), 6.0)}
    draws = collapsed.recover(samples, y)["theta"]
    precision = sd**-2 + 6.0**-2
    standard = (draws - (y / sd**2 + 4 / 36) / precision) * precision.sqrt()
    assert draws.shape == (100, 8)
    assert (standard.mean(0).abs() * 10).max() < 4
    assert scipy.stats.kstest(standard.flatten(), "norm").pvalue > 1e-3
    both = collapse(schools).recover({"tau": torch.full((150,), 6.0)}, y)
    marginal = (sd**2 + 36).reciprocal()
    spread = (marginal.sum() + 1 / 25).rsqrt()
    assert scipy.stats.kstest((both["mu"] / spread - (marginal * y).sum() * spread), "norm").pvalue > 1e-3
    given = (both["theta"] - (y / sd**2 + both["mu"][:, None] / 36) / precision) * precision.sqrt()
    assert scipy.stats.kstest(given.flatten(), "norm").pvalue > 1e-3  # drawn given the very mu beside it


@double_precision
def test_a_precision_and_its_location_are_drawn_together():
    pyro.set_rng_seed(1)
    x = torch.tensor(NUMBERS)
    collapsed = collapse(normal_gamma)
    draws = collapsed.recover({"unused": torch.zeros(200)}, x)
    n, k = len(x), 0.3 + len(x)
    mean = (0.3 * 0.5 + x.sum()) / k
    standard = (draws["mu"] - mean) * (k * draws["tau"]).sqrt()
    assert set(draws) == {"mu", "tau"}
    assert scipy.stats.kstest(standard, "norm").pvalue > 1e-3
    b = 0.7 + 0.5 * ((x - x.mean()) ** 2).sum() + 0.5 * 0.3 * n * (x.mean() - 0.5) ** 2 / k
    assert scipy.stats.kstest(draws["tau"], "gamma", (1.5 + n / 2, 0, float(1 / b))).pvalue > 1e-3


def test_nuts_svi_and_predictive_take_the_program():
    pyro.set_rng_seed(0)
    y = torch.tensor(EFFECTS)
    collapsed = collapse(schools, ["theta"])
    mcmc = MCMC(NUTS(collapsed, max_tree_depth=3), num_samples=4, warmup_steps=4, disable_progbar=True)
    mcmc.run(y)
    samples = mcmc.get_samples()
    assert set(samples) == {"mu", "tau"}
    assert collapsed.recover(samples)["theta"].shape == (4, 8)
    guide = AutoNormal(collapsed)
    svi = SVI(collapsed, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    assert all(math.isfinite(svi.step(y)) for _ in range(3))
    prior = Predictive(collapsed, num_samples=60)()
    assert set(prior) >= {"mu", "tau", "y"}
    gap = prior["y"] - prior["mu"]
    expected = scipy.stats.norm.cdf(5 / math.hypot(5, ERRORS[4]))  # at tau = 5, in the middle
    near = gap[:, 4].abs() < 5 * 1.0
    assert 0.1 < near.float().mean() < 2 * expected


@double_precision
def test_laplace_has_the_curvature_of_the_collapsed_density():
    y = torch.tensor(EFFECTS)

    def program(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        with pyro.plate("schools", 8):
            theta = pyro.sample("theta", dist.Normal(mu, 3.0))
            pyro.sample("y", dist.Normal(theta, torch.tensor(ERRORS)), obs=y)

    collapsed = collapse(program, ["theta"])
    pyro.clear_param_store()
    guide = AutoLaplaceApproximation(collapsed)
    svi = SVI(collapsed, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    svi.step(y)
    found = guide.laplace_approximation(y).get_posterior().scale_tril.squeeze()
    precision = (torch.tensor(ERRORS) ** 2 + 9).reciprocal().sum() + 1 / 25
    assert_close(found, precision.rsqrt())


def test_points_of_a_minibatch_have_the_scaled_density():
    x = torch.tensor([1.0, 3.0, -2.0, 0.5])

    def program(rows):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("points", 4, subsample=rows):
            z = pyro.sample("z", dist.Normal(mu, 1.5))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x[rows])

    collapsed, values = collapse(program, ["z"]), {"mu": torch.tensor(0.7)}
    rows = torch.tensor([1, 2])
    own = dist.Normal(0.7, math.hypot(1.5, 1.0)).log_prob(x[rows]).sum()
    assert_same(
        log_density(collapsed, values, rows), 2 * own + dist.Normal(0.0, 2.0).log_prob(torch.tensor(0.7))
    )
    with pytest.raises(ValueError, match=r"^site 'mu': all data are needed .* plate 'points' of 'z' is sub"):
        collapse(program, ["mu", "z"])(rows)


def test_enumerated_sites_stay_where_no_integrated_site_depends_on_them():
    x, y = torch.tensor([0.1, 2.0, 3.0]), torch.tensor([1.0, 2.0])

    def program():
        theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("n", 3):
            z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(3 * z + loc, 1.0), obs=x)
        with pyro.plate("m", 2):
            pyro.sample("y", dist.Normal(theta + loc, 1.0), obs=y)

    collapsed = collapse(program, ["theta"])
    mcmc = MCMC(NUTS(collapsed), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run()
    assert set(mcmc.get_samples()) == {"loc"}
    at = torch.tensor(0.4)
    (potential,) = (mcmc.kernel.potential_fn({"loc": at}),)
    mixture = torch.logaddexp(
        dist.Normal(at, 1.0).log_prob(x) + math.log(0.7), dist.Normal(at + 3, 1.0).log_prob(x) + math.log(0.3)
    ).sum()
    own = dist.MultivariateNormal(at * torch.ones(2), torch.eye(2) + 1).log_prob(y)
    assert_close(-potential.to(at), mixture + own + dist.Normal(0.0, 1.0).log_prob(at), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"^site 'loc': .* discrete site 'z'; observe or condition 'z'"):
        collapse(program, ["loc"])()


def independent(x):
    tau = pyro.sample("tau", dist.Gamma(1.5, 0.7))
    mu = pyro.sample("mu", dist.Normal(0.5, 2.0))
    with pyro.plate("n", len(x)):
        pyro.sample("x", dist.Normal(mu, tau.rsqrt()), obs=x)


def product(x):
    a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with pyro.plate("n", len(x)):
        pyro.sample("x", dist.Normal(a * b, 1.0), obs=x)


def logistic(x):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("n", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=w * x), obs=(x > 1).to(x))


def mixture(x):
    w = pyro.sample("w", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("n", len(x)):
        normals = dist.Normal(torch.tensor([0.0, 2.0]), 1.0)
        pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(w), normals), obs=x)


@pytest.mark.parametrize(
    ("program", "sites", "message"),
    [
        (independent, ["mu", "tau"], r"sites 'mu' and 'tau': .* multiplied .* log-density of 'x'"),
        (product, ["a", "b"], r"sites 'a' and 'b': .* multiplied .* log-density of 'x'"),
        (logistic, ["w"], r"site 'w': .* no closed form as logits of Bernoulli at 'y'"),
        (logistic, None, r"sites: expected sites that can be integrated out, got none in \['w'\]"),
        (mixture, ["w"], r"site 'w': .* the MixtureSameFamily at 'x' .* sums over something itself"),
        (independent, ["nu"], r"sites: expected names of continuous latent sites, .* got 'nu'"),
        (independent, "mu", r"sites: expected a list of names of sites, got 'mu'; write \['mu'\]"),
        (3, None, r"model: expected a function, got int; do not call it"),
    ],
)
def test_an_error_names_what_stands_in_the_way(program, sites, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        poutine.trace(collapse(program, sites)).get_trace(torch.tensor(NUMBERS))
    assert "\n" not in str(error.value)


def test_a_result_without_numbers_is_none():
    def program(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("n", len(x)):
            pyro.sample("x", dist.Normal(w, 1.0), obs=x)
        return 2 * w if len(x) == 2 else x

    def result(x):
        return poutine.trace(collapse(program)).get_trace(x).nodes["_RETURN"]["value"]

    assert result(torch.ones(2)) is None
    assert result(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_data_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match=r"^site 'x': 1 of its 2 observed values are not finite"):
        collapse(independent, ["mu"])(torch.tensor([1.0, math.inf]))


def test_samples_of_all_other_sites_are_needed():
    collapsed = collapse(schools, ["theta"])
    with pytest.raises(ValueError, match=r"^samples: expected those of 'tau', too"):
        collapsed.recover({"mu": torch.zeros(3)}, torch.tensor(EFFECTS))
    with pytest.raises(ValueError, match=r"^samples: expected the same number for each site, got \[2, 3\]"):
        collapsed.recover({"mu": torch.zeros(3), "tau": torch.ones(2)}, torch.tensor(EFFECTS))


def kernel_of(kind, program, *args):
    pyro.set_rng_seed(0)
    kernel = kind(program)
    with pyro.validation_enabled(False):
        kernel.setup(0, *args)
    return kernel


@pytest.mark.parametrize("program", [schools, collapse(schools), collapse(schools, ["theta"])])
def test_recorded_potentials_and_slopes_are_those_of_nuts(program, dtype):
    y = torch.tensor(EFFECTS)
    eager, recorded = (kernel_of(kind, program, y) for kind in (NUTS, CapturedNUTS))
    # A collapsed potential is float64, and with its first gradients so are the values of later calls.
    for shift, of in ((0.0, dtype), (0.7, torch.float64), (-2.0, torch.float64)):
        found = []
        for kernel in (eager, recorded):
            at = {n: (v.detach() + shift).to(of).requires_grad_() for n, v in eager.initial_params.items()}
            value = kernel.potential_fn(at)
            found.append([value, *torch.autograd.grad(value, at.values())])
        assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
    draws = []
    for kind in (NUTS, CapturedNUTS):
        pyro.set_rng_seed(1)
        kernel = kind(program, init_strategy=init_to_median, max_tree_depth=4)  # one number for a whole plate
        mcmc = MCMC(kernel, num_samples=5, warmup_steps=5, disable_progbar=True)
        mcmc.run(y)
        draws.append(mcmc.get_samples())
    assert_close(draws[1], draws[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("compile", [False, True])
def test_a_potential_runs_the_model_for_its_recording_alone(compile, monkeypatch):
    runs, fused = [], []
    monkeypatch.setattr(kernels, "compiled", lambda recording: fused.append(recording) or plain(recording))

    def program(y):
        runs.append(y)
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(mu.flatten(), 1.0).to_event(1), obs=y)

    kernel = kernel_of(partial(CapturedNUTS, compile=compile), program, torch.full((6,), 0.3))
    kernel.potential_fn({"mu": torch.zeros(2, 3)})
    before = len(runs)
    at = torch.tensor(-0.7).expand(2, 3).requires_grad_()  # one number for a whole plate
    value = kernel.potential_fn({"mu": at})
    assert len(runs) == before and len(fused) == compile
    (slope,) = torch.autograd.grad(3 * value, at)
    assert_close(slope, torch.full((2, 3), 3 * (-0.7 / 4 - 0.7 - 0.3)))


def test_files_of_a_recorded_potential():
    kernel = kernel_of(CapturedNUTS, schools, torch.tensor(EFFECTS))
    at = {name: value.detach() for name, value in kernel.initial_params.items()}
    value = kernel.potential_fn(at)
    assert_close(pickle.loads(pickle.dumps(kernel.potential_fn))(at), value)


def test_a_potential_that_asks_for_numbers_runs_eagerly():
    def asks(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        scale = 1. if mu > 0 else 2.  # fmt: skip
        pyro.sample("y", dist.Normal(mu, scale), obs=y)

    with pytest.warns(
        UserWarning, match=r"runs eagerly: a number .*line \d+: scale = 1\. if mu > 0 else 2\."
    ):
        kernel = kernel_of(CapturedNUTS, asks, torch.tensor(0.3))
    value = kernel.potential_fn({"mu": torch.tensor(-0.5)})
    assert_close(value, kernel_of(NUTS, asks, torch.tensor(0.3)).potential_fn({"mu": torch.tensor(-0.5)}))


@pytest.mark.slow
@double_precision
def test_nuts_over_the_collapsed_program_has_the_posterior_by_quadrature():
    pyro.set_rng_seed(2)
    y = torch.tensor(EFFECTS)
    mcmc = MCMC(NUTS(collapse(schools)), num_samples=1500, warmup_steps=300, disable_progbar=True)
    mcmc.run(y)
    grid = torch.linspace(-6, 6, 4001)
    log = torch.stack([marginal_of_schools({"tau": t.exp()}, ["mu"]) + t for t in grid])
    weight = log.softmax(0)
    mean = (weight * grid).sum()
    spread = (weight * (grid - mean) ** 2).sum().sqrt()
    found = mcmc.get_samples()["tau"].log()
    size = mcmc.diagnostics()["tau"]["n_eff"]
    assert (found.mean() - mean).abs() < 4 * spread / size.sqrt()
    assert_close(found.std(), spread, rtol=0.15, atol=0.0)
