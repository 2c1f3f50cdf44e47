"""Fits of a Bayesian Gaussian mixture by this library and by scikit-learn, from one start and prior."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from gaussian_mixture_posterior import Posterior, Priors, Trace, e_step_gap
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor

from pyro_fmvae import (
    Assignment,
    AutoConjugate,
    Component,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
)
from pyro_fmvae.capture import CapturedSVI

STEPS: dict[str, Callable[..., Any]] = {
    "eager": ConjugateSVI,
    "captured": CapturedSVI,
    "compiled": partial(CapturedSVI, compile=True),
}


class OutOfTime(Exception):
    """Raised to end scikit-learn's fit."""


class TracedMixture(BayesianGaussianMixture):
    """scikit-learn's mixture from given points, with a record of the posterior after each M-step.

    It is fitted by one call of ``fit``: warm starts would add an E-step to each iteration.
    """

    def start_at(self, seeds: np.ndarray, trace: Trace) -> "TracedMixture":
        """Give each component one of the points with the indices ``seeds`` [K], as "k-means++" does."""
        self.seeds, self.trace = seeds, trace
        return self

    def _initialize_parameters(self, X: np.ndarray, random_state: Any, xp: Any = None) -> None:
        resp = np.zeros((len(X), self.n_components), dtype=X.dtype)
        resp[self.seeds, np.arange(self.n_components)] = 1
        self._initialize(X, resp)
        self.trace.begin()
        self.trace.record(0, Posterior.of_sklearn(self))

    def _m_step(self, *args: Any, **kwargs: Any) -> None:
        super()._m_step(*args, **kwargs)
        if not self.trace.record(len(self.trace.points), Posterior.of_sklearn(self)):
            raise OutOfTime


class ExactMixture(TracedMixture):
    """scikit-learn's mixture with the E-step that matches its M-step."""

    def _estimate_log_prob(self, X: np.ndarray, xp: Any = None) -> np.ndarray:
        gap = e_step_gap(self.degrees_of_freedom_, X.shape[1])
        return super()._estimate_log_prob(X) + gap.astype(X.dtype)


def fit_sklearn(
    x: np.ndarray, priors: Priors, seeds: np.ndarray, trace: Trace, tol: float, kind: type[TracedMixture]
) -> None:
    """Fit until scikit-learn reports convergence."""
    mixture = kind(
        n_components=len(seeds),
        covariance_type="diag",
        tol=tol,
        reg_covar=0.0,
        max_iter=10**9,
        **priors.for_sklearn(x.dtype),
    )
    try:
        mixture.start_at(seeds, trace).fit(x)
        trace.converged = True
    except OutOfTime:
        pass


def program(priors: Priors, points: int, components: int) -> Callable[[Tensor], None]:
    """The mixture as a Pyro model of a batch [B, D] out of ``points`` data points."""
    concentration = torch.full((components,), priors.c, dtype=torch.float64)
    prior = priors.normal_gamma()

    def model(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(concentration))
        with pyro.plate("components", components, dim=-1):
            loc_precision = pyro.sample("loc_precision", prior)
        with pyro.plate("data", points, subsample=x, dim=-1):
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", Component(loc_precision, assignment), obs=x)

    return model


class Learner:
    """The program under ``TraceConjugate_ELBO``, from a given posterior.

    Args:
        x: all data, [N, D].
        priors, start: prior and first posterior of the mixture.
        rate: ρ.
        step: a key of ``STEPS``.
        size: points in a batch. The first step, which captures or compiles, is taken here and undone.

    Attributes:
        setup: seconds of the first step, by the wall clock, because compilers run in their own processes.
    """

    def __init__(
        self,
        x: Tensor,
        priors: Priors,
        start: Posterior,
        rate: float | Callable[[int], float],
        step: str,
        size: int,
    ) -> None:
        begun = time.perf_counter()
        pyro.clear_param_store()
        model = program(priors, len(x), len(start.counts))
        guide = AutoConjugate(model)
        guide.setup(x[:size])
        self.naturals = [
            guide.posterior(name).get_parameter("natural") for name in ("weights", "loc_precision")
        ]
        optim = NaturalGradient(rate, partial(torch.optim.Adam, lr=1e-3))
        self.svi = STEPS[step](model, guide, optim, TraceConjugate_ELBO())
        self.svi.step(x[:size].clone())
        optim.steps = 0
        with torch.no_grad():
            for natural, value in zip(self.naturals, (start.counts, start.components), strict=True):
                natural.copy_(value)
        self.setup = time.perf_counter() - begun

    def posterior(self) -> Posterior:
        return Posterior(*(natural.detach().clone() for natural in self.naturals))


def batches(x: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless passes over the data in new orders, without the last, short batch of each."""
    while True:
        for index in torch.randperm(len(x), generator=generator).split(size)[: len(x) // size]:
            yield x[index]


def fit_minibatch(
    x: Tensor,
    priors: Priors,
    start: Posterior,
    trace: Trace,
    *,
    step: str,
    rate: Callable[[int], float],
    size: int,
    epochs: int,
    generator: torch.Generator,
) -> None:
    """Take natural-gradient steps, recorded at every 3 % more of them."""
    learner, stream = Learner(x, priors, start, rate, step, size), batches(x, size, generator)
    trace.begin(learner.setup)
    time_left, done, steps = trace.record(0, learner.posterior()), 0, epochs * (len(x) // size)
    while time_left and done < steps:
        block = min(steps - done, 1 + done // 33)
        for batch in islice(stream, block):
            learner.svi.step(batch)
        done += block
        time_left = trace.record(done, learner.posterior())


def fit_full_batch(
    x: Tensor, priors: Priors, start: Posterior, trace: Trace, *, step: str, tol: float
) -> None:
    """Coordinate ascent, ρ = 1 on all data, until the relative change of the loss is small."""
    learner = Learner(x, priors, start, 1.0, step, len(x))
    trace.begin(learner.setup)
    time_left, before, done = trace.record(0, learner.posterior()), math.inf, 0
    while time_left and not trace.converged:
        loss, done = learner.svi.step(x), done + 1
        time_left = trace.record(done, learner.posterior())
        trace.converged = abs(before - loss) <= tol * abs(loss)
        before = loss
