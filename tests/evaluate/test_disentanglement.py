import math

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from pyro_fmvae.evaluate import DCI, Encodings, Information, dci, factor_accuracy, mutual_information
from pyro_fmvae.evaluate.disentanglement import _concentration


def product(*sizes, times=1):
    """Every combination of values, `times` times: [n, L]."""
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, len(sizes))
    return np.tile(grid, (times, 1))


# ------------------------------------------------------------------ mutual information and MIG


def test_one_code_per_property_is_perfect():
    labels = product(2, 3, 4)
    codes = np.stack([labels[:, 2], labels[:, 0], labels[:, 1]], 1)
    found = mutual_information(codes, labels)
    assert found.entropy == pytest.approx(np.log([2, 3, 4]))
    expected = np.array([[0, 0, math.log(4)], [math.log(2), 0, 0], [0, math.log(3), 0]])
    assert found.nats == pytest.approx(expected, abs=1e-12)
    assert found.mig == pytest.approx(1)


def test_a_property_in_two_blocks_has_no_gap():
    labels = product(2, 3)
    found = mutual_information(np.stack([labels[:, 0], labels[:, 1], labels[:, 1]], 1), labels)
    assert found.gaps == pytest.approx([1, 0])
    assert found.mig == pytest.approx(0.5)


def test_a_small_table_by_hand():
    """Counts 3 1 / 1 3: I = (3/4) log(3/2) + (1/4) log(1/2); the other block says nothing."""
    truth, code = np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 1, 0, 1, 1, 1])
    found = mutual_information(np.stack([code, np.zeros(8, int)], 1), truth[:, None])
    information = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.nats[:, 0] == pytest.approx([information, 0])
    assert found.mig == pytest.approx(information / math.log(2))


def test_independent_codes_have_the_bias_of_the_plug_in_estimate():
    rng = np.random.default_rng(0)
    n, components, values = 2000, 5, 4
    codes, labels = rng.integers(0, components, (n, 200)), rng.integers(0, values, (n, 1))
    nats = mutual_information(codes, labels).nats
    assert nats.mean() == pytest.approx((components - 1) * (values - 1) / (2 * n), rel=0.15)


def test_agrees_with_scikit_learn_and_names_of_components_do_not_matter():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (300, 2))
    codes = np.where(rng.random((300, 3)) < 0.6, labels[:, [0, 1, 1]], rng.integers(0, 4, (300, 3)))
    found = mutual_information(codes, labels)
    expected = [[mutual_info_score(labels[:, j], codes[:, i]) for j in range(2)] for i in range(3)]
    assert found.nats == pytest.approx(np.array(expected))
    renamed = np.array([7, 2, 9, 0])[codes]
    assert mutual_information(renamed, labels).nats == pytest.approx(found.nats)
    assert 0 < found.mig < 1
    by_hand = [
        (np.sort(found.nats[:, j])[-1] - np.sort(found.nats[:, j])[-2]) / found.entropy[j] for j in (0, 1)
    ]
    assert found.mig == pytest.approx(np.mean(by_hand))


def test_unknown_labels_and_constant_properties_are_left_out():
    labels = product(2, 3, 1)
    unknown = np.concatenate([labels, [[-1, 0, 0]] * 5])
    codes = np.concatenate([labels[:, :2], [[1, 0]] * 5])
    found = mutual_information(codes, unknown)
    assert found.nats[:, 0] == pytest.approx(mutual_information(labels[:, :2], labels).nats[:, 0])
    assert np.isnan(found.nats[:, 2]).all()
    assert found.mig == pytest.approx(np.mean(found.gaps[:2]))
    with pytest.raises(ValueError, match=r"^labels: expected a property with at least two known values"):
        mutual_information(codes, np.zeros((11, 1), int))


def test_the_gap_of_a_single_block_is_its_information():
    assert Information(np.array([[0.3]]), np.array([0.6])).mig == pytest.approx(0.5)


# ------------------------------------------------------------------ DCI


def encodings(means, labels, codes=None):
    return Encodings(means, np.zeros(means.shape[:2], int) if codes is None else codes, labels)


def spread(labels, blocks, seed):
    """Two dimensions per block: where `blocks[i]` is a property, the first tells it."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 0.1, (len(labels), len(blocks), 2))
    for i, prop in enumerate(blocks):
        if prop is not None:
            means[:, i, 0] += labels[:, prop]
    return encodings(means, labels)


def test_as_many_codes_as_labels():
    with pytest.raises(ValueError, match="labels: expected one row for each of 5 codes, got 4"):
        mutual_information(np.zeros((5, 1), int), np.arange(4)[:, None])


def test_dci_of_one_block_per_property():
    labels = product(2, 3, 4, times=20)
    train, test = (spread(labels, (2, None, 0, 1), seed) for seed in (0, 1))
    found = dci(train, test)
    expected = np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert found.importance == pytest.approx(expected, abs=0.01)
    for measure in (found.disentanglement, found.completeness, found.informativeness):
        assert measure == pytest.approx(1, abs=0.02)


def test_dci_of_one_block_for_everything():
    labels = product(2, 2, times=40)
    means = np.concatenate([labels[:, None, :].astype(float), np.zeros((len(labels), 1, 2))], 1)
    found = dci(encodings(means, labels), encodings(means, labels))
    assert found.importance == pytest.approx(np.array([[1, 1], [0, 0]]))
    assert found.disentanglement == pytest.approx(0)
    assert found.completeness == pytest.approx(1)
    assert found.informativeness == 1


def test_dci_of_a_property_that_needs_two_blocks():
    """x = which of four cells: each block tells one half of it, so importance is shared."""
    halves = product(2, 2, times=100)
    labels = (2 * halves[:, 0] + halves[:, 1])[:, None]
    means = halves[:, :, None].astype(float)
    found = dci(encodings(means, labels), encodings(means, labels))
    assert found.importance[:, 0] == pytest.approx([0.5, 0.5], abs=0.1)
    assert found.completeness == pytest.approx(0, abs=0.03)
    assert found.disentanglement == 1  # there is but one property
    assert found.informativeness == 1


def test_dci_of_nothing():
    labels = product(2, 2, times=20)
    found = dci(encodings(np.zeros((80, 2, 1)), labels), encodings(np.zeros((80, 2, 1)), labels))
    assert (found.importance == 0).all()
    assert found.disentanglement == found.completeness == 0
    assert found.informativeness == 0.5


def test_dci_by_hand():
    importance = np.array([[0.75, 0.25, np.nan], [0.25, 0.25, np.nan], [0.0, 0.5, np.nan]])
    found = DCI(importance, np.array([0.9, 0.7, np.nan]))
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    rows = [1 - entropy, 0, 1]  # to base 2, two properties; the rows weigh 1, 1/2 and 1/2 out of 2
    assert found.disentanglement == pytest.approx(0.5 * rows[0] + 0.25 * rows[1] + 0.25 * rows[2])
    columns = [1 - entropy * math.log(2) / math.log(3), 1 - 1.5 * math.log(2) / math.log(3)]
    assert found.completeness == pytest.approx(np.mean(columns))
    assert found.informativeness == pytest.approx(0.8)


def test_concentration():
    matrix = np.array([[1.0, 0, 0], [1, 1, 1], [0, 0, 0], [2, 2, 0]])
    expected = [1, 0, 0, 1 - math.log(2) / math.log(3)]
    assert _concentration(matrix) == pytest.approx(expected)
    assert _concentration(np.array([[0.4]])) == pytest.approx([1])


def test_dci_depends_on_the_seed_alone():
    noise = encodings(np.random.default_rng(0).normal(size=(60, 2, 2)), product(2, 3, times=10))
    first, again, other = (dci(noise, noise, seed).importance for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_dci_leaves_unknown_labels_out():
    labels = product(2, 3, times=15)
    train, test = (spread(labels, (0, 1), seed) for seed in (0, 1))
    first = dci(train, test)
    shorter = [encodings(e.latents[:60], labels[:60]) for e in (train, test)]
    hidden = labels.copy()
    hidden[60:, 0] = -1
    masked = dci(*(encodings(e.latents, hidden) for e in (train, test)))
    assert masked.importance[:, 0] == pytest.approx(dci(*shorter).importance[:, 0])
    assert masked.importance[:, 1] == pytest.approx(first.importance[:, 1])


# ------------------------------------------------------------------ accuracy of single codes


def with_codes(codes, labels):
    codes, labels = np.array(codes), np.array(labels)
    return Encodings(np.zeros((*codes.shape, 1)), codes, labels)


def test_each_component_votes():
    """Component 0 votes for 1 (two of three), 1 for 0; 2 was never seen and guesses the most frequent, 1."""
    train = with_codes([[0], [0], [0], [1], [1]], [[1], [1], [0], [0], [-1]])
    train.labels[4] = 1  # so that 1 is the most frequent; component 1 has a tie, which goes to 0
    test = with_codes([[0], [0], [1], [2], [2], [1]], [[1], [0], [0], [1], [1], [-1]])
    assert factor_accuracy(train, test) == pytest.approx(np.array([[4 / 5]]))


def test_factor_accuracy_of_one_code_per_property():
    labels = product(2, 3, times=2)
    codes = np.stack([2 - labels[:, 1], labels[:, 0], np.zeros(12, int)], 1)
    found = factor_accuracy(with_codes(codes, labels), with_codes(codes, labels))
    assert found == pytest.approx(np.array([[1 / 2, 1], [1, 1 / 3], [1 / 2, 1 / 3]]))


def test_factor_accuracy_is_scored_on_the_other_split():
    train, test = with_codes([[0], [1]], [[0], [1]]), with_codes([[0], [1], [1]], [[1], [0], [1]])
    assert factor_accuracy(train, test)[0, 0] == pytest.approx(1 / 3)
    train = with_codes([[0], [1]], [[0, 0], [1, 0]])
    test = with_codes([[0], [1]], [[0, 0], [1, 0]])
    assert np.isnan(factor_accuracy(train, test)[0]).tolist() == [False, True]
