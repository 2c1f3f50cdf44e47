"""Factor analysis and principal components of incomplete rows, as scikit-learn estimators."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state, check_scalar
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor
from torch.nn.functional import pad

from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.linear_ascent import (
    LOG_2PI,
    VAGUE,
    MatrixPosterior,
    Table,
    climb,
    factor_ascent,
    factors_of,
    fewest_factors,
    principal_start,
    state_of,
)
from pyro_fmvae.sklearn.intervals import VARIATIONAL_DRAWS, check_learnt, ends_of, gibbs_draws, tails_of
from pyro_fmvae.sklearn.standardisation import is_constant
from pyro_fmvae.sklearn.table_estimator import (
    RowEstimator,
    check_components,
    check_convergence,
    check_tolerance,
)


class FactorInterval(NamedTuple):
    """Lower and upper ends, in this order along the first axis."""

    components: np.ndarray
    """Ends for ``components_``, [2, K, D]."""
    mean: np.ndarray
    """Ends for the means of the columns, [2, D]."""
    noise_variance: np.ndarray
    """Ends for the variances of the noise, [2, D], or [2] if all columns share one."""
    covariance: np.ndarray
    """Ends for the covariance of a row, [2, D, D]."""


class LinearFactors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, RowEstimator):
    """Rows of numbers that are a linear function of a few factors, and noise."""

    _shared: ClassVar[bool]
    """Whether all columns have noise of one variance, and so one unit."""
    n_components_: int
    mean_: np.ndarray
    components_: np.ndarray
    _rows: MatrixPosterior
    _centre: np.ndarray
    _scale: np.ndarray
    _loadings: np.ndarray
    """In the data's units, orthogonal in those of the noise, [D, K]."""

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        tol: float = 1e-4,
        max_iter: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Fit the model.

        Args:
            X: rows [n, D], NaN where missing.
            y: ignored.
            sample_weight: rows that each one stands for, >= 0, [n].

        Raises:
            ValueError: an argument out of range, or more components than columns.
        """
        check_tolerance(self.tol)
        check_scalar(self.max_iter, "max_iter", Integral, min_val=1)
        x, weights = self._given(X, sample_weight, reset=True)
        dim, count = x.shape[1], float(weights.sum())
        check_components(self.n_components, most=dim)
        there = np.maximum(weights @ ~np.isnan(x), np.finfo(float).tiny)
        self._centre = weights @ np.nan_to_num(x) / there
        scale = np.sqrt(weights @ np.nan_to_num(x - self._centre) ** 2 / there)
        scale = np.where(is_constant(scale, self._centre), 0.0, scale)
        if self._shared:
            scale[:] = np.sqrt((scale**2).mean())
        self._scale = np.where(scale > 0, scale, 1.0)
        table = Table.of((x - self._centre) / self._scale, weights)
        limits = self.max_iter, self.tol * count
        if self.n_components == "auto":
            start = principal_start(table, max(min(dim, int(count)) - 1, 1), self._shared, True)
            found = fewest_factors(table, start, *limits)
        else:
            start = principal_start(table, int(self.n_components), self._shared, False)
            found = climb(factor_ascent(table, start), *limits)
        self._keep(*found)
        return self

    def partial_fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Learn from further rows: the posterior given the rows so far is the prior of these.

        The first call is :meth:`fit`, which chooses the number of factors. No row should be given twice.

        Args:
            X, y, sample_weight: as for :meth:`fit`.

        Raises:
            ValueError: see :meth:`fit`.
        """
        if not hasattr(self, "_rows"):
            return self.fit(X, sample_weight=sample_weight)
        x, weights = self._given(X, sample_weight, reset=False)
        table = Table.of((x - self._centre) / self._scale, weights)
        ascent = factor_ascent(table, self._rows)
        self._keep(*climb(ascent, self.max_iter, self.tol * float(weights.sum())))
        return self

    def _given(self, X: ArrayLike, sample_weight: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows [n, D] of weights [n] above 0."""
        x = self._checked(X, reset)
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise ValueError("sample_weight: expected a weight above zero, got none")
        return x[weights > 0], weights[weights > 0]

    def _keep(self, rows: MatrixPosterior, bounds: list[float], converged: bool) -> None:
        """Keep the posterior that was found, in the data's units."""
        self._rows, self.converged_ = rows, converged
        self.lower_bounds_ = np.array(bounds) - rows.sums.count @ np.log(self._scale)
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(bounds)
        check_convergence(converged, len(bounds), level=4)
        self._publish()

    def credible_interval(
        self, probability: float = 0.95, X: ArrayLike | None = None, n_draws: int | None = None
    ) -> FactorInterval:
        """Equal-tailed intervals of all parameters, each by its own marginal posterior.

        Means, variances and the covariance are the same for all rotations of the factors. Components have no
        order and no signs: in each draw they are orthogonal in the way of ``components_``, and are paired
        with those. Components of nearly equal size mix, and so have wide intervals. The ends are quantiles of
        2,000 draws of the variational posterior, in which factors and loadings are independent: it is too
        narrow. With ``n_draws`` they are exact, but for the noise of so many draws, and weights are 1.

        Args:
            probability: of each interval, in (0, 1).
            X: the training rows [n, D], without those of weight 0, for draws by Gibbs sampling.
            n_draws: draws by Gibbs sampling, from the fit on; None for the variational posterior.

        Raises:
            ValueError: a probability out of range; draws without the rows of the fit, or after a fit with
                weights other than 0 and 1; a column without a number, whose noise is its own.
        """
        check_is_fitted(self)
        tails = tails_of(probability)
        given = None if n_draws is None or X is None else self._checked(X, reset=False)
        check_learnt(self._rows, None if given is None else (given - self._centre) / self._scale)
        if n_draws is None:
            weights, tau = self._rows.sample(VARIATIONAL_DRAWS, check_random_state(self.random_state))
        else:
            draws = gibbs_draws(self, n_draws, X)
            weights, tau = draws["loadings"], draws["precision"].reshape(n_draws, -1)
        noise, weights = self._scale / np.sqrt(tau), weights * self._scale[:, None]
        loadings, mean = weights[..., :-1], self._centre + weights[..., -1]
        left, sizes, _ = np.linalg.svd(loadings / noise[..., None], full_matrices=False)
        pairs = self._axes.T @ left
        order = np.stack([linear_sum_assignment(-np.abs(table))[1] for table in pairs])[:, :, None]
        signs = np.sign(np.take_along_axis(pairs, order, 2))
        if not self._shared:
            left = left * sizes[:, None] * noise[..., None]
        components = np.take_along_axis(left.swapaxes(1, 2), order, 1) * signs

        covariance = []
        for column, row in enumerate(loadings.swapaxes(0, 1)):
            own = (loadings @ row[..., None])[..., 0]
            own[:, column] += noise[:, column] ** 2
            covariance.append(np.quantile(own, tails, axis=0))
        variances = noise[:, 0] ** 2 if self._shared else noise**2
        parts = {"components": components, "mean": mean, "noise_variance": variances}
        return FactorInterval(
            **ends_of(parts, tails, n_draws is not None), covariance=np.stack(covariance, 1)
        )

    def _publish(self) -> None:
        mean, noise = self._rows.mean, np.sqrt(1 / self._rows.precision)
        left, sizes, self._turn = np.linalg.svd(mean[:, :-1] / noise[:, None], full_matrices=False)
        signs = np.sign(left[np.abs(left).argmax(0), np.arange(len(sizes))])
        self._turn = (self._turn * signs[:, None]).T
        self._axes = left * signs
        self._loadings = self._axes * sizes * (noise * self._scale)[:, None]
        self.n_components_ = len(sizes)
        self.mean_ = self._centre + mean[:, -1] * self._scale
        self._variances = (noise * self._scale) ** 2

    def _factors(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows [n, D]; given loadings at their means, the means of factors [n, K] and log-volumes [n]."""
        check_is_fitted(self)
        x = self._checked(X, reset=False)
        means, log_scales = factors_of(Table.of((x - self._centre) / self._scale), self._rows.certain)
        return x, means @ self._turn, log_scales

    # ------------------------------------------------------------------ rows

    def impute(self, X: ArrayLike) -> np.ndarray:
        """Rows [n, D] with the expectation of each missing number, given the others of its row."""
        x, z, _ = self._factors(X)
        return np.where(np.isnan(x), self.mean_ + z @ self._loadings.T, x)

    def inverse_transform(self, X: ArrayLike) -> np.ndarray:
        """Rows [n, D] without noise, of what :meth:`transform` gives, [n, K].

        Raises:
            ValueError: another number of columns.
        """
        check_is_fitted(self)
        z = check_array(X, dtype=np.float64)
        if z.shape[1] != self.n_components_:
            raise ValueError(f"X: expected {self.n_components_} columns, got {z.shape[1]}")
        found: np.ndarray = self.mean_ + z @ self.components_
        return found

    def get_covariance(self) -> np.ndarray:
        """Covariance of a row, [D, D]."""
        check_is_fitted(self)
        found: np.ndarray = self._loadings @ self._loadings.T + np.diag(self._variances)
        return found

    def get_precision(self) -> np.ndarray:
        """Inverse of :meth:`get_covariance`, [D, D]."""
        scaled = self._loadings_by_noise()
        inner = np.eye(self.n_components_) + self._loadings.T @ scaled
        found: np.ndarray = np.diag(1 / self._variances) - scaled @ np.linalg.solve(inner, scaled.T)
        return found

    def _loadings_by_noise(self) -> np.ndarray:
        check_is_fitted(self)
        found: np.ndarray = self._loadings / self._variances[:, None]
        return found

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Log-density of the numbers that each row has, in nats, parameters at their posterior means, [n]."""
        x, z, log_scales = self._factors(X)
        there, scaled = ~np.isnan(x), self._loadings_by_noise()
        off = np.where(there, x - self.mean_, 0.0)
        squares = (off**2 / self._variances).sum(1) - ((off @ scaled) * z).sum(1)
        constants = there @ (LOG_2PI + np.log(self._variances))
        found: np.ndarray = (log_scales - squares - constants) / 2
        return found

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean of :meth:`score_samples`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Draw rows [n_samples, D], parameters at their posterior means."""
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        rng = check_random_state(self.random_state)
        z = rng.standard_normal((n_samples, self.n_components_))
        noise = rng.standard_normal((n_samples, len(self.mean_))) * np.sqrt(self._variances)
        found: np.ndarray = self.mean_ + z @ self._loadings.T + noise
        return found

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`; the last loading is the centre."""
        check_is_fitted(self)
        dim, width = self._rows.mean.shape
        shared = self._shared and dim > 1  # of one column, the noise is its own
        relevance = torch.tensor(self._rows.relevance)
        zero, vague = torch.zeros((), dtype=torch.float64), torch.tensor(VAGUE, dtype=torch.float64)

        def model(x: Tensor, present: Tensor, weights: Tensor) -> None:  # [n, D] twice, and [n]
            with pyro.plate("relevances", int(relevance.max()) + 1):
                own = pyro.sample("relevance", dist.Gamma(vague, vague))
            relevances = torch.cat([own, vague.expand(1)])[relevance]
            if shared:
                precision = pyro.sample("precision", dist.Gamma(vague, vague))
                scale = (precision * relevances).rsqrt()
                loadings = pyro.sample("loadings", dist.Normal(zero.expand(dim, width), scale).to_event(2))
            else:
                with pyro.plate("columns", dim):
                    precision = pyro.sample("precision", dist.Gamma(vague, vague))
                    scale = (precision.unsqueeze(-1) * relevances).rsqrt()
                    loadings = pyro.sample("loadings", dist.Normal(zero, scale).to_event(1))
            with pyro.plate("rows", len(x), subsample=x), poutine.scale(scale=weights):
                standard = dist.MultivariateNormal(zero.expand(width - 1), torch.eye(width - 1).double())
                z = pad(pyro.sample("z", standard), (0, 1), value=1.0)
                numbers = dist.Normal(z @ loadings.mT, precision.rsqrt())
                pyro.sample("x", numbers.mask(present).to_event(1), obs=x)

        return model

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the posterior that was found; factors are found anew."""
        guide = AutoConjugate(self.model_, local=["rows"], local_steps=1, structured=True)
        x = torch.zeros(2, self.n_features_in_).double()
        guide.setup(x, x == 0, torch.ones(2).double())
        names = "relevance", "precision", "loadings"
        guide.load_state_dict(state_of(self._rows, *names), strict=False)
        return guide

    def model_arguments(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of :attr:`model_`: rows in the fit's units, 0 where missing, what is there, weights."""
        check_is_fitted(self)
        x, weights = self._given(X, sample_weight, reset=False)
        x = (x - self._centre) / self._scale
        return torch.tensor(np.nan_to_num(x)), torch.tensor(~np.isnan(x)), torch.tensor(weights)


class FactorAnalysis(LinearFactors):
    """Bayesian factor analysis of rows that may have missing numbers.

    A row is a linear function of K standard normal factors, and noise with a variance of its own for each
    column, so that units do not matter. Loadings and variances have posteriors, by variational Bayes; missing
    numbers are integrated out.

    Args:
        n_components: K, or "auto": each factor has a relevance of its own, and those of least relevance are
            left out while the bound rises. With K given, all have one relevance.
        tol: an update that gains less, in nats per row, is the last.
        max_iter: updates at most.
        random_state: seed of :meth:`sample`.

    Attributes:
        components_: loadings at their posterior means, [K, D], orthogonal in units of the noise, the greatest
            first.
        noise_variance_: variances of the noise, inverse expected precisions, [D].
        mean_: posterior means of the columns, [D].
        n_components_: K.
        lower_bound_: bound on the log-probability of all rows, in nats and in the data's units.
        lower_bounds_: the same after each update.
        n_iter_: updates.
        converged_: whether the last update gained less than ``tol``.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Ghahramani and Beal (2000), Variational inference for Bayesian mixtures of factor analysers. On
        relevances: Bishop (1999), Bayesian PCA.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import FactorAnalysis
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6)) + rng.normal(0, 0.3, (200, 6))
        >>> X[rng.random(X.shape) < 0.2] = np.nan
        >>> analysis = FactorAnalysis().fit(X)
        >>> analysis.n_components_, analysis.transform(X).shape
        (2, (200, 2))
        >>> bool(np.isnan(analysis.impute(X)).any())
        False
    """

    _shared = False

    def _publish(self) -> None:
        super()._publish()
        self.components_, self.noise_variance_ = self._loadings.T, self._variances

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Expected factors of rows, [n, K], given what is there and loadings at their posterior means."""
        return self._factors(X)[1]


class PCA(LinearFactors):
    """Bayesian principal components of rows that may have missing numbers.

    Probabilistic PCA: :class:`FactorAnalysis` with one variance of the noise for all columns. Without missing
    numbers, :meth:`transform` is a projection, as in scikit-learn; with them, it is the expected projection
    given the numbers that are there.

    Args:
        n_components, tol, max_iter, random_state: see :class:`FactorAnalysis`.

    Attributes:
        components_: orthogonal directions of length 1, the one of most variance first, [K, D].
        explained_variance_: variances along them, noise included, [K].
        explained_variance_ratio_: shares of the variance of all columns, [K].
        noise_variance_: variance of the noise of each column, a number.
        mean_, n_components_, lower_bound_, lower_bounds_, n_iter_, converged_: see :class:`FactorAnalysis`.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Bishop (1999), Variational principal components. Tipping and Bishop (1999), Probabilistic principal
        component analysis.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import PCA
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6)) + rng.normal(0, 0.3, (200, 6))
        >>> X[rng.random(X.shape) < 0.2] = np.nan
        >>> pca = PCA().fit(X)
        >>> pca.components_.shape, pca.inverse_transform(pca.transform(X)).shape
        ((2, 6), (200, 6))
    """

    _shared = True

    def _publish(self) -> None:
        super()._publish()
        sizes = np.linalg.norm(self._loadings, axis=0)
        self.components_ = self._axes.T
        self.noise_variance_ = float(self._variances[0])
        self.explained_variance_ = sizes**2 + self.noise_variance_
        total = (sizes**2).sum() + len(self.mean_) * self.noise_variance_
        self.explained_variance_ratio_ = self.explained_variance_ / total

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Expected projections of rows, [n, K], given what is there, with parameters at their means."""
        found: np.ndarray = (self.impute(X) - self.mean_) @ self.components_.T
        return found
