"""SVI whose steps are recorded once and replayed as plain tensor programs."""

import logging
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_fmvae.capture.call import Call
from pyro_fmvae.capture.captured_step import CapturedStep, NotFinite
from pyro_fmvae.capture.guards import Rehearsal
from pyro_fmvae.capture.playback import casts, compiled, plain
from pyro_fmvae.capture.recorded_adam import RecordedAdam
from pyro_fmvae.capture.recording import record
from pyro_fmvae.capture.spot_checks import Loss, SpotCheck
from pyro_fmvae.capture.tensor_step import TensorStep, is_static
from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.elbo.loss_checks import NotFiniteError, propagate_back
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import WEIGHTS, TraceConjugate_ELBO
from pyro_fmvae.infer.svi import ConjugateSVI

MOST_STEPS = 8  # captured at a time

logger = logging.getLogger("pyro_fmvae")


class CapturedSVI(ConjugateSVI):
    """:class:`ConjugateSVI` at the speed of hand-written PyTorch.

    The first step on batches of a shape runs model and guide under Pyro's handlers and records everything
    that happens to tensors (loss, gradients, responsibilities, λ's step) as a plain tensor program; all steps
    replay it, with the optimiser's own step behind it. On a GPU the two become one CUDA graph. Each replay
    draws fresh random numbers and reads parameters, data, learning rates, ρ and the ELBO's weights anew. A
    step in which the program makes a parameter (``pyro.param`` with a new name, a lazy guide) is taken as by
    ``ConjugateSVI``, and the next one is captured.

    Numbers, tensors and other objects that the program reaches through attributes, closures and globals are
    watched: the step after a change is captured anew. So are steps on other shapes or other arguments that
    are not tensors; the eight programs used last are kept. What cannot be watched is refused, or found by
    spot checks. The page on programs has the contract in full. With validation on, the first step checks what
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

    def _copied(self) -> dict[str, Any]:
        """A copy captures its own steps: those that there are work on these parameters."""
        return {**self.__dict__, "_steps": {}, "_captures": Counter()}

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on a batch; returns the loss before it, in nats, for all N points.

        Raises:
            CaptureError: the program cannot be captured; the message names the line.
            ValueError: (with validation on) a loss or gradient that is not finite, with the sites that caused
                it. On a CPU, and on a GPU with a fused optimiser, no parameter has changed then.
        """
        return super().step(*args, **kwargs)

    def _step(self, args: Any, kwargs: Any) -> float:
        if self.eager or _PYRO_STACK:  # handlers around the call would see nothing of a replay
            return super()._step(args, kwargs)
        call = Call(args, kwargs)
        key = (call.key, *self._settings())
        step, expected = self._steps.pop(key, None), None
        if step is None or not step.current():
            self._count(call.shapes)
            with self.ranks.agreeing():
                captured = self._capture(call, step.spot_check.steps if step else 0)
            if isinstance(captured, float):
                return captured
            step = captured
        elif self.spot_checks and step.spot_check.due:
            expected = step.spot_check.eager(lambda: self._terms(args, kwargs)[1], call.data)
        self._steps[key] = step  # the one used last comes last
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]
        with suppress(NotFinite, IndexError):  # an eager evaluation names the site
            loss = step(call.data, [getattr(self.elbo, name) for name in WEIGHTS])
            if expected is not None:
                self._compare(step, expected)
            return loss
        self._blame(args, kwargs)

    def _compare(self, step: CapturedStep, expected: Loss) -> None:
        """Have a step captured anew whose loss was not the one expected, and say so."""
        found = step.spot_check.differences(expected, step.values)
        (anywhere,) = self.ranks.largest([len(found)])
        step.stale = anywhere > 0  # on all ranks, so that all capture anew
        if found:
            logger.warning(
                "the captured step %d differs from an eager one on the same random numbers, at %s: something "
                "that the program reads there has changed, and is not watched. The step is captured anew. "
                "Pass what changes as an argument, or make it a tensor that is changed in place",
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

    def _capture(self, call: Call, steps: int = 0) -> CapturedStep | float:
        """The step for such arguments, after so many earlier ones; or, if it had to be taken, its loss."""
        started = time.perf_counter()
        rehearsal, statements = self._rehearse(*call.arguments(call.data))
        if isinstance(statements, float):
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
        on_device = recording.on_device()
        operations = sum(node.op == "call_function" for node in recording.graph.nodes)
        parts = recording.split(len(step.inputs), *step.groups) if step.groups else [recording]
        passes = [(compiled if fused else plain)(part) for part in parts]
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

    def _rehearse(self, args: Any, kwargs: Any) -> tuple[Rehearsal, Trace | float]:
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
