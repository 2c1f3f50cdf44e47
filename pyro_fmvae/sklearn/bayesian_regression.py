"""Bayesian linear regression as a scikit-learn estimator."""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from scipy.special import softmax  # type: ignore[import-untyped]
from scipy.stats import gamma, t  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state, check_scalar, column_or_1d
from sklearn.utils._missing import is_pandas_na
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import OutsideDomainError
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.linear_ascent import (
    VAGUE,
    MatrixPosterior,
    Regression,
    Targets,
    climb,
    regression_ascent,
    state_of,
)
from pyro_fmvae.sklearn.intervals import ends_of, gibbs_draws, tails_of
from pyro_fmvae.sklearn.standardisation import Standardisation, distinct
from pyro_fmvae.sklearn.table_estimator import check_convergence, check_sizes, check_tolerance

RIDGE = 1e-3
"""Rows that a coefficient of 0 counts for in a line through a few rows."""
SHORT = 20
"""Updates of each start, of which the best goes on."""
FEWEST = 3
"""Rows of a component, at least, for its noise to have a posterior of finite variance."""


class RegressionInterval(NamedTuple):
    """Lower and upper ends, in this order along the first axis."""

    coef: np.ndarray
    """Ends for the coefficients, [2, P], or [2, K, P] of several components."""
    intercept: np.ndarray
    """Ends for the intercepts, [2], or [2, K]."""
    noise_variance: np.ndarray
    """Ends for the variances of the noise, [2], or [2, K]; of Student-t noise, for the squared scale."""


class BayesianRegression(RegressorMixin, BaseEstimator):
    """Bayesian linear regression: normal or Student-t noise, mixtures of regressions, and groups of rows.

    Coefficients and the precision of the noise have one joint posterior, and the relevance of coefficients
    is learnt, as in :class:`sklearn.linear_model.BayesianRidge`, whose prior does not scale with the noise.

    Args:
        n_components: K regressions, each with its own noise; which one a row belongs to is found.
        likelihood: "normal", or "student" for noise with outliers.
        degrees_of_freedom: of Student-t noise.
        tol: an update that gains less, in nats per row, is the last.
        max_iter: updates at most.
        n_init: random starts of a mixture, beside one of a single line; the one with the best bound goes on.
        random_state: seed of the starts.

    Attributes:
        coef_: posterior means of the coefficients, [P], or [K, P] of several components; with groups, those
            that all groups share.
        intercept_: a number, or [K].
        noise_variance_: inverse expected precision of the noise, a number, or [K].
        groups_: labels of the groups, [G], if there were any.
        group_coef_, group_intercept_: sums of shared and own parts, [G, P] and [G], or [K, G, P] and [K, G].
        weights_: posterior means of the components' probabilities, [K].
        n_components_: K.
        lower_bound_: bound on the log-probability of the targets, in nats and in the data's units.
        lower_bounds_: the same after each update.
        n_iter_: updates.
        converged_: whether the last update gained less than ``tol``.
        n_features_in_: P.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Bishop (2006), Pattern Recognition and Machine Learning, Sections 10.3 and 14.5. On Student-t noise:
        Tipping and Lawrence (2005), Variational inference for Student-t models.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import BayesianRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 2))
        >>> y = 1 + X @ [2.0, -1.0] + rng.normal(0, 0.1, 100)
        >>> y[:5] += 20
        >>> robust = BayesianRegression(likelihood="student").fit(X, y)
        >>> robust.coef_.round(1), round(robust.intercept_, 1)
        (array([ 2., -1.]), 1.0)
        >>> mean, std = robust.predict(X, return_std=True)
        >>> mean.shape, std.shape
        ((100,), (100,))
    """

    _found: Regression
    _rows: MatrixPosterior
    _labels: np.ndarray | None

    def __init__(
        self,
        n_components: int = 1,
        *,
        likelihood: str = "normal",
        degrees_of_freedom: float = 4.0,
        tol: float = 1e-5,
        max_iter: int = 1000,
        n_init: int = 10,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.likelihood = likelihood
        self.degrees_of_freedom = degrees_of_freedom
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> "BayesianRegression":
        """Fit the model.

        Args:
            X: rows [n, P].
            y: targets [n], NaN where missing.
            sample_weight: rows that each one stands for, >= 0, [n].
            groups: label of each row's group, [n]. A group's coefficients are those that all share and a part
                of its own, which is the smaller the less the groups differ.

        Raises:
            ValueError: an argument out of range, or no target.
        """
        self._check_parameters()
        x = self._regressors(X, reset=True)
        self._labels = None if groups is None else np.unique(_labels_of(groups, len(x)))
        x, group, y, weights = self._used(x, groups, y, sample_weight)
        columns = Standardisation.of(np.column_stack([x, y]), weights, [])
        self._centre, self._scale = columns.centre[:-1], columns.scale[:-1]
        self._middle, self._unit = float(columns.centre[-1]), float(columns.scale[-1])
        targets = self._targets(x, group, y, weights)
        rng = check_random_state(self.random_state)
        starts = [self._single_line(targets)]
        if self.n_components > 1:
            rows, counts = distinct(np.column_stack([x, group, y]), weights)
            some = self._targets(rows[:, :-2], rows[:, -2].astype(int), rows[:, -1], counts)
            starts += [self._some_lines(targets, some, rng) for _ in range(self.n_init)]
        self._keep(*self._climbed(targets, starts))
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> "BayesianRegression":
        """Learn from further rows: the posterior given the rows so far is the prior of these.

        The first call is :meth:`fit`. No row should be given twice.

        Args:
            X, y, sample_weight: as for :meth:`fit`.
            groups: labels of groups that the first fit had, if it had any.

        Raises:
            ValueError: see :meth:`fit`.
        """
        if not hasattr(self, "_found"):
            return self.fit(X, y, sample_weight, groups)
        targets = self._targets(*self._used(self._regressors(X), groups, y, sample_weight))
        ascent = regression_ascent(targets, self._rows, self._shares(targets))
        self._keep(*climb(ascent, self.max_iter, self.tol * float(targets.weights.sum())))
        return self

    def _keep(self, found: Regression, bounds: list[float], converged: bool) -> None:
        """Keep the posterior that was found, in the data's units."""
        self._found, self._rows, self.converged_ = found, found.rows, converged
        self.lower_bounds_ = np.array(bounds) - found.rows.sums.count.sum() * np.log(self._unit)
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(bounds)
        check_convergence(converged, len(bounds), level=4)
        self._publish()

    def _climbed(
        self, targets: Targets, starts: list[tuple[MatrixPosterior, np.ndarray]]
    ) -> tuple[Regression, list[float], bool]:
        """The start with the best bound after a few updates, to its end."""
        limits = self.max_iter, self.tol * float(targets.weights.sum())
        if len(starts) > 1:
            short = [
                climb(regression_ascent(targets, *start), min(SHORT, self.max_iter), 0.0) for start in starts
            ]
            starts = [starts[int(np.argmax([found[1][-1] for found in short]))]]
        return climb(regression_ascent(targets, *starts[0]), *limits)

    def _known(self, lines: np.ndarray) -> MatrixPosterior:
        """Lines [K, M] as if they were known, with noise of the variance of the targets."""
        number = len(lines)
        return MatrixPosterior.at_start(lines, np.arange(number), np.ones(number), self._relevance)

    def _single_line(self, targets: Targets) -> tuple[MatrixPosterior, np.ndarray]:
        """Lines as unknown as with relevances of 1, and all rows in the first component, [N, K].

        The first update makes it the ridge line. Lines known to be 0 would stay there.
        """
        number, (count, width) = self.n_components, targets.z.shape
        unknown = replace(self._known(np.zeros((number, width))), spread=np.eye(width)[None])
        return unknown, np.eye(number)[np.zeros(count, dtype=int)]

    def _some_lines(
        self, targets: Targets, some: Targets, rng: np.random.RandomState
    ) -> tuple[MatrixPosterior, np.ndarray]:
        """Lines through a few random ones of ``some`` rows, and components of all rows by them, [N, K]."""
        (count, width), lines = some.z.shape, []
        for _ in range(self.n_components):
            own = rng.choice(count, min(width + 1, count), replace=False)
            z, y = some.z[own], some.y[own]
            lines.append(np.linalg.solve(z.T @ z + RIDGE * np.eye(z.shape[1]), z.T @ y))
        off = (targets.y[:, None] - targets.z @ np.stack(lines, 1)) ** 2
        return self._known(np.stack(lines)), softmax(-off / max(2 * np.median(off.min(1)), VAGUE), axis=1)

    def _publish(self) -> None:
        mean, features = self._rows.mean, len(self._centre)
        coef = mean[:, :features] * self._unit / self._scale
        intercept = self._middle + mean[:, -1] * self._unit - coef @ self._centre
        noise = self._unit**2 / self._rows.precision
        self.n_components_ = len(mean)
        self.weights_ = self._found.concentration / self._found.concentration.sum()
        for name in ("groups_", "group_coef_", "group_intercept_"):
            self.__dict__.pop(name, None)
        if self._labels is not None:
            self.groups_, number = self._labels, len(self._labels)
            own = mean[:, features : features * (number + 1)].reshape(len(mean), number, features)
            own = own * self._unit / self._scale
            apart = mean[:, features * (number + 1) : -1] * self._unit - own @ self._centre
            self.group_coef_ = _alone(coef[:, None] + own)
            self.group_intercept_ = _alone(intercept[:, None] + apart)
        self.coef_, self.intercept_ = _alone(coef), _alone(intercept)
        self.noise_variance_ = _alone(noise)

    # ------------------------------------------------------------------ rows

    def predict(
        self, X: ArrayLike, return_std: bool = False, groups: ArrayLike | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predictive mean of the target of rows, [n], and its standard deviation, noise included.

        Components of fewer than three rows do not count, if others have more.

        Args:
            X: rows [n, P].
            return_std: also give the standard deviation.
            groups: labels as in :meth:`fit`; a group that it did not have is one like the others.
        """
        check_is_fitted(self)
        x = self._regressors(X)
        group, rows, counts = self._group_of(x, groups), self._rows, self._counting()
        z = self._design(x, group)
        means, share = z @ rows.mean.T, self.weights_ * counts / self.weights_[counts].sum()
        mean = self._middle + self._unit * (means @ share)
        if not return_std:
            return mean
        shape, rate = rows.tau
        finite = rate / np.maximum(shape - 1, VAGUE)
        variance = np.select([~counts, shape > 1], [0.0, finite], np.inf)
        inner = np.stack([((z @ spread) * z).sum(1) for spread in rows.spread[rows.group]], 1)
        if self._labels is not None:
            relevance = rows.alpha[0, 1:] / rows.alpha[1, 1:]
            squares = (z[:, : len(self._centre)] ** 2).sum(1) / relevance[0] + 1 / relevance[1]
            inner += ((group < 0) * squares)[:, None]
        nu = self.degrees_of_freedom
        noise = 1.0 if self.likelihood == "normal" else nu / (nu - 2) if nu > 2 else np.inf
        square = (variance * (noise + inner) + means**2) @ share - (means @ share) ** 2
        return mean, self._unit * np.sqrt(square)

    def _counting(self) -> np.ndarray:
        """Which components have rows enough for finite variances, or all if none has, bool [K]."""
        enough = (self._found.concentration - 1).round() >= FEWEST
        return enough if enough.any() else np.ones_like(enough)

    def predict_component(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> np.ndarray:
        """Probabilities of the components of rows and their targets, [n, K]."""
        check_is_fitted(self)
        x = self._regressors(X)
        return self._shares(self._targets(x, self._group_of(x, groups), *self._given(x, y, None)))

    def _shares(self, targets: Targets) -> np.ndarray:
        """Probabilities of the components of rows, those of no target by the weights alone, [n, K]."""
        rows, nu = self._rows, targets.freedom
        squares = rows.precision * (targets.y[:, None] - targets.z @ rows.mean.T) ** 2
        table = -squares / 2 if nu is None else -(nu + 1) / 2 * np.log1p(squares / nu)
        table = np.nan_to_num(table + np.log(rows.precision) / 2) * ~np.isnan(targets.y)[:, None]
        found: np.ndarray = softmax(np.log(self.weights_) + table, axis=1)
        return found

    def credible_interval(
        self,
        probability: float = 0.95,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        n_draws: int | None = None,
    ) -> RegressionInterval:
        """Equal-tailed intervals of coefficients, intercepts and noise, each by its own marginal posterior.

        The intercept is that where all columns of ``X`` are 0. If K is too large, components that fewer than
        three rows belong to are as wide as their prior; their ends are NaN. Of several components, and with
        outliers, the variational posterior is too narrow. With ``n_draws`` intervals are exact, but for the
        noise of so many draws; row weights do not count there, and components that trade places in the chain
        have wide intervals.

        Args:
            probability: of each interval, in (0, 1).
            X, y, groups: the training rows, for draws.
            n_draws: draws by Gibbs sampling, from the fit on, whose quantiles are the ends; None for the
                variational posterior.

        Raises:
            ValueError: a probability out of range; draws without rows or groups, or of an empty component.
        """
        check_is_fitted(self)
        tails, rows, features = tails_of(probability), self._rows, len(self._centre)
        (shape, rate), width = rows.tau, rows.mean.shape[1]
        turn = np.zeros((features + 1, width))
        turn[:features, :features] = np.diag(1 / self._scale)
        turn[-1, :features], turn[-1, -1] = -self._centre / self._scale, 1.0
        one = len(rows.mean) == 1
        if n_draws is not None:
            few = "n_draws: a component has too few rows; lower n_components"
            if not self._counting().all():
                raise ValueError(few)
            try:
                draws = gibbs_draws(self, n_draws, X, y, None, groups)
            except OutsideDomainError as error:  # it lost its rows in the chain
                raise ValueError(few) from error
            lines = self._unit * draws["lines"] @ turn.T
            lines[..., -1] += self._middle
            parts = {
                "coef": lines[..., :-1],
                "intercept": lines[..., -1],
                "noise_variance": self._unit**2 / draws["precision"],
            }
            drawn = ends_of(parts, tails, True)
            return RegressionInterval(**{name: part[:, 0] if one else part for name, part in drawn.items()})
        shape = np.where(self._counting(), shape, np.nan)
        square = np.einsum("pm,cmn,pn->cp", turn, rows.spread[rows.group], turn)
        mean, scale = rows.mean @ turn.T, np.sqrt(square * (rate / shape)[:, None])
        ends = self._unit * t.ppf(tails[:, None, None], 2 * shape[:, None], mean, scale)
        ends[..., -1] += self._middle
        noise = self._unit**2 / gamma.ppf(tails[::-1, None], shape, scale=1 / rate)
        found = ends[..., :-1], ends[..., -1], noise
        return RegressionInterval(*(part[:, 0] if one else part for part in found))

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`."""
        check_is_fitted(self)
        number, index = len(self._rows.mean), torch.tensor(self._relevance)
        student, nu = self.likelihood == "student", torch.tensor(self.degrees_of_freedom, dtype=torch.float64)
        vague, zero = torch.tensor(VAGUE, dtype=torch.float64), torch.zeros((), dtype=torch.float64)

        def model(z: Tensor, y: Tensor, weights: Tensor) -> None:  # [n, M], [n] and [n]
            with pyro.plate("relevances", int(index.max()) + 1):
                own = pyro.sample("relevance", dist.Gamma(vague, vague))
            relevances = torch.cat([own, vague.expand(1)])[index]
            with pyro.plate("components", number):
                precision = pyro.sample("precision", dist.Gamma(vague, vague))
                scale = (precision.unsqueeze(-1) * relevances).rsqrt()
                lines = pyro.sample("lines", dist.Normal(zero, scale).to_event(1))
            if number > 1:
                shares = pyro.sample("shares", dist.Dirichlet(torch.ones(number, dtype=torch.float64)))
            with pyro.plate("rows", len(y), subsample=y), poutine.scale(scale=weights):
                component = pyro.sample("component", dist.Categorical(shares)) if number > 1 else 0
                tau = precision[component]
                if student:
                    tau = tau * pyro.sample("scale", dist.Gamma(nu / 2, nu / 2))
                pyro.sample("y", dist.Normal((lines[component] * z).sum(-1), tau.rsqrt()), obs=y)

        return model

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the posterior that was found; scales are found anew."""
        local = ["rows"] if self.likelihood == "student" else []
        guide = AutoConjugate(self.model_, local=local, structured=True)
        width = self._rows.mean.shape[1]
        guide.setup(torch.zeros(2, width).double(), torch.zeros(2).double(), torch.ones(2).double())
        state = state_of(self._rows, "relevance", "precision", "lines")
        state["posteriors.shares.natural"] = torch.tensor(self._found.concentration)
        guide.load_state_dict(state, strict=False)
        return guide

    def model_arguments(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of :attr:`model_`: regressors and targets in the fit's units, and weights of the rows."""
        check_is_fitted(self)
        given = self._targets(*self._used(self._regressors(X), groups, y, sample_weight))
        return torch.tensor(given.z), torch.tensor(given.y), torch.tensor(given.weights)

    # ------------------------------------------------------------------ what a fit needs

    def _regressors(self, X: ArrayLike, reset: bool = False) -> np.ndarray:
        x: np.ndarray = validate_data(self, X, dtype=np.float64, reset=reset)
        check_sizes(x, remedy="")
        return x

    def _given(self, x: np.ndarray, y: ArrayLike, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        if y is None:
            raise ValueError(
                "y: expected targets, got None; requires y to be passed, but the target y is None"
            )
        found: np.ndarray = check_array(
            y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y"
        )
        found = column_or_1d(found, warn=True)
        check_consistent_length(x, found)
        check_sizes(found[:, None], "y")
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        return found, weights

    def _used(
        self, x: np.ndarray, groups: Any, y: ArrayLike, sample_weight: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows that are learnt from: regressors, groups, targets and weights above 0."""
        target, weights = self._given(x, y, sample_weight)
        use = (weights > 0) & ~np.isnan(target)
        if not use.any():
            raise ValueError("y: expected a target of a row whose weight is above 0, got none")
        group = self._group_of(x, groups)[use]
        if self._labels is not None and (group < 0).any():
            got = "none" if groups is None else "others"
            raise ValueError(f"groups: expected labels of groups that the first fit had, got {got}")
        return x[use], group, target[use], weights[use]

    def _targets(self, x: np.ndarray, group: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Targets:
        nu = None if self.likelihood == "normal" else float(self.degrees_of_freedom)
        return Targets(self._design(x, group), (y - self._middle) / self._unit, weights, nu)

    def _group_of(self, x: np.ndarray, groups: ArrayLike | None) -> np.ndarray:
        """Number of the group of each row, -1 if :meth:`fit` did not have it, int64 [n]."""
        known, none = self._labels, np.full(len(x), -1)
        if groups is None:
            return none
        if known is None:
            raise ValueError("groups: expected None, as in fit")
        given = _labels_of(groups, len(x))
        if len(given) and (kind := _kind(given[0])) != (wanted := _kind(known[0])):
            raise ValueError(f"groups: expected labels of the kind of those of fit, {wanted}, got {kind}")
        number = np.minimum(np.searchsorted(known, given), len(known) - 1)
        return np.where(known[number] == given, number, none)

    def _design(self, x: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Regressors of rows: columns in their units, those of each group, its intercept, and 1."""
        z = (x - self._centre) / self._scale
        parts = [z]
        if self._labels is not None:
            apart = np.eye(len(self._labels) + 1)[group, :-1]  # zeros in group -1
            parts += [(apart[:, :, None] * z[:, None]).reshape(len(z), -1), apart]
        return np.column_stack([*parts, np.ones(len(z))])

    @property
    def _relevance(self) -> np.ndarray:
        """Number of the relevance of each regressor, -1 for the intercept's."""
        groups, features = 0 if self._labels is None else len(self._labels), len(self._centre)
        return np.repeat([0, 1, 2, -1], [features, features * groups, groups, 1])

    def _check_parameters(self) -> None:
        for name in ("n_components", "max_iter", "n_init"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        check_tolerance(self.tol)
        check_scalar(
            self.degrees_of_freedom, "degrees_of_freedom", Real, min_val=0, include_boundaries="neither"
        )
        if not np.isfinite(self.degrees_of_freedom):
            raise ValueError(
                f"degrees_of_freedom: expected a finite number > 0, got {self.degrees_of_freedom}; take "
                f"likelihood='normal'"
            )
        if self.likelihood not in ("normal", "student"):
            raise ValueError(f"likelihood: expected 'normal' or 'student', got {self.likelihood!r}")


def _labels_of(groups: ArrayLike, count: int) -> np.ndarray:
    """Labels of the groups of so many rows, all of one kind.

    Raises:
        ValueError: another shape, a missing label, or labels of several kinds.
    """
    each = groups if hasattr(groups, "dtype") else np.array(groups, dtype=object)
    each = np.asarray(each)
    if each.shape != (count,):
        raise ValueError(f"groups: expected a label for each of {count} rows, got {list(each.shape)}")
    for row, label in enumerate(each):
        if label is None or is_pandas_na(label) or label != label:
            raise ValueError(f"groups: expected a label for each row, none missing, got {label} in row {row}")
    if len(kinds := sorted(set(map(_kind, each)))) > 1:
        raise ValueError(f"groups: expected labels of one kind, got {' and '.join(kinds)}")
    return np.asarray(groups)


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "strings"
    return "numbers" if isinstance(label, Real | np.bool_) else type(label).__name__


def _alone(values: np.ndarray) -> Any:
    """Without the axis of components, if there is only one."""
    if len(values) > 1:
        return values
    return float(values[0]) if values.ndim == 1 else values[0]
