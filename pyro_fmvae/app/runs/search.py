"""Search among encoded data: what is near, by one of three measures."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.runs.by_batches import given_rows, in_order, map_rows
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate import vector_index
from pyro_fmvae.learn.options import count
from pyro_fmvae.models.factorial_encoder import FactorialEncoder

MEASURES: Final = ("mean", "code", "density")
"""How nearness is measured: see :class:`Index`."""


class Index:
    """Data of a run that can be searched. :meth:`TrainedRun.index` makes one.

    Nearness is one of three things:

    * ``mean``: the Euclidean distance between the means of q(z | x). Small: the decoder sees nearly the same.
    * ``code``: the number of factors whose codes differ. Small: the same properties and clusters. Points with
      equal numbers are in the order of ``mean``.
    * ``density``: Σ_i Σ_k γ_ik E[log N(z_i; μ_ik, 1/α_ik)] in nats, with γ of the query and z of the point.
      Great: the components that explain the query explain the point. It need not be greatest for the query
      itself, and is not symmetric.

    Args:
        recipe, model: of the run.
        rows: the data, preprocessed.
        device: where to compute.
        by: one of :data:`MEASURES`.
        quantised: of ``mean`` keep about a byte per two dimensions.

    Raises:
        ValueError: an unknown measure, one that the model lacks, or too few data to quantise.
    """

    def __init__(
        self,
        recipe: Recipe[Any],
        model: Any,
        rows: Split,
        device: torch.device,
        by: str = "mean",
        quantised: bool = False,
    ) -> None:
        if by not in MEASURES:
            raise ValueError(f"by: expected one of {', '.join(MEASURES)}, got '{by}'")
        if by == "code" and not recipe.factorial:
            raise ValueError(f"by: code needs factors, but {recipe.name} has none; take by=mean")
        if by == "density" and not (recipe.factorial and recipe.gaussian_codes):
            raise ValueError(f"by: density needs a factorial mixture prior, but {recipe.name} has none")
        if quantised and by != "mean":
            raise ValueError(f"quantised: expected by 'mean', got '{by}'")
        self.by, self.size = by, len(rows)
        self._recipe, self._model, self._device = recipe, model, device
        batches = in_order(rows, device)
        self._mean = None if by == "density" else self._map(self._means, batches)
        self._codes = self._map(model.codes, batches) if by == "code" else None
        vectors = self._map(self._tables, batches) if self._mean is None else self._mean
        self._vectors = None if by == "code" else vector_index(vectors, by == "density", quantised)
        if by == "mean":
            self._mean = None  # the index has them

    def search(self, array: ArrayLike, n: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Find what is nearest to each of some observations.

        Args:
            array: m observations, as for :meth:`TrainedRun.encode`.
            n: how many to find for each; all, if there are fewer.

        Returns:
            Rows of the data that are nearest, int64 [m, n], the nearest first; and how near they are, [m, n].

        Raises:
            ValueError: ``n`` < 1, or other data than the run's.
        """
        count(1)("n", n)
        return self.near(given_rows(self._recipe.preprocessing, array), n)

    def near(self, queries: Split, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Find what is nearest to rows that are preprocessed already, as :meth:`search` does."""
        n, batches = min(int(n), self.size), in_order(queries, self._device)
        if self.by == "code":
            return self._by_code(self._map(self._model.codes, batches), self._map(self._means, batches), n)
        assert self._vectors is not None
        query = self._gammas if self.by == "density" else self._means
        values, rows = self._vectors.search(self._map(query, batches), n)
        return rows.astype(np.int64), np.sqrt(values.clip(0)) if self.by == "mean" else values

    def _by_code(self, codes: np.ndarray, means: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        assert self._codes is not None and self._mean is not None
        found = []
        for code, mean in zip(codes, means, strict=True):
            differing = (self._codes != code).sum(1)
            (candidates,) = np.nonzero(differing <= np.partition(differing, n - 1)[n - 1])
            distances = np.square(self._mean[candidates] - mean).sum(1)
            order = np.lexsort((candidates, distances, differing[candidates]))[:n]
            found.append((candidates[order], differing[candidates[order]]))
        return np.stack([rows for rows, _ in found]), np.stack([values for _, values in found])

    def _means(self, x: Tensor) -> Tensor:
        return self._model.code(x)

    def _gammas(self, x: Tensor) -> Tensor:
        return torch.cat(self._model.responsibilities(x), -1)

    def _tables(self, x: Tensor) -> Tensor:
        """E[log N(z_i; μ_ik, 1/α_ik)] of every factor, side by side: [B, Σ K_i]."""
        return torch.cat(FactorialEncoder(self._model).tables(x), -1)

    @staticmethod
    def _map(function: Callable[[Tensor], Tensor], batches: Batches) -> np.ndarray:
        mapped: np.ndarray = map_rows(function, batches).numpy()
        return mapped
