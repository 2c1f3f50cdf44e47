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
from pyro_fmvae.sklearn import PCA, FactorAnalysis


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
    model = kind(components, tol=1e-10).fit(x)
    assert np.diff(model.lower_bounds_).min() > -1e-9
    arguments, program, guide = model.model_arguments(x), model.model_, model.guide_
    elbo, units = TraceConjugate_ELBO(), (~np.isnan(x)) @ np.log(model._scale)
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
    table, rng = Table.of(x), np.random.default_rng(0)
    matrix = MatrixPosterior.at_start(
        rng.normal(size=(4, 3)), np.arange(4), rng.gamma(3, size=4), np.array([0, 1, -1])
    )
    monkeypatch.setattr(linear_ascent, "BLOCK", 30)
    sums, evidence = factor_sums(table, matrix)
    zz, zy, total = np.zeros((4, 3, 3)), np.zeros((4, 3)), 0.0
    for row in x:
        own = ~np.isnan(row)
        w, tau = matrix.mean[own], matrix.precision[own]
        covariance = np.linalg.inv(np.eye(2) + (w[:, :2] * tau[:, None]).T @ w[:, :2])
        mean = covariance @ (w[:, :2] * tau[:, None]).T @ (row[own] - w[:, 2])
        z = np.append(mean, 1.0)
        second = np.outer(z, z)
        second[:2, :2] += covariance
        zz[own] += second
        zy[own] += row[own, None] * z
        total += (np.linalg.slogdet(covariance)[1] + 2 - np.trace(covariance) - mean @ mean) / 2
    np.testing.assert_allclose(sums.zz[sums.group], zz)
    np.testing.assert_allclose(sums.zy, zy)
    assert evidence == pytest.approx(total)


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
