"""A Bayesian linear dynamical system as a scikit-learn estimator."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, Final, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from scipy.stats import norm  # type: ignore[import-untyped]
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_fmvae.distributions import LinearDynamics, LinearGaussianChain
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.linear_ascent import (
    FIRST,
    VAGUE,
    MatrixPosterior,
    Steps,
    climb,
    dynamics_ascent,
    state_of,
)
from pyro_fmvae.sklearn.intervals import VARIATIONAL_DRAWS, check_learnt, ends_of, gibbs_draws, tails_of
from pyro_fmvae.sklearn.sequences import GivenSequences, weights_of_sequences
from pyro_fmvae.sklearn.standardisation import Standardisation
from pyro_fmvae.sklearn.table_estimator import (
    RowEstimator,
    check_components,
    check_convergence,
    check_tolerance,
)

MOST: Final = 10
"""Numbers of a state at most, if chosen."""


class SeriesForecast(NamedTuple):
    """Forecasts of the steps after the end: [h, ...], or [B, h, ...] of several sequences."""

    states: np.ndarray
    """Means of the states, [..., h, K]."""
    mean: np.ndarray
    """Means of the columns, [..., h, D]."""
    std: np.ndarray
    """Their standard deviations, noise included, [..., h, D]."""
    lower: np.ndarray
    """Lower ends of equal-tailed intervals, [..., h, D]."""
    upper: np.ndarray
    """Upper ends, [..., h, D]."""


class SystemInterval(NamedTuple):
    """Lower and upper ends, in this order along the first axis."""

    transition: np.ndarray
    """Ends for ``transition_``, [2, K, K]."""
    moduli: np.ndarray
    """Ends for the absolute values of the eigenvalues of A, the greatest first, [2, K]."""
    components: np.ndarray
    """Ends for ``components_``, [2, K, D]."""
    mean: np.ndarray
    """Ends for c, [2, D]."""
    noise_variance: np.ndarray
    """Ends for the variances of the noise of rows, [2, D]."""


class LinearDynamicalSystem(DensityMixin, RowEstimator):
    """Bayesian linear dynamical system: sequences whose hidden state is a vector that moves linearly.

    Each row is a step. The state moves by z' = A z + noise, and the row is C z + c with noise, whose variance
    is each column's own. A, C, c and variances have posteriors, by variational Bayes; states are integrated
    out by Kalman smoothing, and so are missing numbers.

    Args:
        n_components: K, numbers of a state, or "auto": 1, 2, ..., while the bound rises, up to 10.
        tol: an update that gains less, in nats per row, is the last.
        max_iter: updates at most.
        random_state: seed of :meth:`sample`.

    Attributes:
        transition_: posterior mean of A, [K, K], in units in which the noise of moves is standard normal.
        components_: posterior mean of Cᵀ, [K, D].
        mean_: of c, [D].
        noise_variance_: inverse expected precisions of the noise of rows, [D].
        n_components_: K.
        lower_bound_: bound on the log-probability of all rows, in nats and in the data's units.
        lower_bounds_: the same after each update.
        n_iter_: updates.
        converged_: whether the last update gained less than ``tol``.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Beal (2003), Variational algorithms for approximate Bayesian inference, Chapter 5.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import LinearDynamicalSystem
        >>> rng = np.random.default_rng(0)
        >>> X = np.sin(np.arange(200) / 5)[:, None] + rng.normal(0, 0.2, (200, 1))
        >>> X[50:60] = np.nan
        >>> system = LinearDynamicalSystem(2).fit(X)
        >>> system.forecast(10).mean.shape, system.smooth(X).shape
        ((10, 1), (200, 2))
        >>> bool(np.abs(system.impute(X)[50:60, 0] - np.sin(np.arange(50, 60) / 5)).max() < 0.5)
        True
    """

    _moves: MatrixPosterior
    _sights: MatrixPosterior
    _columns: Standardisation

    def __init__(
        self, n_components: int | str = 2, *, tol: float = 1e-4, max_iter: int = 500, random_state: Any = None
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any = None, lengths: Any = None, sample_weight: Any = None
    ) -> "LinearDynamicalSystem":
        """Fit the model.

        Args:
            X: rows [n, D], NaN where missing, or a list of sequences [T, D].
            y: ignored.
            lengths: of the sequences, whose sum is n; None: the rows are one sequence.
            sample_weight: how many sequences each one stands for, >= 0, [B].

        Raises:
            ValueError: an argument out of range.
        """
        check_components(self.n_components)
        check_tolerance(self.tol)
        check_scalar(self.max_iter, "max_iter", Integral, min_val=1)
        given = GivenSequences.of(X, lengths)
        whole = self._checked(given.rows, reset=True)
        sizes = given.sizes(len(whole))
        weights = weights_of_sequences(sample_weight, sizes)
        of_rows = np.repeat(weights, sizes)
        x, of_rows = whole[of_rows > 0], of_rows[of_rows > 0]
        self._columns = Standardisation.of(x, of_rows, [])
        steps = self._steps(x, sizes[weights > 0], weights[weights > 0])

        def best(number: int) -> tuple[Any, list[float], bool]:
            ascent = dynamics_ascent(steps, *steps.start(number))
            return climb(ascent, self.max_iter, self.tol * float(of_rows.sum()))

        found = best(1 if self.n_components == "auto" else int(self.n_components))
        if self.n_components == "auto":
            for number in range(2, MOST + 1):
                more = best(number)
                if more[1][-1] <= found[1][-1]:
                    break
                found = more
        (self._moves, self._sights), bounds, self.converged_ = found
        self.lower_bounds_ = np.array(bounds) - of_rows @ self._columns.log_scales(x)
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(bounds)
        check_convergence(self.converged_, len(bounds))
        scale, mean = self._columns.scale, self._sights.mean
        self.transition_, self.n_components_ = self._moves.mean, len(self._moves.mean)
        self.components_ = (mean[:, :-1] * scale[:, None]).T
        self.mean_ = self._columns.centre + mean[:, -1] * scale
        self.noise_variance_ = scale**2 / self._sights.precision
        steps = self._steps(whole, sizes)
        self._ahead, self._several = self._ends(steps, self._chain(steps)), given.lengths is not None
        return self

    # ------------------------------------------------------------------ sequences

    def smooth(self, X: Any, lengths: Any = None) -> Any:
        """Means of the states given whole sequences, [n, K], or a list of arrays if ``X`` is one."""
        given, _, steps, chain = self._chains(X, lengths)
        return given.like(_flat(chain.mean_path.numpy(), steps))

    def filter(self, X: Any, lengths: Any = None) -> Any:
        """Means of the states given the steps up to each, [n, K], or a list of arrays if ``X`` is one."""
        given, _, steps, chain = self._chains(X, lengths)
        precision, linear = (part.numpy().copy() for part in chain.forward())
        goes = steps.inside[:, 1:, None, None]
        precision[:, :-1] -= goes * (self.transition_.T @ self.transition_)
        return given.like(_flat(np.linalg.solve(precision, linear[..., None])[..., 0], steps))

    def impute(self, X: Any, lengths: Any = None) -> Any:
        """Rows with the expectation of each missing number given the whole sequence, in the form of ``X``."""
        given, x, steps, chain = self._chains(X, lengths)
        states = _flat(chain.mean_path.numpy(), steps)
        return given.like(np.where(np.isnan(x), self.mean_ + states @ self.components_, x))

    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """Log-probability of new sequences, in nats, with parameters at their posterior means.

        Args:
            X, y, lengths: as for :meth:`fit`.
        """
        _, x, _, chain = self._chains(X, lengths)
        return float(chain.log_evidence().sum()) - float(self._columns.log_scales(x).sum())

    def forecast(
        self, steps: int, X: Any = None, lengths: Any = None, probability: float = 0.95
    ) -> SeriesForecast:
        """Forecast the steps after the end of sequences, with parameters at their posterior means.

        Args:
            steps: h, how many.
            X, lengths: sequences; None: those of the last fit.
            probability: of each interval, in (0, 1).

        Returns:
            Arrays [h, ...], or [B, h, ...] if the sequences are given by ``lengths`` or as a list.

        Raises:
            ValueError: an argument out of range.
        """
        check_is_fitted(self)
        check_scalar(steps, "steps", Integral, min_val=1)
        tails = tails_of(probability)
        (mean, covariance), several = self._ahead, self._several
        if X is None and lengths is not None:
            raise ValueError(f"lengths: expected None without X, got {lengths}")
        if X is not None:
            given, _, known, chain = self._chains(X, lengths)
            (mean, covariance), several = self._ends(known, chain), given.lengths is not None
        states, variances = [], []
        for _ in range(steps):
            mean = mean @ self.transition_.T
            covariance = self.transition_ @ covariance @ self.transition_.T + np.eye(self.n_components_)
            states.append(mean)
            variances.append(np.einsum("kd,bkj,jd->bd", self.components_, covariance, self.components_))
        path, std = np.stack(states, 1), np.sqrt(np.stack(variances, 1) + self.noise_variance_)
        centre = self.mean_ + path @ self.components_
        lower, upper = (centre + norm.ppf(tail) * std for tail in tails)
        found = path, centre, std, lower, upper
        return SeriesForecast(*(found if several else (part[0] for part in found)))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw one sequence, with parameters at their posterior means.

        Returns:
            Rows [n_samples, D], and their states [n_samples, K].
        """
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        rng = check_random_state(self.random_state)
        states = [rng.standard_normal(self.n_components_) / np.sqrt(FIRST)]
        while len(states) < n_samples:
            states.append(self.transition_ @ states[-1] + rng.standard_normal(self.n_components_))
        noise = rng.standard_normal((n_samples, len(self.mean_))) * np.sqrt(self.noise_variance_)
        return self.mean_ + np.array(states) @ self.components_ + noise, np.array(states)

    def credible_interval(
        self, probability: float = 0.95, X: Any = None, lengths: Any = None, n_draws: int | None = None
    ) -> SystemInterval:
        """Equal-tailed intervals of all parameters, each by its own marginal posterior.

        Moduli, means and variances are the same for all rotations of the states. Other parameters are those
        of the states of each draw, rotated so that what is expected of the next K rows, given a state, is as
        close as possible to that of the fit. The ends are quantiles of 2,000 draws of the variational
        posterior, in which states and parameters are independent: it is too narrow. With ``n_draws`` they are
        exact, but for the noise of so many draws, and weights are 1.

        Args:
            probability: of each interval, in (0, 1).
            X, lengths: the training sequences, without those of weight 0, for draws by Gibbs sampling.
            n_draws: draws by Gibbs sampling, from the fit on; None for the variational posterior.

        Raises:
            ValueError: a probability out of range; draws without the sequences of the fit, or after a fit
                with weights other than 0 and 1; a column without a number.
        """
        check_is_fitted(self)
        tails = tails_of(probability)
        scaled = None
        if n_draws is not None and X is not None:
            given = self._checked(GivenSequences.of(X).rows, reset=False)
            scaled = (given - self._columns.centre) / self._columns.scale
        check_learnt(self._sights, scaled)
        if n_draws is None:
            rng = check_random_state(self.random_state)
            moves, _ = self._moves.sample(VARIATIONAL_DRAWS, rng)
            sights, tau = self._sights.sample(VARIATIONAL_DRAWS, rng)
        else:
            draws = gibbs_draws(self, n_draws, X, lengths)
            moves, sights, tau = draws["moves"], draws["sights"], draws["precision"]
        root = np.sqrt(self._sights.precision)[:, None]
        fitted = _rows_ahead(self.transition_, root * self._sights.mean[:, :-1])
        drawn = _rows_ahead(moves, root * sights[..., :-1])
        left, _, right = np.linalg.svd(drawn.swapaxes(1, 2) @ fitted)
        turn, scale = left @ right, self._columns.scale
        parts = {
            "transition": turn.swapaxes(1, 2) @ moves @ turn,
            "moduli": -np.sort(-np.abs(np.linalg.eigvals(moves))),
            "components": (sights[..., :-1] @ turn * scale[:, None]).swapaxes(1, 2),
            "mean": self._columns.centre + sights[..., -1] * scale,
            "noise_variance": scale**2 / tau,
        }
        return SystemInterval(**ends_of(parts, tails, n_draws is not None))

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`; c is the last column of "sights"."""
        check_is_fitted(self)
        width, dim = self.n_components_, len(self.mean_)
        vague, zero = torch.tensor(VAGUE, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        first = dist.Normal(zero.expand(width), FIRST**-0.5).to_event(1)
        noise = dist.Normal(zero.expand(width), 1.0).to_event(1)

        def model(x: Tensor, present: Tensor, lengths: Tensor, weights: Tensor) -> None:  # [B, T, D], [B]
            with pyro.plate("matrices", 1):
                of_moves = pyro.sample("relevance of moves", dist.Gamma(vague, vague))
                of_sights = pyro.sample("relevance of sights", dist.Gamma(vague, vague))
            with pyro.plate("numbers", width):
                scale = of_moves.rsqrt().expand(width)
                moves = pyro.sample("moves", dist.Normal(zero, scale).to_event(1))
            with pyro.plate("columns", dim):
                precision = pyro.sample("precision", dist.Gamma(vague, vague))
                relevances = torch.cat([of_sights.expand(width), vague.expand(1)])
                scale = (precision.unsqueeze(-1) * relevances).rsqrt()
                sights = pyro.sample("sights", dist.Normal(zero, scale).to_event(1))
            states = LinearDynamics(first, moves, noise, x.shape[1], lengths)
            seen = dist.Normal(sights[:, -1], precision.rsqrt()).mask(present).to_event(1)
            with pyro.plate("sequences", len(x)), poutine.scale(scale=weights):
                pyro.sample("x", LinearGaussianChain(states, sights[:, :-1], seen), obs=x)

        return model

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the posterior that was found."""
        guide = AutoConjugate(self.model_, structured=True)
        x = torch.zeros(1, 2, len(self.mean_)).double()
        guide.setup(x, x == 0, torch.tensor([2]), torch.ones(1).double())
        state = state_of(self._sights, "relevance of sights", "precision", "sights")
        state |= state_of(self._moves, "relevance of moves", "", "moves")
        if self.n_components_ == 1:  # a Normal of a single number
            state["posteriors.moves.natural"] = state["posteriors.moves.natural"].unsqueeze(0)
        guide.load_state_dict(state, strict=False)
        return guide

    def model_arguments(
        self, X: Any, lengths: Any = None, sample_weight: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of :attr:`model_`: standardised sequences, what is there, lengths and weights.

        Args:
            X, lengths, sample_weight: as for :meth:`fit`.
        """
        check_is_fitted(self)
        given = GivenSequences.of(X, lengths)
        x = self._checked(given.rows, reset=False)
        sizes = given.sizes(len(x))
        steps, weights = self._steps(x, sizes), weights_of_sequences(sample_weight, sizes)
        there = np.broadcast_to(steps.there, steps.x.shape) > 0
        scale = torch.tensor(weights).clamp(min=torch.finfo(torch.float64).tiny)  # which Pyro refuses to be 0
        return torch.tensor(steps.x), torch.tensor(there), torch.tensor(sizes), scale

    # ------------------------------------------------------------------ what these need

    def _steps(self, x: np.ndarray, sizes: np.ndarray, weights: np.ndarray | None = None) -> Steps:
        return Steps.of((x - self._columns.centre) / self._columns.scale, sizes, weights)

    def _chains(self, X: Any, lengths: Any) -> tuple[GivenSequences, np.ndarray, Steps, GaussianChain]:
        """Sequences, their rows [n, D], and the weights of their states, parameters at their means."""
        check_is_fitted(self)
        given = GivenSequences.of(X, lengths)
        x = self._checked(given.rows, reset=False)
        steps = self._steps(x, given.sizes(len(x)))
        return given, x, steps, self._chain(steps)

    def _chain(self, steps: Steps) -> GaussianChain:
        return steps.chain(self._moves.certain, self._sights.certain)

    def _ends(self, steps: Steps, chain: GaussianChain) -> tuple[np.ndarray, np.ndarray]:
        """Mean [B, K] and covariance [B, K, K] of the last state of each sequence."""
        count = len(steps.x)
        last = np.broadcast_to(steps.inside.sum(1).astype(int) - 1, (count,))
        own = chain.covariances[0].numpy()
        own = np.broadcast_to(own, (count, *own.shape[1:]))
        return chain.mean_path.numpy()[np.arange(count), last], own[np.arange(count), last]


def _rows_ahead(transition: np.ndarray, components: np.ndarray) -> np.ndarray:
    """C, CA, ..., CA^(K-1), one below the other, [..., K D, K], of A [..., K, K] and C [..., D, K]."""
    rows = [components]
    for _ in range(1, transition.shape[-1]):
        rows.append(rows[-1] @ transition)
    return np.concatenate(rows, -2)


def _flat(table: np.ndarray, steps: Steps) -> np.ndarray:
    """A table [B, T, ...] as rows [n, ...]."""
    found: np.ndarray = table[np.broadcast_to(steps.inside, table.shape[:2]) > 0]
    return found
