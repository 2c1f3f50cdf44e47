"""Fits of a Bayesian Gaussian mixture by this library and by scikit-learn, from one start and prior."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
import torch._dynamo  # the first captured step would, and be timed with it
from gaussian_mixture_posterior import Posterior, Priors, Trace, e_step_gap
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_fmvae import Assignment, AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import seeding

STEPS: dict[str, Callable[..., Any]] = {
    "eager": ConjugateSVI,
    "captured": CapturedSVI,
    "compiled": partial(CapturedSVI, compile=True),
}


class OutOfTime(Exception):
    """Raised to end scikit-learn's fit."""


@dataclass(frozen=True)
class Start:
    """Some of the points with given responsibilities, after which a fit begins.

    Attributes:
        rows: int64 [M].
        gamma: [M, K].
    """

    rows: Tensor
    gamma: Tensor

    @classmethod
    def by_kmeans(cls, x: Tensor, size: int, components: int, generator: torch.Generator) -> "Start":
        """Clusters of ``size`` random points."""
        rows = torch.randperm(len(x), generator=generator)[:size]
        return cls(rows, one_hot(seeding.kmeans(x[rows], components, generator), components))

    def posterior(self, x: Tensor, priors: Priors) -> Posterior:
        """The exact posterior given these of the points [N, D]."""
        return Posterior.after(priors, x[self.rows].double(), self.gamma)


class TracedMixture(BayesianGaussianMixture):
    """scikit-learn's mixture from a given start, with a record of the posterior after each M-step.

    It is fitted by one call of ``fit``: warm starts would add an E-step to each iteration.
    """

    def start_at(self, start: Start, priors: Priors, trace: Trace) -> "TracedMixture":
        """Begin as scikit-learn's own starts do, with responsibilities."""
        self.start, self.priors, self.trace = start, priors, trace
        return self

    def _initialize_parameters(self, X: np.ndarray, random_state: Any, xp: Any = None) -> None:
        resp = np.zeros((len(X), self.n_components), dtype=X.dtype)
        resp[self.start.rows.numpy()] = self.start.gamma.numpy()
        self._initialize(X, resp)
        self.trace.begin()
        self.trace.record(0, Posterior.of_sklearn(self.priors, self))

    def _m_step(self, *args: Any, **kwargs: Any) -> None:
        super()._m_step(*args, **kwargs)
        self.trace.record(len(self.trace.points), Posterior.of_sklearn(self.priors, self))
        if not self.trace.time_left:
            raise OutOfTime


class ExactMixture(TracedMixture):
    """scikit-learn's mixture of diagonal covariances with the E-step that matches its M-step."""

    def _estimate_log_prob(self, X: np.ndarray, xp: Any = None) -> np.ndarray:
        gap = e_step_gap(self.degrees_of_freedom_, X.shape[1])
        return super()._estimate_log_prob(X) + gap.astype(X.dtype)


def fit_sklearn(
    x: np.ndarray, priors: Priors, start: Start, trace: Trace, *, iterations: int, kind: type[TracedMixture]
) -> None:
    """Fit until scikit-learn reports convergence by its default criterion, or for so many iterations."""
    components = start.gamma.shape[-1]
    mixture = kind(n_components=components, max_iter=iterations, **priors.for_sklearn(x.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with suppress(OutOfTime):
            trace.converged = mixture.start_at(start, priors, trace).fit(x).converged_


def program(priors: Priors, points: int, components: int) -> Callable[[Tensor], None]:
    """The mixture as a Pyro model of a batch [B, D] out of ``points`` data points."""
    concentration, _ = priors.naturals(components)
    prior, component = priors.component(), priors.covariances.component

    def model(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(concentration))
        with pyro.plate("components", components, dim=-1):
            loc_precision = pyro.sample("loc_precision", prior)
        with pyro.plate("data", points, subsample=x, dim=-1):
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", component(loc_precision, assignment), obs=x)

    return model


class Learner:
    """The program under ``TraceConjugate_ELBO``.

    Args:
        x: all data, [N, D].
        priors: of the mixture.
        components: K.
        rate: ρ.
        step: a key of ``STEPS``.
        size: points in a batch. The first step, which captures or compiles, is taken here; it is undone by
            :meth:`start_at`.
    """

    def __init__(
        self,
        x: Tensor,
        priors: Priors,
        components: int,
        rate: float | Callable[[int], float],
        step: str,
        size: int,
    ) -> None:
        pyro.clear_param_store()
        self.priors = priors
        model = program(priors, len(x), components)
        guide = AutoConjugate(model)
        guide.setup(x[:size])
        self.naturals = [
            guide.posterior(name).get_parameter("natural") for name in ("weights", "loc_precision")
        ]
        self.optim = NaturalGradient(rate, partial(torch.optim.Adam, lr=1e-3))
        self.svi = STEPS[step](model, guide, self.optim, TraceConjugate_ELBO())
        self.svi.step(x[:size].clone())

    def start_at(self, posterior: Posterior, steps: int = 0) -> None:
        """Go on from a posterior as after so many steps."""
        self.optim.steps = steps
        with torch.no_grad():
            for natural, value in zip(self.naturals, (posterior.counts, posterior.components), strict=True):
                natural.copy_(value)

    def take(self, batches: Iterable[Tensor]) -> Posterior:
        """The posterior after a step on each batch."""
        for batch in batches:
            self.svi.step(batch)
        return self.posterior()

    def posterior(self) -> Posterior:
        return Posterior(self.priors, *(natural.detach().clone() for natural in self.naturals))


@dataclass(frozen=True)
class Minibatches:
    """Natural-gradient steps on minibatches, recorded at every tenth more of them.

    Attributes:
        step: a key of ``STEPS``.
        rate: ρ.
        size: points in a batch.
        epochs: passes over the data after the start.
    """

    step: str
    rate: Callable[[int], float]
    size: int
    epochs: int

    def fit(self, x: Tensor, start: Posterior, trace: Trace, generator: torch.Generator) -> None:
        """From a given posterior."""
        trace.begin()
        learner = self._learner(x, start.priors, len(start.counts), trace)
        learner.start_at(start)
        trace.record(0, start)
        self._go_on(learner, batches(x, self.size, generator), 0, len(x), trace)

    def fit_best(
        self,
        x: Tensor,
        priors: Priors,
        components: int,
        trace: Trace,
        generator: torch.Generator,
        *,
        starts: int,
        trial: int,
        sample: int,
    ) -> None:
        """From the best of several starts after ``trial`` steps each, by the bound on a sample of the data.

        Each start is the clusters of a new sample.
        """
        trace.begin()
        learner = self._learner(x, priors, components, trace)
        stream = batches(x, self.size, generator)
        scored = x[torch.randperm(len(x), generator=generator)[:sample]]
        best, best_bound = None, -math.inf
        for tried in range(1, starts + 1):
            start = Start.by_kmeans(x, sample, components, generator)
            learner.start_at(start.posterior(x, priors))
            posterior = learner.take(islice(stream, trial))
            bound = posterior.bound(scored, len(x))
            if bound > best_bound:
                best, best_bound = posterior, bound
            trace.record(tried * trial, best)
        learner.start_at(best, trial)
        self._go_on(learner, stream, starts * trial, len(x), trace)

    def _learner(self, x: Tensor, priors: Priors, components: int, trace: Trace) -> Learner:
        learner = Learner(x, priors, components, self.rate, self.step, self.size)
        trace.end_setup()
        return learner

    def _go_on(
        self, learner: Learner, stream: Iterator[Tensor], done: int, points: int, trace: Trace
    ) -> None:
        first, end = done, done + self.epochs * (points // self.size)
        while trace.time_left and done < end:
            block = min(end - done, 1 + (done - first) // 10)
            done += block
            trace.record(done, learner.take(islice(stream, block)))


def batches(x: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless passes over the data in new orders, without the last, short batch of each."""
    while True:
        for index in torch.randperm(len(x), generator=generator).split(size)[: len(x) // size]:
            yield x[index]


def fit_full_batch(
    x: Tensor, start: Posterior, trace: Trace, *, step: str, tol: float, iterations: int
) -> None:
    """Coordinate ascent, ρ = 1 on all data, until the relative change of the loss is small."""
    trace.begin()
    learner = Learner(x, start.priors, len(start.counts), 1.0, step, len(x))
    trace.end_setup()
    learner.start_at(start)
    trace.record(0, start)
    before, done = math.inf, 0
    while trace.time_left and not trace.converged and done < iterations:
        loss, done = learner.svi.step(x), done + 1
        trace.record(done, learner.posterior())
        trace.converged = abs(before - loss) <= tol * abs(loss)
        before = loss
