"""The common base of estimators of tables with several kinds of columns."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Number, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import gamma, t  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_scalar
from sklearn.utils.validation import validate_data
from torch import Tensor

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.models.table_posterior import TablePosterior
from pyro_fmvae.models.table_sites import COUNTED, column_site, parameter_of
from pyro_fmvae.sklearn.standardisation import Standardisation

LARGEST: Final = 1e100
"""Size of the largest number of a row: squares and their sums are far from the largest float64."""


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
