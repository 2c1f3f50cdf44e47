import numpy as np
import pytest

from pyro_fmvae.evaluate import Encodings, leakage, linear_probe, neighbour_probe

PROBES = pytest.mark.parametrize("probe", [linear_probe, neighbour_probe])


def encodings(seed, n=600, mean=None, sizes=(3, 2)):
    """Block i tells property i; `mean` adds what other blocks tell. Blocks have very different scales."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, size, n) for size in sizes], 1)
    means = rng.normal(0, 0.2, (n, 3, 2))
    for i in range(len(sizes)):
        means[:, i, 0] += labels[:, i]
        means[:, i, 1] += labels[:, i] == 1
    if mean is not None:
        mean(means, labels, rng)
    means *= np.array([1.0, 1e-3, 1e3])[:, None]
    return Encodings(means, np.zeros((n, 3), int), labels)


def both(mean=None):
    return encodings(0, mean=mean), encodings(1, 400, mean=mean)


@PROBES
def test_blocks_that_keep_to_themselves(probe):
    train, test = both()
    found = leakage(train, test, (0, 1), probe)
    assert found.accuracy.shape == (3, 2)
    assert (found.own > 0.97).all()
    assert (np.abs(found.leaked - found.majority) < 0.1).all()
    assert (np.abs(found.leaked_skill) < 0.2).all()
    expected = [np.mean(test.labels[:, j] == np.bincount(train.labels[:, j]).argmax()) for j in range(2)]
    assert found.majority.tolist() == expected


@PROBES
def test_a_leak_into_a_free_block(probe):
    def leak(means, labels, rng):
        means[:, 2, 1] += 2 * labels[:, 1]

    found = leakage(*both(leak), (0, 1), probe)
    assert found.leaked[1] == found.accuracy[2, 1] > 0.97
    assert found.leaked_skill[1] == (found.leaked[1] - found.majority[1]) / (1 - found.majority[1])
    assert found.leaked_skill[1] > 0.9
    assert found.leaked_skill[0] < 0.2


def test_what_is_not_linear_is_found_by_neighbours_alone():
    def leak(means, labels, rng):  # on which of two circles a point lies
        angle = rng.uniform(0, 2 * np.pi, len(labels))
        radius = 1 + 2 * labels[:, 1]
        means[:, 2] = (radius * np.stack([np.cos(angle), np.sin(angle)])).T

    train, test = both(leak)
    assert leakage(train, test, (0, 1)).leaked_skill[1] < 0.2
    assert leakage(train, test, (0, 1), neighbour_probe).leaked_skill[1] > 0.95


@PROBES
def test_the_scale_of_a_dimension_does_not_hide_a_leak(probe):
    def leak(means, labels, rng):
        means[:, 2, 0] *= 1e4
        means[:, 2, 1] += 2 * labels[:, 1]

    assert leakage(*both(leak), (0, 1), probe).leaked_skill[1] > 0.9


def test_without_a_trained_block_the_best_one_is_the_propertys_own():
    def swap(means, labels, rng):
        means[:] = means[:, [1, 2, 0]]

    found = leakage(*both(swap), (None, None))
    assert found.block.tolist() == [2, 0]
    assert (found.own > 0.97).all()
    kept = leakage(*both(swap), (0, None))  # a block that was trained on it stays its own, however bad
    assert kept.block.tolist() == [0, 0]
    assert kept.own[0] == kept.accuracy[0, 0] < 0.6
    assert kept.leaked[0] > 0.97


def test_unknown_labels_are_left_out_per_property():
    train, test = both()
    kept = leakage(train, test, (0, 1))
    for encoded in (train, test):
        half = len(encoded.labels) // 2
        encoded.labels[half:, 1] = -1
    found = leakage(train, test, (0, 1))
    assert (found.accuracy[:, 0] == kept.accuracy[:, 0]).all()
    cut = []
    for e in (train, test):
        half = len(e.labels) // 2
        cut.append(Encodings(e.latents[:half], e.codes[:half], e.labels[:half]))
    assert (found.accuracy[:, 1] == leakage(*cut, (0, 1)).accuracy[:, 1]).all()
    assert found.majority[1] == leakage(*cut, (0, 1)).majority[1]


def test_properties_that_cannot_be_learnt_are_nan():
    train, test = both()
    train.labels[:, 1] = 0
    found = leakage(train, test, (0, 1))
    assert np.isnan(found.accuracy).tolist() == [[False, True]] * 3
    for values in (found.own, found.leaked, found.leaked_skill, found.majority):
        assert np.isnan(values).tolist() == [False, True]


def test_a_single_block_has_nowhere_to_leak_to():
    train, test = (Encodings(e.latents[:, :1], e.codes[:, :1], e.labels) for e in both())
    found = leakage(train, test, (0, 0))
    assert (found.leaked == found.majority).all()
    assert (found.leaked_skill == 0).all()


def test_where_guessing_is_always_right_there_is_no_skill():
    train, test = both()
    test.labels[:, 1] = np.bincount(train.labels[:, 1]).argmax()
    found = leakage(train, test, (0, 1))
    assert found.majority[1] == 1
    assert np.isnan(found.leaked_skill[1])


@PROBES
def test_dead_dimensions_and_well_separated_blocks_do_no_harm(probe):
    """No warning, either: warnings are errors here."""
    train, test = both()
    for encoded in (train, test):
        encoded.latents[:, 2] = 0.5
        encoded.latents[:, 0] = 1e6 * encoded.labels[:, [0]]
    found = leakage(train, test, (0, 1), probe)
    assert found.own[0] == 1
    assert np.isfinite(found.accuracy).all()


def test_results_repeat():
    train, test = both()
    for probe in (linear_probe, neighbour_probe):
        first, again = (leakage(train, test, (None, None), probe) for _ in range(2))
        assert (first.accuracy == again.accuracy).all()


@pytest.mark.parametrize("own", [(0,), (0, 3), (0, -1), (0, 1, 2)])
def test_blocks_that_do_not_exist(own):
    with pytest.raises(ValueError, match=r"^own: expected 2 blocks out of 0..2, or None, got"):
        leakage(*both(), own)


def test_few_points_are_all_neighbours():
    latents = np.array([[0.0], [0.1], [5.0]])
    probe = neighbour_probe().fit(latents, np.array([1, 1, 0]))
    assert probe.predict(latents).tolist() == [1, 1, 1]
