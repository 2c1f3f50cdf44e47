"""The mixture against scikit-learn's, exact evidences, and what scikit-learn asks of estimators."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t, nbinom
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import TraceConjugate_ELBO
from pyro_fmvae.models.table_sites import COUNTED, NUMBERS, WEIGHTS, parameter_of
from pyro_fmvae.sklearn import BayesianMixture, OutlierDetector, bayesian_mixture, standardisation

UNITS, ORIGIN = np.array([1.0, 100.0, 0.01]), np.array([5.0, 0.0, 3.0])


@pytest.fixture(scope="module")
def data():
    """Rows of three correlated clusters in units of their own, and the clusters."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0, 0.0], [6.0, 0.0, 3.0], [0.0, 7.0, -4.0]])
    factors = np.eye(3) + 0.3 * rng.standard_normal((3, 3, 3))
    kinds = rng.integers(3, size=400)
    noise = np.einsum("nij,nj->ni", factors[kinds], rng.standard_normal((400, 3)))
    return (centres[kinds] + noise) * UNITS + ORIGIN, kinds


@parametrize_with_checks(
    [
        BayesianMixture(2, n_clusters="auto", n_init=1, batch_size=7, tol=1e-3),
        BayesianMixture(
            covariance_type="diag", weight_concentration_prior_type="dirichlet_process", n_init=1, tol=1e-3
        ),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def priors(x, full):
    return {
        "weight_concentration_prior": 0.5,
        "mean_precision_prior": 2.0,
        "mean_prior": x.mean(0) + 0.1 * x.std(0),
        "degrees_of_freedom_prior": 4.5,
        "covariance_prior": np.cov(x.T) if full else x.var(0),
    }


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("batch_size", [None, 90])
def test_posterior_is_scikit_learns(data, full, batch_size):
    """Its diagonal E-step is that of a full Wishart, so that D = 1 alone is the same model."""
    x = data[0] if full else data[0][:, 1:2]
    x, number = x.copy(), 3 if full else 2
    kind = "full" if full else "diag"
    shared = {"covariance_type": kind, "random_state": 0, "max_iter": 2000, **priors(x, full)}
    ours = BayesianMixture(number, tol=1e-13, batch_size=batch_size, **shared).fit(x)
    theirs = BayesianGaussianMixture(
        n_components=number,
        tol=1e-12,
        reg_covar=0,
        weight_concentration_prior_type="dirichlet_distribution",
        **shared,
    ).fit(x)
    order, wanted = np.argsort(ours.means_[:, -1]), np.argsort(theirs.means_[:, -1])
    for name, size in {
        "weights_": 1.0,
        "weight_concentration_": len(x),
        "means_": x.std(0),
        "covariances_": np.abs(theirs.covariances_).max(),
        "mean_precision_": len(x),
        "degrees_of_freedom_": len(x),
    }.items():
        found, right = getattr(ours, name)[order], getattr(theirs, name)[wanted]
        found = found[:, 0] if found.ndim > right.ndim else found
        np.testing.assert_allclose(found / size, right / size, atol=1e-5, err_msg=name)
    gaps = ours.predict_proba(x)[:, order] - theirs.predict_proba(x)[:, wanted]
    assert np.abs(gaps).max() < 1e-4
    assert ours.converged_ and np.diff(ours.lower_bounds_).min() > -1e-8


def evidence(x, weights, prior):
    """Log p(x) under one Normal-Wishart, as a chain of predictive Student-t: Murphy (2007), Section 8."""
    mean, precision = prior["mean_prior"], prior["mean_precision_prior"]
    freedom, scatter, total = prior["degrees_of_freedom_prior"], prior["covariance_prior"], 0.0
    for row in np.repeat(x, weights, axis=0):
        df = freedom - len(mean) + 1
        total += multivariate_t(mean, scatter * (precision + 1) / (precision * df), df).logpdf(row)
        gap = row - mean
        scatter = scatter + np.outer(gap, gap) * precision / (precision + 1)
        mean = mean + gap / (precision + 1)
        precision, freedom = precision + 1, freedom + 1
    df = freedom - len(mean) + 1
    return total, multivariate_t(mean, scatter * (precision + 1) / (precision * df), df)


def test_bound_of_one_component_is_the_evidence_in_the_units_of_the_data(data):
    x, prior = data[0][:40], priors(data[0], True)
    weights = np.arange(40) % 3
    mixture = BayesianMixture(1, **prior).fit(x, sample_weight=weights)
    total, _ = evidence(x, weights, prior)
    assert mixture.lower_bound_ == pytest.approx(total, rel=1e-9)
    streamed = BayesianMixture(1, **prior)
    for part in range(0, 40, 10):
        streamed.partial_fit(x[part : part + 10], sample_weight=weights[part : part + 10])
    assert streamed.lower_bound_ == pytest.approx(total, rel=1e-9)
    np.testing.assert_allclose(streamed.means_, mixture.means_)
    np.testing.assert_allclose(streamed.covariances_, mixture.covariances_)


@pytest.mark.parametrize("part", [40, 7])
def test_the_default_prior_has_the_covariance_of_the_rows(data, part, monkeypatch):
    monkeypatch.setattr(standardisation, "PART", part)
    x, weights = data[0][:40], 1.0 + np.arange(40) % 3
    kinds = np.column_stack([x, np.arange(40) % 2])
    columns = standardisation.Standardisation.of(kinds, weights, categorical=[x.shape[1]])
    rows = columns.standardised(kinds, torch.device("cpu"))
    factor = columns.prior(rows, weights, True, None, 1.0, 5.0, None).standard[-1]
    correlation = np.cov(x.T, aweights=weights, ddof=0) / np.outer(columns.scale[:-1], columns.scale[:-1])
    np.testing.assert_allclose(2 * factor @ factor.mT / 5, correlation, atol=2e-6)


def test_scores_are_the_predictive_density(data):
    x, prior = data[0][:40], priors(data[0], True)
    mixture = BayesianMixture(1, **prior).fit(x)
    _, predictive = evidence(x, np.ones(40, int), prior)
    np.testing.assert_allclose(mixture.score_samples(x), predictive.logpdf(x))
    line = BayesianMixture(3, random_state=0).fit(data[0][:, :1])
    grid = np.linspace(-40, 50, 5001)[:, None]
    assert np.trapezoid(np.exp(line.score_samples(grid)), grid[:, 0]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_units_do_not_matter(data, kind):
    x, kinds = data
    mixture = BayesianMixture(3, covariance_type=kind, random_state=0).fit(x)
    same = clone(mixture).fit((x - ORIGIN) / UNITS)
    assert adjusted_rand_score(mixture.predict(x), kinds) > 0.95
    here, there = mixture.means_, same.means_ * UNITS + ORIGIN  # whose order rounding may change
    np.testing.assert_allclose(here[here[:, 0].argsort()], there[there[:, 0].argsort()], rtol=1e-6)
    assert mixture.lower_bound_ == pytest.approx(same.lower_bound_ - len(x) * np.log(UNITS).sum())
    np.testing.assert_allclose(
        mixture.score_samples(x), same.score_samples((x - ORIGIN) / UNITS) - np.log(UNITS).sum()
    )


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_missing_entries_are_marginalised(data, kind):
    x, kinds = data
    holes = np.where(np.random.default_rng(1).random(x.shape) < 0.2, np.nan, x)
    mixture = BayesianMixture(3, covariance_type=kind, random_state=0, batch_size=100).fit(holes)
    assert np.diff(mixture.lower_bounds_).min() > -1e-6
    assert adjusted_rand_score(mixture.predict(x), kinds) > 0.95
    # without its second column a row has the density of the others
    row = x[:1].copy()
    row[0, 1] = np.nan
    grid = np.repeat(row, 20_001, 0)
    grid[:, 1] = np.linspace(-4000, 4000, 20_001)
    whole = np.trapezoid(np.exp(mixture.score_samples(grid)), grid[:, 1])
    assert mixture.score_samples(row)[0] == pytest.approx(np.log(whole), abs=1e-3)


def test_categories_have_their_frequencies():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(50), rng.integers(3, size=50)])
    x[:5, 1] = np.nan
    mixture = BayesianMixture(1, categorical_features=[1], category_prior=2.0).fit(x)
    counts = np.bincount(x[5:, 1].astype(int), minlength=3) + 2.0
    np.testing.assert_allclose(mixture.probabilities_[1], counts[None] / counts.sum())
    assert mixture.means_.shape == (1, 1)
    gap = mixture.score_samples([[0.0, 2.0]]) - mixture.score_samples([[0.0, np.nan]])
    np.testing.assert_allclose(gap, np.log(counts[2] / counts.sum()))
    unseen = mixture.score_samples([[0.0, 3.0], [0.0, np.nan]])
    assert unseen[0] == unseen[1]
    for other in (-1.0, 0.5):
        with pytest.raises(ValueError, match=r"categories 0, 1, 2, \.\.\. in column 1, got other numbers"):
            mixture.predict([[0.0, other]])
    alone = BayesianMixture(2, categorical_features=[0], random_state=0).fit(x[5:, 1:])
    assert set(alone.sample(100)[0][:, 0]) <= {0.0, 1.0, 2.0}
    assert not hasattr(alone, "means_")
    assert not hasattr(mixture.set_params(categorical_features=[0, 1]).fit(x[5:, [1, 1]]), "means_")


def test_the_number_of_components_is_found(data):
    mixture = BayesianMixture("auto", n_init=2, random_state=0).fit(data[0])
    assert mixture.n_components_ == len(mixture.weights_) == 3


@pytest.mark.parametrize(("columns", "rows"), [(2, 6), (5, 25), (10, 30), (20, 60), (30, 90), (30, 300)])
def test_one_gaussian_has_one_component(columns, rows):
    """Also where there are few rows, so that the prior of the covariances decides."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, columns)) @ rng.normal(size=(columns, columns))
    assert BayesianMixture("auto", random_state=0).fit(x).n_components_ == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_species_are_components(seed):
    """Versicolor and virginica overlap: two components are within a standard error of three."""
    x, species = load_iris(return_X_y=True)
    mixture = BayesianMixture("auto", random_state=seed).fit(x)
    assert mixture.n_components_ == 3
    assert adjusted_rand_score(species, mixture.predict(x)) > 0.85


@pytest.mark.parametrize("full", [True, False])
def test_the_prior_of_tight_clusters_is_tight(full):
    """Clusters of a hundredth of the data's variance: the default prior has no part in their covariances."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(8), 12)
    x = 10 * rng.normal(size=(8, 4))[kinds] + rng.normal(size=(96, 4))
    mixture = BayesianMixture(8, covariance_type="full" if full else "diag", random_state=0).fit(x)
    assert adjusted_rand_score(mixture.predict(x), kinds) == 1
    variances = np.diagonal(mixture.covariances_, 0, 1, 2) if full else mixture.covariances_
    assert 0.5 < np.exp(np.log(variances).mean()) < 1.5


@pytest.mark.parametrize(
    "estimator", [BayesianMixture(2, n_init=1), OutlierDetector(BayesianMixture(2, n_init=1))]
)
def test_numbers_whose_squares_overflow_are_named(data, estimator):
    """Also in rows for a fitted mixture, and beside missing numbers; large units alone are none of them."""
    x = 1e97 * data[0][:100]
    fitted, odd = clone(estimator).fit(x), x.copy()
    assert np.isfinite(fitted.score_samples(x)).all()
    odd[3, 1], odd[4, 1] = -1e120, np.nan
    for use in (clone(estimator).fit, fitted.score_samples):
        with pytest.raises(ValueError, match=r"^X: expected .* got one of 1e\+120 in column 1; "):
            use(odd)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n_components": "auto", "n_init": 1},
        {"batch_size": 17},
        {"covariance_type": "diag", "count_features": [1], "categorical_features": [2]},
    ],
)
def test_weights_are_repeats_to_the_last_bit(arguments):
    """In any order of the rows; and rows of weight 0 are none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) + 3 * rng.integers(3, size=(60, 1))
    x[:, 1:] = np.abs(x[:, 1:]).round()
    x[rng.random(x.shape) < 0.1] = np.nan
    weights = rng.integers(4, size=60)
    mixture = BayesianMixture(**{"n_components": 3, "random_state": 0, **arguments})
    weighted = clone(mixture).fit(x, sample_weight=weights)
    repeated = clone(mixture).fit(rng.permutation(x.repeat(weights, 0)))
    assert weighted.lower_bound_ == repeated.lower_bound_
    np.testing.assert_array_equal(weighted.predict_proba(x), repeated.predict_proba(x))
    np.testing.assert_array_equal(weighted.sample(5)[0], repeated.sample(5)[0])


def test_responsibilities_are_features_of_a_next_step(data):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data[0], columns=["a", "b", "c"])
    joined = BayesianMixture(2, n_clusters="auto", n_init=1, random_state=0).fit(frame)
    np.testing.assert_array_equal(joined.cluster_labels_, joined.predict(frame))
    mixture = BayesianMixture(3, random_state=0).set_output(transform="pandas")
    found = mixture.fit_transform(frame)
    assert list(found.columns) == [f"bayesianmixture{number}" for number in range(3)]
    np.testing.assert_array_equal(found, mixture.predict_proba(frame))


def test_draws_have_the_moments_of_the_mixture(data):
    mixture = BayesianMixture(3, random_state=0).fit(data[0])
    rows, kinds = mixture.sample(20_000)
    shares = np.bincount(kinds, minlength=3) / len(kinds)
    assert np.abs(shares - mixture.weights_).max() < 4 * 0.5 / np.sqrt(len(kinds))
    error = rows.std(0) / np.sqrt(len(rows))
    assert (np.abs(rows.mean(0) - mixture.weights_ @ mixture.means_) < 4 * error).all()
    np.testing.assert_array_equal(rows, mixture.sample(20_000)[0])


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_credible_intervals_hold_their_share_of_the_posterior(data, kind):
    """Draws of the posterior's sites fall below and above each interval as often as they should."""
    x = np.column_stack([data[0], np.random.default_rng(0).poisson(1 + data[1])])[:40]
    mixture = BayesianMixture(3, covariance_type=kind, count_features=[3], random_state=0).fit(x)
    intervals = mixture.credible_interval(0.8)
    assert [part.shape for part in intervals] == [(2, 3), (2, 3, 3), (2, 3, 1)]
    posterior, number = mixture._mixture, 20_000
    torch.manual_seed(0)
    shares = posterior.natural(WEIGHTS).rsample((number,)).numpy()
    found = posterior.natural(parameter_of(NUMBERS)).rsample((number,))[..., 0, :].numpy()
    rates = posterior.natural(parameter_of(COUNTED)).rsample((number,)).numpy()
    columns = mixture._columns
    means = found * columns.scale[:3] + columns.centre[:3]
    for draws, (low, high) in zip((shares, means, rates), intervals, strict=True):
        for outside in ((draws < low).mean(0), (draws > high).mean(0)):
            assert np.abs(outside - 0.1).max() < 4 * np.sqrt(0.09 / number)


def test_stick_breaking_weights_leave_components_empty(data):
    """At the end, the sticks are what the responsibilities say."""
    mixture = BayesianMixture(
        8, weight_concentration_prior_type="dirichlet_process", tol=1e-11, max_iter=2000, random_state=0
    ).fit(data[0])
    rows = mixture.predict_proba(data[0]).sum(0)
    behind = rows[::-1].cumsum()[::-1][1:]
    own, rest = mixture.weight_concentration_
    np.testing.assert_allclose(own, 1 + rows[:-1], atol=1e-2)
    np.testing.assert_allclose(rest, 1 / 8 + behind, atol=1e-2)
    assert mixture.weights_.sum() == pytest.approx(1) and mixture.weights_[3:].sum() < 0.01
    assert adjusted_rand_score(mixture.predict(data[0]), data[1]) > 0.95
    low, high = mixture.credible_interval(0.8).weights
    posterior = mixture._mixture
    torch.manual_seed(1)
    first = posterior.natural(WEIGHTS).sample((20_000,))[:, 0].numpy()
    for outside in ((first < low[0]).mean(), (first > high[0]).mean()):  # quantiles of 10,000 draws
        assert abs(outside - 0.1) < 4 * np.sqrt(0.09 * (1 / 20_000 + 1 / 10_000))
    np.testing.assert_array_equal(mixture.credible_interval(0.8).weights, [low, high])


def test_counts_have_gamma_posteriors():
    """Of one component, whose bound is the evidence: a chain of negative binomials."""
    x = np.random.default_rng(0).poisson([3.0, 0.2], (40, 2)).astype(float)
    x[:4, 1] = np.nan
    weights = np.arange(40) % 3
    mixture = BayesianMixture(1, count_features=[0, 1], rate_prior=2.0).fit(x, sample_weight=weights)
    known = np.where(np.isnan(x), 0, weights[:, None])
    total, rows = (known * np.nan_to_num(x)).sum(0), known.sum(0)
    a, b = np.full(2, 2.0), 2.0 / (total / rows)
    np.testing.assert_allclose(mixture.rates_, [(a + total) / (b + rows)])
    evidence = 0.0
    for row in np.repeat(x, weights, axis=0):
        there = ~np.isnan(row)
        evidence += nbinom(a, b / (b + 1)).logpmf(np.nan_to_num(row))[there].sum()
        a, b = a + np.nan_to_num(row), b + there
    assert mixture.lower_bound_ == pytest.approx(evidence, rel=1e-9)
    np.testing.assert_allclose(
        mixture.score_samples([[2.0, 1.0]]), nbinom(a, b / (b + 1)).logpmf([2, 1]).sum()
    )
    drawn = mixture.sample(20_000)[0]
    assert (drawn == drawn.round()).all()
    assert (np.abs(drawn.mean(0) - mixture.rates_) < 4 * drawn.std(0) / np.sqrt(20_000)).all()


@pytest.mark.parametrize(
    ("prior", "number"),
    [("dirichlet_distribution", 3), ("dirichlet_process", 3), ("dirichlet_process", "auto")],
)
def test_columns_of_every_kind_are_clustered_together(prior, number):
    """No kind by itself tells three clusters apart."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=600)
    x = np.column_stack(
        [
            rng.normal(4.0 * (kinds == 0)),
            rng.poisson(np.where(kinds == 1, 12.0, 3.0)),
            rng.random(600) < np.where(kinds == 2, 0.95, 0.05),
            np.where(rng.random(600) < 0.6, kinds, rng.integers(3, size=600)),
        ]
    ).astype(float)
    x[rng.random(x.shape) < 0.05] = np.nan
    columns = {"count_features": [1], "categorical_features": [2, 3]}
    mixture = BayesianMixture(number, weight_concentration_prior_type=prior, random_state=0, **columns).fit(x)
    assert mixture.n_components_ == 3
    assert adjusted_rand_score(mixture.predict(x), kinds) > 0.75
    assert np.sort(mixture.rates_[:, 0]) == pytest.approx([3, 3, 12], rel=0.15)
    with pytest.raises(ValueError, match=r"counts 0, 1, 2, \.\.\. in column 1, got other numbers"):
        mixture.score_samples([[0.0, -3.0, 1.0, 1.0]])
    streamed = clone(mixture).set_params(n_components=3)
    for part in np.split(x, 3):
        streamed.partial_fit(part)
    assert adjusted_rand_score(streamed.predict(x), kinds) > 0.75


def test_clusters_are_found_where_half_of_the_numbers_are_missing():
    """Updates that fill each component's rows in for it alone end at .3 to .5, 100 nats lower."""
    x, kinds = load_wine(return_X_y=True)
    x[np.random.default_rng(100).random(x.shape) < 0.5] = np.nan
    mixture = BayesianMixture(3, n_init=2, max_iter=100, random_state=0).fit(x)
    assert (
        mixture.converged_
        and mixture.lower_bound_ > -1850
        and adjusted_rand_score(kinds, mixture.predict(x)) > 0.65
    )


def test_the_last_sweep_is_a_plain_one(monkeypatch):
    """Fits do not end at a small gain where few components take part, or after a leap."""
    sweep, noted = bayesian_mixture.IncrementalAscent.sweep, []

    def noting(ascent, plain=False):
        bound = sweep(ascent, plain)
        noted.append((plain, ascent.plain))
        return bound

    monkeypatch.setattr(bayesian_mixture.IncrementalAscent, "sweep", noting)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 3)) + 3 * rng.integers(2, size=(80, 1))
    x[rng.random(x.shape) < 0.4] = np.nan
    assert BayesianMixture(2, n_init=1, random_state=0).fit(x).converged_
    assert noted[-2:] == [(False, False), (True, True)]


def test_rows_share_a_component_as_often_as_drawn_assignments_do(data):
    x = data[0][:60] * 0.4 + data[0].mean(0) * 0.6  # clusters that overlap
    mixture = BayesianMixture(3, random_state=0).fit(x)
    probs, number = mixture.predict_proba(x[:8]), 40_000
    drawn = (np.random.default_rng(0).random((number, 8, 1)) > probs.cumsum(1)).sum(-1)
    expected = (drawn[:, :, None] == drawn[:, None, :]).mean(0)
    found = mixture.co_clustering(x[:8])
    assert np.abs(found - expected).max() < 4 * 0.5 / np.sqrt(number)
    np.testing.assert_array_equal(np.diag(found), 1)
    pairs = np.array([[0, 1], [5, 2], [3, 3]])
    np.testing.assert_allclose(mixture.co_clustering(x[:8], pairs), found[pairs[:, 0], pairs[:, 1]])


@pytest.mark.parametrize("pairs", [[[0, 9]], [[0.5, 1.0]], [0, 1]])
def test_bad_pairs_and_probabilities_are_named(data, pairs):
    mixture = BayesianMixture(1).fit(data[0])
    with pytest.raises(ValueError, match="pairs"):
        mixture.co_clustering(data[0][:5], pairs)
    np.testing.assert_array_equal(mixture.credible_interval().weights, 1)
    with pytest.raises(ValueError, match="probability"):
        mixture.credible_interval(1.0)


def test_a_warm_start_goes_on(data, monkeypatch):
    mixture = BayesianMixture(6, max_iter=1, warm_start=True, random_state=0, n_init=1)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        mixture.fit(data[0][:60])
    monkeypatch.setattr(bayesian_mixture, "mixture_of_rows", None)  # is not asked any more
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        bounds = [mixture.fit(data[0]).lower_bound_ for _ in range(4)]
    assert bounds[0] + 1e-3 < bounds[1] < bounds[2] < bounds[3]
    monkeypatch.undo()
    assert clone(mixture).set_params(max_iter=200).fit(data[0]).converged_


def test_streamed_rows_move_the_posterior(data):
    x, kinds = data
    mixture = BayesianMixture(3, random_state=0)
    for part in np.split(x, 4):
        mixture.partial_fit(part)
    assert mixture.weight_concentration_.sum() == pytest.approx(len(x) + 3 * 4)
    assert adjusted_rand_score(mixture.predict(x), kinds) > 0.95


def test_small_batches_end_where_all_rows_do(data):
    """A start of the first ten rows alone would be a poor one."""
    x, kinds = data
    mixture = BayesianMixture(3, random_state=0)
    for part in np.array_split(x, 40):
        mixture.partial_fit(part)
    assert mixture.weight_concentration_.sum() == pytest.approx(len(x) + 3 * 4)
    assert adjusted_rand_score(mixture.predict(x), kinds) > 0.95
    # rows after the last start are streamed
    assert 320 <= mixture._begun_with < 400
    streamed = clone(mixture).fit(x[:200])
    whole = streamed.lower_bound_
    assert streamed.partial_fit(x[200:]).lower_bound_ < whole


def test_columns_of_identifiers_are_refused():
    x = np.column_stack([np.random.default_rng(0).normal(size=300), np.arange(300.0)])
    with pytest.raises(ValueError, match=r"at most 150 categories.*got 300 in column 1; leave out"):
        BayesianMixture(2, categorical_features=[1]).fit(x)
    x[:, 1] //= 3
    BayesianMixture(1, categorical_features=[1]).fit(x)


def test_pipelines_and_searches(data):
    x, kinds = data
    pipeline = make_pipeline(StandardScaler(), BayesianMixture(random_state=0, n_init=2))
    found = GridSearchCV(pipeline, {"bayesianmixture__n_components": [1, 3]}, cv=2).fit(x)
    assert found.best_params_ == {"bayesianmixture__n_components": 3}
    assert adjusted_rand_score(found.predict(x), kinds) > 0.95


def test_a_data_frame_names_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"length": [0.1, 0.2, 5.0, 5.1], "kind": [0, 0, 1, 1]})
    mixture = BayesianMixture(2, categorical_features=["kind"], random_state=0).fit(frame)
    assert list(mixture.feature_names_in_) == ["length", "kind"]
    assert mixture.probabilities_.keys() == {1}
    with pytest.raises(ValueError, match="feature names"):
        mixture.predict(frame[["kind", "length"]])


def test_progress_is_shown_when_asked_for(data, capsys):
    BayesianMixture(verbose=1).fit(data[0])
    assert "nats per row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 500}, "n_components.*n_samples = 400"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": "x"}, "^n_components: expected a number >= 1 or 'auto', got 'x'$"),
        ({"n_components": None}, "^n_components: expected a number >= 1 or 'auto', got None$"),
        ({"n_clusters": "x"}, "^n_clusters: expected a number >= 1 or 'auto', got 'x'$"),
        ({"covariance_type": "tied"}, "covariance_type"),
        ({"degrees_of_freedom_prior": 2.0}, "degrees_of_freedom_prior: expected more than 2"),
        ({"covariance_prior": np.ones(3)}, "covariance_prior.*shape"),
        ({"covariance_prior": -np.eye(3)}, "covariance_prior.*positive"),
        ({"covariance_prior": [1, 1, 0], "covariance_type": "diag"}, "covariance_prior.*> 0"),
        ({"mean_prior": [0.0, np.nan, 0.0]}, "mean_prior"),
        ({"categorical_features": [3]}, "categorical_features"),
        ({"categorical_features": ["kind"]}, "categorical_features"),
        ({"categorical_features": [0]}, "categories 0, 1, 2"),
        ({"count_features": [0]}, "counts 0, 1, 2"),
        ({"count_features": [3]}, "count_features: expected names or indices"),
        ({"count_features": [0], "categorical_features": [0]}, "count_features: expected no column of"),
        ({"rate_prior": 0}, "rate_prior"),
        ({"weight_concentration_prior_type": "process"}, "weight_concentration_prior_type: expected"),
        ({"weight_concentration_prior": 0.0}, "weight_concentration_prior"),
        ({"device": "nowhere"}, "device"),
        ({"batch_size": 0}, "batch_size"),
        ({"tol": np.nan}, "tol: expected a number >= 0, got nan"),
    ],
)
def test_bad_arguments_are_named(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        BayesianMixture(**arguments).fit(data[0])


def test_bad_weights_and_early_use(data):
    with pytest.raises(ValueError, match="sample_weight"):
        BayesianMixture().fit(data[0], sample_weight=-np.ones(400))
    with pytest.raises(NotFittedError):
        BayesianMixture().sample()


@pytest.mark.gpu
@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_a_gpu_finds_what_a_cpu_finds(covariance_type):
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(5), 200)
    X = 4 * rng.standard_normal((5, 6))[kinds] + rng.standard_normal((1000, 6))
    one, other = (
        BayesianMixture(5, covariance_type=covariance_type, device=device, random_state=0).fit(X)
        for device in ("cuda", "cpu")
    )
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, abs=1e-4)
    assert adjusted_rand_score(one.predict(X), other.predict(X)) == 1


def test_clusters_are_unions_of_components():
    """Two clusters that are not Gaussian take many components; valleys tell the two apart."""
    rng, kinds = np.random.default_rng(0), np.repeat([0, 1], 300)
    x = rng.exponential(1, (600, 2)) * (1 - 2 * kinds)[:, None] + (kinds[:, None] == 0)
    mixture = BayesianMixture("auto", n_clusters="auto", n_init=1, random_state=0).fit(x)
    assert mixture.n_components_ > 4
    assert (
        adjusted_rand_score(kinds, mixture.cluster_labels_)
        > 0.99
        > 2 * adjusted_rand_score(kinds, mixture.component_labels_)
    )
    np.testing.assert_array_equal(mixture.predict(x), mixture.cluster_labels_)
    probs, gamma = mixture.predict_proba(x), mixture.transform(x)
    np.testing.assert_array_equal(mixture.component_labels_, gamma.argmax(1))
    for cluster in range(2):
        own = gamma[:, mixture.component_clusters_ == cluster].sum(1)
        np.testing.assert_allclose(probs[:, cluster], own)
    plain = BayesianMixture("auto", n_init=1, random_state=0).fit(x)
    np.testing.assert_array_equal(plain.score_samples(x), mixture.score_samples(x))
    np.testing.assert_array_equal(plain.predict(x), mixture.component_labels_)
    three = mixture.set_params(n_clusters=3).fit(x)
    assert three.predict_proba(x).shape == (600, 3) and three.cluster_tree_.shape[1] == 4
    assert BayesianMixture(2, n_clusters=3, random_state=0).fit(x).predict_proba(x).shape == (600, 2)


def test_clusters_follow_more_rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2)) + 8 * np.arange(3).repeat(100)[:, None]
    x = rng.permutation(x)
    mixture = BayesianMixture("auto", n_clusters="auto", random_state=0)
    for part in np.split(x, 3):
        mixture.partial_fit(part)
        assert mixture.cluster_labels_.shape == (100,)
    assert len(set(mixture.predict(x))) == 3


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_bound_is_that_of_the_program(data, kind):
    x = np.column_stack([data[0], np.random.default_rng(0).poisson(1 + data[1]), data[1]]).astype(float)
    x[::7, :3] = np.nan
    mixture = BayesianMixture(
        3, covariance_type=kind, count_features=[3], categorical_features=[4], tol=1e-9, random_state=0
    ).fit(x)
    arguments, elbo = mixture.model_arguments(x), TraceConjugate_ELBO()
    scales = mixture._columns.log_scales(x).sum()
    assert -elbo.loss(mixture.model_, mixture.guide_, *arguments) - scales == pytest.approx(
        mixture.lower_bound_, abs=1e-3
    )
    weights = mixture.guide_.posterior("weights")().mean.detach()
    np.testing.assert_allclose(weights, mixture.weights_, rtol=1e-6)
    new = np.array([[*x[1, :4], 3.0]])  # a category that training did not have
    assert mixture.model_arguments(new)[1].tolist() == [[True] * 4 + [False]]
    with pytest.raises(ValueError, match="sample_weight"):
        mixture.model_arguments(x, -np.ones(len(x)))
    x[0, :3] = [np.nan, 1.0, 1.0]
    if kind == "full":
        with pytest.raises(ValueError, match="X: expected all numbers of a row or none"):
            mixture.model_arguments(x)


def test_a_program_of_columns_that_are_nearly_the_same():
    torch.set_default_dtype(torch.float32)
    rng = np.random.default_rng(0)
    one = rng.normal(size=200)
    x = np.column_stack([one, one + 1e-4 * rng.normal(size=200)])
    mixture = BayesianMixture(1, random_state=0).fit(x)
    bound = -TraceConjugate_ELBO().loss(mixture.model_, mixture.guide_, *mixture.model_arguments(x))
    assert bound - mixture._columns.log_scales(x).sum() == pytest.approx(mixture.lower_bound_, abs=1e-3)
    with pytest.warns(ConvergenceWarning, match="n_draws: only 5 effective draws of '"):
        assert np.isfinite(mixture.credible_interval(X=x, n_draws=5).means).all()


def test_a_program_has_no_stick_breaking_weights(data):
    mixture = BayesianMixture(3, weight_concentration_prior_type="dirichlet_process", random_state=0)
    with pytest.raises(ValueError, match="weights: expected a Dirichlet prior for a Pyro program"):
        mixture.fit(data[0]).credible_interval(X=data[0], n_draws=10)


def test_intervals_of_draws_are_those_of_a_gibbs_sampler_by_hand():
    """Two Poisson components that overlap: the variational intervals are too narrow."""
    rng = np.random.default_rng(0)
    x = rng.poisson(np.where(rng.random(60) < 0.5, 2.0, 6.0)).astype(float)
    mixture = BayesianMixture(2, count_features=[0], random_state=0).fit(x[:, None])
    weights, _, rates = mixture.credible_interval(0.8, x[:, None], n_draws=2000)
    shape, rate = mixture._rates
    share, means, draws = mixture.weights_, mixture.rates_[:, 0], []
    for _ in range(20_000):
        logs = np.log(share) + x[:, None] * np.log(means) - means
        second = rng.random(len(x)) < 1 / (1 + np.exp(logs[:, 0] - logs[:, 1]))
        z = np.column_stack([~second, second])
        share = rng.dirichlet(mixture._mixture.prior.c0 + z.sum(0))
        means = rng.gamma(shape + x @ z) / (float(rate[0]) + z.sum(0))
        draws.append([*share, *means])
    low, high = np.quantile(draws, [0.1, 0.9], axis=0)
    for ends, exact in ((weights, (low[:2], high[:2])), (rates[..., 0], (low[2:], high[2:]))):
        assert np.abs(ends - exact).max() < 0.15 * (exact[1] - exact[0]).max()
    narrow = mixture.credible_interval(0.8).rates[..., 0]
    assert ((narrow[1] - narrow[0]) < 0.9 * (high - low)[2:]).all()
