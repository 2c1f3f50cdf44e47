"""Phases: stretches of training with one loss each."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.natural_gradient import NaturalGradient
from pyro_fmvae.infer.svi import ConjugateSVI
from pyro_fmvae.learn.options import TrainConfig

# The first batch of data, from which parameters start, and a check that there is anything to learn.

LARGEST_SHARE = 1e-6  # of the greatest number of a type that squares of data may add up to
LEAST_SPREAD = 1e-13  # of data, whose noise has a variance of 1e-30 at least


def first_batch(batches: Iterable[Any]) -> Tensor:
    """The first batch of data, [B, D], from which parameters can start."""
    x: Tensor = next(iter(batches))[0].flatten(1)
    check_spread(x)
    return x


def check_spread(x: Tensor) -> None:
    """Check that there is something to learn in data, and that their squares can be added up.

    Args:
        x: data, floats of any shape; NaN is a missing number.

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


@dataclass(frozen=True)
class Budget:
    """Length of a phase: a number of iterations or of minutes, at least one of them; 0 leaves it out.

    With both, iterations are the length, unless they would take longer than so many minutes.

    Raises:
        ValueError: neither, or a negative one.
    """

    iterations: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.iterations is None and self.minutes is None:
            raise ValueError("budget: expected iterations or minutes")
        if not (self.iterations or 0) >= 0 or not 0 <= (self.minutes or 0) < math.inf:
            raise ValueError(f"budget: expected a number >= 0, got {self}")

    @property
    def empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.minutes if self.iterations is None else self.iterations)

    @property
    def record_every(self) -> int:
        """Steps between two records of a phase whose records take long: ten in all, by the clock every 25."""
        return max(self.iterations // 10, 1) if self.iterations else 25


class Phase(ABC):
    """A stretch of training with one loss. Subclasses are abstract or final.

    :func:`~pyro_fmvae.learn.fit` calls :meth:`enter` and :meth:`prepare` once, then :meth:`between_steps`,
    :meth:`before_step` and :meth:`step` again and again. A phase that goes on from a checkpoint is entered,
    and given its state instead of being prepared. Hooks without a body do nothing unless a phase fills them.

    Args:
        name: for records.
        budget: how long the phase lasts.
        program: the module whose ``model`` and ``guide`` are learnt, and evaluated meanwhile.

    Attributes:
        record_every: steps between two evaluations that are worth the time.
    """

    record_every = 250

    def __init__(self, name: str, budget: Budget, program: torch.nn.Module) -> None:
        self.name, self.budget = name, budget
        self.program: Any = program  # torch's annotations know nothing of model and guide

    @abstractmethod
    def enter(self) -> None:
        """Bring the model into the form that this phase needs, and make its optimiser."""

    def prepare(self, batches: Iterable[Any]) -> None:  # noqa: B027
        """Choose start values that depend on data; not called when a phase is resumed."""

    def between_steps(self, batches: Iterable[Any], step: int) -> bool:
        """Look at more data than a batch, after so many steps and before the next one.

        Returns:
            Whether parameters were started anew.
        """
        return False

    def before_step(self, fraction: float) -> None:  # noqa: B027
        """Set whatever follows a schedule, when this share of the budget, in [0, 1), is used up."""

    def take_steps(self, eager: bool = False, compile: bool = False) -> bool:
        """Choose whether steps are captured, and compiled, from the next one on.

        Returns:
            Whether there is this choice.
        """
        return False

    @abstractmethod
    def step(self, *batch: Any) -> float | Tensor:
        """Take one step on a batch, and return the loss in nats, for all N points.

        On a GPU the loss is a tensor, and the step may be under way.
        """

    def settle(self) -> None:  # noqa: B027
        """Wait for the last step, and raise a ValueError if its loss or a gradient was not finite."""

    @property
    def comparable(self) -> bool:
        """True if models can be compared by the program's bound (equation 11) as the phase learns them now.

        They cannot while the phase aims at something else: another weight of KL[z] for good, or a part of the
        model that is left out.
        """
        return True

    @property
    def settled(self) -> bool:
        """True if a bound that has stopped rising will not rise again, because no weight moves any more."""
        return True

    def measures(self) -> dict[str, Any]:
        """Further entries of records of the phase, for JSON."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the phase needs to go on, besides the model's own state."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`; call :meth:`enter` first."""


AUGMENTED = 0.5  # share of a batch


class GradientPhase(Phase):
    """A phase with one optimiser.

    Args:
        name, budget, program: as for :class:`Phase`.
        options: of the model: learning rates, weights, schedules, and how steps are taken. None stands for
            what data choose, so options that phases use must not be None.

    Attributes:
        svi: takes the steps; made by :meth:`enter`.
        augmentation: transform of half of the points of every batch, such as
            :class:`~pyro_fmvae.nn.RandomWarp`; None leaves them all as they are.
        compile_from, group: which steps are compiled, and the processes that take them: see
            :class:`~pyro_fmvae.capture.CapturedSVI`. Set them, and ``augmentation``, before the phase begins.
        fraction: share of the budget that is used up.
    """

    svi: ConjugateSVI
    augmentation: Callable[[Tensor], Tensor] | None = None
    compile_from = 1
    group: Any = None
    fraction = 0.0

    def __init__(self, name: str, options: TrainConfig, budget: Budget, program: torch.nn.Module) -> None:
        super().__init__(name, budget, program)
        self.options: Any = options

    def before_step(self, fraction: float) -> None:
        """Let the networks' learning rate fall in the second half, if it has an end."""
        self.fraction = fraction
        self.svi.optim.others.param_groups[0]["lr"] = self.options.learning_rate * self.slowing

    @property
    def slowing(self) -> float:
        """Learning rate at present as a share of the first one: it falls geometrically in the second half."""
        first, last = self.options.learning_rate, self.options.final_learning_rate
        return 1.0 if last is None else (last / first) ** max(2 * self.fraction - 1, 0.0)

    def kl_weight_now(self, end: float = 1.0) -> float:
        """Weight of KL[z] at present: it moves linearly to its end."""
        start: float = self.options.kl_weight
        return start + (end - start) * min(self.fraction, 1.0)

    def adam(self, networks: Iterable[Tensor], first_order: Sequence[Tensor] = ()) -> AdamW:
        """Adam with decoupled weight decay on the networks; λ in standard parameters at its own rate."""
        options = self.options
        rate = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
        groups: list[dict[str, Any]] = [{"params": list(networks), **rate}]
        if first_order:
            rate = {"lr": options.prior_learning_rate, "weight_decay": 0.0}
            groups.append({"params": list(first_order), **rate})
        return AdamW(groups, fused=True)

    def steps_of(
        self,
        model: Any,
        guide: Any,
        optim: NaturalGradient,
        elbo: TraceConjugate_ELBO | None = None,
        recompute: bool = False,
    ) -> CapturedSVI:
        """The SVI object that takes steps as the options say."""
        options = self.options
        return CapturedSVI(
            model,
            guide,
            optim,
            elbo or TraceConjugate_ELBO(),
            recompute,
            eager=options.eager,
            compile=bool(options.compile),
            compile_from=self.compile_from,
            autocast=torch.bfloat16 if options.autocast else None,
            group=self.group,
        )

    def augment(self, x: Tensor, until: float = 1.0) -> Tensor:
        """A batch [B, ...] of which half of the points, chosen at random, are transformed.

        Of an odd number of points, it is the smaller or the larger half, at random.

        Args:
            x: the batch.
            until: share of the phase from which on points are left as they are.
        """
        if self.augmentation is None or self.fraction >= until:
            return x
        number = int(AUGMENTED * len(x) + torch.rand(()).item())
        chosen = torch.randperm(len(x), device=x.device)[:number]
        return x.index_copy(0, chosen, self.augmentation(x[chosen]))

    def take_steps(self, eager: bool = False, compile: bool = False) -> bool:
        """Choose how ``svi`` takes steps, where it can capture them."""
        if isinstance(self.svi, CapturedSVI):
            self.svi.eager, self.svi.compile = eager, compile
        return isinstance(self.svi, CapturedSVI)

    def settle(self) -> None:
        """Wait for the last step of ``svi``."""
        self.svi.settle()

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, and :meth:`own_state`."""
        return {**self.svi.optim.state_dict(), **self.own_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`; call :meth:`enter` first.

        Raises:
            ValueError: the optimiser's state is not one of these parameters.
        """
        adam = self.svi.optim.others
        settings = [] if adam is None else [dict(group) for group in adam.param_groups]
        self.svi.optim.load_state_dict(state)
        if adam is not None:
            _check_adam(adam, settings)
        self.load_own_state(state)

    def own_state(self) -> dict[str, Any]:
        """State beside the optimiser's."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over the entries of :meth:`own_state`; ``state`` has the optimiser's, too."""


def _check_adam(adam: Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Check the state of an Adam after loading, of which torch itself checks only the number of parameters.

    Args:
        adam: with the state.
        settings: its parameter groups before.

    Raises:
        ValueError: a setting of another type, or moments of other shapes than their parameter.
    """
    for group, before in zip(adam.param_groups, settings, strict=True):
        for name in before.keys() - {"params"}:
            if _types(group.get(name)) != _types(before[name]):
                raise ValueError(f"{name}: expected one like {before[name]}, got {group.get(name)!r}")
        for p in filter(adam.state.get, group["params"]):
            expected = {"step": (), "exp_avg": tuple(p.shape), "exp_avg_sq": tuple(p.shape)}
            found = {name: tuple(getattr(value, "shape", (-1,))) for name, value in adam.state[p].items()}
            if found != expected:
                raise ValueError(f"optimiser: expected a state of shapes {expected}, got {found}")


def _types(value: Any) -> Any:
    """The type of a setting, or those of its parts; lists are tuples that JSON has read."""
    return [_types(part) for part in value] if isinstance(value, list | tuple) else type(value)


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader, iterated over again and again.

    Raises:
        ValueError: the loader is empty.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("batches: expected at least one batch, got an empty loader")


def check_number(batches: Iterable[Any], expected: int) -> None:
    """Check that a loader goes through as many points as something is stored for.

    Raises:
        ValueError: a loader that says it has another number (``num_data``).
    """
    number = getattr(batches, "num_data", expected)
    if number != expected:
        raise ValueError(f"batches: expected {expected} data points, got {number}")


def check_rows(batch: Sequence[Any]) -> None:
    """Check that a batch ends with the indices of its rows.

    Raises:
        ValueError: it does not.
    """
    x, rows = batch[0], batch[-1]
    if len(batch) < 2 or rows.dtype != torch.int64 or rows.shape != x.shape[:1]:
        raise ValueError(
            f"batch: expected the indices of its rows last, int64 [{len(x)}], as Batches(..., "
            f"indexed=True) gives; got {rows.dtype} {list(rows.shape)}"
        )


def arguments(batch: Any) -> Sequence[Any]:
    """A batch as the arguments of a program: a tensor alone is the only one."""
    return (batch,) if isinstance(batch, Tensor) else batch
