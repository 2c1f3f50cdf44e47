"""Columns of an array: their standardisation, and the priors of components in their units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.models.table_sites import COUNTS

CPU: Final = torch.device("cpu")
MANY: Final = 100
"""Categories that a column may have, however few rows there are."""
MIXER: Final = 0x9E3779B97F4A7C15 - 2**64
"""An odd number whose bits are mixed, for hashes."""
SHIFT: Final = 29
"""Bits by which a hash is shifted on its own."""
JITTER: Final = 1e-6
"""Share of a column's variance that is added to the diagonal of a default prior covariance."""
PART: Final = 100_000
"""Rows whose products of columns are computed at once."""
CONSTANT: Final = 1e-12
"""A column whose standard deviation is a smaller share of its mean counts as constant."""


@dataclass(frozen=True)
class Standardisation:
    """Standardisation of the columns of an array.

    Attributes:
        levels: categories of each column, 0 for a column of numbers, -1 for one of counts.
        centre: weighted means of the numbers, 0 for categories and counts, float64 [D].
        scale: their standard deviations, 1 for constant columns, categories and counts, float64 [D].
        rates: weighted means of the counts, float64 [D of counts].
        covariates: indices of columns of numbers that are known and not modelled.
    """

    levels: tuple[int, ...]
    centre: np.ndarray
    scale: np.ndarray
    rates: np.ndarray
    covariates: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        weights: np.ndarray,
        categorical: Sequence[int],
        counted: Sequence[int] = (),
        device: torch.device = CPU,
        every: np.ndarray | None = None,
    ) -> "Standardisation":
        """The columns of rows [N, D], NaN where missing, with weights [N].

        Args:
            X, weights: rows.
            categorical, counted: indices of the columns of categories, and of counts.
            device: where to compute.
            every: rows [M, D] whose categories there are; None: these.

        Raises:
            ValueError: a column of categories or counts with numbers that are not 0, 1, 2, ..., or of so many
                categories that it identifies rows.
        """
        every = X if every is None else every
        x, each = (_on(device, part) for part in (X, weights))
        count = (each @ (~x.isnan()).double()).clamp(min=np.finfo(float).tiny)
        means = each @ x.nan_to_num(0.0) / count
        spread = (each @ (x - means).nan_to_num_(0.0).square_() / count).sqrt()
        centre, scale = means.cpu().numpy(), spread.cpu().numpy()
        scale = np.where(is_constant(scale, centre), 1.0, scale)
        levels = np.zeros(X.shape[1], dtype=int)
        rates = centre[list(counted)]
        for columns, what in (categorical, "categories"), (counted, "counts"):
            for column in columns:
                values = every[~np.isnan(every[:, column]), column]
                _check_whole(values, what, column)
                levels[column] = max(int(values.max(initial=0)) + 1, 2)
                most = max(MANY, max(weights.sum(), len(every)) / 2)
                if what == "categories" and levels[column] > most:
                    raise ValueError(
                        f"categorical_features: expected at most {most:g} categories, half as many as rows, "
                        f"got {levels[column]} in column {column}; leave out columns of identifiers"
                    )
                centre[column], scale[column] = 0.0, 1.0
        levels[list(counted)] = COUNTS
        return cls(tuple(levels.tolist()), centre, scale, rates)

    @property
    def numbers(self) -> np.ndarray:
        """Indices of the columns of numbers that are modelled."""
        return np.setdiff1d(np.flatnonzero(np.array(self.levels) == 0), self.covariates)

    def standardised(self, X: np.ndarray, device: torch.device) -> Tensor:
        """Rows as the model takes them, float64 [N, D].

        Raises:
            ValueError: a column of categories or counts with numbers that are not 0, 1, 2, ....
        """
        for column, level in enumerate(self.levels):
            if level:
                values = X[~np.isnan(X[:, column]), column]
                _check_whole(values, "counts" if level == COUNTS else "categories", column)
        x, centre, scale = (_on(device, part) for part in (X, self.centre, self.scale))
        return (x - centre).div_(scale)

    def in_units(self, x: Tensor) -> np.ndarray:
        """Invert :meth:`standardised`."""
        return x.cpu().double().numpy() * self.scale + self.centre

    def log_scales(self, X: np.ndarray) -> np.ndarray:
        """Log of the volume by which the units of a row differ, of the numbers that are there, [N]."""
        numbers = self.numbers
        sums: np.ndarray = ~np.isnan(X[:, numbers]) @ np.log(self.scale[numbers])
        return sums

    def rate_prior(self, shape: float, total_weight: float) -> tuple[float, Tensor]:
        """Shape and rates [D of counts] of the Gammas over the components' rates, around the columns' means.

        A column of zeros gets the mean of a single count in all rows.

        Args:
            shape: counts that the prior stands for.
            total_weight: of all rows.
        """
        return shape, torch.as_tensor(shape / np.maximum(self.rates, 1 / total_weight))

    def prior(
        self,
        x: Tensor,
        weights: np.ndarray,
        full: bool,
        mean: Any,
        mean_precision: float,
        degrees_of_freedom: float,
        covariance: Any,
    ) -> NormalWishart | ColumnNormalGamma | None:
        """Prior of a component's standardised numbers, in the terms of scikit-learn.

        Args:
            x: standardised rows [N, D].
            weights: of the rows, [N].
            full: covariances are full.
            mean: in the data's units, [D of numbers]; None: the data's.
            mean_precision: rows that the prior mean counts for.
            degrees_of_freedom: rows that the prior covariance counts for.
            covariance: what these rows add to the scatter, in the data's units, [D, D] or [D]; None: as much
                as if they had the covariance of the data.

        Raises:
            ValueError: another shape, or a covariance that is not positive definite.
        """
        numbers = self.numbers
        if not len(numbers):
            return None
        scale, dim = self.scale[numbers], len(numbers)
        loc, spread = np.zeros(dim), np.eye(dim) if full else np.ones(dim)
        if mean is not None:
            loc = (_of_shape("mean_prior", mean, (dim,)) - self.centre[numbers]) / scale
        if covariance is not None:
            given = _of_shape("covariance_prior", covariance, spread.shape)
            spread = given / (np.outer(scale, scale) if full else scale**2)
        else:
            found = _covariance(x, torch.as_tensor(weights, device=x.device), numbers)
            spread = degrees_of_freedom * (found if full else np.diag(found))
        rate = torch.as_tensor(spread / 2)
        if not full:
            if not (rate > 0).all():
                raise ValueError("covariance_prior: expected variances > 0")
            each = torch.ones(dim, dtype=torch.float64)
            shape = degrees_of_freedom / 2
            return ColumnNormalGamma(torch.as_tensor(loc), mean_precision * each, shape * each, rate)
        factor, problem = torch.linalg.cholesky_ex(rate)
        if problem or not torch.equal(rate, rate.mT):
            raise ValueError("covariance_prior: expected a symmetric positive definite matrix")
        return NormalWishart(torch.as_tensor(loc), mean_precision, (degrees_of_freedom - dim + 1) / 2, factor)


def is_constant(scale: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Find columns without any variance but that of rounding, bool [D].

    Args:
        scale, centre: their standard deviations and means, [D].
    """
    found: np.ndarray = scale <= CONSTANT * np.abs(centre)
    return found


def distinct(X: np.ndarray, weights: np.ndarray, device: torch.device = CPU) -> tuple[np.ndarray, np.ndarray]:
    """Rows that differ [n, D], and for each the sum of its weights [n], without those of weight 0.

    Their order depends on the numbers alone, as if shuffled, so that weights, repeats and the order of rows
    make no difference to what is learnt of them.

    Args:
        X: rows [N, D], NaN where missing.
        weights: >= 0, [N].
        device: where to compute.
    """
    if not weights.all():
        X, weights = X[weights > 0], weights[weights > 0]
    x = _on(device, X)
    hashed = torch.zeros(len(x), dtype=torch.int64, device=device)
    for column in x.mT.contiguous():
        bits = torch.where(column.isnan(), torch.nan, column + 0.0).view(torch.int64)  # one NaN, and one zero
        hashed = (hashed ^ bits) * MIXER
        hashed ^= (hashed >> SHIFT) & (2 ** (64 - SHIFT) - 1)
    hashed, places = (hashed ^ -(2**63)).sort(stable=True)  # as if without a sign
    again, order = (hashed[1:] == hashed[:-1]).nonzero().squeeze(-1).cpu().numpy(), places.cpu().numpy()
    again = again[[np.array_equal(X[order[row]], X[order[row + 1]], equal_nan=True) for row in again]]
    first = np.delete(np.arange(len(X)), again + 1)
    return X[order[first]], np.add.reduceat(weights[order], first)


def _on(device: torch.device, part: np.ndarray) -> Tensor:
    """Numbers as float64 on a device; torch warns of arrays that are read-only, such as mapped files."""
    return torch.as_tensor(np.require(part, requirements="W"), dtype=torch.float64, device=device)


def _check_whole(values: np.ndarray, what: str, column: int) -> None:
    if (values < 0).any() or (values != np.floor(values)).any():
        raise ValueError(f"X: expected the {what} 0, 1, 2, ... in column {column}, got other numbers")


def _covariance(x: Tensor, weights: Tensor, columns: np.ndarray) -> np.ndarray:
    """Covariance of standardised columns, [D, D], with the correlations of missing numbers at their means.

    A column without variance counts as one of variance 1.
    """
    scatter, known = np.zeros((len(columns), len(columns))), np.zeros(len(columns))
    for rows, each in zip(x.split(PART), weights.split(PART), strict=True):
        numbers = rows[:, columns]
        known += (each @ (~numbers.isnan()).double()).cpu().numpy()
        numbers.nan_to_num_(0.0)
        scatter += ((each.unsqueeze(-1) * numbers).mT @ numbers).cpu().numpy()
    squares = np.diag(scatter)
    sizes = np.sqrt(np.where(squares > 0, squares, 1.0))
    correlation = scatter / np.outer(sizes, sizes)
    np.fill_diagonal(correlation, 1 + JITTER)
    scales = np.sqrt(np.where(squares > 0, squares / np.maximum(known, 1e-300), 1.0))
    covariance: np.ndarray = (correlation + correlation.T) / 2 * np.outer(scales, scales)
    return covariance


def _of_shape(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers of shape {shape}, got shape {array.shape}")
    return array
