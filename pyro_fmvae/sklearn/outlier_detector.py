"""Outliers by the density of Bayesian mixtures, as a scikit-learn estimator."""

from numbers import Real
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin, clone
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted

from pyro_fmvae.learn.mixture import systematic_sample
from pyro_fmvae.sklearn.bayesian_mixture import BayesianMixture
from pyro_fmvae.sklearn.standardisation import distinct
from pyro_fmvae.sklearn.table_estimator import RowEstimator

LEAST: Final = 0.01
"""Share of new rows that are outliers where ``contamination`` is "auto"."""
PAIRS: Final = 3
"""Pairs of mixtures of all columns, and as many of some, if none is given."""
SAMPLED: Final = 256
"""Rows that each of them learns from at most, as many as a tree of an isolation forest does."""
COMPONENTS: Final = 4
"""Components of each, unless a mixture is given."""
CORRELATED: Final = SAMPLED // 2
"""Columns up to which their covariances are full."""
FEW: Final = 0.2
"""Share of the rows that outliers are at most, where ``contamination`` is "auto"."""
QUARTER: Final = 0.25
"""Share of the draws and of the rows left out that are below the scores that are made equal."""
DRAWS: Final = 10_000
"""Draws that decide it."""


class OutlierDetector(OutlierMixin, RowEstimator):
    """Rows that Bayesian mixtures of the training rows find improbable.

    The score is the mean log posterior predictive density under several mixtures, each learnt from a random
    half of the rows, of at most 256. In a small sample, few outliers are alike, so that they rarely get a
    component of their own, in which they would be as probable as others (Liu et al., 2008, Isolation forest,
    Section 2). Six mixtures have all columns. Six others have random ones, by default, so that columns which
    tell nothing do not hide outliers (Lazarevic and Kumar, 2005, Feature bagging for outlier detection).

    Rows with missing entries (NaN) are scored by the entries that are there; fewer entries have a
    density in fewer dimensions, so compare such rows with those that miss the same columns. A category above
    those of the training counts as missing, too.

    Args:
        mixture: a :class:`BayesianMixture`, whose clones are fitted to six samples of all columns; None:
            mixtures of four components, six of all columns and six of random ones.
        contamination: share of the training rows that are outliers, in (0, 0.5]. With "auto", a row is an
            outlier if it is less probable than 99 % of draws from the mixtures, corrected for what few rows
            leave unknown. Of new rows that the mixtures describe well, that is about one in a hundred on
            average over data sets. By chance it is more or less in a single one: with 20 training rows of 5
            columns, from none up to 7 in a hundred.
            Components that outliers among the training rows have taken do not count: those that have at most
            a fifth of the rows, and whose draws are mostly less probable than 99 % of all others.
        random_state: seed of the samples, of the mixtures and of their draws.

    Attributes:
        mixtures_: fitted, two for each set of columns.
        columns_: columns of each mixture.
        offset_: score below which a row is an outlier, in nats.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import BayesianMixture, OutlierDetector
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> detector = OutlierDetector(BayesianMixture(1), random_state=0).fit(X)
        >>> detector.predict([[0.0, 0.1], [6.0, -6.0]])
        array([ 1, -1])
    """

    def __init__(
        self,
        mixture: BayesianMixture | None = None,
        *,
        contamination: float | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.mixture = mixture
        self.contamination = contamination
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> "OutlierDetector":
        """Fit the mixtures and the threshold.

        Args:
            X: rows [n, D], NaN where missing.
            y: ignored.
            sample_weight: rows that each one stands for, >= 0, [n].

        Raises:
            ValueError: an argument out of range; see :meth:`BayesianMixture.fit`.
        """
        automatic = self.contamination == "auto"
        if not automatic:
            bounds = {"min_val": 0, "max_val": 0.5, "include_boundaries": "right"}
            check_scalar(self.contamination, "contamination", Real, **bounds)
        self._checked(X, reset=True)
        mixture = self.mixture
        if mixture is None:
            full = self.n_features_in_ <= CORRELATED
            mixture = BayesianMixture(COMPONENTS, n_init=1, covariance_type="full" if full else "diag")
        mixture = clone(mixture)
        mixture._check_parameters()
        rows_given, each = mixture._rows(X, sample_weight, reset=True)
        if self.mixture is not None:
            mixture._check_enough(each)
        x, weights = distinct(rows_given, each)
        generator = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        self.columns_, self.mixtures_, learnt = [], [], []
        for columns in self._subsets(generator):
            rows = systematic_sample(
                torch.as_tensor(generator.random((len(x), 1))), weights, 2 * SAMPLED, generator
            )
            half = max(len(rows) // 2, 1)
            for part in rows[:half], rows[-half:]:
                seed = int(generator.integers(2**31))
                self.columns_.append(columns)
                self.mixtures_.append(mixture._of_rows(x, part, columns, seed))
                learnt.append(np.isin(np.arange(len(x)), part))
        if automatic:
            self.offset_ = self._threshold(x[:DRAWS], weights[:DRAWS], np.stack(learnt)[:, :DRAWS])
        else:
            self.offset_ = lowest(self._densities(x).mean(0), weights, float(self.contamination))
        return self

    def _subsets(self, generator: np.random.Generator) -> list[np.ndarray]:
        """Columns of each pair of mixtures: all, then random ones, whose number is uniform on a log scale."""
        every = np.arange(self.n_features_in_)
        numbers = np.exp(generator.uniform(0, np.log(len(every) + 1), PAIRS)).astype(int)
        some = [] if self.mixture is not None else [generator.permutation(every)[:most] for most in numbers]
        return [every] * PAIRS + some

    def _threshold(self, x: np.ndarray, weights: np.ndarray, learnt: np.ndarray) -> float:
        """The score that one in a hundred new rows is below, of those that are no outliers.

        Draws of each mixture of all columns stand for new rows, scored by its twin in its own place. All
        distances from the greatest score are taken in proportion, such that the lower quartile is that of
        the training rows, each scored by the twins that did not learn from it.

        Args:
            x, weights: training rows [n, D].
            learnt: which of them each mixture has learnt from, bool [mixtures, n].
        """
        scores, codes = [], []
        shares: list[np.ndarray] = []
        numbers = len(self.mixtures_[0]._columns.numbers) > 0
        for number, mixture in enumerate(self.mixtures_[: 2 * PAIRS]):
            rows, components = mixture._typical(DRAWS // (2 * PAIRS))
            densities = self._densities(rows)
            if numbers:  # equal draws of categories have equal scores
                densities[number] = densities[number ^ 1]
            scores.append(densities.mean(0))
            codes.append(components + sum(len(share) for share in shares))
            shares.append(mixture.weights_ / (2 * PAIRS))
        drawn, of = np.concatenate(scores), np.concatenate(codes)
        usual = usual_components(drawn, of, np.concatenate(shares))
        drawn = drawn[usual[of]]
        most, quarter, low = drawn.max(), np.quantile(drawn, QUARTER), np.quantile(drawn, LEAST)
        new = (~learnt).reshape(-1, 2, len(x))
        new |= ~new.any(1, keepdims=True)
        new_scores = ((self._densities(x).reshape(new.shape) * new).sum(1) / new.sum(1)).mean(0)
        left_out = lowest(new_scores, weights, QUARTER)
        times = (most - left_out) / (most - quarter) if quarter < most else 1.0
        if not numbers or weights.max() > QUARTER * weights.sum():
            times = max(times, 1.0)  # equal rows, or the rarest categories, may be where the quartile is
        return float(most - (most - low) * times)

    def _densities(self, rows: np.ndarray) -> np.ndarray:
        """Log-density of each row under each mixture, [mixtures, n]."""
        both = zip(self.columns_, self.mixtures_, strict=True)
        return np.stack([mixture._density(rows[:, columns]) for columns, mixture in both])

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Mean log posterior predictive density of each row, in nats, [n]; outliers have low ones."""
        check_is_fitted(self)
        return self._densities(self._checked(X, reset=False)).mean(0)

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """:meth:`score_samples` less ``offset_``, below 0 for outliers, [n]."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> np.ndarray:
        """-1 for outliers, 1 for others, int64 [n]."""
        return np.where(self.decision_function(X) < 0, -1, 1)


def usual_components(scores: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Which components are of usual rows, bool [K]: all but those that outliers have taken.

    These are the most components, of at most a fifth of the rows together, whose typical draws are each less
    probable than 99 % of the draws of all others.

    Args:
        scores, codes: log-densities and components of draws of the mixture, [n].
        weights: of the components, [K].
    """
    typical = np.array(
        [np.median(scores[codes == k]) if (codes == k).any() else -np.inf for k in range(len(weights))]
    )
    order = np.argsort(typical)
    usual = np.ones(len(weights), dtype=bool)
    for gone in range(len(weights) - 1, 0, -1):
        usual[order[:gone]], usual[order[gone:]] = False, True
        few = weights[~usual].sum() <= FEW
        if few and typical[order[gone - 1]] < np.quantile(scores[usual[codes]], LEAST):
            return usual
    return np.ones(len(weights), dtype=bool)


def lowest(scores: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The score that a share of the rows, by weight, is below; equal ones are not below it.

    Args:
        scores, weights: of the rows, [n].
        share: in [0, 1).
    """
    order = np.argsort(scores)
    until = np.cumsum(weights[order])
    place = np.searchsorted(until, share * until[-1] * (1 + 1e-12), side="right")
    return float(scores[order[min(place, len(order) - 1)]])
