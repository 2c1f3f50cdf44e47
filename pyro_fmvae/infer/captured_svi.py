"""SVI whose steps are recorded once and replayed as plain tensor programs."""

import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.assumptions import Assumptions, Rehearsal, modules_of
from pyro_fmvae.infer.call import Call
from pyro_fmvae.infer.capture import CaptureError, Recording, record
from pyro_fmvae.infer.captured_step import CapturedStep, NotFinite
from pyro_fmvae.infer.recorded_adam import RecordedAdam
from pyro_fmvae.infer.replay import compiled, plain
from pyro_fmvae.infer.site_terms import sum_terms
from pyro_fmvae.infer.svi import ConjugateSVI
from pyro_fmvae.infer.trace_conjugate_elbo import TraceConjugate_ELBO

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

    A program is one for batches of the same shapes and for the same arguments that are not tensors; others
    are captured as they come, the eight used last are kept. What a model does in Python (prints, counts) it
    does only then, and numbers that it takes from Python's or NumPy's generators are constants. With
    validation on, the first step checks what an eager step checks, later ones that loss and gradients are
    finite.

    Args:
        model, guide, loss, recompute, autocast: as for ``ConjugateSVI``.
        optim: a ``NaturalGradient``.
        compile: fuse the program's operations by ``torch.compile``, which takes seconds for each shape, and
            on a CPU a C++ compiler.
        eager: take the steps as ``ConjugateSVI`` does after all, to debug a program or because it cannot be
            captured.

    Raises:
        ValueError: ``optim`` is no ``NaturalGradient``.
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
        eager: bool = False,
    ) -> None:
        if not (hasattr(optim, "current_rate") and hasattr(optim, "adopt")):
            raise ValueError(f"optim: expected a NaturalGradient, got {type(optim).__name__}")
        super().__init__(model, guide, optim, loss, recompute, autocast=autocast)
        self.compile, self.eager = compile, eager
        self._steps: dict[Hashable, CapturedStep] = {}
        self._captures: Counter[Hashable] = Counter()

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on a batch; returns the loss before it, in nats, for all N points.

        Raises:
            CaptureError: the program cannot be captured; the message names the line.
            ValueError: (with validation on) a loss or gradient that is not finite, with the sites that caused
                it. On a CPU, and on a GPU with a fused optimiser, no parameter has changed then.
        """
        if self.eager or _PYRO_STACK:  # handlers around the call would see nothing of a replay
            return super().step(*args, **kwargs)
        call = Call(args, kwargs)
        key = (call.key, *self._settings())
        step = self._steps.pop(key, None)
        if step is None or not step.current():
            self._count(call.shapes)
            captured = self._capture(call)
            if isinstance(captured, float):
                return captured
            step = captured
        self._steps[key] = step  # the one used last comes last
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]
        with suppress(NotFinite):
            return step(call.data, [self.optim.current_rate, self.elbo.kl_weight, self.elbo.label_weight])
        self._blame(args, kwargs)

    def _count(self, shapes: Hashable) -> None:
        """Warn if batches of the same shapes are captured again and again."""
        self._captures[shapes] += 1
        if self._captures[shapes] == MOST_STEPS:
            logger.warning(
                "steps on the same shapes were captured %d times: a number among the arguments or the "
                "attributes of a module keeps changing (make it a tensor, changed in place), or a parameter "
                "is replaced",
                MOST_STEPS,
            )

    def _settings(self) -> tuple[Hashable, ...]:
        """What else a program depends on; weights of 1 and 0 are among it since they leave out parts."""
        kl, label = self.elbo.kl_weight, self.elbo.label_weight
        return (
            isinstance(kl, Tensor) or kl != 1.0,
            isinstance(label, Tensor) or label != 0.0,
            *map(id, (self.model, self.guide, self.optim, self.elbo)),
            self.elbo.num_particles,
            self.elbo.vectorize_particles,
            self.recompute,
            self.autocast,
            self.compile,
            is_validation_enabled(),
            torch.get_default_dtype(),
        )

    def _capture(self, call: Call) -> CapturedStep | float:
        """The step for such arguments; or, if it had to be taken as it is, its loss."""
        started, data = time.perf_counter(), call.data
        rehearsal, statements = self._rehearse(*call.arguments(data))
        if isinstance(statements, float):
            return statements
        sites = statements.nodes
        params = _unconstrained(statements)
        natural = [p for p in params if isinstance(p, NaturalParameter)]
        others = [p for p in params if not isinstance(p, NaturalParameter)]
        assumptions = Assumptions(rehearsal.modules, sites, rehearsal.changed())
        inside = self._inside(others)
        device = next((t.device for t in (*data, *params)), torch.device("cpu"))
        rate_device = natural[0].device if natural else device
        scalars = [
            torch.zeros((), dtype=torch.float64, device=rate_device),
            torch.zeros((), device=device),
            torch.zeros((), device=device),
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in (inside.rates if inside else ())),
        ]
        checked = is_validation_enabled()
        used: list[Tensor] = []  # parameters whose gradients the program returns
        moved: list[Tensor] = []  # those that it changes itself

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = call.arguments(inputs)
            rate, kl_weight, label_weight, *learning_rates = inputs[len(data) :]
            with pyro.validation_enabled(False), torch.enable_grad(), self._weights(kl_weight, label_weight):
                traces, terms = self._terms(args, kwargs)
                loss = sum_terms(terms)
                wanted = [*others, *natural]
                grads = dict(zip(wanted, _gradients(loss, wanted), strict=True))
                loss, ok = _guarded(loss.detach(), [g for g in grads.values() if g is not None], checked)
                slopes = {p: grad for p in others if (grad := grads[p]) is not None}
                if inside:
                    with torch.no_grad():
                        inside.step(slopes, learning_rates, ok)
                if self.recompute:
                    refreshed = sum_terms(self._refreshed(traces, args, kwargs))
                    grads.update(zip(natural, _gradients(refreshed, natural), strict=True))
                    again = [g for p in natural if (g := grads[p]) is not None]
                    ok = ok if ok is None else ok & _finite(refreshed.detach(), again)
            used[:], moved[:] = ((), slopes) if inside else (slopes, ())
            with torch.no_grad():
                for p in natural:
                    if (grad := grads[p]) is not None:
                        p.sub_(rate * (grad if ok is None else torch.where(ok, grad, 0.0)))
            last = (ok,) if self.recompute and ok is not None else ()
            return (loss, *(slopes[p] for p in used), *last)

        try:
            state = [*params, *assumptions.tensors, *(inside.tensors if inside else ())]
            recording = record(run, [*data, *scalars], state)
            _check(assumptions)
        finally:
            rehearsal.undo()
            if inside:
                inside.keep(moved)
        passes = self._passes(recording, len(data) + len(scalars), 1 + len(used))
        operations = sum(node.op == "call_function" for node in recording.module.graph.nodes)
        shapes = ", ".join(str(list(tensor.shape)) for tensor in data)
        seconds = time.perf_counter() - started
        logger.info("captured the step on %s: %d operations, %.1f s", shapes, operations, seconds)
        outside = [] if inside else others
        on_device = recording.on_device()
        return CapturedStep(
            passes, used, outside, self.optim, scalars, assumptions, checked, inside, on_device
        )

    def _inside(self, params: Sequence[Tensor]) -> RecordedAdam | None:
        """The optimiser as a part of the program, if it is compiled; otherwise torch's own is faster."""
        if not self.compile:
            return None
        self.optim.adopt(params)
        if not RecordedAdam.possible(self.optim.others, params):
            return None
        return RecordedAdam(self.optim.others, params)

    def _rehearse(self, args: Any, kwargs: Any) -> tuple[Rehearsal, Trace | float]:
        """Run the program with all checks, and undo that; returns its parameters' statements.

        Where it made parameters it can't be undone: the step is finished then, and its loss returned.
        """
        rehearsal = Rehearsal(modules_of(self.model, self.guide))
        with rehearsal.watching(), poutine.trace(param_only=True) as statements:
            traces, terms = self._terms(args, kwargs)
            loss = self.elbo.total(terms)
        if rehearsal.made(_unconstrained(statements.trace)):
            return rehearsal, self._finish(traces, loss, statements.trace, args, kwargs)
        rehearsal.undo()
        return rehearsal, statements.trace

    def _passes(self, recording: Recording, num_inputs: int, num_results: int) -> list[Any]:
        parts = recording.split(num_inputs, num_results) if self.recompute else (recording,)
        return [(compiled if self.compile else plain)(part) for part in parts]

    @contextmanager
    def _weights(self, kl_weight: Tensor, label_weight: Tensor) -> Iterator[None]:
        """Put tensors in the place of the ELBO's weights, unless those leave out a part of it."""
        kept = self.elbo.kl_weight, self.elbo.label_weight
        by_tensor = self._settings()[:2]
        if by_tensor[0]:
            self.elbo.kl_weight = kl_weight
        if by_tensor[1]:
            self.elbo.label_weight = label_weight
        try:
            yield
        finally:
            self.elbo.kl_weight, self.elbo.label_weight = kept

    def _blame(self, args: Any, kwargs: Any) -> NoReturn:
        """Raise a ValueError that names the sites behind a loss or gradient that is not finite."""
        with poutine.trace(param_only=True) as statements:
            loss = self.elbo.total(self._terms(args, kwargs)[1])
        self.elbo.backward(loss, statements.trace, lambda: self._terms(args, kwargs)[1])
        for p in _unconstrained(statements.trace):
            p.grad = None
        raise ValueError(
            "the loss or a gradient was not finite, but is when evaluated again with fresh random numbers"
        )


def _unconstrained(statements: Trace) -> list[Tensor]:
    return list(dict.fromkeys(site["value"].unconstrained() for site in statements.nodes.values()))


def _check(assumptions: Assumptions) -> None:
    if not assumptions.hold():
        raise CaptureError(
            "the step cannot be captured: the program puts another tensor in the place of a parameter or "
            "buffer, or changes a module's mode. Change tensors in place (by copy_, say), or pass eager=True"
        )


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not (leaves and loss.requires_grad):
        return [None] * len(leaves)
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def _guarded(loss: Tensor, grads: Sequence[Tensor], checked: bool) -> tuple[Tensor, Tensor | None]:
    """The loss, NaN if it or a gradient is not finite, and whether they are; as it is if unchecked."""
    if not checked:
        return loss, None
    ok = _finite(loss, grads)
    return torch.where(ok, loss, torch.nan), ok


def _finite(loss: Tensor, grads: Sequence[Tensor]) -> Tensor:
    return torch.stack([loss, *(grad.sum().to(loss) for grad in grads)]).isfinite().all()
