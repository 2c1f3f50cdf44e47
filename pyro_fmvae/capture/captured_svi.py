"""SVI whose steps are recorded once and replayed as plain tensor programs."""

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_fmvae.capture.guards import MOST_STEPS, Assumptions, Call, Rehearsal
from pyro_fmvae.capture.playback import (
    CUDAGraph,
    NotRecordable,
    OptimizerOnDevice,
    TensorProgram,
    casts,
    compiled,
    plain,
    resident,
)
from pyro_fmvae.capture.recorded_adam import RecordedAdam
from pyro_fmvae.capture.recording import Recording, record, unchanged
from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.elbo import NotFiniteError, Term, TraceConjugate_ELBO, propagate_back, sum_terms
from pyro_fmvae.infer.elbo.lazy import uncompiled
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import WEIGHTS
from pyro_fmvae.infer.natural_gradient import step_towards_posterior
from pyro_fmvae.infer.ranks import FlatSums, Share
from pyro_fmvae.infer.svi import ConjugateSVI

# A whole step as a function on tensors, to be recorded.


class TensorStep:
    """The step of a ``ConjugateSVI``: called with tensors, it runs the program and changes λ in place.

    Args:
        svi: whose step.
        call: the arguments of the program.
        params: its parameters, in its order.
        inside: the optimiser, if it is to take its step inside.

    Attributes:
        natural, others: natural parameters, and all others, of those that are not frozen.
        turns: how many turns the natural parameters take.
        scalars: ρ, the turn, the ELBO's weights and the learning rates of ``inside``: 0-dimensional tensors
            to be given behind the data.
        checked: whether the loss that is returned is NaN, and nothing else is changed, if the loss or a
            gradient is not finite: with validation on.
        used: after a call, the parameters whose gradients it returned behind the loss.
        sites: after a call, the names of the sites whose terms it returned behind the gradients.
        moved: after a call, those that ``inside`` changed.
        groups: after a call, how many results there are up to each place where the recording is cut: before a
            sum over ranks, and before the second pass of ``recompute``.
        sums: after a call, for each part of the cut recording how many vectors to sum follow it.
    """

    def __init__(
        self, svi: ConjugateSVI, call: Call, params: Sequence[Tensor], inside: RecordedAdam | None
    ) -> None:
        self.svi, self.call, self.inside = svi, call, inside
        learnt = [p for p in params if p.requires_grad]
        self.natural = [p for p in learnt if isinstance(p, NaturalParameter)]
        self.others = [p for p in learnt if not isinstance(p, NaturalParameter)]
        self.turns = max((len(p.moves) - 1 for p in self.natural if p.moves is not None), default=1)
        self.checked = is_validation_enabled()
        self.used: list[Tensor] = []
        self.sites: list[str] = []
        self.moved: list[Tensor] = []
        self.groups, self.sums = list[int](), list[int]()
        device = next((tensor.device for tensor in (*call.data, *params)), torch.device("cpu"))
        rate_device = self.natural[0].device if self.natural else device
        rates = inside.rates if inside else ()
        self.scalars = [
            *(torch.zeros((), dtype=torch.float64, device=rate_device) for _ in range(2)),
            *(torch.zeros((), device=device) for _ in WEIGHTS),
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in rates),
        ]

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that a call takes: data, then scalars."""
        return [*self.call.data, *self.scalars]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The loss, the gradients of ``used``, and the terms of the loss at ``sites``.

        With ``recompute`` and ``checked``, whether the refreshed gradients of λ are finite comes last. Where
        ranks share the batch, the vectors of :class:`FlatSums` come before what is computed of their sums.
        """
        svi, number = self.svi, len(self.call.data)
        args, kwargs = self.call.arguments(inputs)
        rate, turn, *rest = inputs[number:]
        weights, learning_rates = rest[: len(WEIGHTS)], rest[len(WEIGHTS) :]
        second = list[Tensor]()
        with pyro.validation_enabled(False), torch.enable_grad(), self._weights(weights):
            traces, terms = svi._terms(args, kwargs)
            loss = sum_terms(terms)
            grads = _gradients(loss, [*self.others, *self.natural])
            loss, grads, first = self._summed(loss, grads)
            slopes = {p: grads[p] for p in self.others if p in grads}
            ok = _finite(loss, grads.values()) if self.checked else None
            if ok is not None:
                loss = torch.where(ok, loss, torch.nan)
            if self.inside:
                with torch.no_grad():
                    self.inside.step(slopes, learning_rates, ok)
            if svi.recompute:
                refreshed = sum_terms(svi._refreshed(traces, args, kwargs))
                refreshed, grads, second = self._summed(refreshed, _gradients(refreshed, self.natural))
                ok = ok if ok is None else ok & _finite(refreshed, grads.values())
        self.used, self.moved = ([], list(slopes)) if self.inside else (list(slopes), [])
        with torch.no_grad():
            for p in self.natural:
                if p in grads:
                    grad = grads[p] if ok is None else torch.where(ok, grads[p], 0.0)
                    step_towards_posterior(p, grad, rate, turn)
        last = (ok,) if svi.recompute and ok is not None else ()
        self.sites = [term.name for term in terms]
        results = (loss, *(slopes[p] for p in self.used), *(term.value for term in terms))
        parts = [first, results, second] if svi.recompute else [first]
        self.groups = [len(part) for part in parts if part]
        self.sums = [0 if part is results else len(part) for part in parts if part] + [0]
        return (*first, *results, *second, *last)

    def _summed(
        self, loss: Tensor, grads: dict[Tensor, Tensor]
    ) -> tuple[Tensor, dict[Tensor, Tensor], list[Tensor]]:
        """A loss and its gradients over all ranks, once the vectors behind them have been summed."""
        share: Share | None = self.svi._share
        if share is None:
            return loss.detach(), grads, []
        with torch.no_grad():
            sums = FlatSums([loss.detach().double(), *grads.values()], share.weight)
            total, *parts = sums.parts()
        return total, dict(zip(grads, parts, strict=True)), sums.flats

    @contextmanager
    def _weights(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Put tensors in the place of the ELBO's weights, unless those leave out a part of it."""
        elbo = self.svi.elbo
        numbers = {name: getattr(elbo, name) for name in WEIGHTS}
        for (name, value), weight in zip(WEIGHTS.items(), weights, strict=True):
            if not is_static(numbers[name], value):
                setattr(elbo, name, weight)
        try:
            yield
        finally:
            for name, weight in numbers.items():
                setattr(elbo, name, weight)


def is_static(weight: float | Tensor, value: float) -> bool:
    """True if a weight is the number that leaves out a part of the loss, and so shapes the program."""
    return not isinstance(weight, Tensor) and weight == value


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    if not (leaves and loss.requires_grad):
        return {}
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return {p: grad for p, grad in zip(leaves, grads, strict=True) if grad is not None}


def _finite(loss: Tensor, grads: Iterable[Tensor]) -> Tensor:
    return torch.stack([loss, *(grad.sum().to(loss) for grad in grads)]).isfinite().all()


# Spot checks: at a few steps, a captured loss is compared with that of an eager run on the same numbers.
#
# The numbers of these steps grow geometrically, so that the checks cost next to nothing. Both runs have the
# same batch, parameters and random numbers. The eager one is undone, but for its side effects in Python.
# Where the two differ, something has changed that the watch over the program could not see.

_FIRST, _GROWTH = 64, 16

Loss = dict[str, float]
"""A loss in nats by site."""


class SpotCheck:
    """The spot checks of one captured program.

    Args:
        recording: the whole program.
        sites: names of the sites whose terms it returns.
        changed: tensors from outside that a run of the program changes, besides parameters.
        compiled: whether it is compiled. A compiler may drop draws that nothing uses, as torch 2.6 does, and
            all draws behind it are others then: such a program is not compared.

    Attributes:
        steps: how many steps the program has taken, and those before it that were captured for the same
            arguments.
    """

    def __init__(
        self, recording: Recording, sites: Sequence[str], changed: Sequence[Tensor], compiled: bool
    ) -> None:
        self._sites, self._changed, self._tensors = list(sites), list(changed), recording.state
        self._eps = recording.eps
        self._first = _FIRST * _GROWTH if compiled else _FIRST
        self._comparable = not (compiled and recording.draws_in_vain)
        self.steps = 0

    @property
    def due(self) -> bool:
        """True if the next step is one to check: number 64 (unless compiled), 1,024, 16,384 and so on.

        An eager run takes as long as one or two steps of a small program, twice as many if it is compiled:
        this keeps the checks below 0.2 % of 1,000 steps.
        """
        step = self.steps + 1
        while step > self._first and step % _GROWTH == 0:
            step //= _GROWTH
        return step == self._first

    def eager(self, terms: Callable[[], list[Term]], data: Sequence[Tensor]) -> Loss:
        """Evaluate a loss, and undo what that changes in tensors and in generators of random numbers.

        Args:
            terms: runs the program eagerly.
            data: the batch.
        """
        with (
            unchanged(self._changed, [*data, *self._tensors]),
            _pythons_generators_unchanged(),
            uncompiled(),
            pyro.validation_enabled(False),
            torch.enable_grad(),  # as in the recording: other kernels may run without
        ):
            return _summed((term.name, term.value.item()) for term in terms())

    def differences(self, eager: Loss, values: Sequence[Tensor]) -> list[str]:
        """Compare an eager loss with the captured one.

        The terms of a site agree if they share half of their digits (√ε of the larger one), or differ by no
        more than a rounding error of the whole loss (ε times the sum of all absolute values). ε is that of
        the coarsest type that the program computes in. Fused operations round otherwise than single ones, and
        a term may be a small difference of large numbers.

        Args:
            eager: from :meth:`eager`.
            values: of the captured program's terms.

        Returns:
            A line for each site whose terms differ.
        """
        if not self._comparable:
            return []
        captured = _summed(zip(self._sites, (value.item() for value in values), strict=True))
        rounding = self._eps * sum(map(abs, eager.values()))
        pairs = {name: (eager.get(name, 0.0), captured.get(name, 0.0)) for name in eager | captured}
        return [
            f"'{name}' ({one:.6g} eagerly, {other:.6g} captured)"
            for name, (one, other) in pairs.items()
            if not math.isclose(one, other, rel_tol=math.sqrt(self._eps), abs_tol=rounding)
            and not (math.isnan(one) and math.isnan(other))
        ]


def _summed(pairs: Iterable[tuple[str, float]]) -> Loss:
    sums: Loss = {}
    for name, value in pairs:
        sums[name] = sums.get(name, 0.0) + value
    return sums


@contextmanager
def _pythons_generators_unchanged() -> Iterator[None]:
    python, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)


# One captured step: the recorded passes over a program, and the optimiser between or behind them.


logger = logging.getLogger("pyro_fmvae")


class NotFinite(ArithmeticError):
    """The loss of a step, or one of its gradients, is not finite."""


class CapturedStep:
    """A step on batches of one shape.

    Args:
        recorded: the function that was recorded: it knows the parameters and the scalars.
        passes: the recorded program, cut at ``recorded.groups``. Each part takes what the one before it
            returned. The first that no sum follows returns what ``recorded`` says; a second one, if there is
            one, (if ``recorded.checked``) whether λ's gradients are finite. The last one takes λ's step.
        optim: a ``NaturalGradient``.
        assumptions: facts that the recording relies on.
        spot_check: compares the program with eager runs.
        on_device: whether all tensors of the program are on a GPU, so that a graph may hold it.

    Attributes:
        values: the terms of the last step's loss, scalars.
        stale: set it to have the step captured anew.
    """

    def __init__(
        self,
        recorded: TensorStep,
        passes: Sequence[TensorProgram],
        optim: Any,
        assumptions: Assumptions,
        spot_check: SpotCheck,
        on_device: bool,
    ) -> None:
        self.passes, self.optim, self.assumptions = list(passes), optim, assumptions
        self.spot_check, self.values, self.stale = spot_check, list[Tensor](), False
        self._num_sites, self._sums = len(recorded.sites), recorded.sums
        self._ranks = recorded.svi.ranks
        self.params, self.checked, self.inside = recorded.used, recorded.checked, recorded.inside
        self.others = [] if recorded.inside else recorded.others  # what the optimiser is called for
        self._scalars, self.turns = recorded.scalars, recorded.turns
        self._filled: list[float | None] = [None] * len(self._scalars)
        self._graph: CUDAGraph[tuple[Tensor, list[Tensor]]] | None = None
        self._on_device: OptimizerOnDevice | None = None
        self._obstacle = ""
        if not on_device and self._scalars[0].is_cuda:
            self._no_graph("the program has tensors on the host")

    def __call__(self, data: Sequence[Tensor], weights: Sequence[float | Tensor], wait: bool) -> Tensor:
        """Take the step; returns the loss before it, which the next call may overwrite.

        Args:
            data: the tensors among the arguments of the program.
            weights: of the ELBO.
            wait: for a graph to end, so that its loss can be checked.

        Raises:
            NotFinite: with ``checked``; λ has not changed, nor have the parameters, unless an optimiser on a
                GPU cannot skip a step, or it was the second pass that found it.
        """
        scalars = (self.optim.current_rate, self.optim.turn(self.turns), *weights)
        self._fill([*scalars, *(self.inside.rates if self.inside else ())])
        inputs = (*data, *self._scalars)
        loss = self._graphed(data, wait) if self._graphable(inputs) else self._by_parts(inputs)
        self.optim.steps += 1
        self.spot_check.steps += 1
        if self.optim.others is not None:
            self.optim.others._opt_called = True  # schedulers ask; a replay calls no step() of its own
        return loss

    def current(self) -> bool:
        """True if everything that the recording relies on is as it was."""
        optimised = self.inside is None or self.inside.current(self.optim.others)
        return not self.stale and optimised and self.assumptions.hold()

    def _fill(self, scalars: Sequence[float | Tensor]) -> None:
        for number, (tensor, value) in enumerate(zip(self._scalars, scalars, strict=True)):
            if isinstance(value, Tensor):
                tensor.copy_(value)
                self._filled[number] = None
            elif value != self._filled[number]:
                tensor.fill_(value)
                self._filled[number] = value

    def _by_parts(self, inputs: Sequence[Tensor]) -> Tensor:
        loss, grads, self.values, rest, parts = self._first(inputs)
        self._check(loss)
        self._update(grads)
        if parts < len(self.passes) and not self._second(inputs, rest, parts).isfinite():
            raise NotFinite
        return loss

    def _play(
        self, inputs: Sequence[Tensor], results: Sequence[Tensor], part: int
    ) -> tuple[Sequence[Tensor], int]:
        """Results of the next part that no sum over ranks follows, and the number of the part after it."""
        for number in range(part, len(self.passes)):
            results = self.passes[number](*inputs, *results)
            if not self._sums[number]:
                return results, number + 1
            self._ranks.add(results[: self._sums[number]])
        raise AssertionError("the last part is followed by a sum")

    def _first(
        self, inputs: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor], list[Tensor], Sequence[Tensor], int]:
        """The first pass: loss, gradients, the loss's terms, all results, and the number of its parts."""
        results, parts = self._play(inputs, (), 0)
        after = 1 + len(self.params)
        return results[0], results[1:after], list(results[after : after + self._num_sites]), results, parts

    def _second(self, inputs: Sequence[Tensor], rest: Sequence[Tensor], part: int) -> Tensor:
        """The second pass; 0, or NaN if there was something in it that is not finite."""
        ok, _ = self._play(inputs, rest, part)
        return torch.where(ok[0], 0.0, torch.nan) if ok else inputs[-1].new_zeros(())

    def _check(self, loss: Tensor) -> None:
        if self.checked and not math.isfinite(loss.item()):
            raise NotFinite

    def _update(self, grads: Sequence[Tensor]) -> None:
        if not self.others:
            return
        for p, grad in zip(self.params, grads, strict=True):
            p.grad = _as_stored(grad, p)
        self.optim.step_others(self.others)
        for p in self.others:
            p.grad = None

    def _graphable(self, inputs: Sequence[Tensor]) -> bool:
        if not _on_gpu(inputs[-1:]) or (self.optim.others is None and self.others):
            return False  # the first step makes the optimiser
        if self.inside is None and not OptimizerOnDevice.possible(self.optim.others):
            self._no_graph("the optimiser has hooks, or is neither fused nor capturable")
        elif not _on_gpu(inputs):
            self._no_graph("the program has tensors on the host")
        return not self._obstacle

    def _no_graph(self, obstacle: str) -> None:
        """Take all further steps without a graph; says so once."""
        if not self._obstacle:
            logger.info("steps are not replayed as CUDA graphs: %s", obstacle)
        self._obstacle = obstacle

    def _graphed(self, data: Sequence[Tensor], wait: bool) -> Tensor:
        if self._graph is None or self._on_device is None or not self._on_device.current(self.optim.others):
            self._on_device = OptimizerOnDevice(self.optim.others, self._scalars[0].device)
            self._graph = CUDAGraph(self._whole)
        self._on_device.fill()
        try:
            loss, self.values = self._graph(*data)
        except NotRecordable as error:
            self._no_graph(str(error))
            return self._by_parts((*data, *self._scalars))
        if wait:
            self._check(loss)
        return loss

    def _whole(self, *data: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The step as :meth:`_by_parts` takes it, without a look at any value, for a graph to record.

        Scalars stay in their places, and so need not be copied to the graph's.
        """
        assert self._on_device is not None
        inputs = (*data, *self._scalars)
        loss, grads, values, rest, parts = self._first(inputs)
        with self._on_device.steps(skip=loss.isnan() if self.checked else None):
            self._update(grads)
        if parts < len(self.passes):
            loss = loss + self._second(inputs, rest, parts)
        return loss, values


def _as_stored(grad: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in its parameter's memory layout: fused optimisers go through both in order of storage.

    ``backward`` sees to it for gradients that it accumulates; those of convolutions over channels-last images
    come out with channels last.
    """
    if grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter, dtype=grad.dtype).copy_(grad)


def _on_gpu(inputs: Sequence[Tensor]) -> bool:
    """True if nothing is on the host: a graph would not see values there change."""
    return all(tensor.is_cuda for tensor in inputs)


class LossUnderWay:
    """A loss on its way from a GPU to the host.

    Attributes:
        value: the loss; waits for it alone, and for nothing that was started later.
    """

    def __init__(self, loss: Tensor) -> None:
        self._host = torch.empty((), dtype=loss.dtype, pin_memory=loss.is_cuda)
        self._host.copy_(loss.detach(), non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(loss.device))

    @property
    def value(self) -> float:
        self._arrived.synchronize()
        return float(self._host.numpy())


class CapturedSVI(ConjugateSVI):
    """:class:`ConjugateSVI` at the speed of hand-written PyTorch.

    The first step on batches of a shape runs model and guide under Pyro's handlers and records everything
    that happens to tensors (loss, gradients, responsibilities, λ's step) as a plain tensor program; all steps
    replay it, with the optimiser's own step behind it. On a GPU the two become one CUDA graph. Each replay
    draws fresh random numbers and reads parameters, data, learning rates, ρ and the ELBO's weights anew. A
    step in which the program makes a parameter (``pyro.param`` with a new name, a lazy guide) is taken as by
    ``ConjugateSVI``, and the next one is captured.

    Steps on other shapes or other arguments that are not tensors are captured anew, as is the step after a
    change of a module's mode, of the set of parameters, or of a number, string, tensor, module or function
    that model and guide read by name; the eight programs used last are kept. Everything else is a constant of
    the recording, and spot checks find one that has changed. With validation on, the first step checks what
    an eager step checks, later ones that loss and gradients are finite.

    Args:
        model, guide, optim, loss, recompute, autocast, group: as for ``ConjugateSVI``.
        compile: fuse the program's operations by ``torch.compile``, which takes seconds for each shape, and
            on a CPU a C++ compiler.
        compile_from: fewest rows of the first tensor argument for which that is done. Programs for smaller
            batches, such as the last one of each epoch, replay as they are.
        spot_checks: compare the step's loss with an eager one at steps 64 (unless compiled), 1,024,
            16,384, …; where they differ, warn and capture the step anew. They run model and guide under
            Pyro's handlers: switch them off where threads take steps of several programs.
        eager: take the steps as ``ConjugateSVI`` does after all, to debug a program or because it cannot be
            captured.

    Raises:
        ValueError: as for ``ConjugateSVI``.
    """

    def __init__(
        self,
        model: Any,
        guide: Any,
        optim: Any,
        loss: TraceConjugate_ELBO,
        recompute: bool = False,
        *,
        autocast: torch.dtype | None = None,
        compile: bool = False,
        compile_from: int = 1,
        spot_checks: bool = True,
        eager: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(model, guide, optim, loss, recompute, autocast=autocast, group=group)
        self.compile, self.compile_from, self.eager = compile, compile_from, eager
        self.spot_checks = spot_checks
        self._steps: dict[Hashable, CapturedStep] = {}
        self._captures: Counter[Hashable] = Counter()
        self._under_way: tuple[LossUnderWay, Any, Any] | None = None

    def _copied(self) -> dict[str, Any]:
        """A copy captures its own steps: those that there are work on these parameters."""
        return {**self.__dict__, "_steps": {}, "_captures": Counter(), "_under_way": None}

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on a batch; returns the loss before it, in nats, for all N points.

        Raises:
            CaptureError: the program cannot be captured; the message names the line.
            ValueError: (with validation on) a loss or gradient that is not finite, with the sites that caused
                it. On a CPU, and on a GPU with a fused optimiser, no parameter has changed then.
        """
        return super().step(*args, **kwargs)

    def settle(self) -> None:
        """Wait for the last step of :meth:`step_async`, and raise what :meth:`step` would have raised."""
        if self._under_way is not None:
            (loss, *arguments), self._under_way = self._under_way, None
            if not math.isfinite(loss.value):
                self._blame(*arguments)

    def _step(self, args: Any, kwargs: Any, wait: bool) -> Tensor:
        if self.eager or _PYRO_STACK:  # handlers around the call would see nothing of a replay
            return super()._step(args, kwargs, wait)
        call = Call(args, kwargs)
        key = (call.key, *self._settings())
        step, expected = self._steps.pop(key, None), None
        if step is None or not step.current():
            self.settle()
            self._count(call.shapes)
            with self.ranks.agreeing():
                captured = self._capture(call, step.spot_check.steps if step else 0)
            if isinstance(captured, Tensor):
                return captured
            step = captured
        elif self.spot_checks and step.spot_check.due:
            expected = step.spot_check.eager(lambda: self._terms(args, kwargs)[1], call.data)
        self._steps[key] = step  # the one used last comes last
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]
        with suppress(NotFinite, IndexError):  # an eager evaluation names the site
            loss = step(call.data, [getattr(self.elbo, name) for name in WEIGHTS], wait)
            if expected is not None:
                self._compare(step, expected)
            self.settle()
            if not wait and _on_gpu([loss]):
                if step.checked:
                    self._under_way = LossUnderWay(loss), args, kwargs
                loss = loss.clone()  # the next replay overwrites it
            return loss
        self._blame(args, kwargs)

    def _compare(self, step: CapturedStep, expected: Loss) -> None:
        """Have a step captured anew whose loss was not the one expected, and say so."""
        found = step.spot_check.differences(expected, step.values)
        step.stale = self.ranks.largest(len(found)) > 0  # on all ranks, so that all capture anew
        if found:
            logger.warning(
                "the captured step %d differs from an eager one on the same random numbers, at %s: something "
                "that the program reads there has changed, and is a constant of the recording. The step "
                "is captured anew. Pass what changes as an argument, or make it a tensor changed in place",
                step.spot_check.steps,
                ", ".join(found),
            )

    def _count(self, shapes: Hashable) -> None:
        """Warn if batches of the same shapes are captured again and again."""
        self._captures[shapes] += 1
        if self._captures[shapes] == MOST_STEPS:
            logger.warning(
                "steps on the same shapes were captured %d times: a number among the arguments, the "
                "attributes of a module or the variables of a function keeps changing (make it a tensor, "
                "changed in place), or a parameter is replaced, or data from outside are (pass them as "
                "arguments)",
                MOST_STEPS,
            )

    def _settings(self) -> tuple[Hashable, ...]:
        """Settings that a program depends on, with the weights that leave out a part of the loss."""
        return (
            *(is_static(getattr(self.elbo, name), value) for name, value in WEIGHTS.items()),
            *map(id, (self.model, self.guide, self.optim, self.elbo)),
            self._share,
            self.elbo.num_particles,
            self.elbo.vectorize_particles,
            self.recompute,
            self.autocast,
            self.compile,
            self.compile_from,
            is_validation_enabled(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            *casts(),
        )

    def _capture(self, call: Call, steps: int = 0) -> CapturedStep | Tensor:
        """The step for such arguments, after so many earlier ones; or, if it had to be taken, its loss."""
        started = time.perf_counter()
        rehearsal, statements = self._rehearse(*call.arguments(call.data))
        if isinstance(statements, Tensor):
            return statements
        params = _unconstrained(statements)
        assumptions = rehearsal.assumptions(statements.nodes)
        assumptions.refuse_hooks(params)
        rows = call.rows if self._share is None else self._share.total
        fused = self.compile and rows >= self.compile_from
        inside = self._inside([p for p in params if not isinstance(p, NaturalParameter)]) if fused else None
        step = TensorStep(self, call, params, inside)
        try:
            state = [*params, *assumptions.tensors, *rehearsal.written, *(inside.tensors if inside else ())]
            recording = record(step, step.inputs, state)
            self.optim.check_others(step.used)
            assumptions.check(recording)
        finally:
            rehearsal.undo()
            if inside:
                inside.keep(step.moved)
        spot_check = SpotCheck(recording, step.sites, rehearsal.changed, fused)
        spot_check.steps = steps
        recording = resident(recording)
        on_device = recording.on_device()
        operations = sum(node.op == "call_function" for node in recording.graph.nodes)
        parts = recording.split(len(step.inputs), *step.groups) if step.groups else [recording]
        data = [len(call.data), *(0 for _ in parts[1:])]
        passes = [
            compiled(part) if fused else plain(part, number) for part, number in zip(parts, data, strict=True)
        ]
        shapes = ", ".join(str(list(shape)) for shape in call.shapes)
        seconds = time.perf_counter() - started
        how = "to compile" if fused else "as they are"
        logger.info("captured the step on %s: %d operations, %s, %.1f s", shapes, operations, how, seconds)
        return CapturedStep(step, passes, self.optim, assumptions, spot_check, on_device)

    def _inside(self, params: Sequence[Tensor]) -> RecordedAdam | None:
        """The optimiser as a part of a compiled program, where it can be; in others torch's own is faster."""
        self.optim.adopt(params)
        if not RecordedAdam.possible(self.optim.others, params):
            return None
        return RecordedAdam(self.optim.others, params)

    def _rehearse(self, args: Any, kwargs: Any) -> tuple[Rehearsal, Trace | Tensor]:
        """Run the program with all checks, and undo that; returns its parameters' statements.

        Where it made parameters it can't be undone: the step is finished then, and its loss returned.
        """
        rehearsal = Rehearsal(self.model, self.guide, args, kwargs)
        with rehearsal.watching(), poutine.trace(param_only=True) as statements:
            traces, terms = self._terms(args, kwargs)
            loss = self.elbo.total(terms)
        if rehearsal.made(_unconstrained(statements.trace)):
            return rehearsal, self._finish(traces, loss, statements.trace, args, kwargs)
        rehearsal.undo()
        return rehearsal, statements.trace

    def _blame(self, args: Any, kwargs: Any) -> NoReturn:
        """Raise a NotFiniteError that names the sites behind a loss or gradient that is not finite."""
        with self.ranks.agreeing():
            with poutine.trace(param_only=True) as statements:
                loss = self.elbo.total(self._terms(args, kwargs)[1])
            propagate_back(loss, statements.trace, lambda: self._terms(args, kwargs)[1])
        for p in _unconstrained(statements.trace):
            p.grad = None
        raise NotFiniteError(
            "the loss or a gradient was not finite, but is when evaluated again with fresh random numbers"
        )


def _unconstrained(statements: Trace) -> list[Tensor]:
    return list(dict.fromkeys(site["value"].unconstrained() for site in statements.nodes.values()))
