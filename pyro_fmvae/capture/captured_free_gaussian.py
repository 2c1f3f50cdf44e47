"""The free steps of variational EM as recorded tensor programs."""

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor

from pyro_fmvae.capture.guards import MOST_STEPS, Assumptions, Call, Rehearsal
from pyro_fmvae.capture.playback import CUDAGraph, NotRecordable, compiled, plain, resident
from pyro_fmvae.capture.recording import record
from pyro_fmvae.infer.free_gaussian import Arguments, FreeGaussian, Step

Replay: TypeAlias = Callable[..., Tensor]
"""From data, state and sizes to the next state."""


class CapturedFreeGaussian(FreeGaussian):
    """A ``FreeGaussian`` whose steps are recorded once and replayed.

    The first call on batches of a shape records a step as a plain tensor program, as ``CapturedSVI`` does;
    all others replay it, on a GPU as a CUDA graph. Copies capture anew.

    Args:
        program, steps, learning_rate, autocast: as for ``FreeGaussian``.
        compile: fuse the program's operations by ``torch.compile``: see ``CapturedSVI``.

    Raises:
        ValueError: a number out of range.
        CaptureError: in a call, a program that cannot be captured; the message names the line.
    """

    def __init__(
        self,
        program: Any,
        steps: int,
        learning_rate: float,
        *,
        compile: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__(program, steps, learning_rate, autocast=autocast)
        self.compile = compile
        self._captured: dict[Hashable, tuple[Replay, Assumptions]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """All but captured steps: a copy captures its own."""
        return {**self.__dict__, "_captured": {}}

    def _step_for(self, arguments: Arguments, state: Tensor) -> Step:
        call = Call(*arguments)
        settings = (self.compile, self.autocast, torch.get_default_dtype())
        key = (call.key, state.shape, state.dtype, state.device, *settings)
        replay, assumptions = self._captured.pop(key, (None, None))
        if replay is None or assumptions is None or not assumptions.hold():
            replay, assumptions = self._capture(call, state)
        self._captured[key] = replay, assumptions  # the one used last comes last
        if len(self._captured) > MOST_STEPS:
            del self._captured[next(iter(self._captured))]
        return lambda state, sizes: replay(*call.data, state, sizes)

    def _capture(self, call: Call, state: Tensor) -> tuple[Replay, Assumptions]:
        arguments = call.arguments(call.data)
        rehearsal = Rehearsal(self.program.model, self.program.guide, *arguments)
        inputs = (*call.data, state, self._sizes().to(state)[0])
        with rehearsal.watching(), poutine.trace(param_only=True) as statements:
            self._step(arguments, *inputs[-2:])
        rehearsal.undo()
        assumptions = rehearsal.assumptions(statements.trace.nodes)

        def function(*inputs: Tensor) -> tuple[Tensor]:
            *data, state, sizes = inputs
            with pyro.validation_enabled(False):
                return (self._step(call.arguments(data), state, sizes),)

        recording = record(function, inputs, [*assumptions.tensors, *rehearsal.written])
        assumptions.check(recording)
        recording = resident(recording)
        on_device = recording.on_device()
        program = (compiled if self.compile else plain)(recording)
        if on_device:
            return _Graphed(lambda *inputs: program(*inputs)[0]), assumptions
        return (lambda *inputs: program(*inputs)[0]), assumptions


class _Graphed:
    """A recorded step as a CUDA graph, or as it is where a graph cannot hold it."""

    def __init__(self, step: Replay) -> None:
        self._step, self._graph = step, CUDAGraph(step)
        self._refused = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self._refused:
            return self._step(*inputs)
        try:
            return self._graph(*inputs)
        except NotRecordable:
            self._refused = True
            return self._step(*inputs)
