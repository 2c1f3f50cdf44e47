"""A Bayesian hidden Markov model as a scikit-learn estimator."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import beta, t  # type: ignore[import-untyped]
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.distributions.chain import Chain
from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.learn.chain_ascent import FittedChain, best_chain, climb_chain, search_chain
from pyro_fmvae.models import TablePrior
from pyro_fmvae.models.observed_chain import (
    SHARES,
    START,
    TRANSITIONS,
    ChainSites,
    ObservedChain,
    SequenceRows,
)
from pyro_fmvae.models.regressed_numbers import LINES
from pyro_fmvae.models.table_sites import LEFT_OUT, column_site, parameter_of
from pyro_fmvae.sklearn.intervals import ends_of, gibbs_draws, tails_of
from pyro_fmvae.sklearn.sequences import GivenSequences, weights_of_sequences
from pyro_fmvae.sklearn.standardisation import CPU, Standardisation
from pyro_fmvae.sklearn.table_estimator import (
    TableEstimator,
    check_components,
    check_convergence,
    check_tolerance,
)

MOST: Final = 50
"""States at most, if their number is chosen."""
DRAWS: Final = 4_000
"""Draws whose quantiles are the ends of a forecast's intervals."""
TOPOLOGIES: Final = ("ergodic", "left-to-right")


class ChainInterval(NamedTuple):
    """Lower and upper ends, in this order along the first axis."""

    startprob: np.ndarray
    """Ends for the probabilities of the first state, [2, K]."""
    transmat: np.ndarray
    """Ends for those of the next state, [2, K, K]; with inputs, [2, U, K, K]."""
    means: np.ndarray
    """Ends for the states' means, over the columns of numbers, [2, K, D]."""
    rates: np.ndarray
    """Ends for the states' rates, over the columns of counts, [2, K, D]."""
    probabilities: dict[int, np.ndarray]
    """Ends for the probabilities of categories, or of failure and success, by column: [2, K, L]."""
    coef: np.ndarray
    """Ends for the slopes in the covariates, [2, K, D, P]."""


class Forecast(NamedTuple):
    """Forecasts of the steps after the end: [h, ...], or [B, h, ...] of several sequences."""

    states: np.ndarray
    """Probabilities of the states, [..., h, K]."""
    mean: np.ndarray
    """Means of the columns, [..., h, D]; for a column of categories, the mean of their numbers."""
    lower: np.ndarray
    """Lower ends of equal-tailed intervals, [..., h, D]."""
    upper: np.ndarray
    """Upper ends, [..., h, D]."""


class HiddenMarkovModel(DensityMixin, TableEstimator):
    """Bayesian hidden Markov model of Gaussian, count, categorical and binomial columns.

    Each row is a step of a sequence. Its state depends on the last one alone, and given the state, the row
    is one of a component of a :class:`~pyro_fmvae.sklearn.BayesianMixture`, whose priors the states have.
    The fit is variational Bayes: one pass forward and one backward over all sequences, then all posteriors in
    closed form, until the bound hardly rises.

    * Several sequences are rows with ``lengths``, as in hmmlearn, or a list of arrays.
    * A missing entry is NaN, and is marginalised; so is a row of NaN.
    * Columns may be of several kinds in one chain. Numbers, counts, categories, yes or no, and successes in a
      number of trials are independent of each other given the state, but for the numbers if covariances are
      full.
    * States may be known for some steps (``fit(X, states=...)``).
    * :attr:`model_` and :attr:`guide_` are the model as a Pyro program, and its posterior.

    Args:
        n_components: K, or "auto": the number of states, from 1 on, that has the greatest bound, up to 50.
        covariance_type: "full", or "diag" for independent columns of numbers within a state.
        topology: "ergodic", or "left-to-right": a sequence begins in state 0, and a state is followed by
            itself or the next one.
        startprob_prior: concentration of the Dirichlet prior of the first state, a number or [K].
        transmat_prior: concentrations of the Dirichlet priors of the next state, a number or [K, K]; 0 for a
            transition that does not happen. ``np.triu(np.ones((K, K)))`` also skips states to the right.
        transition_feature: column of a known input 0, 1, ..., U - 1, by index or by name, which is not
            modelled. The input of a step chooses the table of the transition to it; that of a sequence's
            first step does not count. Divide an input of real numbers into a few classes first, as by
            ``numpy.digitize``: each update then stays in closed form.
        sticky: is added to the concentrations of staying in a state.
        mean_prior, mean_precision_prior, degrees_of_freedom_prior, covariance_prior: see
            :class:`~pyro_fmvae.sklearn.BayesianMixture`; the defaults follow the data.
        categorical_features: columns that hold categories 0, 1, 2, ..., by index or by name.
        category_prior: concentration of the Dirichlet over the categories, or over failure and success.
        count_features: columns that hold counts 0, 1, 2, ..., which are Poisson in a state.
        rate_prior: shape of the Gamma prior of a state's rates, whose mean is the data's.
        binomial_features: a dictionary from columns of successes to columns of numbers of trials, by index or
            by name. Numbers of trials are known and not modelled.
        covariate_features: columns of numbers that are known and not modelled, by index or by name. In each
            state, the means of the other columns of numbers are linear in them; those of the steps before
            make an autoregressive model. Rows that miss one of them count as if their numbers were missing.
            The relevance of each is learnt, unless ``covariance_prior`` is given; then a slope of 0 counts
            for one row.
        algorithm: what :meth:`predict` gives: "viterbi", the most probable path, or "map", the most probable
            state of each step.
        tol: an update that gains less, in nats per row, is the last.
        max_iter: updates at most.
        n_init: starts from clusters of rows, improved a little; the one with the best bound goes on.
        random_state: seed of the starts and of :meth:`sample`.
        device: where to compute; "auto" is a GPU where there is one.
        verbose: 1 shows the number of states and the bound as they are tried.

    Attributes:
        n_components_: K.
        startprob_: posterior means of the probabilities of the first state, [K].
        transmat_: those of the next state, a row for each state, [K, K]; with inputs, [U, K, K].
        means_: posterior means of the states' means, of the columns of numbers, [K, D]; where covariates are
            at their means.
        coef_: posterior means of the slopes of these columns in the covariates, [K, D, P].
        covariances_: inverses of the expected precisions, [K, D, D], or [K, D] if diagonal.
        rates_: posterior means of the rates, of the columns of counts, [K, D].
        probabilities_: probabilities of the categories, or of failure and success, by column: arrays [K, L].
        lower_bound_: bound on the log-probability of all rows, in nats and in the data's units.
        lower_bounds_: the same after each update.
        n_iter_: updates.
        converged_: whether the last update gained less than ``tol``.
        n_features_in_: columns.
        feature_names_in_: their names, where ``X`` had any.

    References:
        Beal (2003), Variational algorithms for approximate Bayesian inference, Chapter 3.

    Examples:
        >>> import numpy as np
        >>> from pyro_fmvae.sklearn import HiddenMarkovModel
        >>> rng = np.random.default_rng(0)
        >>> states = np.repeat([0, 1, 0, 1], 50)
        >>> X = np.column_stack([rng.normal(3 * states, 1), rng.poisson(1 + 4 * states)])
        >>> X[::10, 0] = np.nan
        >>> chain = HiddenMarkovModel(2, count_features=[1], random_state=0).fit(X, lengths=[100, 100])
        >>> path = chain.predict(X, lengths=[100, 100])
        >>> bool(max(np.mean(path == states), np.mean(path != states)) > 0.95)
        True
        >>> forecast = chain.forecast(3)
        >>> forecast.mean.shape, forecast.states.shape
        ((2, 3, 2), (2, 3, 2))
    """

    lower_bound_: float
    lower_bounds_: np.ndarray
    n_components_: int
    _chain: ObservedChain
    _rates: tuple[float, Tensor]
    _input: dict[int, int]
    """How many values the input has, by its column, if there is one."""
    _trials: dict[int, int]
    _typical: list[float]
    """Numbers of trials of draws, by column of successes."""
    _ahead: np.ndarray
    """Probabilities of the states at the end of each sequence, [B, K]."""
    _several: bool
    """Whether :meth:`forecast` gives an axis of sequences."""

    def __init__(
        self,
        n_components: int | str = 1,
        *,
        covariance_type: str = "full",
        topology: str = "ergodic",
        startprob_prior: ArrayLike = 1.0,
        transmat_prior: ArrayLike = 1.0,
        transition_feature: Any = None,
        sticky: float = 0.0,
        mean_prior: ArrayLike | None = None,
        mean_precision_prior: float | None = None,
        degrees_of_freedom_prior: float | None = None,
        covariance_prior: ArrayLike | None = None,
        categorical_features: ArrayLike | None = None,
        category_prior: float = 0.5,
        count_features: ArrayLike | None = None,
        rate_prior: float = 1.0,
        binomial_features: Mapping[Any, Any] | None = None,
        covariate_features: ArrayLike | None = None,
        algorithm: str = "viterbi",
        tol: float = 1e-5,
        max_iter: int = 500,
        n_init: int = 4,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.topology = topology
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.transition_feature = transition_feature
        self.sticky = sticky
        self.mean_prior = mean_prior
        self.mean_precision_prior = mean_precision_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.categorical_features = categorical_features
        self.category_prior = category_prior
        self.count_features = count_features
        self.rate_prior = rate_prior
        self.binomial_features = binomial_features
        self.covariate_features = covariate_features
        self.algorithm = algorithm
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # ------------------------------------------------------------------ learning

    def fit(
        self, X: Any, y: Any = None, lengths: Any = None, sample_weight: Any = None, states: Any = None
    ) -> "HiddenMarkovModel":
        """Fit the model.

        Args:
            X: rows [n, D], NaN where missing, or a list of sequences [T, D].
            y: ignored.
            lengths: of the sequences, whose sum is n; None: the rows are one sequence.
            sample_weight: how many sequences each one stands for, >= 0, [B].
            states: known states of the steps, integers [n] or a list, -1 where unknown. A path that
                contradicts them has no probability, and the fit starts at them.

        Raises:
            ValueError: an argument out of range.
        """
        given, x, sizes, weights = self._given(X, lengths, sample_weight, reset=True)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        device, of_rows = resolve_device(self.device), np.repeat(weights, sizes)
        whole, ends, counts = x, sizes, weights > 0
        x, sizes, weights, of_rows = x[of_rows > 0], sizes[counts], weights[counts], of_rows[of_rows > 0]
        self._describe(x, of_rows)
        rows = self._columns.standardised(x, device)
        self._prior = self._prior_given(rows, of_rows)
        known = self._known(states, given, np.repeat(counts, ends), device)
        data = rows, torch.as_tensor(sizes, device=device), torch.as_tensor(weights, device=device), known

        def best(number: int) -> FittedChain:
            generator = torch.Generator().manual_seed(seed)
            ascent = self.max_iter, self.tol * float(of_rows.sum())
            return best_chain(partial(self._new, device), number, *data, self.n_init, generator, *ascent)

        if self.n_components == "auto":
            found = search_chain(best, MOST, bool(self.verbose))
        else:
            found = best(int(self.n_components))
        self._keep(found, found.bounds, x, of_rows)
        self._follow(given, whole, ends)
        self._given_states = states is not None
        return self

    def partial_fit(
        self, X: Any, y: Any = None, lengths: Any = None, sample_weight: Any = None
    ) -> "HiddenMarkovModel":
        """Learn from further sequences: the posterior given the sequences so far is the prior of these.

        The first call is :meth:`fit`. No sequence should be given twice.

        Args:
            X, y, lengths, sample_weight: as for :meth:`fit`.

        Raises:
            ValueError: see :meth:`fit`.
        """
        if not hasattr(self, "_chain"):
            return self.fit(X, lengths=lengths, sample_weight=sample_weight)
        given, x, sizes, weights = self._given(X, lengths, sample_weight, reset=False)
        model, of_rows = deepcopy(self._on_device()), np.repeat(weights, sizes)
        before = {name: model.natural(name).natural.clone() for name in model.natural_priors()}
        bound, own = self.lower_bound_, self._sequences(model, x, sizes, weights)
        tolerance = self.tol * float(of_rows.sum())
        found = climb_chain(model, own, model.expected(own), self.max_iter, tolerance, before)
        self._keep(found, found.bounds, x, of_rows, bound)
        self._follow(given, x, sizes)
        return self

    # ------------------------------------------------------------------ sequences

    def predict(self, X: Any, lengths: Any = None) -> Any:
        """The state of each step, int64 [n], or a list of arrays if ``X`` is one: see ``algorithm``."""
        given, _, chain = self._chains(X, lengths)
        if self.algorithm == "map":
            return given.like(self._flat(chain.posterior(), chain).argmax(1))
        return given.like(self._flat(chain.best_path(), chain))

    def predict_proba(self, X: Any, lengths: Any = None) -> Any:
        """Probabilities of the states given whole sequences, [n, K], or a list of arrays if ``X`` is one."""
        given, _, chain = self._chains(X, lengths)
        return given.like(self._flat(chain.posterior(), chain))

    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """Log-probability of new sequences, in nats, with all constants.

        Given its state, a step has the posterior predictive density; start and transitions are at their
        posterior means.

        Args:
            X, y, lengths: as for :meth:`fit`.
        """
        _, x, chain = self._chains(X, lengths)
        return float(chain.log_evidence().sum()) - float(self._columns.log_scales(x).sum())

    def filter(self, X: Any, lengths: Any = None) -> Any:
        """Probabilities of each step's state given the steps up to it, [n, K], or a list of arrays."""
        given, _, chain = self._chains(X, lengths)
        return given.like(self._flat(chain.filtered(), chain))

    def append(self, X: ArrayLike, sequence: int = -1) -> np.ndarray:
        """Go on with a sequence by new steps, for :meth:`forecast`; the parameters stay.

        Args:
            X: new steps [n, D].
            sequence: number of the sequence, of those of the last fit.

        Returns:
            Probabilities of each new step's state given all steps up to it, [n, K].
        """
        _, x, chain = self._chains(X, None)
        ahead = torch.as_tensor(self._next(self._ahead[[sequence]], x[:1, list(self._input)]))
        found = replace(chain, log_start=ahead.log().to(chain.log_start)).filtered()[0].cpu()
        self._ahead[sequence] = found[-1].numpy()
        return found.numpy()

    def forecast(
        self,
        steps: int,
        X: Any = None,
        lengths: Any = None,
        probability: float = 0.95,
        covariates: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
    ) -> Forecast:
        """Forecast the steps after the end of sequences.

        Intervals are equal-tailed, each of its own step and column, by 4,000 draws of the state and the row.

        Args:
            steps: h, how many.
            X, lengths: sequences; None: those of the last fit, with what was appended.
            probability: of each interval, in (0, 1).
            covariates: of the steps to come, [h, P], or [B, h, P] of several sequences.
            inputs: of the steps to come, integers [h], or [B, h] of several sequences.

        Returns:
            Arrays [h, ...], or [B, h, ...] if the sequences are given by ``lengths`` or as a list.

        Raises:
            ValueError: an argument out of range.
        """
        check_is_fitted(self)
        check_scalar(steps, "steps", Integral, min_val=1)
        tails, ahead, several = tails_of(probability), self._ahead, self._several
        if X is not None:
            given, _, chain = self._chains(X, lengths)
            ahead, several = _ends(chain), given.lengths is not None
        shape = (len(ahead), steps) if several else (steps,)
        which, known = self._inputs_given(inputs, shape), self._covariates_given(covariates, shape)
        which = which.reshape(len(ahead), steps, -1)
        states = []
        for step in range(steps):
            ahead = self._next(ahead, which[:, step])
            states.append(ahead)
        probs = np.stack(states, 1)
        mean, columns = probs @ self.state_means(), list(self._columns.covariates)
        if known is not None:
            known = known.reshape(*probs.shape[:2], -1)
            apart, mean[..., columns] = known - self._columns.centre[columns], known
            mean[..., self._columns.numbers] += np.einsum("bhk,kdp,bhp->bhd", probs, self.coef_, apart)
            known = np.repeat(known, DRAWS, axis=1).reshape(-1, len(columns))
        with seeded(check_random_state(self.random_state).randint(2**31 - 1)):
            number = torch.multinomial(torch.as_tensor(probs).flatten(0, 1), DRAWS, replacement=True)
            rows = self._drawn(number.flatten(), known).reshape(*probs.shape[:2], DRAWS, -1)
        mean[..., list(self._input)], rows[..., list(self._input)] = which, which[:, :, None]
        lower, upper = np.quantile(rows, tails, axis=2)
        found = probs, mean, lower, upper
        return Forecast(*(found if several else (part[0] for part in found)))

    def sample(
        self, n_samples: int = 1, covariates: ArrayLike | None = None, inputs: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw one sequence from the posterior predictive distribution, start and transitions at their means.

        Args:
            n_samples: steps.
            covariates: of the steps, [n_samples, P].
            inputs: of the steps, integers [n_samples].

        Returns:
            Rows [n_samples, D], and their states, int64 [n_samples].
        """
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        given = self._covariates_given(covariates, (n_samples,))
        which = self._inputs_given(inputs, (n_samples,))
        with seeded(check_random_state(self.random_state).randint(2**31 - 1)):
            path = np.zeros(n_samples, int)
            of_start, of_next = self.startprob_.cumsum(), self.transmat_.cumsum(-1)
            for step, draw in enumerate(torch.rand(n_samples, dtype=torch.float64).tolist()):
                of_step = of_next[tuple(which[step])]
                below = of_step[path[step - 1]] if step else of_start
                path[step] = np.searchsorted(below, draw * below[-1], "right")
            rows = self._drawn(torch.as_tensor(path), given)
        rows[:, list(self._input)] = which
        return rows, path

    def credible_interval(
        self, probability: float = 0.95, X: Any = None, lengths: Any = None, n_draws: int | None = None
    ) -> ChainInterval:
        """Equal-tailed intervals of all parameters, each by its own marginal posterior.

        The posterior is variational: it does not account for what is unknown of all states together, so
        intervals of states that overlap are too narrow. With ``n_draws`` they are exact, but for the noise of
        so many draws; weights do not count there, and states that trade places in the chain have wide
        intervals.

        Args:
            probability: of each interval, in (0, 1).
            X, lengths: the training sequences, for draws.
            n_draws: draws by Gibbs sampling, from the fit on, whose quantiles are the ends; None for the
                variational posterior.

        Raises:
            ValueError: a probability out of range; draws without sequences, after a fit to known states, or
                with full covariances and rows that miss some of their numbers.
        """
        check_is_fitted(self)
        tails, model = tails_of(probability), self._chain
        categories = {column: column_site(column) for column, _ in model.sites.categories}
        if n_draws is not None:
            if self._given_states:
                raise ValueError("n_draws: expected None after a fit to known states, which model_ lacks")
            draws = gibbs_draws(self, n_draws, X, lengths)
            probs = {column: draws[site] for column, site in categories.items()}
            for number, column in enumerate(model.sites.trials):
                share = draws[SHARES][..., number]
                probs[column] = np.stack([1 - share, share], -1)
            none = np.empty((n_draws, self.n_components_, 0))
            names = {"startprob": "start", "transmat": TRANSITIONS, "means": "means", "rates": "rates"}
            if LINES in draws:
                lines = draws[LINES].swapaxes(2, 3) if model.sites.full else draws[LINES].swapaxes(1, 2)
                draws["means"], draws["coef"] = lines[..., 0], lines[..., 1:] * self._units
            if "means" in draws:
                draws["means"] = self._in_units(draws["means"])
            parts = {name: draws.get(site, none) for name, site in names.items()}
            parts["coef"] = draws.get("coef", none[..., None][..., :0])
            named = {f"probabilities of column {column}": part for column, part in probs.items()}
            ends = dict(zip(probs, ends_of(named, tails, True).values(), strict=True))
            return ChainInterval(**ends_of(parts, tails, True), probabilities=ends)
        found = {
            column: _dirichlet_ends(model.natural(parameter_of(site)).natural, tails)
            for column, site in categories.items()
        }
        for number, column in enumerate(model.sites.trials):
            shares = model.natural(parameter_of(SHARES)).natural[:, number]
            found[column] = _dirichlet_ends(shares.flip(-1), tails)
        start = _dirichlet_ends(model.natural(START).natural, tails)
        transitions = _dirichlet_ends(model.natural(TRANSITIONS).natural, tails)
        slopes = np.empty((2, self.n_components_, 0, 0))
        if self._columns.covariates:
            df, loc, scale = (part.numpy() for part in model.slopes())
            slopes = t.ppf(tails[:, None, None, None], df, loc, scale) * self._units
        return ChainInterval(start, transitions, *self._ends(model, tails), found, slopes)

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`, for ``TraceConjugate_ELBO``.

        Known states are no part of it.
        """
        check_is_fitted(self)
        return self._chain.program()

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the posterior that was found."""
        two_steps = torch.zeros(2, self.n_features_in_), torch.tensor([2])
        return self._guide(self.model_, self._chain, self._chain.program_arguments(*two_steps))

    def model_arguments(
        self, X: Any, lengths: Any = None, sample_weight: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Arguments of :attr:`model_`: columns, what is there, lengths, weights, and what is known.

        That is numbers of trials, then covariates, then the input.

        Args:
            X, lengths, sample_weight: as for :meth:`fit`.

        Raises:
            ValueError: a row misses some numbers, but not all, and covariances are full.
        """
        check_is_fitted(self)
        _, x, sizes, weights = self._given(X, lengths, sample_weight, reset=False)
        rows = self._columns.standardised(x, CPU)
        return self._chain.program_arguments(rows, torch.as_tensor(sizes), torch.as_tensor(weights))

    # ------------------------------------------------------------------ files

    def state(self) -> dict[str, Any]:
        """The posterior as tensors, numbers and lists: for files that hold no code."""
        check_is_fitted(self)
        columns, prior = self._columns, self._prior
        arrays = {"centre": columns.centre, "scale": columns.scale, "rates": columns.rates}
        return {
            "levels": list(columns.levels),
            "columns": {name: torch.as_tensor(array) for name, array in arrays.items()},
            "covariates": list(columns.covariates),
            "names": list(getattr(self, "feature_names_in_", ())),
            "input": self._input,
            "trials": self._trials,
            "typical": self._typical,
            "shape": self._rates[0],
            "rates": self._rates[1],
            "prior": None if prior is None else list(prior.standard),
            "components": self.n_components_,
            "chain": self._chain.state_dict(),
            "given_states": self._given_states,
            "bounds": self.lower_bounds_.tolist(),
            "converged": self.converged_,
            "ahead": torch.as_tensor(self._ahead),
            "several": self._several,
        }

    def restore(self, state: Mapping[str, Any]) -> "HiddenMarkovModel":
        """Take over the :meth:`state` of an estimator that has the same arguments."""
        self.n_features_in_ = len(state["levels"])
        arrays = {name: tensor.numpy() for name, tensor in state["columns"].items()}
        if state["names"]:
            self.feature_names_in_ = np.array(state["names"], dtype=object)
        covariates = tuple(state["covariates"])
        self._columns = Standardisation(tuple(state["levels"]), **arrays, covariates=covariates)
        self._input, self._trials, self._typical = state["input"], state["trials"], state["typical"]
        self._rates, prior = (state["shape"], state["rates"]), state["prior"]
        kind = NormalWishart if self.covariance_type == "full" else ColumnNormalGamma
        self._prior = None if prior is None else kind(*prior)
        chain = self._new(CPU, state["components"])
        chain.load_state_dict(state["chain"])
        self._adopt(chain)
        self.lower_bounds_, self.converged_ = np.array(state["bounds"]), state["converged"]
        self._given_states = state["given_states"]
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(self.lower_bounds_)
        self._ahead, self._several = state["ahead"].numpy(), state["several"]
        return self

    # ------------------------------------------------------------------ what a fit needs

    def _given(
        self, X: Any, lengths: Any, sample_weight: Any, reset: bool
    ) -> tuple[GivenSequences, np.ndarray, np.ndarray, np.ndarray]:
        """Sequences, their rows [n, D], lengths and weights [B]."""
        if reset:
            self._check_parameters()
        given = GivenSequences.of(X, lengths)
        x = self._checked(given.rows, reset)
        sizes = given.sizes(len(x))
        return given, x, sizes, weights_of_sequences(sample_weight, sizes)

    def _describe(self, x: np.ndarray, weights: np.ndarray) -> None:
        """Say what the columns are."""
        categorical, counted = self._indices("categorical_features"), self._indices("count_features")
        pairs, covariates = self._pairs(), self._indices("covariate_features")
        own = [*categorical, *counted, *pairs, *pairs.values(), *covariates, *self._input]
        if len(set(own)) < len(own):
            twice = next(column for column in own if own.count(column) > 1)
            raise ValueError(
                f"X: expected each column in one of categorical_features, count_features, binomial_features, "
                f"covariate_features and transition_feature, got column {twice} twice"
            )
        whole = [*counted, *pairs, *pairs.values(), *self._input]
        columns = Standardisation.of(x, weights, categorical, whole)
        levels, rates = np.array(columns.levels), dict(zip(whole, columns.rates, strict=True))
        binary = [column for column in categorical if levels[column] == 2]
        levels[[*binary, *pairs, *pairs.values(), *self._input]] = LEFT_OUT
        self._trials = {column: -1 for column in binary} | pairs
        self._typical = [_median(x[:, total]) if total >= 0 else 1.0 for total in self._trials.values()]
        own_rates = np.array([rates[column] for column in counted])
        self._columns = Standardisation(
            tuple(levels.tolist()), columns.centre, columns.scale, own_rates, tuple(covariates)
        )
        if covariates and not len(self._columns.numbers):
            raise ValueError("covariate_features: expected a column of numbers beside them, got none")
        self._rates = self._columns.rate_prior(self.rate_prior, float(weights.sum()))

    def _checked(self, X: ArrayLike, reset: bool) -> np.ndarray:
        rows = super()._checked(X, reset)
        for yes, total in self._pairs().items():
            if (rows[:, yes] > rows[:, total]).any():
                raise ValueError(f"X: expected no more successes than trials, got more in column {yes}")
        if reset:
            given = None if self.transition_feature is None else [self.transition_feature]
            chosen = self._places("transition_feature", given)
            self._input = {column: int(np.nanmax(rows[:, column], initial=0)) + 1 for column in chosen}
        self._check_inputs(rows[:, list(self._input)], "X")
        for column, number in self._input.items() if reset else ():
            if rows.shape[1] == 1:
                raise ValueError("transition_feature: expected a column beside it, got none")
            if number > 2 * (different := len(np.unique(rows[:, column]))):
                raise ValueError(
                    f"transition_feature: expected most of the inputs 0, 1, 2, ..., {number - 1} in column "
                    f"{column}, got {different} different ones; number them from 0 on"
                )
        if covariates := self._indices("covariate_features"):
            kinds = self._indices("categorical_features"), self._indices("count_features")
            known = {*covariates, *kinds[0], *kinds[1], *self._pairs(), *self._pairs().values(), *self._input}
            numbers = [column for column in range(rows.shape[1]) if column not in known]
            rows = rows.copy()
            rows[np.ix_(np.isnan(rows[:, covariates]).any(1), numbers)] = np.nan
        return rows

    def _check_inputs(self, given: np.ndarray, name: str) -> None:
        """Refuse inputs [..., 1 or 0] that are not known, or whose transitions are not."""
        for column, number in self._input.items():
            inside = (given >= 0) & (given < number) & (given == np.floor(given))
            if not inside.all():
                raise ValueError(
                    f"{name}: expected whole numbers from 0 to {number - 1} in transition_feature, column "
                    f"{column}, got {given[~inside][0]:g}"
                )

    def _inputs_given(self, inputs: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Inputs of steps of a given shape, int64 [..., 1]; [..., 0] if the model has none."""
        if not self._input:
            if inputs is not None:
                raise ValueError("inputs: expected None, since the model has no transition_feature")
            return np.zeros((*shape, 0), int)
        found = _numbers_of_steps("inputs", inputs, "whole", shape)[..., None]
        self._check_inputs(found, "inputs")
        return found.astype(np.int64)

    def _next(self, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Probabilities of the next states, [B, K], given those of the states and the inputs [B, 1 or 0]."""
        tables = self.transmat_[tuple(inputs.T.astype(int))]
        found: np.ndarray = np.einsum("...j,...jk->...k", states, tables)
        return found

    def _covariates_given(self, covariates: Any, shape: tuple[int, ...]) -> np.ndarray | None:
        """Covariates [..., P] of steps of a given shape, in the order of the model's; None if it has none."""
        known = list(self._columns.covariates)
        if not known:
            if covariates is not None:
                raise ValueError("covariates: expected None, since the model has no covariate_features")
            return None
        if hasattr(covariates, "columns") and hasattr(self, "feature_names_in_"):
            names = self.feature_names_in_[known].tolist()
            if missing := [name for name in names if name not in covariates.columns]:
                raise ValueError(f"covariates: expected columns {names}, got none of the name {missing[0]!r}")
            covariates = covariates[names]
        found = _numbers_of_steps("covariates", covariates, "finite", (*shape, len(known)))
        if not np.isfinite(found).all():
            raise ValueError("covariates: expected finite numbers, got NaN or an infinite one")
        return found

    def _pairs(self) -> dict[int, int]:
        """Columns of successes, each with that of the numbers of trials."""
        if self.binomial_features is None:
            return {}
        given = self.binomial_features
        both = (self._places("binomial_features", list(part)) for part in (given, given.values()))
        return dict(zip(*both, strict=True))

    def _known(
        self, states: Any, given: GivenSequences, rows: np.ndarray, device: torch.device
    ) -> Tensor | None:
        if states is None:
            return None
        found = np.concatenate([np.asarray(part) for part in states]) if given.apart else np.asarray(states)
        most = MOST if self.n_components == "auto" else int(self.n_components)
        whole = found.shape == rows.shape and np.issubdtype(found.dtype, np.integer)
        if not whole or (found < -1).any() or (found >= most).any():
            raise ValueError(f"states: expected integers [{len(rows)}] from -1, for unknown, to {most - 1}")
        if self.n_components == "auto":
            raise ValueError("states: expected None if n_components is 'auto'; give the number of states")
        return torch.as_tensor(found[rows], device=device)

    def _new(self, device: torch.device, states: int) -> ObservedChain:
        """A model of so many states, untrained."""
        first, later = np.ones(states), np.ones((states, states))
        if self.topology == "left-to-right":
            first, later = np.eye(states)[0], np.eye(states) + np.eye(states, k=1)
        start = _prior_of("startprob_prior", self.startprob_prior, first)
        transitions = _prior_of("transmat_prior", self.transmat_prior, later) + self.sticky * np.eye(states)
        prior = TablePrior(
            d0=self.category_prior,
            numbers=self._prior,
            learn_s0=self.mean_precision_prior is None,
            rates=self._rates,
        )
        chances, full = (torch.tensor(start), torch.tensor(transitions)), self.covariance_type == "full"
        covariates = self._columns.covariates
        levels = [LEFT_OUT if c in covariates else level for c, level in enumerate(self._columns.levels)]
        with device:
            sites = ChainSites(levels, self._trials, *chances, prior, full, covariates, self._input)
            model = ObservedChain(sites, learn_prior=self.covariance_prior is None)
        return model.to(device)

    def _keep(
        self, found: FittedChain, bounds: list[float], x: np.ndarray, weights: np.ndarray, before: float = 0.0
    ) -> None:
        """Keep the posterior, on the CPU and in the data's units."""
        self.converged_ = found.converged
        self._adopt(found.model.cpu())
        self.lower_bounds_ = before + np.array(bounds) - weights @ self._columns.log_scales(x)
        self.lower_bound_, self.n_iter_ = float(self.lower_bounds_[-1]), len(bounds)
        check_convergence(found.converged, len(bounds), level=4)

    def _adopt(self, chain: ObservedChain) -> None:
        """Set the attributes of a posterior on the CPU."""
        self._chain, self.n_components_ = chain, chain.components
        self.startprob_, self.transmat_ = chain.start().numpy(), chain.transitions().numpy()
        self._publish(chain)
        self.__dict__.pop("coef_", None)
        if self._columns.covariates:
            self.coef_ = chain.slopes()[1].numpy() * self._units
        if self._trials:
            shares = chain.shares().numpy()
            for number, column in enumerate(self._trials):
                self.probabilities_[column] = np.stack([1 - shares[:, number], shares[:, number]], -1)

    def _follow(self, given: GivenSequences, x: np.ndarray, sizes: np.ndarray) -> None:
        """Keep the states at the ends of sequences, for forecasts."""
        self._several = given.lengths is not None
        self._ahead = _ends(self._predictive(x, sizes))

    def _sequences(
        self, model: ObservedChain, x: np.ndarray, sizes: np.ndarray, weights: Any
    ) -> SequenceRows:
        rows = self._columns.standardised(x, model.device)
        weights = None if weights is None else torch.as_tensor(weights)
        return SequenceRows.of(model, rows, torch.as_tensor(sizes, device=model.device), weights)

    def _chains(self, X: Any, lengths: Any) -> tuple[GivenSequences, np.ndarray, Chain]:
        """Sequences, their rows [n, D], and the chains of their states."""
        check_is_fitted(self)
        given = GivenSequences.of(X, lengths)
        x = self._checked(given.rows, reset=False)
        return given, x, self._predictive(x, given.sizes(len(x)))

    def _predictive(self, x: np.ndarray, sizes: np.ndarray) -> Chain:
        model = self._on_device()
        rows = self._columns.standardised(x, model.device)
        return model.predictive_chain(rows, torch.as_tensor(sizes, device=model.device))

    @staticmethod
    def _flat(table: Tensor, chain: Chain) -> np.ndarray:
        """A table [B, T, ...] as rows [n, ...]."""
        if chain.lengths is None:
            return table.flatten(0, 1).cpu().numpy()
        there = torch.arange(table.shape[1], device=table.device) < chain.lengths.unsqueeze(-1)
        return table[there].cpu().numpy()

    def _on_device(self) -> ObservedChain:
        device = resolve_device(self.device)
        return self._chain if device.type == "cpu" else deepcopy(self._chain).to(device)

    @property
    def _units(self) -> np.ndarray:
        """Units of the slopes, [D, P]."""
        scale, columns = self._columns.scale, self._columns
        units: np.ndarray = scale[columns.numbers][:, None] / scale[list(columns.covariates)]
        return units

    def _drawn(self, states: Tensor, covariates: np.ndarray | None) -> np.ndarray:
        """Rows of states [n], in the data's units, given the covariates [n, P] if there are any."""
        if covariates is None:
            return self._columns.in_units(self._chain.draws(states, self._typical))
        known = list(self._columns.covariates)
        inputs = torch.as_tensor((covariates - self._columns.centre[known]) / self._columns.scale[known])
        rows = self._columns.in_units(self._chain.draws(states, self._typical, inputs))
        rows[:, known] = covariates
        return rows

    def state_means(self) -> np.ndarray:
        """Mean of each column in each state, [K, D]; of a column of categories, the mean of their numbers.

        Covariates are at their means; the input is NaN.
        """
        check_is_fitted(self)
        sites, found = self._chain.sites, np.zeros((self.n_components_, self.n_features_in_))
        known = list(self._columns.covariates)
        found[:, known] = self._columns.centre[known]
        found[:, list(self._input)] = np.nan
        for column, probs in self.probabilities_.items():
            found[:, column] = probs @ np.arange(probs.shape[1])
        for number, (column, total) in enumerate(self._trials.items()):
            if total >= 0:
                found[:, column] *= self._typical[number]
                found[:, total] = self._typical[number]
        if sites.counted:
            found[:, sites.counted] = self.rates_
        if sites.numbers:
            found[:, sites.numbers] = self.means_
        return found

    def _check_parameters(self) -> None:
        check_components(self.n_components)
        for name, allowed in (
            ("covariance_type", ("full", "diag")),
            ("topology", TOPOLOGIES),
            ("algorithm", ("viterbi", "map")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: expected {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}"
                )
        check_tolerance(self.tol)
        check_scalar(self.sticky, "sticky", Real, min_val=0)
        for name in ("max_iter", "n_init"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        for name in ("category_prior", "rate_prior", "mean_precision_prior", "degrees_of_freedom_prior"):
            if getattr(self, name) is not None:
                check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")


def _numbers_of_steps(name: str, given: Any, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that are given of steps to come, float64 of a shape.

    Raises:
        ValueError: none are given, others than numbers, or some of another shape.
    """
    try:
        found = np.asarray(np.nan if given is None else given, dtype=np.float64)
        got = "None" if given is None else f"shape {list(found.shape)}"
    except (TypeError, ValueError):
        found, got = np.empty(0), "others"
    if found.shape != shape:
        raise ValueError(f"{name}: expected {kind} numbers of shape {list(shape)}, got {got}")
    return found


def _median(numbers: np.ndarray) -> float:
    """The lower median of known numbers, which is one of them; 0 if none is known."""
    known = numbers[~np.isnan(numbers)]
    return float(np.quantile(known, 0.5, method="lower")) if len(known) else 0.0


def _prior_of(name: str, given: ArrayLike, possible: np.ndarray) -> np.ndarray:
    """Concentrations of Dirichlet priors, float64, 0 where ``possible`` is 0."""
    found = np.asarray(given, dtype=np.float64)
    found = np.broadcast_to(found, possible.shape) if not found.ndim else found
    if found.shape == possible.shape and np.isfinite(found).all() and (found >= 0).all():
        allowed: np.ndarray = found * possible
        if allowed.any(-1).all():
            return allowed
    raise ValueError(
        f"{name}: expected a number > 0, or numbers >= 0 of shape {list(possible.shape)}, no row all 0 where "
        f"the topology allows a state"
    )


def _dirichlet_ends(concentration: Tensor, tails: np.ndarray) -> np.ndarray:
    """Quantiles of each probability of Dirichlet distributions [..., L]: [2, ..., L]."""
    alpha = concentration.numpy()
    rest = alpha.sum(-1, keepdims=True) - alpha
    sides = tails.reshape(-1, *[1] * alpha.ndim)
    ends: np.ndarray = beta.ppf(sides, alpha, np.maximum(rest, np.finfo(float).tiny))
    return ends


def _ends(chain: Chain) -> np.ndarray:
    """Probabilities of the states at the ends of sequences, [B, K]."""
    posterior = chain.posterior()
    if chain.lengths is None:
        return posterior[:, -1].cpu().numpy()
    return posterior[torch.arange(len(posterior)), chain.lengths - 1].cpu().numpy()
