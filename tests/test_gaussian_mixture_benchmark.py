"""The benchmark against scikit-learn's Gaussian mixture: the same prior, the same measure, and it runs."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import digamma
from sklearn.cluster import kmeans_plusplus
from sklearn.mixture import BayesianGaussianMixture

from pyro_fmvae import NaturalNormalGamma

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
    del sys.modules["gaussian_mixture"]


@pytest.fixture
def x():
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((K, D)) + [5.0, 0.0, -1.0]
    return centres[rng.integers(K, size=N)] + [0.5, 1.0, 2.0] * rng.standard_normal((N, D))


@pytest.fixture
def priors(posteriors):
    """No two alike, and none that scikit-learn would take by itself."""
    return posteriors.Priors(0.3, np.array([4.0, 0.5, -2.0]), 0.7, 2.1, np.array([0.4, 1.1, 2.3]))


def sklearn_mixture(methods, posteriors, priors, x, kind=None):
    """At its start: the first K points."""
    mixture = (kind or methods.TracedMixture)(
        n_components=K, covariance_type="diag", reg_covar=0.0, **priors.for_sklearn(np.float64)
    )
    mixture.start_at(np.arange(K), posteriors.Trace(posteriors.CLOCKS["cpu"], math.inf))
    mixture._check_parameters(x)
    mixture._initialize_parameters(x, None)
    return mixture


def iterate(mixture, x):
    mixture._m_step(x, mixture._e_step(x)[1])


def first_points(posteriors, priors, x):
    return posteriors.Posterior.after(priors, torch.as_tensor(x[:K]), torch.eye(K))


def assert_close(posterior, expected):
    torch.testing.assert_close(posterior.counts, expected.counts, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.components, expected.components, rtol=1e-9, atol=1e-9)


def test_default_priors_are_those_of_sklearn(posteriors, x):
    mixture = BayesianGaussianMixture(
        n_components=K, covariance_type="diag", weight_concentration_prior_type="dirichlet_distribution"
    )
    mixture._check_parameters(x)
    for name, value in posteriors.Priors.of_data(x, K).for_sklearn(np.float64).items():
        if name != "weight_concentration_prior_type":
            np.testing.assert_allclose(getattr(mixture, f"{name}_"), value, rtol=1e-12)


def test_an_m_step_is_a_natural_step_with_all_data(methods, posteriors, priors, x):
    """From any responsibilities: the exact posterior equals scikit-learn's M-step."""
    gamma = np.random.default_rng(1).dirichlet(np.ones(K), size=N)
    mixture = sklearn_mixture(methods, posteriors, priors, x)
    mixture._m_step(x, np.log(gamma))
    exact = posteriors.Posterior.after(priors, torch.as_tensor(x), torch.as_tensor(gamma))
    assert_close(posteriors.Posterior.of_sklearn(mixture), exact)


def test_both_start_at_the_same_posterior(methods, posteriors, priors, x):
    """And at that of scikit-learn's own "k-means++", which picks such points too."""
    mixture = sklearn_mixture(methods, posteriors, priors, x)
    assert_close(mixture.trace.points[0][2], first_points(posteriors, priors, x))
    own = BayesianGaussianMixture(
        n_components=K,
        covariance_type="diag",
        reg_covar=0.0,
        init_params="k-means++",
        **priors.for_sklearn(np.float64),
    )
    own._check_parameters(x)
    own._initialize_parameters(x, np.random.RandomState(0))
    seeds = kmeans_plusplus(x, K, random_state=0)[1]
    start = posteriors.Posterior.after(priors, torch.as_tensor(x[seeds]), torch.eye(K))
    assert_close(posteriors.Posterior.of_sklearn(own), start)


def test_steps_of_the_program_are_iterations_of_sklearn(methods, posteriors, priors, x):
    """One step under the ELBO, responsibilities included, is one iteration with the mended E-step."""
    data, start = torch.as_tensor(x), first_points(posteriors, priors, x)
    trace = posteriors.Trace(posteriors.CLOCKS["cpu"], math.inf)
    methods.fit_full_batch(data, priors, start, trace, step="eager", tol=1e-3)
    steps = trace.points[-1][1]
    assert steps > 3
    assert trace.converged
    mixture = sklearn_mixture(methods, posteriors, priors, x, methods.ExactMixture)
    for _, _, posterior in trace.points[1:]:
        iterate(mixture, x)
        assert_close(posteriors.Posterior.of_sklearn(mixture), posterior)


def test_e_steps_differ_by_the_wishart_term(methods, posteriors, priors, x):
    mixture = sklearn_mixture(methods, posteriors, priors, x)
    iterate(mixture, x)
    table = posteriors.Posterior.of_sklearn(mixture).expected_log_joint(torch.as_tensor(x))
    gap = posteriors.e_step_gap(mixture.degrees_of_freedom_, D)
    nu = mixture.degrees_of_freedom_
    by_hand = 0.5 * (2 * digamma(nu / 2) - digamma((nu - 1) / 2) - digamma((nu - 2) / 2))
    np.testing.assert_allclose(gap, by_hand)
    np.testing.assert_allclose(mixture._estimate_weighted_log_prob(x) + gap, table, rtol=1e-9)


def test_the_measures_hold_against_draws(posteriors, priors, x):
    """E[log π_k + log N] and the predictive density, by drawing (π, μ, α) from the posterior."""
    posterior = posteriors.Posterior.after(priors, torch.as_tensor(x[:40]), torch.eye(K).repeat(10, 1))
    draws, point = 20_000, torch.as_tensor(x[50])
    loc, precision = NaturalNormalGamma(posterior.components, torch.float64).sample((draws,)).unbind(-2)
    weights = torch.distributions.Dirichlet(posterior.counts).sample((draws,))
    log_joint = weights.log() + torch.distributions.Normal(loc, precision.rsqrt()).log_prob(point).sum(-1)
    error = log_joint.std(0) / math.sqrt(draws)
    assert ((log_joint.mean(0) - posterior.expected_log_joint(point[None])[0]).abs() < 5 * error).all()
    density = log_joint.exp().sum(-1)
    predictive = math.exp(posterior.log_predictive(point[None]))
    assert abs(density.mean().item() - predictive) < 5 * density.std().item() / math.sqrt(draws)
    assert posterior.bound(point[None]) < posterior.log_predictive(point[None])


def test_minibatches_reach_the_bound_of_all_data(methods, posteriors, priors, x):
    data, start = torch.as_tensor(x), first_points(posteriors, priors, x)
    bounds = []
    for fit, arguments in (
        (methods.fit_full_batch, {"step": "eager", "tol": 1e-9}),
        (
            methods.fit_minibatch,
            {
                "step": "eager",
                "rate": lambda step: 1 / (2 + step) ** 0.9,
                "size": 50,
                "epochs": 60,
                "generator": torch.Generator().manual_seed(0),
            },
        ),
    ):
        trace = posteriors.Trace(posteriors.CLOCKS["cpu"], math.inf)
        fit(data, priors, start, trace, **arguments)
        bounds.append(trace.points[-1][2].bound(data))
        seconds, steps = [point[0] for point in trace.points], [point[1] for point in trace.points]
        assert seconds == sorted(seconds)
        assert steps == sorted(set(steps))
    assert abs(bounds[0] - bounds[1]) < 0.02


def test_time_to_a_bound(script):
    curve = np.array([[0.0, 1.0, 2.0, 3.0], [-9.0, -5.0, -5.5, -4.0]])
    assert script.seconds_to(curve, -5.0, 0.01) == 1.0
    assert script.seconds_to(curve, -4.1, 0.2) == 3.0
    assert script.seconds_to(curve, -3.9, 0.01) is None
    assert script.seconds_to(curve, None, 0.01) is None


def test_it_runs(script, methods, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = "--points 600 --dim 2 --components 3 --batch-size 100 --epochs 20 --held-out 200"
    arguments += " --step eager --step captured --max-seconds 60 --threads 1 --json --plot curves.png"
    script.main(arguments.split())
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["minibatch of 100, eager", "minibatch of 100, captured"]
    names += ["full batch, eager", "full batch, captured", *script.THEIRS]
    assert [record["method"] for record in records] == names
    for record in records:
        assert -10 < record["bound"] < record["predictive"] < 0
        assert 1 <= record["active"] <= 3
        assert 0 <= record["to_own"] <= record["seconds"]
    by_name = {record["method"]: record for record in records}
    assert by_name["sklearn"]["to_sklearn"] is not None
    for name in ("minibatch of 100", "full batch"):
        eager, captured = by_name[f"{name}, eager"], by_name[f"{name}, captured"]
        assert captured["bound"] == pytest.approx(eager["bound"], abs=1e-3)
        assert captured["setup"] > eager["setup"] > 0
    assert by_name["full batch, eager"]["bound"] == pytest.approx(by_name["sklearn exact"]["bound"], abs=0.01)
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_it_prints_a_table(script, capsys):
    arguments = (
        "--points 300 --points 400 --dim 2 --components 2 --held-out 50 --method sklearn --max-seconds 1"
    )
    script.main(arguments.split())
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == list(script.COLUMNS)
    assert [line.split()[:2] for line in lines[2:]] == [["sklearn", "300"], ["sklearn", "400"]]


@pytest.mark.parametrize("option", ["--points", "--components", "--batch-size"])
def test_sizes_are_whole_numbers(script, capsys, option):
    with pytest.raises(SystemExit):
        script.main([option, "0"])
    assert "expected a whole number >= 1, got '0'" in capsys.readouterr().err
