"""Thresholds of the detector, and what scikit-learn asks of it."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae.sklearn import BayesianMixture, OutlierDetector
from pyro_fmvae.sklearn.outlier_detector import lowest, usual_components


@parametrize_with_checks([OutlierDetector(BayesianMixture(1, n_init=1), contamination=0.1)])
def test_scikit_learns_checks(estimator, check, monkeypatch):
    monkeypatch.setattr("pyro_fmvae.sklearn.outlier_detector.PAIRS", 1)  # of mixtures: they are alike here
    check(estimator)


def rows(number, seed=0):
    """Two clusters."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((number, 3)) + 8 * rng.integers(2, size=number)[:, None]


def test_by_default_one_row_in_a_hundred_is_an_outlier():
    """Also of rows that were not there in training."""
    detector = OutlierDetector(random_state=0).fit(rows(800))
    found = (detector.predict(rows(5000, seed=1)) == -1).mean()
    assert abs(found - 0.01) < 4 * np.sqrt(0.01 / 5000) + 0.005  # the training rows' own error
    between = np.full((1, 3), 4.0)
    assert detector.predict(between) == [-1] and detector.decision_function(between) < 0


@pytest.mark.parametrize(("columns", "number"), [(30, 100), (2, 100)])
def test_one_row_in_a_hundred_also_of_few_rows_in_many_columns(columns, number):
    """On average over data sets. The mixture's own draws alone would let 3.4 % of the first be outliers."""
    shares = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(number + 2000, columns)) @ rng.normal(size=(columns, columns))
        detector = OutlierDetector(BayesianMixture(1, n_init=1), random_state=0).fit(x[:number])
        shares.append((detector.predict(x[number:]) == -1).mean())
    assert 0.004 < np.mean(shares) < 0.018


def test_the_score_is_the_mean_over_mixtures_of_halves_of_the_rows():
    """By default, half of the mixtures have random columns; twins have learnt from different rows."""
    x = rows(60)
    detector = OutlierDetector(random_state=0, contamination=0.1).fit(x)
    both = list(zip(detector.columns_, detector.mixtures_, strict=True))
    scores = [mixture.score_samples(x[:, columns]) for columns, mixture in both]
    np.testing.assert_allclose(detector.score_samples(x), np.mean(scores, 0))
    assert all(len(columns) == 3 for columns in detector.columns_[:6]) and len(both) == 12
    for (columns, one), (other_columns, other) in zip(both[::2], both[1::2], strict=True):
        assert set(columns) == set(other_columns) <= {0, 1, 2}
        assert one._total_weight == other._total_weight == 30
        means = (one.weights_ @ one.means_ + other.weights_ @ other.means_) / 2
        assert np.abs(means - x.mean(0)[columns]).max() < 0.7 < np.abs(one.means_ - other.means_).max()


def test_a_rare_category_that_a_sample_lacks_is_a_category():
    X = np.r_[np.zeros(1000), 1, 2][:, None]
    mixture = BayesianMixture(1, categorical_features=[0])
    detector = OutlierDetector(mixture, random_state=0).fit(X)
    assert all(len(each.probabilities_[0][0]) == 3 for each in detector.mixtures_)
    assert detector.predict([[0], [1], [2]]).tolist() == [1, -1, -1]


def test_categories_of_which_one_is_in_most_rows():
    generator = np.random.default_rng(0)
    X = (generator.random((300, 2)) < 0.05).astype(float)
    mixture = BayesianMixture("auto", categorical_features=[0, 1])
    detector = OutlierDetector(mixture, random_state=0).fit(X)
    assert detector.predict([[0, 0], [0, 1], [1, 0], [1, 1]]).tolist() == [1, 1, 1, -1]
    single = np.eye(400)[:, :1]  # one row differs, and most draws are alike
    detector = OutlierDetector(BayesianMixture(1, categorical_features=[0]), random_state=0).fit(single)
    assert detector.predict([[0], [1]]).tolist() == [1, -1]


@pytest.mark.parametrize("seed", range(3))
def test_single_rows_far_from_all_others_have_no_component_of_their_own(seed):
    flowers, spoilt = load_iris().data.copy(), [5, 60, 120]
    flowers[5, 0] *= 10
    flowers[60, 3] *= 10
    flowers[120] = flowers[120, ::-1]
    detector = OutlierDetector(contamination=0.02, random_state=seed).fit(flowers)
    assert np.flatnonzero(detector.predict(flowers) == -1).tolist() == spoilt


def test_contamination_is_the_share_of_training_rows():
    x = rows(200)
    x[:10] += 30 * np.sign(np.random.default_rng(2).standard_normal((10, 3)))
    detector = OutlierDetector(BayesianMixture(2), contamination=0.05, random_state=0)
    np.testing.assert_array_equal(detector.fit_predict(x), np.where(np.arange(200) < 10, -1, 1))
    truth = np.arange(200) >= 10
    assert roc_auc_score(truth, detector.score_samples(x)) == 1.0


def test_missing_entries_are_scored_by_the_others():
    detector = OutlierDetector(BayesianMixture(2), random_state=0).fit(rows(300))
    assert detector.predict([[0.0, np.nan, 0.0], [0.0, np.nan, 8.0]]).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("scores", "weights", "share", "expected"),
    [
        ([4, 1, 3, 2], [1, 1, 1, 1], 0.5, 3),
        ([4, 1, 3, 2], [1, 2, 1, 1], 0.4, 2),
        ([4, 1, 3, 2], [1, 0, 1, 1], 0.1, 2),
        ([1, 1, 1], [1, 1, 1], 0.5, 1),
    ],
)
def test_a_share_by_weight_is_below_the_threshold(scores, weights, share, expected):
    scores, weights = np.array(scores, float), np.array(weights, float)
    found = lowest(scores, weights, share)
    assert found == expected
    assert weights[scores < found].sum() <= share * weights.sum() + 1e-12


@pytest.mark.parametrize("contamination", [0.0, 0.6, -0.1])
def test_contamination_out_of_range(contamination):
    with pytest.raises(ValueError, match="contamination"):
        OutlierDetector(BayesianMixture(1), contamination=contamination).fit(rows(50))


def test_a_frame_is_fitted_without_warnings():
    """Its own draws have no names of columns."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"])
    assert set(OutlierDetector(BayesianMixture(1), random_state=0).fit_predict(frame)) <= {-1, 1}


def test_few_rows_of_one_gaussian_flag_few_new_ones():
    """On average over data sets."""
    flagged, columns = [], 10
    for seed in range(100, 106):
        rng = np.random.default_rng(seed)
        x, new = rng.normal(size=(20, columns)), rng.normal(size=(4000, columns))
        detector = OutlierDetector(BayesianMixture(1, n_init=1), random_state=seed).fit(x)
        flagged.append((detector.predict(new) < 0).mean())
    assert 0.001 < np.mean(flagged) < 0.025


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_outliers_among_the_training_rows_are_found_though_they_have_a_component(share):
    rng, number = np.random.default_rng(0), round(400 * share)
    usual = rng.normal(size=(400, 6)) + 8 * np.eye(6)[rng.integers(0, 2, 400)]
    x = np.concatenate([usual, rng.uniform(-12, 12, (number, 6))])
    mixture = BayesianMixture("auto", weight_concentration_prior=10.0, n_init=1)
    detector = OutlierDetector(mixture, random_state=0).fit(x)
    said = detector.predict(x) < 0
    assert said[400:].mean() >= 0.9 and said[:400].mean() < 0.03


def test_usual_components_are_all_but_few_improbable_ones():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2, 3], [4000, 4000, 1000, 1000])
    scores = rng.normal(np.array([0.0, -1.0, -20.0, -15.0])[codes])
    usual = usual_components(scores, codes, np.array([0.4, 0.4, 0.1, 0.1]))
    assert usual.tolist() == [True, True, False, False]
    assert usual_components(scores, codes, np.array([0.4, 0.3, 0.15, 0.15])).tolist() == [
        True,
        True,
        False,
        True,
    ]
    assert usual_components(scores, codes, np.array([0.2, 0.2, 0.3, 0.3])).all()
    assert usual_components(scores[:8000], codes[:8000], np.array([0.4, 0.6])).all()


@pytest.mark.parametrize("share", [0.8, 0.95, 1.0])
def test_rows_that_are_equal_are_no_outliers(share):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((600, 2)) < share, 0.0, rng.normal(size=(600, 2)))
    found = OutlierDetector(random_state=0).fit_predict(x)
    assert (found[(x == 0).all(1)] == 1).all() and (found == -1).mean() < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 0}, "n_components == 0"),
        ({"covariance_type": "foo"}, "covariance_type: expected 'full' or 'diag'"),
        ({"n_components": 500}, "n_components: expected no more than the rows"),
    ],
)
def test_arguments_of_the_mixture_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        OutlierDetector(BayesianMixture(**arguments)).fit(np.random.default_rng(0).normal(size=(60, 2)))
