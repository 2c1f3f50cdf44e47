"""Equal-tailed intervals of parameters, by draws of their posterior."""

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from pyro.infer.autoguide import init_to_value
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar

from pyro_fmvae.capture import ConjugateGibbs
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.linear_ascent import VAGUE, MatrixPosterior

FEWEST_DRAWS: Final = 50
"""Effective draws of a chain, below which the ends of an interval are hardly known."""
VARIATIONAL_DRAWS: Final = 2_000
"""Draws of a variational posterior whose quantiles are the ends of intervals without a closed form."""


def tails_of(probability: float) -> np.ndarray:
    """The probabilities below the ends of an equal-tailed interval, [2].

    Raises:
        ValueError: a probability out of range.
    """
    check_scalar(probability, "probability", Real, min_val=0, max_val=1, include_boundaries="neither")
    return np.array([1 - probability, 1 + probability]) / 2


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
