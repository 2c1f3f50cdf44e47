"""Disentanglement of blocks and properties: mutual information, MIG, DCI, accuracy of single codes.

Public implementations of these measures differ in their definition of a code, their estimators and their
predictors, so every choice is stated here. ``docs/concepts/measures.md`` has the formulae.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyro_fmvae.evaluate.encodings import Encodings, learnable

TREES = 20
_SMALLEST_LEAF = 5


@dataclass(frozen=True, eq=False)
class Information:
    """Mutual information between blocks' codes and properties; NaN for properties with one known value."""

    nats: np.ndarray
    """I(code i; property j), plug-in estimate, [I, L]."""
    entropy: np.ndarray
    """H(property j) in nats, plug-in estimate, [L]."""

    @property
    def normalized(self) -> np.ndarray:
        """I(code i; property j) / H(property j), in [0, 1], [I, L]."""
        return self.nats / self.entropy

    @property
    def gaps(self) -> np.ndarray:
        """Mutual information gap of each property, [L]; with a single block, its normalised information."""
        ordered = np.sort(self.normalized, axis=0)[::-1]
        return ordered[0] - ordered[1] if len(ordered) > 1 else ordered[0]

    @property
    def mig(self) -> float:
        """Mutual information gap (Chen et al., 2018, equation 6), averaged over properties, in [0, 1]."""
        return float(np.nanmean(self.gaps))


def mutual_information(codes: np.ndarray, labels: np.ndarray) -> Information:
    """Mutual information from the contingency table of each code with each property.

    The plug-in estimate is biased upwards by about (K - 1)(V - 1) / 2n nats for K components and V values.

    Args:
        codes: integers [n, I].
        labels: integers [n, L]; entries of -1 (unknown) are left out.

    Raises:
        ValueError: no property with two known values, or codes and labels of different lengths.
    """
    if len(codes) != len(labels):
        raise ValueError(f"labels: expected one row for each of {len(codes)} codes, got {len(labels)}")
    from sklearn.metrics import mutual_info_score  # here: scikit-learn takes a while to import

    nats = np.full((codes.shape[1], labels.shape[1]), np.nan)
    entropy = np.full(labels.shape[1], np.nan)
    for j in range(labels.shape[1]):
        known = labels[:, j] >= 0
        truth = labels[known, j]
        if len(np.unique(truth)) < 2:
            continue
        entropy[j] = mutual_info_score(truth, truth)
        nats[:, j] = [mutual_info_score(truth, codes[known, i]) for i in range(codes.shape[1])]
    if np.isnan(entropy).all():
        raise ValueError("labels: expected a property with at least two known values, got none")
    return Information(nats, entropy)


@dataclass(frozen=True, eq=False)
class DCI:
    """Disentanglement, completeness and informativeness (Eastwood and Williams, 2018)."""

    importance: np.ndarray
    """R, [I, L]: importance of block i for predicting property j. A column sums to 1, or to 0 where nothing
    could be learnt. Columns of properties that were left out are NaN."""
    accuracy: np.ndarray
    """Accuracy of the predictor on test rows, [L]; NaN for properties that were left out."""

    @property
    def disentanglement(self) -> float:
        """``Σ_i ρ_i (1 - H_L(R_i· / Σ_j R_ij))``, ρ_i the share of block i in R, H_L the entropy to base L.

        It is 1 if each block matters for one property only, and so for a single property. L counts the
        properties that are not left out.
        """
        used = self._used
        weights = used.sum(1) / max(used.sum(), np.finfo(float).tiny)
        return float(weights @ _concentration(used))

    @property
    def completeness(self) -> float:
        """Mean over properties of ``1 - H_I(R_·j)``, H_I the entropy to base I; 1 if each needs one block."""
        return float(_concentration(self._used.T).mean())

    @property
    def informativeness(self) -> float:
        """Accuracy on test rows, averaged over properties."""
        return float(np.nanmean(self.accuracy))

    @property
    def _used(self) -> np.ndarray:
        return self.importance[:, ~np.isnan(self.accuracy)]


def dci(train: Encodings, test: Encodings, seed: int = 0) -> DCI:
    """Importance of blocks for properties, from one random forest per property on all latents (means μ_φ).

    A forest has 20 trees on bootstrap samples and at least 5 rows in each leaf. Each split considers all
    dimensions; a random subset would force some splits onto uninformative blocks. The importance of a block
    is the sum over its dimensions of their mean decrease in impurity. It does not reveal redundant
    information, which a good predictor ignores; :func:`pyro_fmvae.evaluate.leakage` does.

    Args:
        train: encoded training rows.
        test: encoded test rows.
        seed: seed of the bootstrap samples.

    Raises:
        ValueError: encodings of different shapes, or no property with two known values.
    """
    from sklearn.ensemble import RandomForestClassifier  # here: scikit-learn takes a while to import

    importance = np.full((train.num_blocks, train.num_properties), np.nan)
    accuracy = np.full(train.num_properties, np.nan)
    features, unseen = (e.latents.reshape(len(e.latents), -1) for e in (train, test))
    for j in learnable(train, test):
        fitted, scored = train.known(j), test.known(j)
        forest = RandomForestClassifier(
            TREES, max_features=None, min_samples_leaf=_SMALLEST_LEAF, random_state=seed
        )
        forest.fit(features[fitted], train.labels[fitted, j])
        importance[:, j] = forest.feature_importances_.reshape(train.num_blocks, -1).sum(1)
        accuracy[j] = forest.score(unseen[scored], test.labels[scored, j])
    return DCI(importance, accuracy)


def factor_accuracy(train: Encodings, test: Encodings) -> np.ndarray:
    """Accuracy of predicting property j from the code of block i alone, [I, L].

    A component predicts the most frequent value among its training rows (the smallest in a tie), or the most
    frequent value overall if it has none. Columns of properties that are left out are NaN.

    Raises:
        ValueError: encodings of different shapes, or no property with two known values.
    """
    accuracy = np.full((train.num_blocks, train.num_properties), np.nan)
    for j in learnable(train, test):
        fitted, scored = train.known(j), test.known(j)
        truth, answers = train.labels[fitted, j], test.labels[scored, j]
        for i in range(train.num_blocks):
            codes, asked = train.codes[fitted, i], test.codes[scored, i]
            counts = np.zeros((max(codes.max(), asked.max()) + 1, truth.max() + 1))
            np.add.at(counts, (codes, truth), 1)
            counts[counts.sum(1) == 0] = np.bincount(truth)
            accuracy[i, j] = np.mean(counts.argmax(1)[asked] == answers)
    return accuracy


def _concentration(matrix: np.ndarray) -> np.ndarray:
    """1 - entropy of each row, to the base of the number of columns; 0 for rows of zeros."""
    total = matrix.sum(1, keepdims=True)
    shares = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy = -(shares * logs).sum(1) / np.log(max(matrix.shape[1], 2))
    return np.where(total[:, 0] > 0, 1 - entropy, 0.0)
