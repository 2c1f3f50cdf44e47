"""Bayesian regression as an estimator: against scikit-learn, quadrature and the Pyro program."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import gammaln
from scipy.stats import norm, t
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.learn.linear_ascent import VAGUE
from pyro_fmvae.sklearn import BayesianRegression


@pytest.fixture(scope="module")
def rows():
    """Rows of four columns in different units, and targets."""
    rng = np.random.default_rng(0)
    x = 2 + rng.normal(size=(80, 4)) * [1, 10, 0.1, 1]
    return x, 3 + x @ [1, 0.2, 0, -1] + rng.normal(0, 0.5, 80)


@pytest.fixture(scope="module")
def lines():
    """Points on two lines, and which line each is on."""
    rng = np.random.default_rng(1)
    on, x = rng.integers(0, 2, 200), rng.normal(size=(200, 1))
    return x, np.where(on, 2 * x[:, 0] + 1, -x[:, 0]) + rng.normal(0, 0.2, 200), on


@parametrize_with_checks([BayesianRegression(), BayesianRegression(2, n_init=2, likelihood="student")])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("likelihood", ["normal", "student"])
@pytest.mark.parametrize("kind", ["line", "groups", "mixture"])
def test_bound_is_that_of_the_program(rows, lines, kind, likelihood, dtype, clean_slate):
    """Recognised by the engine from Pyro's own distributions, which knows nothing of the estimator's sums."""
    torch.set_default_dtype(dtype)
    x, y, _ = (*rows, None) if kind != "mixture" else lines
    rng, y = np.random.default_rng(2), y.copy()
    weights, groups = rng.integers(0, 3, len(y)) / 2, rng.integers(0, 3, len(y)) if kind == "groups" else None
    y[:5] = np.nan
    if groups is not None:
        y = y + np.array([0, 3, -2])[groups] + x[:, 0] * np.array([1, 0, -1])[groups]
    model = BayesianRegression(
        1 + (kind == "mixture"), likelihood=likelihood, tol=1e-9, max_iter=9000, random_state=0
    )
    model.fit(x, y, weights, groups)
    assert np.diff(model.lower_bounds_).min() > -1e-8
    arguments, program, guide = model.model_arguments(x, y, weights, groups), model.model_, model.guide_
    assert len(arguments[1]) == ((weights > 0) & ~np.isnan(y)).sum()
    elbo, units = TraceConjugate_ELBO(), arguments[2].sum().item() * np.log(model._unit)
    svi = ConjugateSVI(program, guide, NaturalGradient(1.0), elbo)
    losses = [svi.step(*arguments) for _ in range(2)]
    assert -losses[0] - units == pytest.approx(model.lower_bound_, abs=1e-5)
    assert -losses[1] - units == pytest.approx(model.lower_bound_, abs=1e-5)  # a fixed point, too


def test_agrees_with_bayesian_ridge(rows):
    x, y = rows
    model, other = BayesianRegression(tol=1e-9).fit(x, y), BayesianRidge().fit(x, y)
    spread = np.sqrt(np.diag(other.sigma_))
    assert (np.abs(model.coef_ - other.coef_) < 0.1 * spread).all()
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, other.predict(x), atol=0.02)
    centred = x - x.mean(0)  # which some versions of scikit-learn forget
    other_std = np.sqrt(1 / other.alpha_ + ((centred @ other.sigma_) * centred).sum(1))
    np.testing.assert_allclose(std, other_std, rtol=0.05)


@pytest.mark.parametrize(("count", "width"), [(15, 8), (30, 20), (100, 80)])
def test_few_rows_with_little_noise(count, width):
    """A start at lines that are known to be 0 ends there: their relevances are too large."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, width))
    coef = 2 * rng.normal(size=width)
    y = 1 + x @ coef + rng.normal(0, 0.3, count)
    model, other = BayesianRegression().fit(x, y), BayesianRidge().fit(x, y)
    assert np.abs(model.coef_ - other.coef_).max() < 0.05
    assert model.lower_bound_ > BayesianRegression(tol=1e-12, max_iter=5000).fit(x, y).lower_bound_ - 0.1


@pytest.mark.parametrize("seed", range(4))
def test_more_components_than_rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(10, 2))
    y = 1 + x @ [2.0, -1.0] + rng.normal(0, 0.3, 10)
    model = BayesianRegression(20, random_state=seed).fit(x, y)
    used = model.weights_.argmax()
    np.testing.assert_allclose(model.coef_[used], BayesianRidge().fit(x, y).coef_, atol=0.1)


@pytest.mark.parametrize("likelihood", ["normal", "student"])
def test_bound_of_rows_that_a_line_goes_through_does_not_fall(likelihood):
    """Its noise is as small as the rounding of a solution that is not refined."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(15, 30)), rng.integers(0, 3, 15)
    model = BayesianRegression(likelihood=likelihood).fit(x, y)
    assert model.converged_ and np.diff(model.lower_bounds_).min() > -1e-5
    np.testing.assert_allclose(model.predict(x), y, atol=1e-5)


def test_agrees_with_quadrature():
    """Given its relevance, the regression is exact in closed form; that is integrated over numerically."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 1))
    y = 1 + x[:, 0] + rng.normal(size=60)
    model = BayesianRegression(tol=1e-12, max_iter=5000).fit(x, y)
    z, own = np.column_stack([(x - x.mean()) / x.std(), np.ones(60)]), (y - y.mean()) / y.std()
    logs = np.linspace(-12, 8, 4001)
    evidence, coefs, seconds = [], [], []
    for alpha in np.exp(logs):
        precision = z.T @ z + np.diag([alpha, VAGUE])
        mean = np.linalg.solve(precision, z.T @ own)
        a, b = VAGUE + 30, VAGUE + (own @ own - mean @ precision @ mean) / 2
        value = np.log(alpha * VAGUE) / 2 - np.linalg.slogdet(precision)[1] / 2 - a * np.log(b)
        value += gammaln(a) + 2 * (VAGUE * np.log(VAGUE) - gammaln(VAGUE)) - 30 * np.log(2 * np.pi)
        evidence.append(value + VAGUE * np.log(alpha) - VAGUE * alpha)
        coefs.append(mean[0])
        seconds.append(mean[0] ** 2 + np.linalg.inv(precision)[0, 0] * b / (a - 1))
    weights = np.exp(np.array(evidence) - max(evidence))
    log_evidence = max(evidence) + np.log(np.trapezoid(weights, logs)) - 60 * np.log(y.std())
    weights /= weights.sum()
    assert log_evidence - 0.7 < model.lower_bound_ < log_evidence
    coef = weights @ coefs
    spread = np.sqrt(weights @ seconds - coef**2)
    assert abs(model.coef_[0] * x.std() / y.std() - coef) < 0.05 * spread
    low, high = (model.credible_interval(0.95).coef * x.std() / y.std())[:, 0]
    assert high - low == pytest.approx(2 * t.ppf(0.975, 60) * np.sqrt(58 / 60) * spread, rel=0.03)


def test_intervals_hold_what_they_say():
    rng, hits = np.random.default_rng(4), []
    for _ in range(150):
        x = rng.normal(3, 1, size=(25, 2))
        y = 2 + x @ [1, -1] + rng.normal(0, 0.7, 25)
        low, high = np.stack(
            [part.reshape(2, -1)[:, 0] for part in (BayesianRegression().fit(x, y).credible_interval(0.8))], 1
        )
        hits.append((low < [1, 2, 0.49]) & (high > [1, 2, 0.49]))
    assert (np.abs(np.mean(hits, 0) - 0.8) < 0.1).all()


def test_outliers_hardly_move_a_robust_line(rows):
    x, y = rows
    y = y.copy()
    y[:8] += 30
    robust, plain = (BayesianRegression(likelihood=kind).fit(x, y) for kind in ("student", "normal"))
    true = 3 + x @ [1, 0.2, 0, -1]
    assert np.abs(robust.predict(x) - true).mean() < 0.2 < 2 < np.abs(plain.predict(x) - true).mean()


def test_two_lines_are_found(lines):
    x, y, on = lines
    model = BayesianRegression(2, random_state=0).fit(x, y)
    order = np.argsort(model.coef_[:, 0])
    np.testing.assert_allclose(model.coef_[order, 0], [-1, 2], atol=0.1)
    np.testing.assert_allclose(model.intercept_[order], [0, 1], atol=0.1)
    found = model.predict_component(x, y)
    np.testing.assert_allclose(found.sum(1), 1)
    assert np.mean(order[on] == found.argmax(1)) > 0.95
    missing = model.predict_component(x, np.full(len(x), np.nan))
    np.testing.assert_allclose(missing, np.tile(model.weights_, (len(x), 1)))
    mean, std = model.predict(x, return_std=True)
    each = model.intercept_ + x @ model.coef_.T
    np.testing.assert_allclose(mean, each @ model.weights_)
    assert (std**2 > (each**2 @ model.weights_ - mean**2)).all()


@pytest.mark.parametrize("likelihood", ["normal", "student"])
def test_components_of_rows_are_those_of_bayes_rule(lines, likelihood):
    x, y, on = lines
    y = y + on * np.random.default_rng(7).normal(size=200)  # one line has more noise
    model = BayesianRegression(2, likelihood=likelihood, random_state=0).fit(x, y)
    each, scale = model.intercept_ + x @ model.coef_.T, np.sqrt(model.noise_variance_)
    density = norm(each, scale) if likelihood == "normal" else t(4, each, scale)
    wanted = model.weights_ * density.pdf(y[:, None])
    np.testing.assert_allclose(
        model.predict_component(x, y), wanted / wanted.sum(1, keepdims=True), rtol=1e-6
    )


def test_predictions_of_few_rows_are_those_of_student_t():
    """Given its relevance, the normal regression is exact: with little data its noise is far from known."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(8, 1))
    y = 1 + x[:, 0] + rng.normal(size=8)
    model = BayesianRegression(tol=1e-12, max_iter=5000).fit(x, y)
    z, own = np.column_stack([(x - x.mean()) / x.std(), np.ones(8)]), (y - y.mean()) / y.std()
    alpha = model._rows.alpha[0, 0] / model._rows.alpha[1, 0]
    precision = z.T @ z + np.diag([alpha, VAGUE])
    mean = np.linalg.solve(precision, z.T @ own)
    a, b = VAGUE + 4, VAGUE + (own @ own - mean @ precision @ mean) / 2
    inner = 1 + ((z @ np.linalg.inv(precision)) * z).sum(1)
    wanted = t(2 * a, z @ mean, np.sqrt(b / a * inner))
    found, std = model.predict(x, True)
    np.testing.assert_allclose(found, y.mean() + wanted.mean() * y.std(), rtol=1e-4)
    np.testing.assert_allclose(std, wanted.std() * y.std(), rtol=1e-4)


def test_spread_of_student_t_noise():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(4000, 1))
    y = x[:, 0] + rng.standard_t(5, 4000)
    model = BayesianRegression(likelihood="student", degrees_of_freedom=5.0).fit(x, y)
    np.testing.assert_allclose(model.predict(x[:5], True)[1], np.sqrt(5 / 3), rtol=0.05)
    assert np.isinf(model.set_params(degrees_of_freedom=2.0).predict(x[:5], True)[1]).all()


def test_groups_share_what_they_have_in_common():
    rng = np.random.default_rng(5)
    groups, x = (
        np.array(["b", "a", "c", "d"])[np.repeat([0, 1, 2, 3], [60, 60, 60, 3])],
        rng.normal(size=(183, 2)),
    )
    own = {"a": -1.0, "b": 0.0, "c": 1.0, "d": 0.0}
    y = (
        1
        + x @ [2, 1]
        + [own[g] * (1 + row[0]) for g, row in zip(groups, x, strict=True)]
        + rng.normal(0, 0.3, 183)
    )
    model = BayesianRegression().fit(x, y, groups=groups)
    assert list(model.groups_) == ["a", "b", "c", "d"]
    np.testing.assert_allclose(model.group_coef_[:3], [[1, 1], [2, 1], [3, 1]], atol=0.15)
    np.testing.assert_allclose(model.group_intercept_[:3], [0, 1, 2], atol=0.15)
    np.testing.assert_allclose(model.predict(x[:9], groups=groups[:9]), 1 + x[:9] @ [2, 1], atol=0.2)
    lines = model.group_intercept_[1] + x[:9] @ model.group_coef_[1]
    np.testing.assert_allclose(model.predict(x[:9], groups=groups[:9]), lines)
    mean, std = model.predict(x[:9], True, groups=["new"] * 9)
    np.testing.assert_allclose(mean, model.intercept_ + x[:9] @ model.coef_)
    assert (std > 2 * model.predict(x[:9], True, groups=groups[:9])[1]).all()
    with pytest.raises(ValueError, match="groups: expected a label for each of 9 rows"):
        model.predict(x[:9], groups=["a"])
    with pytest.raises(ValueError, match="groups: expected None"):
        BayesianRegression().fit(x, y).predict(x, groups=groups)


def test_files_and_messages(rows):
    x, y = rows
    model = BayesianRegression().fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    with pytest.raises(ValueError, match="likelihood: expected 'normal' or 'student', got 'cauchy'"):
        clone(model).set_params(likelihood="cauchy").fit(x, y)
    with pytest.raises(ValueError, match="y: expected a target"):
        clone(model).fit(x, np.full(80, np.nan))
    with pytest.warns(ConvergenceWarning, match="max_iter: no convergence within 2 updates"):
        clone(model).set_params(max_iter=2, tol=1e-12).fit(x, y)
    for name, value, message in (
        ("degrees_of_freedom", np.inf, "expected a finite number > 0, got inf; take likelihood='normal'"),
        ("degrees_of_freedom", np.nan, "expected a finite number > 0, got nan"),
        ("tol", np.nan, "expected a number >= 0, got nan"),
    ):
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            clone(model).set_params(**{name: value}).fit(x, y)


def test_constants_of_inexact_mean():
    """The mean of many 0.1 is not 0.1; that of 2.0 is 2.0."""
    rng = np.random.default_rng(6)
    x = np.column_stack([rng.normal(size=60), np.full(60, 0.1)])
    y = 1 + x[:, 0] + rng.normal(0, 0.1, 60)
    assert x[:, 1].std() > 0
    model, alone = BayesianRegression().fit(x, y), BayesianRegression().fit(x[:, :1], y)
    np.testing.assert_allclose(model.predict(x), alone.predict(x[:, :1]), atol=0.01)
    assert model.coef_[1] == pytest.approx(0, abs=1e-9)
    for value in 0.1, 2.0:
        flat = BayesianRegression().fit(x, np.full(60, value))
        np.testing.assert_allclose(flat.predict(x), value, rtol=1e-9)
        assert flat.noise_variance_ == pytest.approx(VAGUE / 30, rel=1e-3)


def test_numbers_that_are_too_large(rows):
    x, y = rows
    huge, far = x.copy(), y.copy()
    huge[3, 1], far[3] = -1e120, 1e120
    model = BayesianRegression().fit(x, y)
    for call in (
        lambda: clone(model).fit(huge, y),
        lambda: model.predict(huge),
        lambda: model.predict_component(huge, y),
    ):
        with pytest.raises(ValueError, match=r"X: expected numbers of at most 1e\+100 .* in column 1"):
            call()
    with pytest.raises(ValueError, match=r"y: expected numbers of at most 1e\+100"):
        clone(model).fit(x, far)


@pytest.mark.parametrize("missing", [None, np.nan, "NA", "NaT"])
def test_missing_labels_of_groups(rows, missing):
    given = ["a", missing] * 40
    if isinstance(missing, str):
        pandas = pytest.importorskip("pandas")
        given = ["a", getattr(pandas, missing)] * 40
    x, y = rows
    model, message = (
        BayesianRegression(),
        "groups: expected a label for each row, none missing, got .* in row 1",
    )
    for groups in given, np.array(given, dtype=object):
        with pytest.raises(ValueError, match=message):
            model.fit(x, y, groups=groups)
    assert not hasattr(model, "_labels")
    with pytest.raises(ValueError, match="Expected 2D array"):
        model.fit(x[0], y, groups=given)
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, groups=["a", "b"] * 40).predict(x, groups=given)


def test_labels_of_groups_are_of_one_kind(rows):
    x, y = rows
    model = BayesianRegression()
    with pytest.raises(ValueError, match="groups: expected labels of one kind, got numbers and strings"):
        model.fit(x, y, groups=["a", 1] * 40)
    model.fit(x, y, groups=[1, 2] * 40)
    with pytest.raises(ValueError, match=r"groups: expected labels .* of fit, numbers, got strings"):
        model.predict(x, groups=["1", "2"] * 40)
    wanted = model.predict(x, groups=[1, 2] * 40)
    np.testing.assert_array_equal(model.predict(x, groups=np.array([1.0, 2.0] * 40, dtype=object)), wanted)


@pytest.mark.parametrize("components", [2, 3])
def test_components_without_rows_leave_predictions_as_they_are(components):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 1))
    y = 1 + 2 * x[:, 0] + rng.normal(0, 0.3, 100)
    model, one = BayesianRegression(components, random_state=0).fit(x, y), BayesianRegression().fit(x, y)
    used = model.weights_ > 0.5
    assert used.sum() == 1 and (model.weights_[~used] < 0.02).all()
    for found, wanted in zip(model.predict(x, True), one.predict(x, True), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3)
    for found, wanted in zip(model.credible_interval(), one.credible_interval(), strict=True):
        np.testing.assert_allclose(found[:, used], wanted[:, None], rtol=1e-3)
        assert np.isnan(found[:, ~used]).all()


def test_intervals_of_draws_are_those_of_a_mixture_over_relevances():
    """Given the relevance, lines and precision have a joint posterior in closed form."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2))
    y = 1 + x @ [1.0, -1.0] + rng.normal(0, 0.4, 20)
    model = BayesianRegression(random_state=0).fit(x, y)
    drawn = model.credible_interval(0.9, x, y, n_draws=1000)
    z, target, _ = (part.numpy() for part in model.model_arguments(x, y))
    logs, parts = np.linspace(-8, 12, 200), []
    for log_alpha in logs:
        prior = np.diag([np.exp(log_alpha), np.exp(log_alpha), VAGUE])
        precision = z.T @ z + prior
        mean = np.linalg.solve(precision, z.T @ target)
        rate = VAGUE + (target @ target - mean @ precision @ mean) / 2
        evidence = (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]) / 2
        evidence += VAGUE * (log_alpha - np.exp(log_alpha)) - (VAGUE + 10) * np.log(rate)
        parts.append((evidence, mean, np.linalg.inv(precision), rate))
    weights = np.array([part[0] for part in parts])
    weights = np.exp(weights - weights.max())
    some = rng.choice(len(logs), 20_000, p=weights / weights.sum())
    tau = rng.gamma(VAGUE + 10, size=len(some)) / np.array([part[3] for part in parts])[some]
    roots = np.linalg.cholesky(np.stack([part[2] for part in parts]))[some]
    lines = np.stack([part[1] for part in parts])[some]
    lines += np.einsum("smn,sn->sm", roots, rng.normal(size=lines.shape)) / np.sqrt(tau)[:, None]
    coef = lines[:, :2] / model._scale * model._unit
    intercept = lines[:, 2] * model._unit + model._middle - coef @ model._centre
    for found, exact in (
        (drawn.coef, coef),
        (drawn.intercept, intercept),
        (drawn.noise_variance, model._unit**2 / tau),
    ):
        ends = np.quantile(exact, [0.05, 0.95], axis=0)
        np.testing.assert_allclose(found, ends, atol=0.1 * (ends[1] - ends[0]).max())


def test_intervals_of_draws_of_two_lines():
    """Components of rows are drawn together, by enumeration: no row weighs other than 1."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (80, 1))
    y = np.where(rng.random(80) < 0.5, 2 * x[:, 0], 4 - x[:, 0]) + rng.normal(0, 0.3, 80)
    model = BayesianRegression(2, random_state=0).fit(x, y)
    given, drawn = model.credible_interval(0.5), model.credible_interval(0.5, x, y, n_draws=300)
    for one, other, name in zip(given, drawn, given._fields, strict=True):
        width = one[1] - one[0]
        np.testing.assert_allclose(other, one, atol=0.8 * width.max(), err_msg=name)
    with pytest.raises(ValueError, match="X: expected the data of the fit"):
        model.credible_interval(n_draws=10)


@pytest.mark.parametrize("grouped", [False, True])
def test_further_rows_of_one_regression_are_all_rows_together(grouped):
    """Exact: sums of rows are all that the posterior depends on; units are those of the first call."""
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(120, 3)), np.tile(["a", "b", "c"], 40)
    y = x @ [1.0, -2.0, 0.5] + rng.normal(0, 0.3, 120) + (groups == "b") * x[:, 0]
    weights = np.tile([1.0, 2.0], 60)
    labels = [groups[:50], groups[50:], groups] if grouped else [None] * 3
    model = BayesianRegression(tol=1e-12).partial_fit(x[:50], y[:50], weights[:50], labels[0])
    first = model.lower_bound_
    model.partial_fit(x[50:], y[50:], weights[50:], labels[1])
    whole = BayesianRegression(tol=1e-12)
    whole.fit(x[:50], y[:50], weights[:50], labels[0])  # for its units
    targets = whole._targets(*whole._used(x, labels[2], y, weights))
    whole._keep(*whole._climbed(targets, [whole._single_line(targets)]))
    assert model.lower_bound_ == pytest.approx(whole.lower_bound_, rel=1e-9) and model.lower_bound_ < first
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.credible_interval().coef, whole.credible_interval().coef, atol=1e-5)
    if grouped:
        given = "groups: expected labels of groups that the first fit had, got"
        for call in (
            model.partial_fit,
            model.model_arguments,
            lambda x, y, groups=None: model.credible_interval(0.9, x, y, groups, n_draws=60),
        ):
            with pytest.raises(ValueError, match=f"{given} others"):
                call(x, y, groups=np.full(120, "d"))
            with pytest.raises(ValueError, match=f"{given} none"):
                call(x, y)


def test_rows_of_weight_0_may_be_of_other_groups():
    rng = np.random.default_rng(0)
    x, groups, more = rng.normal(size=(60, 2)), np.tile(["a", "b", "c"], 20), np.tile(["a", "b", "d"], 20)
    y, here = x @ [1.0, -2.0] + rng.normal(0, 0.3, 60), more != "d"
    model, other = (BayesianRegression().fit(x, y, groups=groups) for _ in range(2))
    model.partial_fit(x, y, here.astype(float), more)
    other.partial_fit(x[here], y[here], groups=more[here])
    np.testing.assert_allclose(model.group_coef_, other.group_coef_)


@pytest.mark.parametrize("components", [2, 20])
def test_draws_of_components_without_rows(components):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 2))
    y = 1 + x @ [2.0, -1.0] + rng.normal(0, 0.3, 10)
    model = BayesianRegression(components, random_state=0).fit(x, y)
    with pytest.raises(ValueError, match="n_draws: a component has too few rows; lower n_components"):
        model.credible_interval(0.9, x, y, n_draws=60)


@pytest.mark.parametrize(("components", "likelihood"), [(2, "normal"), (1, "student"), (2, "student")])
def test_further_rows_have_a_bound_near_that_of_the_program(components, likelihood):
    """Components and scales of earlier rows stay, so that it is below the bound of all rows."""
    rng = np.random.default_rng(1)
    x, kind = rng.normal(size=(300, 2)), rng.integers(components, size=300)
    y = (2 * kind - 1) * (1 + x @ [1.0, 2.0]) + rng.normal(0, 0.2, 300)
    model = BayesianRegression(components, likelihood=likelihood, random_state=0).partial_fit(
        x[:150], y[:150]
    )
    model.partial_fit(x[150:], y[150:])
    assert np.diff(model.lower_bounds_).min() > -1e-9
    arguments = model.model_arguments(x, y)
    loss = TraceConjugate_ELBO().loss(model.model_, model.guide_, *arguments)
    best = -loss - 300 * np.log(model._unit)
    assert best - 5 < model.lower_bound_ < best + 1e-6
    coef = np.atleast_2d(model.coef_)
    wanted = np.array([[-1, -2], [1, 2]])[:components]
    np.testing.assert_allclose(coef[coef[:, 0].argsort()], wanted, atol=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_lines_through_one_point_are_told_apart(seed):
    """A start whose lines are forgotten ends at coefficients of 0, some 200 nats below."""
    rng, lines = np.random.default_rng(seed), np.array([[1, 0], [-1, 1], [0, -2]])
    x, kind = rng.normal(size=(200, 2)), rng.integers(3, size=200)
    y = kind + (x * lines[kind]).sum(1) + rng.normal(0, 0.2, 200)
    model = BayesianRegression(3, random_state=0).fit(x, y)
    order = model.intercept_.argsort()
    np.testing.assert_allclose(model.coef_[order], lines, atol=0.2)


def test_further_rows_of_a_frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["length", "width"])
    y = frame["length"] + rng.normal(0, 0.1, 60)
    model = BayesianRegression().partial_fit(frame[:30], y[:30]).partial_fit(frame[30:], y[30:])
    np.testing.assert_allclose(model.coef_, [1, 0], atol=0.1)
