"""Parameters of a mixture as a scikit-learn estimator."""

from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_scalar

from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, STICK_BREAKING, MixingWeights

WEIGHT_PRIORS: Final[dict[str, MixingWeights]] = {
    "dirichlet_distribution": DIRICHLET_WEIGHTS,
    "dirichlet_process": STICK_BREAKING,
}
"""Priors of the weights, by scikit-learn's names."""


class MixtureParameters(BaseEstimator):
    """Parameters of a :class:`~pyro_fmvae.sklearn.BayesianMixture`, which describes them, and checks."""

    n_features_in_: int

    def __init__(
        self,
        n_components: int | str = 1,
        *,
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

    def _indices(self, argument: str) -> list[int]:
        """Indices of the columns that an argument names."""
        given = getattr(self, argument)
        if given is None:
            return []
        names = list(getattr(self, "feature_names_in_", ()))
        found = [names.index(c) if c in names else c for c in np.asarray(given).tolist()]
        if not all(isinstance(c, int) and 0 <= c < self.n_features_in_ for c in found):
            raise ValueError(f"{argument}: expected names or indices of columns, got {given}")
        return found

    def _check_parameters(self) -> None:
        if self.n_components != "auto":
            check_scalar(self.n_components, "n_components", Integral, min_val=1)
        if self.covariance_type not in ("full", "diag"):
            raise ValueError(f"covariance_type: expected 'full' or 'diag', got {self.covariance_type!r}")
        if self.weight_concentration_prior_type not in WEIGHT_PRIORS:
            raise ValueError(
                f"weight_concentration_prior_type: expected {' or '.join(map(repr, WEIGHT_PRIORS))}, got "
                f"{self.weight_concentration_prior_type!r}"
            )
        check_scalar(self.tol, "tol", Real, min_val=0)
        for name in ("max_iter", "n_init", *(["batch_size"] if self.batch_size is not None else [])):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        positive = ["weight_concentration_prior", "mean_precision_prior", "degrees_of_freedom_prior"]
        for name in ("category_prior", "rate_prior", *positive):
            if getattr(self, name) is not None:
                check_scalar(getattr(self, name), name, Real, min_val=0, include_boundaries="neither")
