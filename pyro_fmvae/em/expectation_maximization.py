"""E-step, additive statistics, M-step: what models without networks are learnt by, several starts at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from pyro_fmvae.em.statistics import Statistics

P = TypeVar("P", bound=tuple[Tensor, ...])
"""Parameters: a NamedTuple of tensors, the first dimension of each being that of the R starts."""


@dataclass(frozen=True)
class Expectation:
    """What an E-step gives for B data points, under the parameters of each of R starts.

    Attributes:
        latents: what the next E-step of the same points starts from, [R, B, H].
        statistics: what the M-step needs, every sum with the starts in front, [R, ...].
        objective: what the M-step raises, in nats per point: the bound, or without one the expected
            log p(x, s); [R].
        samples: draws from the posterior, [R, K, B, H], where it is represented by draws; None elsewhere.
    """

    latents: Tensor
    statistics: Statistics
    objective: Tensor
    samples: Tensor | None = None


@dataclass(frozen=True)
class Maximum(Generic[P]):
    """What an M-step gives.

    Attributes:
        parameters: the new ones.
        statistics: those that were given, in the units of the new parameters.
        unit: what latents have to be multiplied by to be in these units, [R, H]; None: 1.
    """

    parameters: P
    statistics: Statistics
    unit: Tensor | None = None


class ExpectationMaximization(ABC, Generic[P]):
    """How a model is learnt from data [N, D] in which NaN is a missing element: Dempster et al. (1977).

    Nothing is kept here: parameters, latents and statistics are handed in and out, so that full-batch EM
    and stepwise EM are the same calls.
    """

    @abstractmethod
    def start(self, x: Tensor, starts: int) -> P:
        """Parameters to start from: those of R random starts.

        Args:
            x: data [n, D].
            starts: R >= 1.
        """

    @abstractmethod
    def start_latents(self, parameters: P, num_data: int) -> Tensor:
        """What the first E-step of each point starts from, [R, num_data, H]."""

    @abstractmethod
    def e_step(self, x: Tensor, parameters: P, latents: Tensor, temperature: float = 1.0) -> Expectation:
        """Posteriors of a batch.

        Args:
            x: [B, D].
            parameters: of R starts.
            latents: where to start, [R, B, H].
            temperature: T >= 1; above 1 the likelihood counts 1/T.
        """

    @abstractmethod
    def m_step(
        self, statistics: Statistics, parameters: P, x: Tensor | None = None, found: Expectation | None = None
    ) -> Maximum[P]:
        """Parameters that maximise the objective under given statistics.

        Args:
            statistics: of all data, or blended so as to stand for all.
            parameters: the present ones.
            x, found: all data [N, D] and what the E-step gave for them, if these are what the statistics are
                of: what the M-step can check itself against.
        """

    @abstractmethod
    def quality(self, parameters: P, objective: Tensor) -> Tensor:
        """By what the best of the starts is chosen, higher = better: [R].

        Args:
            parameters: as learnt.
            objective: an average over recent batches, [R].
        """

    @abstractmethod
    def noise(self, parameters: P) -> Tensor:
        """Standard deviation of the noise of every start, [R]."""

    def reseed(self, x: Tensor, parameters: P, found: Expectation) -> P:
        """Parameters with a unit of little use put where it may be of more; the same where there is no rule.

        Args:
            x: a batch [B, D].
            parameters: the present ones.
            found: what the E-step gave for the batch.
        """
        return parameters
