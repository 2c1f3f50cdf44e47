"""Fits of a Bayesian Gaussian mixture by the library's estimator for scikit-learn."""

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from gaussian_mixture_methods import OutOfTime
from gaussian_mixture_posterior import Posterior, Priors, Trace
from sklearn.exceptions import ConvergenceWarning

from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.sklearn import BayesianMixture


class TracedEstimator(BayesianMixture):
    """The estimator, with a record of the posterior after each sweep."""

    def trace_to(self, priors: Priors, trace: Trace) -> "TracedEstimator":
        """Say where the records go."""
        self.priors, self.trace = priors, trace
        return self

    def _sweep(self, ascent: Any, X: np.ndarray, weights: np.ndarray) -> None:
        self.trace.end_setup()
        self.trace.record(0, self._posterior(ascent.model))
        sweep = ascent.sweep

        def traced(**how: Any) -> float:
            bound: float = sweep(**how)
            self.trace.record(len(self.trace.points), self._posterior(ascent.model))
            if not self.trace.time_left:
                raise OutOfTime
            return bound

        ascent.sweep = traced
        super()._sweep(ascent, X, weights)

    def _posterior(self, model: ObservedMixture) -> Posterior:
        """The model's posterior, in the units of the data."""
        (counts,), kind = model.natural("weights").standard, self.priors.covariances
        m, s, a, rate = model.natural("x_parameter").standard
        centre, scale = (torch.as_tensor(part).to(m) for part in (self._columns.centre, self._columns.scale))
        if model.sites.full:
            rate = scale.unsqueeze(-1) * rate  # the Cholesky factor
        else:
            s, a, rate = s[:, 0], a[:, 0], rate * scale**2  # columns differ only where numbers are missing
        return Posterior(self.priors, counts.clone(), kind.family.natural(m * scale + centre, s, a, rate))


def fit_estimator(
    x: np.ndarray,
    priors: Priors,
    trace: Trace,
    *,
    components: int,
    size: int,
    iterations: int,
    starts: int,
    seed: int,
) -> None:
    """Fit from the best of several starts of its own, until it reports convergence or time is up.

    Setting up is choosing the start. ``size`` rows make a step, an ``iteration`` is a sweep over all.
    """
    estimator = TracedEstimator(
        components,
        covariance_type=priors.covariance_type,
        weight_concentration_prior=priors.c,
        mean_prior=priors.m,
        mean_precision_prior=priors.s,
        degrees_of_freedom_prior=priors.nu,
        covariance_prior=priors.scatter,
        batch_size=size,
        max_iter=iterations,
        n_init=starts,
        random_state=seed,
    )
    trace.begin()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with suppress(OutOfTime):
            trace.converged = estimator.trace_to(priors, trace).fit(x).converged_
