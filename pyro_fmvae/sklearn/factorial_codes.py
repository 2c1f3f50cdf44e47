"""A trained factorial mixture VAE as scikit-learn uses it: codes, predictions and scores."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyro_fmvae.data import Preprocessing, Split
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.evaluate.edits import component_normals
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.sklearn.label_columns import LabelColumns
from pyro_fmvae.sklearn.mixture_density import PART


class FactorialCodes(TransformerMixin, BaseEstimator):
    """Codes, predictions and scores of a factorial mixture VAE that a subclass trains.

    Everything is computed in float64, so that a result does not depend on the rows beside it.
    """

    output: str
    num_draws: int
    device: str
    classes_: list[np.ndarray]
    n_components_: tuple[int, ...]
    factor_names_: tuple[str, ...]
    latent_dim_: int
    _labels: LabelColumns
    _preprocessing: Preprocessing
    _model: Any

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Encode rows.

        Returns:
            ``output="means"``: means of q(z | x), float64 [n, J]. ``output="codes"``: the most probable
            component of each factor, int64 [n, I].
        """
        return (
            self._codes(X)
            if self.output == "codes"
            else self._map(X, lambda model, x: model.posterior(x).mean)
        )

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Decode results of :meth:`transform`, or others like them.

        Args:
            Z: latent vectors [n, J], or codes [n, I], each of which stands for the means of its components.

        Returns:
            E[x | z] in the data's units, [n, D].

        Raises:
            ValueError: another number of columns, or codes out of range.
        """
        check_is_fitted(self)
        given = np.asarray(check_array(Z, dtype=np.float64))
        coded = self.output == "codes"
        width = len(self.n_components_) if coded else self.latent_dim_
        if given.shape[1] != width:
            raise ValueError(f"Z: expected {width} columns, got {given.shape[1]}")
        model, z = self._on_device(), torch.as_tensor(given)
        if coded:
            sizes = np.array(self.n_components_)
            if not ((given == np.floor(given)) & (given >= 0) & (given < sizes)).all():
                raise ValueError(f"Z: expected codes from 0 up to below {self.n_components_}")
            blocks = [component_normals(self._model, factor).loc for factor in range(width)]
            z = torch.cat([loc[column] for loc, column in zip(blocks, z.long().T, strict=True)], -1).double()
        parts = z.detach().to(resolve_device(self.device)).split(PART)
        with torch.no_grad():
            decoded = torch.cat([model.observation.mean(model.decoder(part)).cpu() for part in parts])
        return in_units(self._preprocessing, decoded)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`."""
        check_is_fitted(self)
        names = [name.replace(" ", "_") for name in self.factor_names_]
        if self.output == "means":
            each = self.latent_dim_ // len(names)
            names = [f"{name}_{number}" for name in names for number in range(each)]
        return np.array(names, dtype=object)

    # ------------------------------------------------------------------ predictions

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable values of the labels, or without labels the components of the factors.

        Returns:
            [n], or [n, L] of several labels or factors.
        """
        codes = self._codes(X)
        found = self._labels.decoded(codes) if self.classes_ else codes
        return found[:, 0] if found.shape[1] == 1 else found

    def predict_proba(self, X: ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Probabilities of the values of the labels, or without labels of the components of the factors.

        Returns:
            [n, K], or a list of these for several labels or factors.
        """
        check_is_fitted(self)
        count = len(self.classes_) or len(self.n_components_)
        joined = self._map(X, lambda model, x: torch.cat(model.responsibilities(x)[:count], 1))
        found = np.split(joined, np.cumsum(self.n_components_[: count - 1]), axis=1)
        return found[0] if count == 1 else found

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Importance-weighted bound on log p(x) of each row, in nats and in the data's units, [n].

        The noise of the draws is the same for every row and in every call, so that scores of rows do not
        depend on each other (Burda et al., 2016, Importance weighted autoencoders).
        """
        check_is_fitted(self)
        generator, shape = torch.Generator().manual_seed(0), (self.num_draws, self.latent_dim_)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)

        def scores(model: Any, x: Tensor) -> Tensor:
            q, log_likelihood = model.posterior(x), model.pretraining().log_likelihood
            log_prior = model.log_density()
            draws = [q.mean + q.stddev * row for row in noise.to(x)]
            weights = [log_likelihood(x, z) + log_prior(z) - q.log_prob(z) for z in draws]
            return torch.stack(weights).logsumexp(0) - math.log(len(draws))

        std = self._preprocessing.std
        return self._map(X, scores) - (0.0 if std is None else np.log(std).sum())

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean of :meth:`score_samples`."""
        return float(self.score_samples(X).mean())

    def _map(self, X: ArrayLike, function: Callable[[Any, Tensor], Tensor]) -> np.ndarray:
        """A function of model and preprocessed rows, batch by batch."""
        check_is_fitted(self)
        rows: np.ndarray = validate_data(self, X, reset=False, dtype=np.float64)
        model, device = self._on_device(), resolve_device(self.device)
        x = Split(self._preprocessing(rows, "X")).observations.double()
        with torch.no_grad():
            parts = [function(model, part.to(device)).cpu() for part in x.split(PART)]
        found: np.ndarray = torch.cat(parts).numpy()
        return found

    def _codes(self, X: ArrayLike) -> np.ndarray:
        return self._map(X, lambda model, x: model.codes(x))

    def _on_device(self) -> Any:
        """The model where it is to compute."""
        device = resolve_device(self.device)
        return self._model if device.type == "cpu" else copy.deepcopy(self._model).to(device)
