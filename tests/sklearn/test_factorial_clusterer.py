"""Labels and clusters by the factorial mixture VAE, in arrays, and what scikit-learn asks of estimators."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae.sklearn import FactorialClusterer
from pyro_fmvae.sklearn.label_columns import LabelColumns

pytestmark = pytest.mark.usefixtures("single_precision")
TINY = {"max_iter": 4, "hidden": (8,), "factor_dim": 2, "random_state": 0}


@parametrize_with_checks([FactorialClusterer((2,), **TINY)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    """Rows with two properties, [300, 6], and their values, of which some are unknown."""
    rng = np.random.default_rng(0)
    kinds = np.stack([rng.integers(3, size=300), rng.integers(2, size=300)], 1)
    means = np.concatenate([4 * np.eye(3)[kinds[:, 0]], np.repeat(4.0 * kinds[:, 1:], 3, 1)], 1)
    x = (means + rng.standard_normal((300, 6))) * [1, 10, 100, 1, 1, 1]
    known = np.where(rng.random((300, 2)) < 0.5, kinds, -1)
    return x, kinds, known


@pytest.fixture(scope="module")
def trained(data):
    x, _, known = data
    return FactorialClusterer((2,), max_iter=250, hidden=(32,), factor_dim=2, random_state=0).fit(x, known)


def test_labels_are_predicted(data, trained):
    x, kinds, known = data
    assert trained.n_components_ == (3, 2, 2)
    assert trained.factor_names_ == ("label0", "label1", "factor 2")
    found = trained.predict(x)
    assert found.shape == (300, 2)
    assert (found == kinds)[known < 0].mean() > 0.9  # of labels that were not given
    probs = trained.predict_proba(x)
    assert [p.shape for p in probs] == [(300, 3), (300, 2)]
    for column, p in enumerate(probs):
        np.testing.assert_allclose(p.sum(1), 1)
        np.testing.assert_array_equal(p.argmax(1), found[:, column])


def test_values_may_be_words(data):
    x, kinds, known = data
    words = np.array(["red", "green", "blue"], dtype=object)
    y = np.where(known[:, 0] >= 0, words[kinds[:, 0]], -1)
    found = FactorialClusterer((2,), **TINY).fit(x, y)
    assert list(found.classes_[0]) == ["blue", "green", "red"]
    assert set(found.predict(x)) <= set(words)


def test_without_labels_factors_are_clusters(data):
    clusterer = FactorialClusterer((6, 2), **TINY).fit(data[0])
    found, probs = clusterer.predict(data[0]), clusterer.predict_proba(data[0])
    assert clusterer.classes_ == [] and [p.shape for p in probs] == [(300, 6), (300, 2)]
    np.testing.assert_array_equal(found, np.stack([p.argmax(1) for p in probs], 1))
    alone = FactorialClusterer((6,), **TINY).fit(data[0])
    assert alone.predict(data[0]).shape == (300,) and alone.predict_proba(data[0]).shape == (300, 6)


@pytest.mark.slow
def test_clusters_tell_of_the_properties(data):
    x, kinds, _ = data
    clusterer = FactorialClusterer((6,), max_iter=1200, hidden=(32,), random_state=0).fit(x)
    assert adjusted_rand_score(2 * kinds[:, 0] + kinds[:, 1], clusterer.predict(x)) > 0.2
    error = ((clusterer.inverse_transform(clusterer.transform(x)) - x) ** 2).mean(0) / x.var(0)
    assert error.mean() < 0.25


def test_means_and_codes_are_decoded(data, trained):
    x, _, _ = data
    means = trained.transform(x)
    assert means.shape == (300, 6) and list(trained.get_feature_names_out())[:3] == [
        "label0_0",
        "label0_1",
        "label1_0",
    ]
    error = ((trained.inverse_transform(means) - x) ** 2).mean(0) / x.var(0)
    assert error.mean() < 0.8  # some of what there is to know
    coder = clone(trained).set_params(output="codes", max_iter=4).fit(x)
    codes = coder.transform(x)
    assert codes.dtype == np.int64 and codes.shape == (300, 1)
    decoded = coder.inverse_transform(codes)
    same = codes[:, 0] == codes[0, 0]
    np.testing.assert_array_equal(decoded[same], np.repeat(decoded[:1], same.sum(), 0))
    with pytest.raises(ValueError, match="codes"):
        coder.inverse_transform([[2]])
    with pytest.raises(ValueError, match="1 columns"):
        coder.inverse_transform([[0, 0]])


def test_the_score_is_a_density_in_the_units_of_the_data(data, trained):
    """For one column, exp(score) integrates to at most 1, and to nearly 1 with many draws."""
    x = data[0][:, 1:2]
    one = FactorialClusterer((2,), max_iter=100, hidden=(8,), num_draws=100, random_state=0).fit(x)
    grid = np.linspace(-100, 140, 601)[:, None]
    total = np.exp(logsumexp(one.score_samples(grid))) * (grid[1, 0] - grid[0, 0])
    assert total == pytest.approx(1, abs=0.05)


def test_binary_columns(data):
    x = (data[0] > data[0].mean(0)).astype(float)
    clusterer = FactorialClusterer((2,), likelihood="bernoulli", **TINY).fit(x)
    decoded = clusterer.inverse_transform(clusterer.transform(x))
    assert (decoded > 0).all() and (decoded < 1).all()
    assert (clusterer.score_samples(x) < 0).all()
    with pytest.raises(ValueError, match=r"values in \[0, 1\]"):
        clusterer.predict(x + 0.5)


def test_nothing_is_left_on_disk_nor_in_the_generators(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    first = FactorialClusterer((2,), **TINY).fit(data[0], data[2])
    assert torch.equal(before, torch.get_rng_state())
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(
        first.transform(data[0]), clone(first).fit(data[0], data[2]).transform(data[0])
    )


def test_minutes_end_a_training(data):
    clusterer = FactorialClusterer((2,), max_minutes=0.02, hidden=(8,), random_state=0).fit(data[0])
    assert clusterer.n_iter_ >= 1


def test_pipelines_and_progress(data, capsys):
    pipeline = make_pipeline(StandardScaler(), FactorialClusterer((2,), verbose=1, **TINY))
    assert pipeline.fit_transform(data[0], data[2]).shape == (300, 6)
    assert "training" in capsys.readouterr().err
    with_names = pipeline.set_output(transform="default")
    assert len(with_names.get_feature_names_out()) == 6


def test_codes_come_as_a_data_frame(data):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data[0], index=[f"row {number}" for number in range(300)])
    frame.columns = list("abcdef")
    clusterer = FactorialClusterer((2, 3), output="codes", **TINY).set_output(transform="pandas")
    found = clusterer.fit(frame).transform(frame)
    assert list(found.columns) == ["factor_0", "factor_1"] and list(found.index) == list(frame.index)
    np.testing.assert_array_equal(found.to_numpy(), clusterer.predict(frame))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "mean"}, "output"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"max_iter": 0}, "max_iter"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"max_minutes": -1.0}, "max_minutes"),
        ({"factors": ()}, "^factors: expected a size"),
        ({"factors": (2, 0)}, "^factors == 0"),
        ({"factor_dim": 0}, "^factor_dim == 0"),
        ({"hidden": (0,)}, "^hidden == 0"),
        (
            {"learning_rate": 1e30},
            r"^pretrain diverged at step \d+: .* lower learning_rate, such as 2.5e\+29$",
        ),
        ({"device": "nowhere"}, "device"),
    ],
)
def test_bad_arguments_are_named(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        FactorialClusterer(**(TINY | {"max_iter": 40} | arguments)).fit(data[0])


def test_bad_labels_are_named(data):
    clusterer = FactorialClusterer((2,), **TINY)
    with pytest.raises(ValueError, match="known value of 'label'"):
        clusterer.fit(data[0], np.full(300, -1))
    with pytest.raises(ValueError, match="inconsistent"):
        clusterer.fit(data[0], np.zeros(20))
    with pytest.raises(ValueError, match="y: expected"):
        LabelColumns.of(np.zeros((2, 2, 2)))


def test_label_columns_come_back():
    y = np.array([[3, -1], [7, 0], [3, 5]])
    labels = LabelColumns.of(y)
    codes = labels.encoded(y)
    np.testing.assert_array_equal(codes, [[0, -1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(labels.decoded(codes[1:]), y[1:])


@pytest.mark.parametrize("y", [["b", None, "a"], [2.0, np.nan, 1.0], [2, -1, 1]], ids=str)
def test_labels_that_are_missing(y):
    assert LabelColumns.of(y).encoded(y).tolist() == [[1], [-1], [0]]
