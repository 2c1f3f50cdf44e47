"""Steps as CUDA graphs: all kernels of a step launched at once, the optimiser's among them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from pyro_fmvae.capture.optimizer_snapshot import OptimizerSnapshot, step_hooks

Result = TypeVar("Result")

_WARM_UP = 3  # calls before the one that is recorded, for libraries and the allocator to settle


class NotRecordable(RuntimeError):
    """A function that a graph cannot hold; nothing was executed."""


class CUDAGraph(Generic[Result]):
    """A function on tensors as one graph.

    The first calls run as they are, on a stream of their own; the next one is recorded, which executes
    nothing, and replayed. Random numbers are fresh at each replay: torch's graphs see to that.

    Args:
        function: takes tensors on a GPU, changes nothing but tensors, in place, and returns tensors.

    Raises:
        NotRecordable: at the call that is to be recorded.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []  # where the graph reads them
        self._result: Result

    def __call__(self, *inputs: Tensor) -> Result:
        """The function's result; that of a graph is overwritten by the next call."""
        if not self._inputs:
            self._inputs = _like(inputs)
        with torch.cuda.device(inputs[0].device):
            for kept, given in zip(self._inputs, inputs, strict=True):
                kept.copy_(given)
            if self._graph is None and self._calls < _WARM_UP:
                self._calls += 1
                return self._aside()
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()
            return self._result

    def _aside(self) -> Result:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._result = self.function(*self._inputs)
        except RuntimeError as error:
            raise NotRecordable(str(error).splitlines()[0]) from error
        return graph


def _like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Fresh tensors of the same shapes and strides."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]


class OptimizerOnDevice:
    """A torch optimiser whose steps read nothing from the host, so that a graph may hold them.

    Args:
        optimizer: a fused or capturable one, or None if there is nothing to optimise.
        device: where its parameters are.
    """

    def __init__(self, optimizer: Optimizer | None, device: torch.device) -> None:
        self.optimizer, self._snapshot = optimizer, OptimizerSnapshot(optimizer)
        self._groups = self._snapshot.groups
        # As the fused kernels read them, whatever torch's default is.
        self._rates = [torch.zeros((), dtype=torch.float32, device=device) for _ in self._groups]

    @staticmethod
    def possible(optimizer: Optimizer | None) -> bool:
        """True if the optimiser can do without the host, and has no hooks, which no replay would run."""
        groups = [] if optimizer is None else optimizer.param_groups
        return not step_hooks(optimizer) and all(
            group.get("fused") or group.get("capturable") for group in groups
        )

    def current(self, optimizer: Optimizer | None) -> bool:
        """True if the optimiser still is the one that was given, with the same state."""
        return self._snapshot.holds(optimizer)

    def fill(self) -> None:
        """Copy the learning rates to the device."""
        for rate, lr in zip(self._rates, self._snapshot.rates, strict=True):
            rate.copy_(lr) if isinstance(lr, Tensor) else rate.fill_(lr)

    @contextmanager
    def steps(self, skip: Tensor | None) -> Iterator[None]:
        """Let the optimiser read learning rates from the device, and skip its step where ``skip`` is true.

        Only fused optimisers can skip.
        """
        optimizer: Any = self.optimizer
        kept = [(group, group["lr"], group.get("capturable")) for group in self._groups]
        fused = bool(kept) and all(group.get("fused") for group in self._groups)
        for (group, _, capturable), rate in zip(kept, self._rates, strict=True):
            group["lr"] = rate
            if capturable is not None:
                group["capturable"] = True
        if fused and skip is not None:
            optimizer.found_inf = skip.float()
        try:
            yield
            self._snapshot.take_state()  # a first step made it; a graph writes to it from then on
        finally:
            for group, lr, capturable in kept:
                group["lr"] = lr
                if capturable is not None:
                    group["capturable"] = capturable
            if fused and skip is not None:
                del optimizer.found_inf
