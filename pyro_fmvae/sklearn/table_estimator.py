"""The common base of estimators of tables with several kinds of columns."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Number, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from pyro.infer.autoguide import init_to_value
from scipy.stats import gamma, t  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import validate_data
from torch import Tensor

from pyro_fmvae.capture import ConjugateGibbs
from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.linear_ascent import VAGUE, MatrixPosterior
from pyro_fmvae.models.table_posterior import TablePosterior
from pyro_fmvae.models.table_sites import COUNTED, column_site, parameter_of
from pyro_fmvae.sklearn.standardisation import Standardisation

LARGEST: Final = 1e100
"""Size of the largest number of a row: squares and their sums are far from the largest float64."""
FEWEST_DRAWS: Final = 50
"""Effective draws of a chain, below which the ends of an interval are hardly known."""
VARIATIONAL_DRAWS: Final = 2_000
"""Draws of a variational posterior whose quantiles are the ends of intervals without a closed form."""


class RowEstimator(BaseEstimator):
    """Rows of numbers that may be missing."""

    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _checked(self, X: ArrayLike, reset: bool) -> np.ndarray:
        rows: np.ndarray = validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
        )
        check_sizes(rows)
        return rows


class TableEstimator(RowEstimator):
    """Columns, priors and parameters of components, which a subclass fits."""

    covariance_type: str
    degrees_of_freedom_prior: float | None
    mean_precision_prior: float | None
    mean_prior: ArrayLike | None
    covariance_prior: ArrayLike | None
    means_: np.ndarray
    rates_: np.ndarray
    covariances_: np.ndarray
    probabilities_: dict[int, np.ndarray]
    random_state: Any
    _columns: Standardisation
    _prior: NormalWishart | ColumnNormalGamma | None

    def _indices(self, argument: str) -> list[int]:
        return self._places(argument, getattr(self, argument))

    def _places(self, argument: str, given: ArrayLike | None) -> list[int]:
        """Indices of columns that are given by index or by name."""
        if given is None:
            return []
        names = list(getattr(self, "feature_names_in_", ()))
        found = [names.index(c) if c in names else c for c in np.asarray(given).tolist()]
        if not all(type(c) is int and 0 <= c < self.n_features_in_ for c in found):
            raise ValueError(f"{argument}: expected names or indices of columns, got {given}")
        return found

    def _prior_given(self, x: Tensor, weights: np.ndarray) -> NormalWishart | ColumnNormalGamma | None:
        """The prior of a component's numbers, given standardised rows [n, D] and their weights [n]."""
        full, dim = self.covariance_type == "full", len(self._columns.numbers)
        freedom = dim if self.degrees_of_freedom_prior is None else self.degrees_of_freedom_prior
        if full and dim and not freedom > dim - 1:
            raise ValueError(f"degrees_of_freedom_prior: expected more than {dim - 1}, got {freedom}")
        precision = 1.0 if self.mean_precision_prior is None else self.mean_precision_prior
        covariance = self.covariance_prior
        return self._columns.prior(x, weights, full, self.mean_prior, precision, freedom, covariance)

    def _publish(self, model: TablePosterior) -> None:
        """Set the attributes of the components' parameters, in the data's units."""
        for name in ("rates_", "means_", "mean_precision_", "degrees_of_freedom_", "covariances_"):
            self.__dict__.pop(name, None)  # of an earlier fit, to other kinds of columns
        self.probabilities_ = {
            column: model.probs(column_site(column)).numpy() for column, _ in model.sites.categories
        }
        if model.sites.counted:
            self.rates_ = model.rates().numpy()
        if not model.sites.numbers:
            return
        m, s, a, rate = (part.numpy() for part in model.numbers().standard)
        numbers = self._columns.numbers
        centre, scale = self._columns.centre[numbers], self._columns.scale[numbers]
        self.means_, self.mean_precision_ = m * scale + centre, s
        if model.sites.full:
            self.degrees_of_freedom_ = 2 * a + m.shape[1] - 1
            spread = 2 * rate @ rate.swapaxes(-1, -2) / self.degrees_of_freedom_[:, None, None]
            self.covariances_ = spread * np.outer(scale, scale)
        else:
            self.degrees_of_freedom_, self.covariances_ = 2 * a, rate / a * scale**2

    def _ends(self, model: TablePosterior, tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quantiles of the components' means and rates, by their marginal posteriors: [2, K, D] each."""
        sites, natural = model.sites, model.natural
        means = rates = np.empty((2, sites.components, 0))
        if sites.numbers:
            _, s, a, rate = (part.numpy() for part in model.numbers().standard)
            if sites.full:
                s, a, rate = s[:, None], a[:, None], (rate**2).sum(-1)  # B_dd, of B = LLᵀ
            spread = np.sqrt(rate / (a * s)) * self._columns.scale[sites.numbers]
            means = t.ppf(tails[:, None, None], 2 * a, self.means_, spread)
        if sites.counted:
            a, rate = (part.numpy() for part in natural(parameter_of(COUNTED)).standard)
            rates = gamma.ppf(tails[:, None, None], a, scale=1 / rate)
        return means, rates

    def _in_units(self, means: np.ndarray) -> np.ndarray:
        """Means of standardised numbers, [..., D], in the data's units."""
        numbers = self._columns.numbers
        found: np.ndarray = means * self._columns.scale[numbers] + self._columns.centre[numbers]
        return found

    def _guide(self, model: Callable[..., None], fitted: TablePosterior, one: Sequence[Any]) -> AutoConjugate:
        """An autoguide of the program with the posterior that was found, set up by arguments of any data."""
        guide = AutoConjugate(model, structured=True)
        guide.setup(*one)
        guide.load_state_dict(fitted.program_state(), strict=False)
        return guide


def gibbs_draws(estimator: Any, n_draws: int, X: Any, *others: Any) -> dict[str, np.ndarray]:
    """Draws of an estimator's program by Gibbs sampling, from its fit on, by site: [n_draws, ...].

    Args:
        estimator: has ``model_``, ``guide_``, ``model_arguments`` and ``random_state``.
        n_draws: after a tenth as many that do not count.
        X, others: the data of the fit, as ``model_arguments`` takes them.

    Raises:
        ValueError: no data, or no draws.
    """
    check_scalar(n_draws, "n_draws", Integral, min_val=1)
    if X is None:
        raise ValueError("X: expected the data of the fit, which draws are given")
    model, guide, arguments = estimator.model_, estimator.guide_, estimator.model_arguments(X, *others)
    with seeded(check_random_state(estimator.random_state).randint(2**31 - 1)):
        first = {name: value.detach() for name, value in guide(*arguments).items()}
        kernel = ConjugateGibbs(model, init_strategy=init_to_value(values=first))
        draws = kernel.draw(*arguments, num_samples=n_draws, warmup_steps=n_draws // 10, num_chains=1)
    return {name: values[0].double().numpy() for name, values in draws.items()}


def check_learnt(rows: MatrixPosterior, x: np.ndarray | None) -> None:
    """Refuse draws of a matrix without data, or given other data than those that it was learnt from.

    Args:
        rows: a posterior of the row of each column.
        x: data [n, D] in the units of the fit; None: the draws are not given data.

    Raises:
        ValueError: a column without a number, or other squares of the numbers than the fit has.
    """
    for column in np.flatnonzero(rows.tau[0, rows.noise] <= VAGUE):
        raise ValueError(
            f"X: expected a number in each column of the fit, got none in column {column}, which leaves the "
            f"variance of its noise unknown; leave out the column"
        )
    if x is not None and not np.allclose(np.nansum(x**2, 0), rows.sums.yy, rtol=1e-6, atol=0.0):
        raise ValueError(
            "X: expected the data of the fit, each row of weight 1, got others; leave out those of weight 0, "
            "and fit without weights for draws"
        )


def ends_of(draws: Mapping[str, np.ndarray], tails: np.ndarray, is_chain: bool) -> dict[str, np.ndarray]:
    """Ends of intervals, [2, ...], by draws of parameters, [S, ...]; warns of too few effective draws.

    Args:
        draws: by name of the parameter.
        tails: see :func:`tails_of`.
        is_chain: the draws are those of a chain, each of which depends on the one before.
    """
    for name, values in draws.items() if is_chain else ():
        size: float = len(values)
        if values.size and size >= FEWEST_DRAWS:
            size = float(effective_draws(values.reshape(len(values), -1)).min())
        if size < FEWEST_DRAWS:
            message = f"n_draws: only {size:.0f} effective draws of '{name}'; ask for more"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
    return {name: np.quantile(values, tails, axis=0) for name, values in draws.items()}


def effective_draws(values: np.ndarray) -> np.ndarray:
    """Effective sample sizes of chains [S, P], [P]; S of constants.

    Autocorrelations are added up to the first pair of them whose sum is not positive (Geyer, 1992, Practical
    Markov chain Monte Carlo, Section 3.3). The sizes of chains that alternate are S log10(S) at most (Vehtari
    et al., 2021, Rank-normalization, folding, and localization: an improved R-hat).
    """
    count = len(values)
    powers = np.abs(np.fft.rfft(values - values.mean(0), 2 * count, axis=0)) ** 2
    covariances = np.fft.irfft(powers, axis=0)[: count - count % 2]
    pairs = covariances[::2] + covariances[1::2]
    pairs = np.where(np.logical_and.accumulate(pairs > 0, axis=0), pairs, 0.0).sum(0)
    moves = covariances[0] > 1e-24 * (values**2).sum(0)
    sums = np.maximum(2 * pairs - covariances[0], covariances[0] / np.log10(max(count, 10)))
    found: np.ndarray = count * covariances[0] / np.where(moves, sums, 1.0)
    return np.where(moves, found, count)


def check_sizes(rows: np.ndarray, name: str = "X", remedy: str = ", or set the number to NaN") -> None:
    """Refuse rows [N, D] with numbers that are too large.

    Args:
        rows: numbers, NaN where missing.
        name: of the argument.
        remedy: what to do but to change units.

    Raises:
        ValueError: a number above :data:`LARGEST` in size.
    """
    sizes = np.fmax(np.fmax.reduce(rows), -np.fmin.reduce(rows))
    for column in np.flatnonzero(sizes > LARGEST):
        raise ValueError(
            f"{name}: expected numbers of at most {LARGEST:g} in size, got one of {sizes[column]:g} in "
            f"column {column}; change the column's units{remedy}"
        )


def check_components(number: Any, name: str = "n_components", most: int | None = None) -> None:
    """Refuse a number of components or clusters, up to ``most``, that is neither an integer >= 1 nor "auto".

    Raises:
        TypeError: it is a number, but no integer.
        ValueError: it is out of range, or no number.
    """
    if isinstance(number, Number):
        check_scalar(number, name, Integral, min_val=1, max_val=most)
    elif not (isinstance(number, str) and number == "auto"):
        raise ValueError(f"{name}: expected a number >= 1 or 'auto', got {number!r}")


def check_tolerance(tol: Any) -> None:
    """Refuse a tolerance that no gain can be compared with.

    Raises:
        ValueError: it is below 0, or NaN.
    """
    check_scalar(tol, "tol", Real, min_val=0)
    if np.isnan(tol):
        raise ValueError(f"tol: expected a number >= 0, got {tol}")


def check_convergence(converged: bool, count: int, what: str = "updates", level: int = 3) -> None:
    """Warn of a fit that ended after so many updates; ``level`` is that of its caller, as for ``warn``."""
    if not converged:
        message = f"max_iter: no convergence within {count} {what}; increase it, or tol"
        warnings.warn(message, ConvergenceWarning, stacklevel=level)


def tails_of(probability: float) -> np.ndarray:
    """The probabilities below the ends of an equal-tailed interval, [2].

    Raises:
        ValueError: a probability out of range.
    """
    check_scalar(probability, "probability", Real, min_val=0, max_val=1, include_boundaries="neither")
    return np.array([1 - probability, 1 + probability]) / 2
