"""Points to label next, on clusters that are known."""

import numpy as np
import pytest

from pyro_fmvae.app.explorer.label_session import NOISE, _condition, _covariance, most_telling

CLUSTERS, EACH = 5, 40


@pytest.fixture
def points():
    """Five tight clusters of forty points, far apart."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(10 * cluster, 0.1, (EACH, 3)) for cluster in range(CLUSTERS)])


def clusters_of(rows):
    return sorted(int(row) // EACH for row in rows)


def test_the_first_points_are_one_of_each_cluster(points):
    chosen = most_telling(points, np.array([], np.int64), CLUSTERS)
    assert clusters_of(chosen) == list(range(CLUSTERS))


def test_clusters_that_have_a_label_wait(points):
    chosen = most_telling(points, np.array([3, 45]), 3)
    assert clusters_of(chosen) == [2, 3, 4]


def test_points_in_the_middle_come_before_those_at_the_edge(points):
    for chosen in most_telling(points, np.array([], np.int64), CLUSTERS):
        own = points[chosen // EACH * EACH : (chosen // EACH + 1) * EACH]
        distances = np.linalg.norm(own - own.mean(0), axis=1)
        assert distances[chosen % EACH] < np.median(distances)


def test_outliers_come_last(points):
    far = np.concatenate([points, [[100.0, 100.0, 100.0]]])
    assert len(far) - 1 not in most_telling(far, np.array([], np.int64), 20)


def test_no_point_is_chosen_twice_or_again(points):
    known = np.arange(0, 190)
    chosen = most_telling(points, known, 50)
    assert len(set(chosen.tolist())) == len(chosen) == 10
    assert not set(chosen.tolist()) & set(known.tolist())


def test_points_that_are_equal_do_no_harm():
    chosen = most_telling(np.zeros((6, 2)), np.array([1]), 3)
    assert len(set(chosen.tolist())) == 3


def test_conditioning_is_that_of_a_gaussian_process(points):
    """The closed form with all labels at once (Rasmussen and Williams, 2006, equation 2.24)."""
    prior = _covariance(points, 10)
    found = prior.copy()
    for place in (0, 50, 51):
        _condition(found, place)
    seen = prior[:, [0, 50, 51]]
    gram = prior[np.ix_([0, 50, 51], [0, 50, 51])] + NOISE * np.eye(3)
    np.testing.assert_allclose(found, prior - seen @ np.linalg.solve(gram, seen.T), atol=1e-12)


def test_the_gain_is_what_the_variances_lose(points):
    """The first choice lowers the sum of the variances more than any other point would."""
    prior = _covariance(points, EACH * CLUSTERS // 2)
    lost = []
    for place in range(len(points)):
        after = prior.copy()
        _condition(after, place)
        lost.append(np.trace(prior) - np.trace(after))
    (first,) = most_telling(points, np.array([], np.int64), 1)
    assert lost[first] == pytest.approx(max(lost), rel=1e-9)
