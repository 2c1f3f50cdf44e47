"""A fitted mixture as scikit-learn uses it: components, densities and draws."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import beta  # type: ignore[import-untyped]
from sklearn.base import ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.infer import AutoConjugate
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING, MixingWeights
from pyro_fmvae.models.table_sites import NUMBERS, WEIGHTS, parameter_of
from pyro_fmvae.sklearn.intervals import ends_of, gibbs_draws, tails_of
from pyro_fmvae.sklearn.standardisation import CPU
from pyro_fmvae.sklearn.table_estimator import TableEstimator, check_components, check_tolerance

# Parameters of a mixture as a scikit-learn estimator.

WEIGHT_PRIORS: Final[dict[str, MixingWeights]] = {
    "dirichlet_distribution": DIRICHLET_WEIGHTS,
    "dirichlet_process": STICK_BREAKING,
}
"""Priors of the weights, by scikit-learn's names."""


class MixtureParameters(TableEstimator):
    """Parameters of a :class:`~pyro_fmvae.sklearn.BayesianMixture`, which describes them, and checks."""

    def __init__(
        self,
        n_components: int | str = 1,
        *,
        n_clusters: int | str | None = None,
        covariance_type: str = "full",
        tol: float = 1e-5,
        max_iter: int = 200,
        n_init: int = 4,
        batch_size: int | None = None,
        weight_concentration_prior_type: str = "dirichlet_distribution",
        weight_concentration_prior: float | None = None,
        mean_prior: ArrayLike | None = None,
        mean_precision_prior: float | None = None,
        degrees_of_freedom_prior: float | None = None,
        covariance_prior: ArrayLike | None = None,
        categorical_features: ArrayLike | None = None,
        category_prior: float = 0.5,
        count_features: ArrayLike | None = None,
        rate_prior: float = 1.0,
        random_state: Any = None,
        warm_start: bool = False,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_clusters = n_clusters
        self.covariance_type = covariance_type
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.batch_size = batch_size
        self.weight_concentration_prior_type = weight_concentration_prior_type
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_prior = mean_prior
        self.mean_precision_prior = mean_precision_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.categorical_features = categorical_features
        self.category_prior = category_prior
        self.count_features = count_features
        self.rate_prior = rate_prior
        self.random_state = random_state
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose

    def _check_parameters(self) -> None:
        check_components(self.n_components)
        if self.n_clusters is not None:
            check_components(self.n_clusters, "n_clusters")
        if self.covariance_type not in ("full", "diag"):
            raise ValueError(f"covariance_type: expected 'full' or 'diag', got {self.covariance_type!r}")
        if self.weight_concentration_prior_type not in WEIGHT_PRIORS:
            raise ValueError(
                f"weight_concentration_prior_type: expected {' or '.join(map(repr, WEIGHT_PRIORS))}, got "
                f"{self.weight_concentration_prior_type!r}"
            )
        check_tolerance(self.tol)
        for name in ("max_iter", "n_init", *(["batch_size"] if self.batch_size is not None else [])):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        positive = ["weight_concentration_prior", "mean_precision_prior", "degrees_of_freedom_prior"]
        for name in ("category_prior", "rate_prior", *positive):
            if getattr(self, name) is not None:
                check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")


PART: Final = 5_000
"""Rows that are computed at once."""
CERTAIN: Final = 1e6
"""Times as many rows, with which a posterior is its mean."""

DRAWS: Final = 10_000
"""Draws of the weights whose quantiles are the ends of their credible intervals."""


class CredibleInterval(NamedTuple):
    """Lower and upper ends, in this order along the first axis."""

    weights: np.ndarray
    """Ends for the weights, [2, K]."""
    means: np.ndarray
    """Ends for the components' means, over the columns of numbers, [2, K, D]."""
    rates: np.ndarray
    """Ends for the components' rates, over the columns of counts, [2, K, D]."""


class MixtureDensity(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, MixtureParameters):
    """Components, densities and draws of a mixture that a subclass fits."""

    n_components_: int
    component_clusters_: np.ndarray
    weight_concentration_: np.ndarray | tuple[np.ndarray, ...]
    _mixture: ObservedMixture
    _rates: tuple[float, Tensor]

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable component of each row, or cluster if ``n_clusters`` is given, int64 [n]."""
        return self.predict_proba(X).argmax(1)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the components, [n, K], or of the clusters if ``n_clusters`` is given."""
        gamma = self.transform(X)
        return gamma if self.n_clusters is None else self._of_clusters(gamma)

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Responsibilities of the components, as features [n, K] of a next step."""
        check_is_fitted(self)
        return self._responsibilities(self._checked(X, reset=False))

    def _responsibilities(self, rows: np.ndarray) -> np.ndarray:
        """:meth:`transform` of rows that were checked."""
        return self._by_part(rows, lambda model, x: model.table(model.observations(x)).softmax(-1))

    def _of_clusters(self, gamma: np.ndarray) -> np.ndarray:
        """Sums of responsibilities [n, K] over the components of each cluster."""
        sums: np.ndarray = gamma @ np.eye(self.component_clusters_.max() + 1)[self.component_clusters_]
        return sums

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Log posterior predictive density of each row, of what is not missing, in nats, [n]."""
        check_is_fitted(self)
        return self._density(self._checked(X, reset=False))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean of :meth:`score_samples`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw from the posterior predictive distribution.

        Returns:
            Rows [n_samples, D], and the component of each.
        """
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        return self._drawn(self._on_device(), n_samples)

    def _drawn(self, model: ObservedMixture, number: int) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`sample` of a model."""
        with seeded(check_random_state(self.random_state).randint(2**31 - 1)):
            codes = model.sample_codes(number)
            rows = model.sample_latent(number, codes)
        return self._columns.in_units(rows), codes[:, -1].cpu().numpy()

    def co_clustering(self, X: ArrayLike, pairs: ArrayLike | None = None) -> np.ndarray:
        """Probability that two rows come from the same component, or cluster if ``n_clusters`` is given.

        Args:
            X: rows [n, D].
            pairs: indices of rows, integers [m, 2]; None: every two rows.

        Returns:
            [m], or [n, n], with 1 for a row and itself.

        Raises:
            ValueError: ``pairs`` that are not indices of two rows each.
        """
        probs = self.predict_proba(X)
        if pairs is None:
            together: np.ndarray = probs @ probs.T
            np.fill_diagonal(together, 1.0)
            return together
        indices = np.asarray(pairs)
        whole = indices.ndim == 2 and indices.shape[1] == 2 and np.issubdtype(indices.dtype, np.integer)
        if not whole or ((indices < 0) | (indices >= len(probs))).any():
            raise ValueError(f"pairs: expected integers [m, 2] from 0 up to below {len(probs)}")
        first, second = indices.T
        shared: np.ndarray = np.where(first == second, 1.0, (probs[first] * probs[second]).sum(1))
        return shared

    def credible_interval(
        self, probability: float = 0.95, X: ArrayLike | None = None, n_draws: int | None = None
    ) -> CredibleInterval:
        """Equal-tailed intervals of the weights and means, each by its own marginal posterior.

        A weight has a Beta distribution, an entry of a mean a Student-t distribution (Murphy, 2007, Conjugate
        Bayesian analysis of the Gaussian distribution, Section 8), and a rate a Gamma distribution. For
        stick-breaking weights, the ends are quantiles of 10,000 draws. The posterior is variational: it does
        not account for what is unknown of the assignments together, so intervals of components that overlap
        are too narrow. With ``n_draws`` they are exact, but for the noise of so many draws; row weights do
        not count there, and components that trade places in the chain have wide intervals.

        Args:
            probability: of each interval, in (0, 1).
            X: the training rows [n, D], for draws.
            n_draws: draws by Gibbs sampling, from the fit on, whose quantiles are the ends; None for the
                variational posterior.

        Raises:
            ValueError: a probability out of range; draws without rows, with stick-breaking weights, or with
                full covariances and rows that miss some of their numbers.
        """
        check_is_fitted(self)
        tails = tails_of(probability)
        if n_draws is not None:
            draws = gibbs_draws(self, n_draws, X)
            none = np.empty((n_draws, self.n_components_, 0))
            means = self._in_units(draws["means"]) if "means" in draws else none
            parts = {"weights": draws[WEIGHTS], "means": means, "rates": draws.get("rates", none)}
            return CredibleInterval(**ends_of(parts, tails, True))
        means, rates = self._ends(self._mixture, tails)
        return CredibleInterval(self._weight_interval(tails), means, rates)

    def _weight_interval(self, tails: np.ndarray) -> np.ndarray:
        """Quantiles of the weights, [2, K]."""
        alpha = self.weight_concentration_
        if self.n_components_ == 1:  # it has all rows
            return np.ones((2, 1))
        if isinstance(alpha, np.ndarray):
            quantiles: np.ndarray = beta.ppf(tails[:, None], alpha, alpha.sum() - alpha)
            return quantiles
        with seeded(check_random_state(self.random_state).randint(2**31 - 1)):
            sticks = self._mixture.natural(WEIGHTS).sample((DRAWS,))
        return np.quantile(self._mixture.prior.weights.assignment(sticks).probs.numpy(), tails, axis=0)

    def _by_part(self, rows: np.ndarray, function: Callable[[ObservedMixture, Tensor], Tensor]) -> np.ndarray:
        model = self._on_device()
        x = self._columns.standardised(rows, model.device)
        with torch.no_grad():
            found: np.ndarray = torch.cat([function(model, part).cpu() for part in x.split(PART)]).numpy()
        return found

    def _density(self, rows: np.ndarray) -> np.ndarray:
        """:meth:`score_samples` of rows that were checked, or drawn."""
        return self._by_part(rows, lambda model, x: model.log_predictive(x)) - self._columns.log_scales(rows)

    # ------------------------------------------------------------------ the program

    @property
    def model_(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`model_arguments`, for ``TraceConjugate_ELBO``."""
        check_is_fitted(self)
        return self._mixture.program()

    @property
    def guide_(self) -> AutoConjugate:
        """A new autoguide of :attr:`model_` with the posterior that was found."""
        row = self._mixture.program_arguments(torch.zeros(1, self.n_features_in_))
        return self._guide(self.model_, self._mixture, row)

    def model_arguments(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of :attr:`model_`: standardised columns, which entries are there, and weights.

        Args:
            X, sample_weight: as for :meth:`fit`.

        Raises:
            ValueError: a row misses some numbers, but not all, and covariances are full.
        """
        check_is_fitted(self)
        rows, weights = self._rows(X, sample_weight, reset=False)
        given = torch.as_tensor(weights)
        return self._mixture.program_arguments(self._columns.standardised(rows, CPU), given)

    # ------------------------------------------------------------------ the model

    def _rows(self, X: ArrayLike, sample_weight: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X = self._checked(X, reset)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weights < 0).any() or not weights.any():
            raise ValueError("sample_weight: expected numbers >= 0, not all 0")
        return X, weights

    def _keep(self, model: ObservedMixture) -> None:
        """Keep the posterior, on the CPU and in the data's units."""
        self._mixture = self._new(model.components, 1, torch.device("cpu"))
        self._mixture.load_state_dict(model.state_dict())
        model = self._mixture
        self.n_components_, self.weights_ = model.components, model.weights().numpy()
        concentration = tuple(part.numpy() for part in model.natural(WEIGHTS).standard)
        self.weight_concentration_ = concentration if len(concentration) > 1 else concentration[0]
        self._publish(model)

    def _typical(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`sample`, but with the parameters of numbers at their posterior means."""
        model = self._on_device()
        certain = self._new(model.components, 1, model.device)
        certain.load_state_dict(model.state_dict())
        if model.sites.numbers:
            certain.posterior_of(parameter_of(NUMBERS)).natural.data.mul_(CERTAIN)
        return self._drawn(certain, number)

    def _new(
        self,
        components: int,
        num_data: int,
        device: torch.device,
    ) -> ObservedMixture:
        """A model of so many components, untrained."""
        concentration = self.weight_concentration_prior
        if concentration is None:
            concentration = 4.0
            if self.weight_concentration_prior_type == "dirichlet_process":
                concentration = 1.0 if self.n_components == "auto" else 1 / components
        prior = TablePrior(
            c0=concentration,
            d0=self.category_prior,
            numbers=self._prior,
            learn_s0=self.mean_precision_prior is None,
            rates=self._rates,
            weights=WEIGHT_PRIORS[self.weight_concentration_prior_type],
        )
        full = self.covariance_type == "full"
        learn = self.covariance_prior is None
        levels = self._columns.levels
        with device:
            model = ObservedMixture(levels, components, num_data, prior=prior, full=full, learn_prior=learn)
        return model.to(device)

    def _on_device(self) -> ObservedMixture:
        """The fitted model where it is to compute."""
        device = resolve_device(self.device)
        if device.type == "cpu":
            return self._mixture
        model = self._new(self._mixture.components, 1, device)
        model.load_state_dict(self._mixture.state_dict())
        return model
