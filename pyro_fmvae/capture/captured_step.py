"""One captured step: the recorded passes over a program, and the optimiser between or behind them."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.capture.cuda_graph import CUDAGraph, NotRecordable, OptimizerOnDevice
from pyro_fmvae.capture.guards import Assumptions
from pyro_fmvae.capture.playback import TensorProgram
from pyro_fmvae.capture.spot_checks import SpotCheck
from pyro_fmvae.capture.tensor_step import TensorStep

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

    def __call__(self, data: Sequence[Tensor], weights: Sequence[float | Tensor]) -> float:
        """Take the step; returns the loss before it.

        Args:
            data: the tensors among the arguments of the program.
            weights: of the ELBO.

        Raises:
            NotFinite: with ``checked``; λ has not changed, nor have the parameters, unless an optimiser on a
                GPU cannot skip a step, or it was the second pass that found it.
        """
        scalars = (self.optim.current_rate, self.optim.turn(self.turns), *weights)
        self._fill([*scalars, *(self.inside.rates if self.inside else ())])
        inputs = (*data, *self._scalars)
        loss = self._graphed(inputs) if self._graphable(inputs) else self._by_parts(inputs)
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

    def _by_parts(self, inputs: Sequence[Tensor]) -> float:
        loss, grads, self.values, rest, parts = self._first(inputs)
        value = self._checked(loss.item())
        self._update(grads)
        if parts < len(self.passes) and not self._second(inputs, rest, parts).isfinite():
            raise NotFinite
        return value

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

    def _checked(self, loss: float) -> float:
        if self.checked and not math.isfinite(loss):
            raise NotFinite
        return loss

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

    def _graphed(self, inputs: Sequence[Tensor]) -> float:
        if self._graph is None or self._on_device is None or not self._on_device.current(self.optim.others):
            self._on_device = OptimizerOnDevice(self.optim.others, inputs[0].device)
            self._graph = CUDAGraph(self._whole)
        self._on_device.fill()
        try:
            loss, self.values = self._graph(*inputs)
        except NotRecordable as error:
            self._no_graph(str(error))
            return self._by_parts(inputs)
        return self._checked(loss.item())

    def _whole(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The step as :meth:`_by_parts` takes it, without a look at any value, for a graph to record."""
        assert self._on_device is not None
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
