"""Interface of EM for models without networks, with several random starts side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from pyro_fmvae.models.em.statistics import Statistics

P = TypeVar("P", bound=tuple[Tensor, ...])
"""Parameters: a NamedTuple of tensors whose first dimension is that of the R starts."""


@dataclass(frozen=True)
class Expectation:
    """Result of an E-step on B data points, for each of R starts.

    Attributes:
        latents: state from which the next E-step of the same points continues, [R, B, H].
        statistics: statistics for the M-step, each [R, ...].
        objective: objective of the M-step in nats per point, [R]: the bound, or where there is none the
            expected log p(x, s).
        samples: posterior draws [R, K, B, H] of a Monte Carlo E-step; None of any other.
    """

    latents: Tensor
    statistics: Statistics
    objective: Tensor
    samples: Tensor | None = None


@dataclass(frozen=True)
class Maximum(Generic[P]):
    """Result of an M-step.

    Attributes:
        parameters: the new parameters.
        statistics: the given statistics, in the units of the new parameters.
        unit: factor [R, H] that converts latents to these units; None: 1.
    """

    parameters: P
    statistics: Statistics
    unit: Tensor | None = None


class ExpectationMaximization(ABC, Generic[P]):
    """EM on data [N, D], in which NaN marks missing elements: Dempster et al. (1977).

    Objects hold no state: parameters, latents and statistics are arguments and results, so full-batch EM and
    stepwise EM make the same calls.
    """

    @abstractmethod
    def start(self, x: Tensor, starts: int) -> P:
        """Initial parameters of R random starts.

        Args:
            x: data [n, D].
            starts: R >= 1.
        """

    @abstractmethod
    def start_latents(self, parameters: P, num_data: int) -> Tensor:
        """State from which the first E-step of each point starts, [R, num_data, H]."""

    @abstractmethod
    def e_step(self, x: Tensor, parameters: P, latents: Tensor, temperature: float = 1.0) -> Expectation:
        """Compute posteriors of a batch.

        Args:
            x: data [B, D].
            parameters: parameters of R starts.
            latents: state to continue from, [R, B, H].
            temperature: T >= 1; the log-likelihood has the weight 1/T.
        """

    @abstractmethod
    def m_step(
        self, statistics: Statistics, parameters: P, x: Tensor | None = None, found: Expectation | None = None
    ) -> Maximum[P]:
        """Maximise the objective under given statistics.

        Args:
            statistics: statistics that represent all data.
            parameters: the present parameters.
            x, found: all data [N, D] and their E-step, if the statistics come from it; with these the M-step
                can check the objective itself.
        """

    @abstractmethod
    def quality(self, parameters: P, objective: Tensor) -> Tensor:
        """Criterion by which the best start is chosen, higher is better, [R].

        Args:
            parameters: the learnt parameters.
            objective: average objective over recent batches, [R].
        """

    @abstractmethod
    def noise(self, parameters: P) -> Tensor:
        """Standard deviation of the noise of every start, [R]."""

    def reseed(self, x: Tensor, parameters: P, found: Expectation) -> P:
        """Move a unit of little use to where it may be of more; by default nothing moves.

        Args:
            x: a batch [B, D].
            parameters: the present parameters.
            found: result of the E-step on the batch.
        """
        return parameters
