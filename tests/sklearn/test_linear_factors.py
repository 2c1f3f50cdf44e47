"""Factor analysis and PCA of incomplete rows: against scikit-learn, dense Gaussians and the Pyro program."""

import pickle

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.learn import linear_ascent
from pyro_fmvae.learn.linear_ascent import MatrixPosterior, Table, factor_sums
from pyro_fmvae.sklearn import PCA, FactorAnalysis, linear_factors


@pytest.fixture(scope="module")
def rows():
    """Rows of three factors in eight columns of different units, some numbers missing; and complete ones."""
    rng = np.random.default_rng(0)
    units = np.array([1, 1, 2, 100, 0.01, 1, 1, 1])
    whole = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 8)) + rng.normal(size=(400, 8)) * 0.4
    whole = 5 + whole * units
    return np.where(rng.random(whole.shape) < 0.2, np.nan, whole), whole


@parametrize_with_checks([FactorAnalysis(), FactorAnalysis(1), PCA(), PCA(1)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("components", [2, "auto"])
@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_bound_is_that_of_the_program(rows, kind, components, dtype, clean_slate):
    """Recognised by the engine from Pyro's own distributions, which knows nothing of the estimator's sums."""
    torch.set_default_dtype(dtype)
    x = rows[0][:60, :5] / np.array([1, 1, 2, 100, 0.01])
    weights = np.tile([1.0, 0.5, 2.0], 20)
    model = kind(components, tol=1e-10).fit(x, sample_weight=weights)
    assert np.diff(model.lower_bounds_).min() > -1e-9
    arguments, program, guide = model.model_arguments(x, weights), model.model_, model.guide_
    elbo, units = TraceConjugate_ELBO(), weights[:, None] * (~np.isnan(x)) @ np.log(model._scale)
    loss = elbo.loss(program, guide, *arguments)
    assert -loss - units.sum() == pytest.approx(model.lower_bound_, abs=1e-6)
    svi = ConjugateSVI(program, guide, NaturalGradient(1.0), elbo)
    assert svi.step(*arguments) == pytest.approx(loss, abs=1e-6)
    assert svi.step(*arguments) == pytest.approx(loss, abs=1e-6)  # a fixed point, too


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_agrees_with_scikit_learn_on_complete_rows(rows, kind):
    whole = rows[1] if kind is FactorAnalysis else rows[1] / rows[1].std(0)
    model = kind(3, tol=1e-9).fit(whole)
    same = {
        FactorAnalysis: decomposition.FactorAnalysis(3, tol=1e-8, max_iter=5000),
        PCA: decomposition.PCA(3),
    }
    other = same[kind].fit(whole)
    assert model.score(whole) == pytest.approx(other.score(whole), abs=2e-3)
    unit = whole.std(0)
    angles = subspace_angles((model.components_ / unit).T, (other.components_ / unit).T)
    assert angles.max() < 0.02
    np.testing.assert_allclose(model.noise_variance_ / unit**2, other.noise_variance_ / unit**2, atol=0.02)
    if kind is PCA:
        np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=0.02)
        np.testing.assert_allclose(
            model.explained_variance_ratio_, other.explained_variance_ratio_, rtol=0.02
        )
        np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
        flips = np.sign((model.components_ * other.components_).sum(1))
        np.testing.assert_allclose(model.transform(whole) * flips, other.transform(whole), atol=0.15)


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_gaps_are_those_of_the_dense_gaussian(rows, kind):
    x = rows[0][:50].copy()
    x[3] = np.nan
    model = kind(2).fit(rows[0])
    covariance, filled, scores = model.get_covariance(), model.impute(x), model.score_samples(x)
    np.testing.assert_allclose(model.get_precision(), np.linalg.inv(covariance), rtol=1e-6, atol=1e-9)
    for row, full, score in zip(x, filled, scores, strict=True):
        own = ~np.isnan(row)
        inner, cross = covariance[np.ix_(own, own)], covariance[np.ix_(~own, own)]
        wanted = model.mean_[~own] + cross @ np.linalg.solve(inner, row[own] - model.mean_[own])
        np.testing.assert_allclose(full[~own], wanted, rtol=1e-8)
        np.testing.assert_array_equal(full[own], row[own])
        density = multivariate_normal(model.mean_[own], inner).logpdf(row[own]) if own.any() else 0.0
        assert score == pytest.approx(density, abs=1e-7)
    if kind is FactorAnalysis:
        there = ~np.isnan(x).any(1)
        z = np.linalg.solve(covariance, (x[there] - model.mean_).T).T @ model.components_.T
        np.testing.assert_allclose(model.transform(x)[there], z, atol=1e-8)
        np.testing.assert_allclose(model.inverse_transform(model.transform(x))[3], model.mean_)
    draws = model.set_params(random_state=0).sample(20_000)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(0) / scale, model.mean_ / scale, atol=0.03)
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.03
    )


def test_patterns_in_blocks_and_each_row_by_itself(rows, monkeypatch):
    """Sums over rows, one by one; with covariances in blocks of a few patterns."""
    x = (rows[0] - 5)[:40, [0, 1, 5, 6]]
    rng, weights = np.random.default_rng(0), np.tile([1.0, 0.0, 0.5, 3.0], 10)
    table = Table.of(x, weights)
    matrix = MatrixPosterior.at_start(
        rng.normal(size=(4, 3)), np.arange(4), rng.gamma(3, size=4), np.array([0, 1, -1])
    )
    monkeypatch.setattr(linear_ascent, "BLOCK", 30)
    sums = factor_sums(table, matrix)
    zz, zy, total = np.zeros((4, 3, 3)), np.zeros((4, 3)), 0.0
    for row, weight in zip(x, weights, strict=True):
        own = ~np.isnan(row)
        w, tau = matrix.mean[own], matrix.precision[own]
        covariance = np.linalg.inv(np.eye(2) + (w[:, :2] * tau[:, None]).T @ w[:, :2])
        mean = covariance @ (w[:, :2] * tau[:, None]).T @ (row[own] - w[:, 2])
        z = np.append(mean, 1.0)
        second = np.outer(z, z)
        second[:2, :2] += covariance
        zz[own] += weight * second
        zy[own] += weight * row[own, None] * z
        total += weight * (np.linalg.slogdet(covariance)[1] + 2 - np.trace(covariance) - mean @ mean) / 2
    np.testing.assert_allclose(sums.zz[sums.group], zz)
    np.testing.assert_allclose(sums.zy, zy)
    np.testing.assert_allclose(sums.count, weights @ ~np.isnan(x))
    np.testing.assert_allclose(sums.yy, weights @ np.nan_to_num(x) ** 2)
    assert sums.evidence == pytest.approx(total)
    parts = (factor_sums(Table.of(x[own], weights[own]), matrix) for own in (slice(25), slice(25, 40)))
    both = next(parts).plus(next(parts))  # of tables with other patterns
    np.testing.assert_allclose(both.zz[both.group], zz)
    for name in ("count", "yy", "zy", "evidence"):
        np.testing.assert_allclose(getattr(both, name), getattr(sums, name))


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_the_number_of_factors_is_found(kind):
    rng = np.random.default_rng(1)
    for true in (1, 3, 6):
        whole = rng.normal(size=(500, true)) @ rng.normal(size=(true, 12)) + rng.normal(size=(500, 12)) * 0.5
        gaps = np.where(rng.random(whole.shape) < 0.15, np.nan, whole)
        found = [kind().fit(x).n_components_ for x in (whole, gaps)]
        assert found == [true, true]


def test_units_do_not_matter(rows):
    """Changing a column's units changes the bound by their logarithm alone."""
    x, units = rows[0], np.array([1, 5, 2, 0.01, 1, 1, 1, 30])
    first, second = FactorAnalysis(3).fit(x), FactorAnalysis(3).fit(x * units)
    np.testing.assert_allclose(second.components_, first.components_ * units, rtol=1e-6)
    change = ((~np.isnan(x)) @ np.log(units)).sum()
    assert second.lower_bound_ == pytest.approx(first.lower_bound_ - change)
    np.testing.assert_allclose(PCA(3).fit(x * 7).components_, PCA(3).fit(x).components_, rtol=1e-6)


def test_files_and_messages(rows):
    model = FactorAnalysis(2).fit(rows[0])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(rows[0]), model.transform(rows[0]))
    with pytest.raises(ValueError, match="n_components"):
        clone(model).set_params(n_components=9).fit(rows[0])
    with pytest.raises(ValueError, match=r"^n_components: expected a number >= 1 or 'auto', got 'x'$"):
        clone(model).set_params(n_components="x").fit(rows[0])
    with pytest.warns(ConvergenceWarning, match="max_iter: no convergence within 2 updates"):
        clone(model).set_params(max_iter=2, tol=1e-12).fit(rows[0])
    with pytest.raises(ValueError, match="X: expected 2 columns, got 4"):
        model.inverse_transform(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="tol: expected a number >= 0, got nan"):
        clone(model).set_params(tol=np.nan).fit(rows[0])


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_constants_of_inexact_mean(rows, kind):
    """The mean of many 0.1 is not 0.1; that of 2.0 is 2.0."""
    x = rows[1][:, [0, 1, 5, 6]]
    found = []
    for value in 0.1, 2.0:
        flat = np.column_stack([x, np.full(len(x), value)])
        models = kind(2).fit(flat), kind(1).fit(np.full((len(x), 3), value))
        np.testing.assert_allclose([model.mean_[-1] for model in models], value, atol=1e-6)
        found.append(
            [model.score(part) for model, part in zip(models, (flat, flat[:, 4:].repeat(3, 1)), strict=True)]
        )
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


def quantiles(values, weights, tails):
    """Quantiles of values on a grid with weights."""
    order = np.argsort(values, axis=None)
    return np.interp(tails, np.cumsum(weights.ravel()[order]), values.ravel()[order])


def test_intervals_of_draws_are_those_of_quadrature():
    """One component of two columns: a loading by length and angle, and the noise, on a grid."""
    rng = np.random.default_rng(0)
    x = 3 + rng.normal(size=(25, 1)) @ [[1.0, -1.5]] + rng.normal(0, 0.7, (25, 2))
    model, tails = PCA(1, random_state=0).fit(x), [0.1, 0.9]
    drawn, variational = model.credible_interval(0.8, x, 2000), model.credible_interval(0.8)
    z, vague = (x - x.mean(0)) / model._scale, linear_ascent.VAGUE
    angles, logs = np.linspace(0, np.pi, 80, endpoint=False), np.linspace(-2.5, 4, 80)
    size, angle, log_tau = np.meshgrid(np.linspace(0.02, 4, 80), angles, logs, indexing="ij")
    axis, noise = np.stack([np.cos(angle), np.sin(angle)]), np.exp(-log_tau)
    along = np.einsum("iabc,ij,jabc->abc", axis, z.T @ z, axis)
    log_density = np.log(size) + log_tau - (1 + vague) * np.log(vague + size**2 / noise / 2)  # the prior's
    for variance, squares in ((size**2 + noise, along), (noise, (z**2).sum() - along)):
        log_density -= (24 * np.log(variance) + squares / variance) / 2
        log_density -= np.log(variance / 25 + noise / vague) / 2  # of the mean
    weights = np.exp(log_density - log_density.max())
    weights, scale = weights / weights.sum(), model._scale[0]
    loading, noise = size * axis * scale, noise * scale**2
    signs = np.sign(np.einsum("i,iabc->abc", model.components_[0], axis))
    narrow = []
    for values, ends in {
        "components": (signs * axis[0], lambda found: found.components[:, 0, 0]),
        "noise_variance": (noise, lambda found: found.noise_variance),
        "variance": (loading[1] ** 2 + noise, lambda found: found.covariance[:, 1, 1]),
        "covariance": (loading[0] * loading[1], lambda found: found.covariance[:, 0, 1]),
    }.values():
        exact = quantiles(values, weights, tails)
        np.testing.assert_allclose(ends(drawn), exact, atol=0.1 * (exact[1] - exact[0]))
        narrow.append(np.ptp(ends(variational)) / np.ptp(exact))
    assert max(narrow) < 0.95 and min(narrow) < 0.6


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_intervals_are_the_same_for_all_rotations_of_the_factors(rows, kind, monkeypatch):
    model, rng = kind(3, random_state=0).fit(rows[0]), np.random.default_rng(0)
    weights, tau = model._rows.sample(400, rng)
    turns = np.linalg.qr(rng.normal(size=(400, 3, 3)))[0]
    turned = np.concatenate([weights[..., :-1] @ turns, weights[..., -1:]], -1)
    found = []
    for loadings in (weights, turned):
        given = {"loadings": loadings, "precision": tau[:, 0] if kind is PCA else tau}
        monkeypatch.setattr(linear_factors, "gibbs_draws", lambda *_, given=given: given)
        found.append(model.credible_interval(0.99, rows[0], n_draws=400))
    for name, one, other in zip(found[0]._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
        given = model.get_covariance() if name == "covariance" else getattr(model, f"{name}_")
        assert ((one[0] <= given) & (given <= one[1])).mean() > 0.85, name


def test_intervals_need_rows_and_effective_draws(rows):
    x = rows[0][:40]
    model = FactorAnalysis(1, random_state=0).fit(x)
    with pytest.raises(ValueError, match="X: expected the data of the fit, which draws are given"):
        model.credible_interval(n_draws=10)
    with pytest.warns(ConvergenceWarning, match="n_draws: only .* effective draws of '") as caught:
        found = model.credible_interval(X=x, n_draws=60)
    assert {str(one.message).split("'")[1] for one in caught} >= {"components", "mean"}
    assert all(np.isfinite(ends).all() for ends in found)


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_weights_are_repeats(rows, kind):
    x, weights, model = rows[0][:90], np.tile([1, 2, 0], 30), kind(2)
    heavy = clone(model).fit(x, sample_weight=weights)
    twice = clone(model).fit(np.repeat(x, weights, axis=0))
    assert heavy.lower_bound_ == pytest.approx(twice.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(heavy.get_covariance(), twice.get_covariance(), rtol=1e-5)
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        kind(2).fit(x, sample_weight=np.zeros(90))


@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_further_rows(rows, kind):
    """Factors of earlier rows stay, so that the bound is below that of all rows, given the same loadings."""
    x = rows[0] if kind is FactorAnalysis else rows[0] / np.array([1, 1, 2, 100, 0.01, 1, 1, 1])
    model = kind(3, tol=1e-7, max_iter=5000)
    whole = clone(model).fit(x).score(x)
    early = model.partial_fit(x[:200]).score(x)
    assert model.lower_bound_ == clone(model).fit(x[:200]).lower_bound_
    model.partial_fit(x[200:], sample_weight=np.ones(200))
    assert np.diff(model.lower_bounds_).min() > -1e-9
    units = (~np.isnan(x)) @ np.log(model._scale)
    best = -TraceConjugate_ELBO().loss(model.model_, model.guide_, *model.model_arguments(x)) - units.sum()
    assert best - 10 < model.lower_bound_ < best + 1e-6
    assert whole - model.score(x) < 0.5 * (whole - early)


@pytest.mark.filterwarnings("ignore:n_draws")
@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_draws_are_given_the_data_of_the_fit(rows, kind):
    x, weights = rows[1][:40, :3] / [1, 1, 2], np.tile([1.0, 1.0, 0.0, 1.0], 10)
    model = kind(1, random_state=0).fit(x, sample_weight=weights)
    alone = clone(model).fit(x[weights > 0])
    given = [one.credible_interval(0.5, x[weights > 0], 60).mean for one in (model, alone)]
    np.testing.assert_allclose(*given)
    words = "X: expected the data of the fit, each row of weight 1, got others"
    with pytest.raises(ValueError, match=words):
        model.credible_interval(0.5, x, 60)
    weights = np.where(weights > 0, 1.2, 0.4)  # whose sum is the number of rows
    with pytest.raises(ValueError, match=words):
        model.fit(x, sample_weight=weights).credible_interval(0.5, x, 60)


def test_intervals_of_a_column_without_a_number_are_refused_if_its_noise_is_its_own(rows):
    x = rows[1][:60, :3].copy()
    x[:, 1] = np.nan
    model = FactorAnalysis(1, random_state=0).fit(x)
    for draws in None, 60:
        with pytest.raises(ValueError, match=r"X: expected a number in each column .* got none in column 1"):
            model.credible_interval(0.9, x, draws)
    assert np.isfinite(PCA(1, random_state=0).fit(x).credible_interval(0.9).covariance).all()


@pytest.mark.filterwarnings("ignore:n_draws")
@pytest.mark.parametrize("kind", [FactorAnalysis, PCA])
def test_a_single_column(rows, kind):
    x = rows[0][:50, :1]
    model = kind(1, tol=1e-10, random_state=0).fit(x)
    loss = TraceConjugate_ELBO().loss(model.model_, model.guide_, *model.model_arguments(x))
    units = (~np.isnan(x)).sum() * np.log(model._scale[0])
    assert -loss - units == pytest.approx(model.lower_bound_, abs=1e-6)
    assert all(np.isfinite(ends).all() for ends in model.credible_interval(0.5, x, 60))
