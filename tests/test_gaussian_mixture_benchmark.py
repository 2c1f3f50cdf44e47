"""The benchmark against scikit-learn's Gaussian mixture: the same prior, the same measure, and it runs."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from sklearn.mixture import BayesianGaussianMixture

from pyro_fmvae import NaturalNormalGamma, NaturalNormalWishart

BENCHMARKS = Path(__file__).resolve().parent.parent / "examples" / "benchmarks"
N, D, K = 300, 3, 4


@pytest.fixture(scope="module")
def methods():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("gaussian_mixture_methods")
    for name in ("gaussian_mixture_methods", "gaussian_mixture_posterior"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def posteriors(methods):
    return sys.modules["gaussian_mixture_posterior"]


@pytest.fixture
def script(methods, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("gaussian_mixture")
    for name in ("gaussian_mixture", "gaussian_mixture_estimator"):
        del sys.modules[name]


@pytest.fixture
def x():
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((K, D)) + [5.0, 0.0, -1.0]
    return centres[rng.integers(K, size=N)] + [0.5, 1.0, 2.0] * rng.standard_normal((N, D))


@pytest.fixture(params=["diag", "full"])
def priors(posteriors, request):
    """No two alike, and none that scikit-learn would take by itself."""
    scatter = np.array([[0.8, 0.3, 0.0], [0.3, 2.2, -0.9], [0.0, -0.9, 4.6]])
    scatter = scatter.diagonal().copy() if request.param == "diag" else scatter
    return posteriors.Priors(0.3, np.array([4.0, 0.5, -2.0]), 0.7, 4.2, scatter)


@pytest.fixture
def start(methods):
    """Every seventh point with random responsibilities."""
    gamma = torch.as_tensor(np.random.default_rng(2).dirichlet(np.ones(K), size=len(range(0, N, 7))))
    return methods.Start(torch.arange(0, N, 7), gamma)


@pytest.fixture
def trace(posteriors):
    return posteriors.Trace(posteriors.CLOCKS["cpu"], math.inf)


def sklearn_mixture(methods, priors, start, trace, x, kind=None):
    mixture = (kind or methods.TracedMixture)(n_components=K, **priors.for_sklearn(np.float64))
    mixture.start_at(start, priors, trace)
    mixture._check_parameters(x)
    mixture._initialize_parameters(x, None)
    return mixture


def iterate(mixture, x):
    log_prob_norm, log_resp = mixture._e_step(x)
    mixture._m_step(x, log_resp)
    return torch.as_tensor(log_resp), mixture._compute_lower_bound(log_resp, log_prob_norm)


def assert_close(posterior, expected):
    torch.testing.assert_close(posterior.counts, expected.counts, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.components, expected.components, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariances", ["diag", "full"])
def test_default_priors_are_those_of_sklearn(posteriors, x, covariances):
    mixture = BayesianGaussianMixture(
        n_components=K,
        covariance_type=covariances,
        weight_concentration_prior_type="dirichlet_distribution",
    )
    mixture._check_parameters(x)
    given = posteriors.Priors.of_data(x, K, covariances).for_sklearn(np.float64)
    for name in ("weight_concentration", "mean", "mean_precision", "degrees_of_freedom", "covariance"):
        np.testing.assert_allclose(getattr(mixture, f"{name}_prior_"), given[f"{name}_prior"], rtol=1e-12)


def test_an_m_step_is_a_natural_step_with_all_data(methods, posteriors, priors, start, trace, x):
    """From any responsibilities: the exact posterior equals scikit-learn's M-step."""
    gamma = np.random.default_rng(1).dirichlet(np.ones(K), size=N)
    mixture = sklearn_mixture(methods, priors, start, trace, x)
    mixture._m_step(x, np.log(gamma))
    exact = posteriors.Posterior.after(priors, torch.as_tensor(x), torch.as_tensor(gamma))
    assert_close(posteriors.Posterior.of_sklearn(priors, mixture), exact)


def test_both_start_at_the_same_posterior(methods, priors, start, trace, x):
    mixture = sklearn_mixture(methods, priors, start, trace, x)
    assert_close(mixture.trace.points[0][2], start.posterior(torch.as_tensor(x), priors))


def test_a_start_has_the_clusters_of_k_means(methods, x):
    data = torch.as_tensor(x)
    start = methods.Start.by_kmeans(data, 40, K, generator())
    assert len(start.rows.unique()) == 40
    assert start.gamma.shape == (40, K)
    points, counts = data[start.rows], start.gamma.sum(0)
    centres = start.gamma.double().mT @ points / counts.unsqueeze(-1)
    nearest = torch.cdist(points, centres).argmin(-1)
    assert (nearest == start.gamma.argmax(-1)).double().mean() > 0.9


def test_steps_of_the_program_are_iterations_of_sklearn(methods, posteriors, priors, start, trace, x):
    """One step under the ELBO, responsibilities included, is one iteration with the mended E-step."""
    data = torch.as_tensor(x)
    first = start.posterior(data, priors)
    methods.fit_full_batch(data, first, trace, step="eager", tol=1e-3, iterations=50)
    steps = trace.points[-1][1]
    assert 3 < steps < 50
    assert trace.converged
    kind = methods.ExactMixture if priors.covariance_type == "diag" else methods.TracedMixture
    other = posteriors.Trace(trace.clock, math.inf)
    mixture = sklearn_mixture(methods, priors, start, other, x, kind)
    for _, _, posterior in trace.points[1:]:
        iterate(mixture, x)
        assert_close(posteriors.Posterior.of_sklearn(priors, mixture), posterior)


def test_the_bound_is_that_of_sklearn(methods, posteriors, priors, start, trace, x):
    """At the same q(r) q(π, μ, Λ), far from convergence and near it, with all that theirs leaves out.

    Theirs of diagonal covariances has Σ_d log Γ((ν - d)/2) in the place of D log Γ(ν/2).
    """
    mixture, data, c, nu = sklearn_mixture(methods, priors, start, trace, x), torch.as_tensor(x), 0.3, 4.2
    order = np.arange(D)[:, None] if priors.covariance_type == "full" else np.zeros((D, 1))
    rates = np.linalg.slogdet(np.diag(priors.scatter) if priors.scatter.ndim == 1 else priors.scatter)[1]
    each = 0.5 * nu * (rates - D * math.log(2)) - gammaln((nu - order) / 2).sum() + 0.5 * D * math.log(0.7)
    constants = K * each + gammaln(K * c) - K * gammaln(c) - 0.5 * N * D * math.log(2 * math.pi)
    for _ in range(200):
        log_gamma, theirs = iterate(mixture, x)
        posterior = posteriors.Posterior.of_sklearn(priors, mixture)
        shapes = mixture.degrees_of_freedom_ / 2
        theirs += (gammaln(shapes - order / 2) - gammaln(shapes - np.arange(D)[:, None] / 2)).sum()
        gain = (log_gamma.exp() * (posterior.expected_log_joint(data) - log_gamma)).sum().item()
        assert gain - posterior.divergence() == pytest.approx(theirs + constants, rel=1e-10)
    # At convergence the responsibilities are optimal, if the E-step is
    if priors.covariance_type == "full":
        assert posterior.bound(data) == pytest.approx((theirs + constants) / N, rel=1e-6)


@pytest.mark.parametrize("priors", ["diag"], indirect=True)
def test_e_steps_differ_by_the_wishart_term(methods, posteriors, priors, start, trace, x):
    mixture = sklearn_mixture(methods, priors, start, trace, x)
    iterate(mixture, x)
    table = posteriors.Posterior.of_sklearn(priors, mixture).expected_log_joint(torch.as_tensor(x))
    gap = posteriors.e_step_gap(mixture.degrees_of_freedom_, D)
    nu = mixture.degrees_of_freedom_
    by_hand = 0.5 * (2 * digamma(nu / 2) - digamma((nu - 1) / 2) - digamma((nu - 2) / 2))
    np.testing.assert_allclose(gap, by_hand)
    np.testing.assert_allclose(mixture._estimate_weighted_log_prob(x) + gap, table, rtol=1e-9)


def test_the_measures_hold_against_draws(posteriors, priors, x):
    """E[log π_k + log N] and the predictive density, by drawing (π, μ, Λ) from the posterior."""
    posterior = posteriors.Posterior.after(priors, torch.as_tensor(x[:40]), torch.eye(K).repeat(10, 1))
    draws, point = 20_000, torch.as_tensor(x[50])
    if priors.covariance_type == "diag":
        loc, precision = NaturalNormalGamma(posterior.components, torch.float64).sample((draws,)).unbind(-2)
        normals = torch.distributions.Independent(torch.distributions.Normal(loc, precision.rsqrt()), 1)
    else:
        value = NaturalNormalWishart(posterior.components, torch.float64).sample((draws,))
        loc, factor = value[..., 0, :], value[..., 1:, :]
        normals = torch.distributions.MultivariateNormal(loc, precision_matrix=factor.mT @ factor)
    weights = torch.distributions.Dirichlet(posterior.counts).sample((draws,))
    log_joint = weights.log() + normals.log_prob(point)
    error = log_joint.std(0) / math.sqrt(draws)
    assert ((log_joint.mean(0) - posterior.expected_log_joint(point[None])[0]).abs() < 5 * error).all()
    density = log_joint.exp().sum(-1)
    predictive = math.exp(posterior.log_predictive(point[None]))
    assert abs(density.mean().item() - predictive) < 5 * density.std().item() / math.sqrt(draws)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def minibatches(methods):
    """60 passes in batches of 50."""
    return methods.Minibatches("eager", lambda step: 1 / (2 + step) ** 0.6, size=50, epochs=60)


def test_minibatches_reach_the_bound_of_all_data(methods, posteriors, priors, minibatches, x):
    data = torch.as_tensor(x)
    first, bounds = methods.Start.by_kmeans(data, 100, K, generator()).posterior(data, priors), []
    for fit, arguments in (
        (methods.fit_full_batch, {"step": "eager", "tol": 1e-9, "iterations": 300}),
        (minibatches.fit, {"generator": generator()}),
    ):
        trace = posteriors.Trace(posteriors.CLOCKS["cpu"], math.inf)
        fit(data, first, trace, **arguments)
        bounds.append(trace.points[-1][2].bound(data))
        seconds, steps = [point[0] for point in trace.points], [point[1] for point in trace.points]
        assert 0 < trace.setup < seconds[0]
        assert seconds == sorted(seconds)
        assert steps == sorted(set(steps))
    assert abs(bounds[0] - bounds[1]) < 0.001


def test_the_best_start_goes_on(methods, priors, minibatches, trace, x, monkeypatch):
    """Of three starts, the second of which alone has clusters: the others know of a single one."""
    data, kmeans, tried = torch.as_tensor(x), methods.seeding.kmeans, []

    def clusters(points, components, generator):
        tried.append(kmeans(points, components, generator))
        return tried[-1] * (len(tried) == 2)

    monkeypatch.setattr(methods.seeding, "kmeans", clusters)
    minibatches.fit_best(data, priors, K, trace, generator(), starts=3, trial=5, sample=100)
    assert len(tried) == 3
    assert [step for _, step, _ in trace.points[:3]] == [5, 10, 15]
    first, second, third = (posterior for _, _, posterior in trace.points[:3])
    assert second.bound(data) > first.bound(data) + 0.1
    assert third is second
    assert trace.points[-1][2].bound(data) > second.bound(data)
    assert trace.points[-1][1] == 15 + 60 * N // 50


def test_time_to_a_bound(script):
    curve = np.array([[0.0, 1.0, 2.0, 3.0], [-9.0, -5.0, -5.5, -4.0]])
    assert script.seconds_to(curve, -5.0, 0.01) == 1.0
    assert script.seconds_to(curve, -4.1, 0.2) == 3.0
    assert script.seconds_to(curve, -3.9, 0.01) is None
    assert script.seconds_to(curve, None, 0.01) is None


@pytest.mark.parametrize("covariances", ["diag", "full"])
def test_it_runs(script, methods, tmp_path, monkeypatch, capsys, covariances):
    monkeypatch.chdir(tmp_path)
    arguments = "--points 600 --dim 2 --components 3 --batch-size 100 --epochs 20 --held-out 200"
    arguments += f" --max-seconds 60 --threads 1 --json --plot curves.png --covariances {covariances}"
    script.main(arguments.split())
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = ("minibatch of 100", "best start of 100")
    names = [f"{kind}, {step}" for step in ("eager", "captured") for kind in kinds]
    names += ["estimator of 100", "estimator, full batch"]
    names += ["full batch, eager", "full batch, captured", "sklearn", "sklearn float32"]
    names += ["sklearn exact"] if covariances == "diag" else []
    assert [record["method"] for record in records] == names
    for record in records:
        assert -10 < record["bound"] <= record["best_bound"] < 0
        assert -10 < record["predictive"] < 0
        assert 1 <= record["active"] <= 3
    by_name = {record["method"]: record for record in records}
    theirs = by_name["sklearn"]
    assert 0 < theirs["to_0.01"] <= theirs["to_0.001"] <= theirs["seconds"]
    for name in (*kinds, "full batch"):
        eager, captured = by_name[f"{name}, eager"], by_name[f"{name}, captured"]
        assert captured["bound"] == pytest.approx(eager["bound"], abs=1e-3)
        assert captured["setup"] > 0 and eager["setup"] > 0
    best = by_name["sklearn exact" if covariances == "diag" else "sklearn"]
    for name in ("full batch, eager", "estimator of 100", "estimator, full batch"):
        assert by_name[name]["bound"] == pytest.approx(best["bound"], abs=0.01)
    assert by_name["estimator of 100"]["setup"] > 0
    assert (tmp_path / "curves.png").stat().st_size > 0
