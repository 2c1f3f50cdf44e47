"""Models learnt by EM in closed form, on one batch after another."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.infer.natural_gradient import RobbinsMonro
from pyro_fmvae.learn.phase import Budget, Phase, check_number, check_rows, first_batch
from pyro_fmvae.models.em.expectation_maximization import ExpectationMaximization
from pyro_fmvae.models.em.statistics import Statistics

STEPWISE = RobbinsMonro(delay=1.0, forgetting=0.6)


class StepwiseEM(Phase):
    """E-step, statistics, M-step on one batch after another, for several starts at once.

    Statistics of batches are blended (:meth:`Statistics.blend`); with all data in the batch ρ is 1, and this
    is EM itself. Every point keeps what its next E-step starts from: batches must carry the indices of their
    rows, int64 [B] behind everything else, as ``Batches(..., indexed=True)`` gives. The model has the
    parameters of the best start after every M-step; or those that were the best before units were moved,
    where all data are in the batch, until there are better ones.

    Args:
        model: learnt in place; it has ``num_data``, ``given()`` and ``take(parameters, start)``.
        em: E-step, statistics and M-step of the model.
        budget: of the phase.
        starts: R >= 1, random starts learnt side by side; 0 goes on from the model's own parameters.
        rate: ρ of each step on a batch that is not all data, from the number of steps taken so far.
        temperature: T >= 1 at the start of the phase.
        reseed_every: steps between two times that a unit of little use is put elsewhere; 0: never.
        name: for records.

    Attributes:
        annealed: share of the phase, in (0, 1], at which T has fallen to 1, linearly.
        reseeded: share of the phase, in [0, 1], after which no unit is put elsewhere.
        parameters: of all starts.
        latents: of all points, [R, N, H].
        objective: in nats per point, averaged over recent batches as statistics are, [R]; None before any.
    """

    annealed, reseeded = 0.6, 0.7
    parameters: Any
    latents: Tensor

    def __init__(
        self,
        model: Any,
        em: ExpectationMaximization[Any],
        budget: Budget,
        starts: int = 1,
        rate: Callable[[int], float] = STEPWISE,
        temperature: float = 1.0,
        reseed_every: int = 0,
        name: str = "joint",
    ) -> None:
        super().__init__(name, budget, model)
        self.model, self.em, self.starts, self.rate = model, em, starts, rate
        self.hottest, self.reseed_every, self.record_every = temperature, reseed_every, budget.record_every

    def enter(self) -> None:
        """Nothing is learnt yet; parameters and latents come with :meth:`prepare`."""
        self.steps, self.fraction, self.temperature = 0, 0.0, self.hottest
        self.statistics: Statistics | None = None
        self.objective: Tensor | None = None
        self.kept: tuple[Any, Tensor] | None = None  # parameters and objective of one start

    @torch.no_grad()
    def prepare(self, batches: Iterable[Any]) -> None:
        """Start from the first batch of data.

        Raises:
            ValueError: a loader of another number of points than the model is of, or numbers that are all
                missing, equal, or too large.
        """
        check_number(batches, self.model.num_data)
        x = first_batch(batches)
        if self.starts:
            self.parameters = self.em.start(x, self.starts)
        else:
            given = self.model.given()  # may be the model's own memory
            self.parameters = type(given)(*(value.clone() for value in given))
        self.latents = self.em.start_latents(self.parameters, self.model.num_data)
        self.model.take(self.parameters, 0)

    def before_step(self, fraction: float) -> None:
        """Let the temperature fall."""
        self.fraction = fraction
        self.temperature = 1 + (self.hottest - 1) * max(1 - fraction / self.annealed, 0.0)

    def step(self, *batch: Any) -> float:
        """One E-step and one M-step; returns minus the model's objective, in nats for all N points.

        Raises:
            ValueError: a batch without indices of rows.
        """
        check_rows(batch)
        x, rows = batch[0].flatten(1), batch[-1]
        number, whole = self.model.num_data, len(x) == self.model.num_data
        found = self.em.e_step(x, self.parameters, self.latents[:, rows], self.temperature)
        rate = 1.0 if whole or self.statistics is None else self.rate(self.steps)
        old = found.statistics.scaled(number) if self.statistics is None else self.statistics
        self.statistics = old.blend(found.statistics, rate)
        before = found.objective if self.objective is None else self.objective
        self.objective = blend(before, found.objective, rate)
        self.latents[:, rows] = found.latents
        checked = (x, found) if whole else ()
        maximum = self.em.m_step(self.statistics, self.parameters, *checked)
        self.parameters, self.statistics = maximum.parameters, maximum.statistics
        if maximum.unit is not None:
            self.latents *= maximum.unit.unsqueeze(1)
        parameters, objective = chosen = self._best_so_far()
        self.model.take(parameters, 0)
        self.steps += 1
        if self.reseed_every and not self.steps % self.reseed_every and self.fraction < self.reseeded:
            self.kept = chosen if whole else None
            self.parameters = self.em.reseed(x, self.parameters, found)
            self.statistics = None  # those at hand would undo it
        return -number * objective.item()

    def _best_so_far(self) -> tuple[Any, Tensor]:
        """Parameters of the best start and its objective [1], or those that were kept if they are better."""
        assert self.objective is not None
        own = slice(self.best, self.best + 1)
        present = type(self.parameters)(*(value[own] for value in self.parameters)), self.objective[own]
        if self.kept is None or self.em.quality(*present) >= self.em.quality(*self.kept):
            return present
        return self.kept

    @property
    def best(self) -> int:
        """The best start, as it is at present."""
        if self.objective is None:
            return 0
        return int(self.em.quality(self.parameters, self.objective).argmax())

    @property
    def comparable(self) -> bool:
        """True once the temperature is 1."""
        return self.temperature == 1

    def measures(self) -> dict[str, Any]:
        """The present objective and standard deviation of noise of every start, and which is the best."""
        if self.objective is None:
            return {}
        return {
            "objective": self.objective.tolist(),
            "noise": self.em.noise(self.parameters).tolist(),
            "start": self.best,
        }

    def state_dict(self) -> dict[str, Any]:
        """Parameters, latents and statistics of every start, and the best ones that were kept."""
        statistics, best = self.statistics, self.kept
        return {
            "steps": self.steps,
            "parameters": list(self.parameters),
            "latents": self.latents.clone(),
            "objective": self.objective,
            "statistics": None if statistics is None else dict(statistics.values),
            "count": None if statistics is None else statistics.count,
            "kept": None if best is None else {"parameters": list(best[0]), "objective": best[1]},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`; call :meth:`enter` first."""
        device = self.model.given()[0].device
        state = tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=True), dict(state))
        self.steps, self.latents, self.objective = state["steps"], state["latents"], state["objective"]
        kind = type(self.model.given())
        self.parameters, best = kind(*state["parameters"]), state["kept"]
        self.kept = None if best is None else (kind(*best["parameters"]), best["objective"])
        values = state["statistics"]
        self.statistics = None if values is None else Statistics(values, state["count"])
