import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score

from pyro_fmvae.evaluate import cluster_confusion, label_agreement, majority_accuracy, matching_accuracy
from pyro_fmvae.evaluate.agreement import LARGEST


@pytest.mark.parametrize(("kinds", "clusters"), [(3, 3), (2, 4), (4, 2), (1, 3), (3, 1)])
def test_matching_accuracy_is_the_best_of_all_matchings(kinds, clusters):
    rng = np.random.default_rng(0)
    y, c = rng.integers(0, kinds, 30), rng.integers(0, clusters, 30)
    size = max(kinds, clusters)
    best = max(np.mean(np.array(p)[c] == y) for p in itertools.permutations(range(size)))
    assert matching_accuracy(y, c) == pytest.approx(best)


def test_matching_accuracy_of_sparse_labels():
    assert matching_accuracy(np.array([10**15, 3, 3]), np.array([0, 1, 1])) == 1.0


def adjusted_rand_index(labels, clusters):
    """From pairs of points, one by one (Hubert and Arabie, 1985)."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    same, together = ([row[a] == row[b] for a, b in pairs] for row in (labels, clusters))
    both = sum(a and b for a, b in zip(same, together, strict=True))
    chance = sum(same) * sum(together) / len(pairs)
    return (both - chance) / ((sum(same) + sum(together)) / 2 - chance)


def adjusted_mutual_information(labels, clusters, rng):
    """Chance is that of shuffled labels (Vinh et al., 2010). Also returns four standard errors."""
    shuffled = [mutual_info_score(rng.permutation(labels), clusters) for _ in range(300)]
    chance, found = np.mean(shuffled), mutual_info_score(labels, clusters)
    entropies = (mutual_info_score(labels, labels) + mutual_info_score(clusters, clusters)) / 2
    error = 4 * np.std(shuffled) / 300**0.5 / (entropies - chance)
    return (found - chance) / (entropies - chance), error


class Codes:
    """A model whose codes are its data."""

    def predicted_codes(self, x):
        return x


def test_label_agreement():
    rng = np.random.default_rng(1)
    truth = torch.from_numpy(rng.integers(0, 3, (60, 3)))
    codes = torch.stack([truth[:, 0], (truth[:, 1] + 1) % 3, torch.from_numpy(rng.integers(0, 3, 60))], -1)
    codes[:6, 0] = (codes[:6, 0] + 1) % 3
    codes[50:, 1] = 0
    labels = truth.clone()
    labels[30:36, 0] = -1  # 30 + 24 points are known, 6 of the first are wrong
    labels[:, 2] = -1
    batches = [(codes[:40], labels[:40]), (codes[40:], labels[40:])]
    result = label_agreement(Codes(), batches, ("given", "found", "unknown"), (0, None, None))
    assert result["accuracy"] == {"given": pytest.approx(48 / 54)}
    assert (result["classification"]["given"]["n"], list(result["classification"])) == (54, ["given"])
    nmi = normalized_mutual_info_score(truth[:, 1], codes[:, 1])
    best = max(
        np.mean(np.array(p)[codes[:, 1]] == truth[:, 1].numpy()) for p in itertools.permutations(range(3))
    )
    of_clusters = [truth[codes[:, 1] == k, 1].bincount().max().item() for k in range(3)]
    ami, error = adjusted_mutual_information(truth[:, 1].numpy(), codes[:, 1].numpy(), rng)
    expected = {
        "n": 60,
        "factor": 1,
        "accuracy": pytest.approx(best),
        "majority": pytest.approx(sum(of_clusters) / 60),
        "nmi": pytest.approx(nmi),
        "ami": pytest.approx(ami, abs=error),
        "ari": pytest.approx(adjusted_rand_index(truth[:, 1].tolist(), codes[:, 1].tolist())),
        "values": [0, 1, 2],
        "components": [1, 2, 0],  # the code of value v is v + 1 modulo 3
        "named_after": [0, 1, 2],
        "confusion": [
            [((truth[:, 1] == v) & (codes[:, 1] == k)).sum().item() for k in (1, 2, 0)] for v in range(3)
        ],
    }
    assert result["clustering"] == {"found": expected}


def test_clusters_are_compared_beside_the_components_that_they_join():
    labels = torch.tensor([[0], [0], [0], [0], [1], [1], [-1]])
    codes = torch.tensor([[0], [0], [1], [1], [2], [2], [4]])
    (found,) = label_agreement(
        Codes(),
        [(codes[:3], labels[:3]), (codes[3:], labels[3:])],
        ["kind"],
        [None],
        clusters=lambda x: x[:, 0] // 2,
    )["clustering"].values()
    assert found["ari"] == pytest.approx(adjusted_rand_index(labels[:6, 0].tolist(), codes[:6, 0].tolist()))
    assert found["clusters"] == {"number": 2, "accuracy": 1, "nmi": 1, "ami": 1, "ari": 1}


def test_majority_forgives_split_classes_but_not_merged_ones():
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    assert majority_accuracy(labels, np.arange(7)) == 1
    assert majority_accuracy(labels, np.array([0, 0, 1, 1, 2, 2, 3])) == 1
    assert majority_accuracy(labels, np.array([0, 0, 0, 0, 1, 1, 1])) == pytest.approx(6 / 7)
    assert majority_accuracy(labels, np.zeros(7, int)) == pytest.approx(4 / 7)


def test_clusters_are_counted_by_label_and_named_after_the_matched_one_or_the_most_common():
    labels = np.array([3, 3, 3, 5, 5, 9, 9, 9, 9])
    clusters = np.array([7, 7, 1, 1, 1, 2, 2, 4, 4])
    clusters[-1] = 0  # five clusters of three labels
    found = cluster_confusion(labels, clusters)
    assert found == {
        "values": [3, 5, 9],
        "components": [7, 1, 0, 2, 4],
        "named_after": [3, 5, 9, 9, 9],
        "confusion": [[2, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 2, 1]],
    }
    merged = cluster_confusion(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 0, 0, 0, 1]))
    assert (merged["named_after"], merged["confusion"]) == ([0, 2], [[3, 0], [2, 0], [0, 1]])


def test_the_matching_may_name_a_cluster_after_a_rarer_label():
    """Both clusters have more of label 0, and one of them has to be called 1."""
    found = cluster_confusion(np.array([0] * 7 + [1]), np.array([0] * 4 + [1] * 4))
    assert (found["named_after"], found["confusion"]) == ([0, 1], [[4, 3], [0, 1]])
    assert matching_accuracy(np.array([0] * 7 + [1]), np.array([0] * 4 + [1] * 4)) == 5 / 8


def test_a_huge_table_of_clusters_is_left_out():
    labels = np.arange(LARGEST)
    assert np.shape(cluster_confusion(labels // 2, labels % 2)["confusion"]) == (LARGEST // 2, 2)
    assert cluster_confusion(labels, labels % 2) == {}


def test_labels_that_never_vary_are_no_clusters():
    codes = torch.zeros(6, 1, dtype=torch.int64)
    labels = torch.tensor([[1, 0], [1, -1], [1, 0], [1, 1], [1, 0], [1, 0]])
    found = label_agreement(Codes(), [(codes, labels)], ("constant", "varying"), (None, None))
    assert list(found["clustering"]) == ["varying"]
    trained = label_agreement(Codes(), [(codes, labels)], ("constant", "varying"), (0, None))
    assert trained["accuracy"] == {"constant": 0.0}
