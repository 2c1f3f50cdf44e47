"""Linear dynamical systems as estimators: against dense Gaussians and the Pyro program."""

import pickle

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.learn import linear_ascent
from pyro_fmvae.learn.linear_ascent import FIRST, Steps
from pyro_fmvae.sklearn import LinearDynamicalSystem, linear_dynamical_system

LENGTHS = [40, 25, 15]
WEIGHTS_OF_STEPS = "a weight belongs to a sequence; the check's differ within one"


@pytest.fixture(scope="module")
def rows():
    """Steps of a swing in three columns of different units, some numbers and whole steps missing."""
    rng = np.random.default_rng(0)
    turn = 0.98 * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    found = []
    for length in LENGTHS:
        z = rng.normal(size=2) * 4
        for _ in range(length):
            found.append(5 + z @ [[1, 100, 0.1], [0, 50, 0.3]] + rng.normal(size=3) * [1, 20, 0.05])
            z = turn @ z + rng.normal(size=2)
    x = np.array(found)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[20:25] = np.nan
    return x


@pytest.fixture(scope="module")
def system(rows):
    return LinearDynamicalSystem(2, random_state=0).fit(rows, lengths=LENGTHS)


@parametrize_with_checks(
    [LinearDynamicalSystem(), LinearDynamicalSystem(1)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weights_not_overwritten": WEIGHTS_OF_STEPS,
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS_OF_STEPS,
    },
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("gaps", [True, False])
def test_bound_is_that_of_the_program(rows, width, gaps, dtype, clean_slate):
    """Recognised by the engine from distributions, which knows nothing of the estimator's sums."""
    torch.set_default_dtype(dtype)
    x, lengths = (rows, LENGTHS) if gaps else (np.nan_to_num(rows[25:65], nan=5.0), [20, 20])
    weights = np.array([1.0, 2.0, 0.5])[: len(lengths)]
    model = LinearDynamicalSystem(width, tol=1e-5).fit(x, lengths=lengths, sample_weight=weights)
    assert np.diff(model.lower_bounds_).min() > -1e-7
    arguments, program, guide = model.model_arguments(x, lengths, weights), model.model_, model.guide_
    elbo, units = TraceConjugate_ELBO(), np.repeat(weights, lengths) @ model._columns.log_scales(x)
    svi = ConjugateSVI(program, guide, NaturalGradient(1.0), elbo)
    losses = [svi.step(*arguments) for _ in range(2)]
    steps = Steps.of((x - model._columns.centre) / model._columns.scale, np.array(lengths), weights)
    _, later, _ = linear_ascent._update(steps, model._moves, model._sights)
    bound = -losses[0] - units  # states are found anew: above the last update, below the next one
    assert model.lower_bound_ - 1e-6 < bound < later - units + 1e-6
    assert later - units < model.lower_bound_ + 0.01
    assert -losses[1] - units == pytest.approx(model.lower_bound_, abs=0.02)


def dense(model, count):
    """Mean and covariance of states [count * K] and rows [count * D] together."""
    a, c, width = model.transition_, model.components_.T, model.n_components_
    powers = np.zeros((count * width, count * width))
    for t in range(count):
        for s in range(t + 1):
            power = np.linalg.matrix_power(a, t - s)
            powers[t * width : (t + 1) * width, s * width : (s + 1) * width] = power
    first = block_diag(np.eye(width) / FIRST, np.eye((count - 1) * width))
    states = powers @ first @ powers.T
    wide = np.kron(np.eye(count), c)
    noise = np.diag(np.tile(model.noise_variance_, count))
    across = states @ wide.T
    covariance = np.block([[states, across], [across.T, wide @ across + noise]])
    return np.concatenate([np.zeros(count * width), np.tile(model.mean_, count)]), covariance


def given(mean, covariance, wanted, known, values):
    """Conditional mean and covariance of a Gaussian."""
    gain = np.linalg.solve(covariance[np.ix_(known, known)], covariance[np.ix_(known, wanted)]).T
    rest = covariance[np.ix_(wanted, wanted)] - gain @ covariance[np.ix_(known, wanted)]
    return mean[wanted] + gain @ (values - mean[known]), rest


def test_states_score_and_forecast_are_those_of_the_dense_gaussian(rows, system):
    x, ahead = rows[40:65][:12], 3
    mean, covariance = dense(system, 15)
    states, flat = np.arange(15 * 2), x.ravel()
    known = 30 + np.flatnonzero(~np.isnan(flat))
    values = flat[~np.isnan(flat)]
    smoothed, _ = given(mean, covariance, states[:24], known, values)
    np.testing.assert_allclose(system.smooth(x), smoothed.reshape(12, 2), rtol=1e-7, atol=1e-8)
    for step in range(12):
        until = known[known < 30 + 3 * (step + 1)]
        wanted, _ = given(mean, covariance, states[2 * step : 2 * step + 2], until, values[: len(until)])
        np.testing.assert_allclose(system.filter(x)[step], wanted, rtol=1e-7, atol=1e-8)
    density = multivariate_normal(mean[known], covariance[np.ix_(known, known)]).logpdf(values)
    assert system.score(x) == pytest.approx(density, abs=1e-6)
    both = [x, rows[65:]]
    assert system.score(both) == pytest.approx(system.score(x) + system.score(rows[65:]), abs=1e-6)
    np.testing.assert_allclose(system.smooth(both)[0], system.smooth(x), atol=1e-8)
    np.testing.assert_allclose(system.filter(both)[0], system.filter(x), atol=1e-8)
    later = 30 + np.arange(36, 45)
    wanted, spread = given(mean, covariance, later, known, values)
    forecast = system.forecast(ahead, x, probability=0.9)
    np.testing.assert_allclose(forecast.mean, wanted.reshape(3, 3), rtol=1e-7)
    np.testing.assert_allclose(forecast.std, np.sqrt(np.diag(spread)).reshape(3, 3), rtol=1e-7)
    np.testing.assert_allclose(forecast.upper, forecast.mean + norm.ppf(0.95) * forecast.std)
    assert (forecast.lower < forecast.mean).all()
    filled, _ = given(mean, covariance, 30 + np.flatnonzero(np.isnan(flat)), known, values)
    np.testing.assert_allclose(system.impute(x)[np.isnan(x)], filled, rtol=1e-7)


def test_forecasts_of_the_last_fit(rows, system):
    forecast = system.forecast(4)
    assert forecast.mean.shape == (3, 4, 3) and forecast.states.shape == (3, 4, 2)
    np.testing.assert_allclose(forecast.mean[1], system.forecast(4, rows[40:65]).mean, rtol=1e-7)


def test_the_motion_and_the_number_of_states_are_found():
    rng = np.random.default_rng(1)
    turn, z, x = 0.99 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]]), np.ones(2), []
    for _ in range(400):
        x.append(z @ [[1, 0.5], [0, 1]] + rng.normal(size=2))
        z = turn @ z + rng.normal(0, 0.5, size=2)
    x = np.array(x)
    model = LinearDynamicalSystem("auto").fit(x[:300])
    assert model.n_components_ == 2
    found = np.linalg.eigvals(model.transition_)
    np.testing.assert_allclose(np.abs(found), 0.99, atol=0.02)
    np.testing.assert_allclose(np.abs(np.angle(found)), 0.3, atol=0.03)
    inside = []
    for end in range(300, 395, 5):
        forecast = model.forecast(5, x[:end], probability=0.8)
        inside.append((x[end : end + 5] > forecast.lower) & (x[end : end + 5] < forecast.upper))
    assert abs(np.mean(inside) - 0.8) < 0.1


def test_rescaled_states_need_few_updates():
    """Without rescaling, 500 do not suffice."""
    waves = np.sin(np.arange(200) / 5)[:, None] + np.random.default_rng(0).normal(0, 0.2, (200, 2))
    assert LinearDynamicalSystem(2, max_iter=100).fit(waves, lengths=[120, 80]).converged_


def test_draws_are_those_of_the_dense_gaussian(system):
    _, covariance = dense(system, 3)
    rng = np.random.RandomState(0)
    system = pickle.loads(pickle.dumps(system)).set_params(random_state=rng)
    draws = np.array([system.sample(3)[0].ravel() for _ in range(20_000)])
    scale = np.sqrt(np.diag(covariance)[6:])
    np.testing.assert_allclose(draws.mean(0) / scale, np.tile(system.mean_, 3) / scale, atol=0.03)
    wanted = covariance[6:, 6:] / np.outer(scale, scale)
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(scale, scale), wanted, atol=0.04)


def test_files_and_messages(rows, system):
    again = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(again.smooth(rows), system.smooth(rows))
    with pytest.raises(ValueError, match="lengths: expected integers"):
        clone(system).fit(rows, lengths=[3])
    with pytest.raises(ValueError, match="n_components"):
        clone(system).set_params(n_components=0).fit(rows)
    with pytest.raises(ValueError, match=r"^n_components: expected a number >= 1 or 'auto', got 'x'$"):
        clone(system).set_params(n_components="x").fit(rows)
    with pytest.warns(ConvergenceWarning, match="max_iter: no convergence within 2 updates"):
        clone(system).set_params(max_iter=2, tol=1e-12).fit(rows)
    with pytest.raises(ValueError, match=r"lengths: expected None without X, got \[3\]"):
        system.forecast(2, lengths=[3])
    with pytest.raises(ValueError, match="tol: expected a number >= 0, got nan"):
        clone(system).set_params(tol=np.nan).fit(rows)


def test_intervals_are_the_same_for_all_rotations_of_the_states(rows, system, monkeypatch):
    rng = np.random.default_rng(0)
    moves, _ = system._moves.sample(200, rng)
    sights, tau = system._sights.sample(200, rng)
    turns = np.linalg.qr(rng.normal(size=(200, 2, 2)))[0]
    turned = np.concatenate([sights[..., :-1] @ turns, sights[..., -1:]], -1)
    found = []
    for draws in ((moves, sights), (turns.swapaxes(1, 2) @ moves @ turns, turned)):
        given = {"moves": draws[0], "sights": draws[1], "precision": tau}
        monkeypatch.setattr(linear_dynamical_system, "gibbs_draws", lambda *_, given=given: given)
        found.append(system.credible_interval(0.9, rows, n_draws=200))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert (found[0].transition[0] < system.transition_).all()
    assert (system.transition_ < found[0].transition[1]).all()


def test_intervals_of_draws_by_gibbs_sampling(rows, system):
    """They begin at the fit, and are as wide as its own or wider."""
    given = system.credible_interval(0.5)
    with pytest.warns(ConvergenceWarning, match="n_draws: only .* effective draws of '"):
        drawn = system.credible_interval(0.5, rows, LENGTHS, n_draws=60)
    for one, other, name in zip(given, drawn, given._fields, strict=True):
        width = one[1] - one[0]
        assert (np.abs(one.mean(0) - other.mean(0)) < 6 * width).all(), name


def test_draws_are_given_the_data_of_the_fit(rows):
    parts = np.split(rows, np.cumsum(LENGTHS)[:-1])
    words = "X: expected the data of the fit, each row of weight 1, got others"
    for weights in [1, 1, 0], [2, 1, 1]:
        model = LinearDynamicalSystem(1, random_state=0).fit(parts, sample_weight=weights)
        with pytest.raises(ValueError, match=words):
            model.credible_interval(0.5, parts, n_draws=60)
    x = np.column_stack([rows[:, :2], np.full(len(rows), np.nan)])
    with pytest.raises(ValueError, match=r"X: expected a number in each column .* got none in column 2"):
        LinearDynamicalSystem(1).fit(x).credible_interval()


@pytest.mark.parametrize("gaps", [True, False])
def test_weights_are_repeats(rows, gaps):
    x, ends = (rows if gaps else np.nan_to_num(rows, nan=5.0)), np.cumsum(LENGTHS)[:-1]
    parts = np.split(x, ends)
    heavy = LinearDynamicalSystem(2).fit(parts, sample_weight=[1, 3, 0])
    repeated = LinearDynamicalSystem(2).fit([parts[0], *[parts[1]] * 3])
    assert heavy.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(np.abs(heavy.transition_), np.abs(repeated.transition_), atol=1e-6)
    assert heavy.forecast(2).mean.shape == (3, 2, 3)  # of sequences of no weight, too
    with pytest.raises(ValueError, match="sample_weight: expected one weight for each sequence"):
        LinearDynamicalSystem(2).fit(x, lengths=LENGTHS, sample_weight=np.arange(80))
