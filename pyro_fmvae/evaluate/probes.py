"""Leakage: how well probes predict each property from each block of the latent vector.

A property should be found in its own block only. A probe is a classifier of one block of the latents (the
means μ_φ), fitted on training rows with their true labels and scored on test rows. High accuracy from a block
other than the property's own is leakage. A linear probe (Alain and Bengio, 2017) finds what a decoder's first
layer can read off; nearest neighbours find information in any form.

Means may contain information that no decoder sees: a difference far below the scale of q(z | x) is lost in
the draw of z. Probes on draws (``encode_split(drawn=True)``) find what remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_fmvae.evaluate.encodings import Encodings, learnable

if TYPE_CHECKING:  # it takes a while to import
    from sklearn.pipeline import Pipeline

NEIGHBOURS = 10
_MOST_STEPS = 10_000  # far more than the hundreds that L-BFGS needs: it stops on convergence


def linear_probe() -> Pipeline:
    """Multinomial logistic regression on standardised latents with scikit-learn's penalty ‖w‖²/2 (C = 1)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MOST_STEPS))


def neighbour_probe() -> Pipeline:
    """Majority of the 10 nearest neighbours (Euclidean, latents standardised), or of all points if fewer.

    It is the cheapest non-linear probe, is deterministic and cannot fail to converge. Its weakness is that
    uninformative dimensions count as much as informative ones.
    """
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    class AtMost(KNeighborsClassifier):
        """Nearest neighbours, or all points if there are fewer."""

        def fit(self, points: np.ndarray, labels: np.ndarray) -> AtMost:
            self.set_params(n_neighbors=min(NEIGHBOURS, len(points)))
            fitted: AtMost = super().fit(points, labels)
            return fitted

    return make_pipeline(StandardScaler(), AtMost(NEIGHBOURS))


@dataclass(frozen=True, eq=False)
class Leakage:
    """Accuracies of probes on test rows; NaN in the columns of properties that no probe could learn."""

    accuracy: np.ndarray
    """Accuracy of predicting property j from block i alone, [I, L]."""
    majority: np.ndarray
    """Accuracy of always guessing the value that is most frequent in the training rows, [L]."""
    block: np.ndarray
    """The own block of each property, int [L]."""

    @property
    def own(self) -> np.ndarray:
        """Accuracy from the property's own block, [L]."""
        return self.accuracy[self.block, np.arange(len(self.block))]

    @property
    def leaked(self) -> np.ndarray:
        """Best accuracy from any other block, [L]; `majority` where there is no other block."""
        others = self.accuracy.copy()
        others[self.block, np.arange(len(self.block))] = -np.inf
        best = others.max(0)
        return np.where(np.isneginf(best), self.majority, best)

    @property
    def leaked_skill(self) -> np.ndarray:
        """(leaked - majority) / (1 - majority), [L]: 0 for guessing, 1 if another block tells all.

        It is negative where a probe learnt noise, and NaN where guessing is always right.
        """
        room = 1 - self.majority
        return np.divide(self.leaked - self.majority, room, out=np.full_like(room, np.nan), where=room > 0)


def leakage(
    train: Encodings, test: Encodings, own: Sequence[int | None], probe: Callable[[], Any] = linear_probe
) -> Leakage:
    """Fit a probe for every pair of a block and a property.

    Unknown labels are left out, per property. Equal arguments give equal results.

    Args:
        train: encoded training rows with all true labels, even those hidden from the model.
        test: encoded test rows.
        own: for each property the block that was trained on it; None stands for the most accurate block.
        probe: makes a classifier with scikit-learn's ``fit`` and ``score``.

    Raises:
        ValueError: a block out of range, other than one entry of `own` per property, encodings of different
            shapes, or no property with two known values.
    """
    blocks, properties = train.num_blocks, train.num_properties
    if len(own) != properties or not all(i is None or 0 <= i < blocks for i in own):
        raise ValueError(
            f"own: expected {properties} blocks out of 0..{blocks - 1}, or None, got {list(own)}"
        )
    accuracy, majority = np.full((blocks, properties), np.nan), np.full(properties, np.nan)
    for j in learnable(train, test):
        fitted, scored = train.known(j), test.known(j)
        truth, answers = train.labels[fitted, j], test.labels[scored, j]
        majority[j] = np.mean(answers == np.bincount(truth).argmax())
        for i in range(blocks):
            classifier = probe().fit(train.latents[fitted, i], truth)
            accuracy[i, j] = classifier.score(test.latents[scored, i], answers)
    best = accuracy.argmax(0)
    block = np.array([best[j] if i is None else i for j, i in enumerate(own)], dtype=np.int64)
    return Leakage(accuracy, majority, block)
