"""Outliers by the density of a Bayesian mixture, as a scikit-learn estimator."""

from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from pyro_fmvae.sklearn.bayesian_mixture import BayesianMixture
from pyro_fmvae.sklearn.standardisation import distinct

LEAST: Final = 0.01
"""Share of new rows that are outliers where ``contamination`` is "auto"."""
CONCENTRATION: Final = 10.0
"""Concentration of the default mixture's weights: a row far from all others gets no component of its own."""
FEW: Final = 0.2
"""Share of the rows that outliers are at most, where ``contamination`` is "auto"."""
DRAWS: Final = 10_000
"""Draws that decide it."""


class OutlierDetector(OutlierMixin, BaseEstimator):
    """Rows that a Bayesian mixture of the training rows finds improbable.

    The score is the log posterior predictive density, which accounts for what few rows leave unknown of a
    component. Rows with missing entries (NaN) are scored by the entries that are there; fewer entries have a
    density in fewer dimensions, so compare such rows with those that miss the same columns. A category above
    those of the training counts as missing, too.

    Args:
        mixture: a :class:`BayesianMixture`, which is cloned; None: one that chooses its number of components,
            with a concentration of 10, so that a row far from all others has no component of its own.
        contamination: share of the training rows that are outliers, in (0, 0.5]. With "auto", a row is an
            outlier if it is less probable than 99 % of the mixture's own draws, corrected for what few rows
            leave unknown. Of new rows that the mixture describes well, that is about one in a hundred.
            Components that outliers among the training rows have taken do not count: those that have at most
            a fifth of the rows, and whose draws are mostly less probable than 99 % of all others.
        random_state: seed of the mixture and of its draws.

    Attributes:
        mixture_: fitted.
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> "OutlierDetector":
        """Fit the mixture and the threshold.

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
        validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        default = BayesianMixture("auto", weight_concentration_prior=CONCENTRATION)
        mixture = clone(default if self.mixture is None else self.mixture)
        self.mixture_ = mixture.set_params(random_state=seed).fit(X, sample_weight=sample_weight)
        x, weights = distinct(*self.mixture_._rows(X, sample_weight, reset=False))
        if automatic:
            self.offset_ = self._threshold(x, weights)
        else:
            self.offset_ = lowest(self.mixture_._density(x), weights, float(self.contamination))
        return self

    def _threshold(self, x: np.ndarray, weights: np.ndarray) -> float:
        """The score that one in a hundred new rows is below, of those that are no outliers.

        A mixture of few rows has narrower components than they were drawn from, so that new rows score less
        than its own draws. All distances from the greatest density are taken in proportion to make up for
        this. The proportion is the larger of two: the one that rows ask for that are held out, as far as
        their median differs by more than its standard error; and the one by which one in a hundred new rows
        is below if rows as many as these are drawn from the mixture itself, and learnt anew (calibration by
        the parametric bootstrap: Beran, 1990, Calibrating prediction regions).
        """
        mixture = self.mixture_
        rows, codes = mixture.sample(DRAWS)
        drawn = mixture._density(rows)
        usual = usual_components(drawn, codes, mixture.weights_)
        drawn = drawn[usual[codes]]
        most, middle, low = drawn.max(), np.median(drawn), np.quantile(drawn, LEAST)
        scores, weighed = (
            mixture._held_out(x, weights),
            weights * mixture._responsibilities(x)[:, usual].sum(1),
        )
        error = 1.25 * np.sqrt(np.cov(scores, aweights=weighed, bias=True) / weighed.sum())
        further = max(middle - lowest(scores, weighed, 0.5) - error, 0.0)
        times = 1 + further / (most - middle) if middle < most else 1.0  # most draws may be alike
        redrawn = mixture._redrawn(max(round(weights.sum()), 1), usual)
        gaps = [(own.max() - new, own.max() - np.quantile(own, LEAST)) for own, new in redrawn]
        beyond = [gap / usual_gap if usual_gap else np.ones(len(gap)) for gap, usual_gap in gaps]
        return float(most - (most - low) * max(times, np.quantile(np.concatenate(beyond), 1 - LEAST)))

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Log posterior predictive density of each row, in nats, [n]; outliers have low ones."""
        check_is_fitted(self)
        validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return self.mixture_.score_samples(X)

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
