"""The phase of an observed mixture: natural-gradient steps in closed form."""

import logging
import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch

from pyro_fmvae.learn.coordinate_ascent import ascend, bound_of
from pyro_fmvae.learn.mixture import STARTS, Make, labelled_first, mixture_of_rows
from pyro_fmvae.learn.phase import Budget, Phase, check_number, check_rows
from pyro_fmvae.learn.stacking import learn_predictors
from pyro_fmvae.learn.stepwise_em import STEPWISE
from pyro_fmvae.models import ObservedMixture

logger = logging.getLogger("pyro_fmvae")

SEARCHED: Final = 2000
"""Rows at most that predictors of labels are compared by; labelled ones come first."""


class MixtureAscent(Phase):
    """Responsibilities of a batch, then a step of λ towards their conjugate posterior.

    With all rows in the batch this is coordinate ascent. On smaller batches it is stochastic variational
    inference (Hoffman et al., 2013). Batches must carry the indices of their rows, int64 [B] behind
    everything else, as ``Batches(..., indexed=True)`` gives.

    Args:
        model: learnt in place.
        make: gives new, untrained models, for the starts: see
            :data:`~pyro_fmvae.learn.mixture.Make`.
        budget: of the phase.
        seed: of the starts, and of the rows that they and predictors are compared by.
        starts: how many k-means starts λ is chosen from.
        stacking: learn predictors of labels, on the first batch: see
            :func:`~pyro_fmvae.learn.stacking.learn_predictors`.
    """

    def __init__(
        self,
        model: ObservedMixture,
        make: Make,
        budget: Budget,
        seed: int = 0,
        starts: int = STARTS,
        stacking: bool = False,
    ) -> None:
        super().__init__("joint", budget, model)
        self.model, self.make, self.seed, self.starts, self.stacking = model, make, seed, starts, stacking
        self.record_every = budget.record_every

    def enter(self) -> None:
        """Nothing is learnt yet; λ comes with :meth:`prepare`."""
        self.steps = 0

    @torch.no_grad()
    def prepare(self, batches: Iterable[Any]) -> None:
        """Start λ from :func:`~pyro_fmvae.learn.mixture.mixture_of_rows` of the first batch.

        It is found on the CPU, which is faster for few rows. Where the phase has minutes, starts may take a
        quarter of them, also those of cross-validation, and predictors are begun in the first half. The
        number of components may have taken the other half.

        Raises:
            ValueError: a loader of another number of points than the model is of.
        """
        check_number(batches, self.model.num_data)
        batch = [part.cpu() for part in next(iter(batches))]
        order = batch[-1].argsort()  # so that the start does not depend on the order of the batch
        x, labels = batch[0][order], batch[1][order] if len(batch) > 2 else None
        began, most = time.monotonic(), 60 * self.budget.minutes if self.budget.minutes else math.inf
        until, components = began + most / 4, self.model.components
        start = partial(mixture_of_rows, self.make)
        model = start(x, self.seed, components, self.starts, labels=labels, until=until).model
        if model.num_data != self.model.num_data:
            model.num_data, observations = self.model.num_data, model.packed(x, labels)
            ascend(model, observations, model.table(observations).softmax(-1))
        if self.stacking and labels is not None:
            drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))
            rows, end = labelled_first(drawn, labels)[:SEARCHED], began + most / 2
            learn_predictors(model, start, x, labels, rows, self.seed, until, end)
        state = model.state_dict()
        self.model.match(state)
        self.model.load_state_dict(state)
        if time.monotonic() > until:
            logger.warning("%s: not every start was tried and improved to its end: the time is up", self.name)

    @torch.no_grad()
    def step(self, *batch: Any) -> float:
        """One step; returns minus the bound before it, in nats for all N rows.

        Raises:
            ValueError: a batch without indices of rows.
        """
        check_rows(batch)
        x, labels = batch[0], batch[1] if len(batch) > 2 else None
        observations = self.model.packed(x, labels)
        table = self.model.table(observations)
        bound = bound_of(self.model, table)
        rate = 1.0 if len(x) == self.model.num_data else STEPWISE(self.steps)
        ascend(self.model, observations, table.softmax(-1), rate)
        self.steps += 1
        return -bound

    def state_dict(self) -> dict[str, Any]:
        """Number of steps taken."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`; call :meth:`enter` first."""
        self.steps = state["steps"]
