"""How models without networks are learnt: expectation maximisation, or gradients of the bound."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.em.expectation_maximization import ExpectationMaximization
from pyro_fmvae.em.statistics import Statistics
from pyro_fmvae.infer import ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.phase import Budget, GradientPhase, Phase, check_number, check_rows
from pyro_fmvae.models.binary_sparse_coding import BinarySparseCoding
from pyro_fmvae.optim import NaturalGradient, RobbinsMonro

STEPWISE = RobbinsMonro(delay=1.0, forgetting=0.6)
LARGEST_SHARE = 1e-6  # of the greatest number of a type that squares of data may add up to
LEAST_SPREAD = 1e-13  # of data, whose noise has a variance of 1e-30 at least
RECORDS, BY_THE_CLOCK = 10, 25  # evaluations in a phase; steps between them where it has no number of steps


class Learnable(Protocol):
    """What a model must offer to be learnt so."""

    num_data: int

    def given(self) -> Any:
        """Its parameters as those of a single start."""

    def take(self, parameters: Any, start: int) -> None:
        """Take over the parameters of one of several starts."""


class StepwiseEM(Phase):
    """E-step, statistics, M-step on one batch after another, for several starts at once.

    Statistics of batches are blended (:meth:`Statistics.blend`); with all data in the batch ρ is 1, and this
    is EM itself. Every point keeps what its next E-step starts from: batches must carry the indices of their
    rows, int64 [B] behind everything else, as ``Batches(..., indexed=True)`` gives. The model has the
    parameters of the best start after every M-step; or those that were the best before units were moved,
    where all data are in the batch, until there are better ones.

    Args:
        model: what is learnt.
        em: how.
        budget: how long.
        starts: R >= 1, random starts learnt side by side; 0 goes on from the model's own parameters.
        rate: ρ of each step on a batch that is not all data, from the number of steps taken so far.
        temperature: T >= 1 at the start of the phase.
        annealed: share of the phase, in (0, 1], at which T has fallen to 1, linearly.
        reseed_every: steps between two times that a unit of little use is put elsewhere; 0: never.
        reseeded: share of the phase, in [0, 1], after which none is.
        name: for records.

    Attributes:
        parameters: those of all starts.
        latents: of all points, [R, N, H].
        objective: in nats per point, averaged over recent batches as statistics are, [R]; None before any.

    Raises:
        ValueError: a number out of range.
    """

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
        annealed: float = 0.6,
        reseed_every: int = 0,
        reseeded: float = 0.7,
        name: str = "joint",
    ) -> None:
        super().__init__(name, budget, model)
        for argument, value in (("starts", starts), ("reseed_every", reseed_every)):
            if value < 0:
                raise ValueError(f"{argument}: expected a number >= 0, got {value}")
        if not 1 <= temperature < float("inf"):
            raise ValueError(f"temperature: expected a number >= 1, got {temperature}")
        if not 0 < annealed <= 1:
            raise ValueError(f"annealed: expected a share in (0, 1], got {annealed}")
        if not 0 <= reseeded <= 1:
            raise ValueError(f"reseeded: expected a share in [0, 1], got {reseeded}")
        self.model, self.em, self.starts, self.rate = model, em, starts, rate
        self.hottest, self.annealed = temperature, annealed
        self.reseed_every, self.reseeded = reseed_every, reseeded
        self.record_every = max(budget.iterations // RECORDS, 1) if budget.iterations else BY_THE_CLOCK

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
        x = _first(batches)
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
        """Parameters, latents and statistics of every start, and what was kept."""
        statistics, kept = self.statistics, self.kept
        return {
            "steps": self.steps,
            "parameters": list(self.parameters),
            "latents": self.latents.clone(),
            "objective": self.objective,
            "statistics": None if statistics is None else dict(statistics.values),
            "count": None if statistics is None else statistics.count,
            "kept": None if kept is None else {"parameters": list(kept[0]), "objective": kept[1]},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; after :meth:`enter`."""
        device = self.model.given()[0].device
        state = tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=True), dict(state))
        self.steps, self.latents, self.objective = state["steps"], state["latents"], state["objective"]
        kind = type(self.model.given())
        self.parameters, kept = kind(*state["parameters"]), state["kept"]
        self.kept = None if kept is None else (kind(*kept["parameters"]), kept["objective"])
        values = state["statistics"]
        self.statistics = None if values is None else Statistics(values, state["count"])


class GradientEM(GradientPhase):
    """The fixed point as E-step, one step of Adam on the bound as M-step: as the source of the model learns.

    The bound is that of ``TraceConjugate_ELBO`` at the fixed point, which no gradient goes through. Batches
    must carry the indices of their rows, as for :class:`StepwiseEM`.

    Args:
        model: what is learnt.
        learning: of it count the learning rates, falling in the last half of the phase.
        budget: how long.
    """

    latents: Tensor

    def __init__(self, model: BinarySparseCoding, learning: Learning, budget: Budget) -> None:
        super().__init__("joint", budget, model)
        self.model, self.learning = model, learning

    def enter(self) -> None:
        """Adam over all parameters."""
        optim = NaturalGradient(1.0, self.learning.optimiser, self.model.parameters())
        self.svi = ConjugateSVI(self.model.model, self.model.guide, optim, TraceConjugate_ELBO())

    def prepare(self, batches: Iterable[Any]) -> None:
        """Start from the first batch of data, as EM does.

        Raises:
            ValueError: as there.
        """
        check_number(batches, self.model.num_data)
        parameters = self.model.em.start(_first(batches), 1)
        self.model.take(parameters, 0)
        (self.latents,) = self.model.em.start_latents(self.model.given(), self.model.num_data)

    def before_step(self, fraction: float) -> None:
        """Let the learning rate fall in the second half."""
        self.svi.optim.others.param_groups[0]["lr"] = self.learning.learning_rate_at(fraction)

    def step(self, *batch: Any) -> float:
        """One fixed point and one step; returns the loss, in nats for all N points.

        Raises:
            ValueError: a batch without indices of rows.
        """
        check_rows(batch)
        x, rows = batch[0], batch[-1]
        posterior = self.model.posterior(x, self.latents[rows])
        self.latents[rows] = posterior.mean
        loss = self.svi.step(x, posterior=posterior)
        self.model.project()
        return loss

    def own_state(self) -> dict[str, Any]:
        """The latents."""
        return {"latents": self.latents.clone()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over the latents."""
        self.latents = state["latents"].to(self.model.weight.device, copy=True)


def _first(batches: Iterable[Any]) -> Tensor:
    """The first batch of data, [B, D], from which parameters can start."""
    x: Tensor = next(iter(batches))[0].flatten(1)
    check_spread(x)
    return x


def check_spread(x: Tensor) -> None:
    """That there is something to learn in data, floats of any shape, and that their squares can be added up.

    Raises:
        ValueError: all numbers are equal or missing (NaN), no two differ by more than 1e-13, or their squares
            add up to more than a millionth of the greatest number of their type.
    """
    known = x[~x.isnan()]
    if not known.numel() or known.min() == known.max():
        raise ValueError("data: expected numbers that differ, got none, or nothing but equal ones")
    if not known.max() - known.min() > LEAST_SPREAD:
        widest = (known.max() - known.min()).item()
        raise ValueError(f"data: expected numbers {LEAST_SPREAD} apart at least, got {widest:.3g} at most")
    most = LARGEST_SHARE * torch.finfo(x.dtype).max
    if not known.double().square().sum() <= most:
        greatest = known.abs().max().item()
        raise ValueError(
            f"data: expected squares that add up to {most:.3g} at most, got numbers up to {greatest:.3g}"
        )
