"""A run of programs that finds what they call and write to, and is undone."""

import warnings
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.guards.assumptions import Assumptions
from pyro_fmvae.capture.guards.outside import Outside
from pyro_fmvae.infer.elbo.operations import memory_of, uncompiled


class Rehearsal:
    """Finds what programs depend on, by reading their code and by running them once; undoes the run.

    Args:
        programs: functions, modules or their methods, and whatever they are called with.

    Attributes:
        modules: modules that the code shows, and all that were called.
    """

    def __init__(self, *programs: Any) -> None:
        self._outside = Outside(programs)
        self.modules = list(self._outside.modules)
        self._parts: set[torch.nn.Module] = set()
        self._buffers: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        self._writes = _Writes()
        self._existing = {p for _, p in pyro.get_param_store().named_parameters()}
        self._random = torch.get_rng_state(), _cuda_random_states()
        self._trees = [(module, self._note(module)) for module in self.modules]
        self._changed: dict[Tensor, None] = {}

    @property
    def written(self) -> list[Tensor]:
        """Tensors from outside that operations of the run wrote to."""
        return [tensor for tensor, _ in self._writes.found]

    @property
    def changed(self) -> list[Tensor]:
        """Once the run was undone, the buffers and other tensors that it had changed in place."""
        return list(dict.fromkeys((*self._changed, *self.written)))

    def _note(self, module: torch.nn.Module) -> set[torch.nn.Module]:
        tree = set(module.modules())
        for part in tree:
            if part not in self._parts:
                self._parts.add(part)
                parameters = (p for p in part._parameters.values() if p is not None)
                self._existing.update(p for p in parameters if not torch.nn.parameter.is_lazy(p))
                for name, buffer in part._buffers.items():
                    if buffer is not None and not torch.nn.parameter.is_lazy(buffer):
                        self._buffers.append((part._buffers, name, buffer, buffer.detach().clone()))
        return tree

    def _called(self, module: torch.nn.Module, _: Any) -> None:
        if module not in self._parts:
            self.modules.append(module)
            self._trees.append((module, self._note(module)))
            self._outside.look_at(module)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note which modules are called, and which tensors are written to."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            with uncompiled(), self._writes, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using `torch.compile.* global hooks on modules")
                yield
        finally:
            hook.remove()

    def made(self, parameters: Iterable[Tensor]) -> bool:
        """True if the run made one of the parameters, or put a module under one that was known."""
        if any(part not in tree for module, tree in self._trees for part in module.modules()):
            return True
        return not self._existing.issuperset(parameters)

    def assumptions(self, names: Iterable[str]) -> Assumptions:
        """Facts for a program that is recorded now; ``names`` are those of its parameters."""
        self._outside.look_at_imports()
        return Assumptions(self.modules, names, self._outside.places)

    @torch.no_grad()
    def undo(self) -> None:
        """Give tensors that are no parameters their values from before, and rewind the random numbers."""
        for held, name, buffer, value in self._buffers:
            held[name] = buffer
            if not torch.equal(buffer, value):
                self._changed[buffer] = None
                buffer.copy_(value)
        for tensor, value in reversed(self._writes.found):
            tensor.copy_(value)
        torch.set_rng_state(self._random[0])
        if self._random[1]:
            torch.cuda.set_rng_state_all(self._random[1])


class _Writes(TorchDispatchMode):
    """Notes the tensors, made outside of this mode, that operations write to.

    Attributes:
        found: tensors with their values before the first write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []
        self._made: set[int] = set()  # memory of results
        self._written: set[Hashable] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable:
            for number, argument in enumerate(schema.arguments):
                if argument.is_write:
                    value = args[number] if number < len(args) else kwargs.get(argument.name)
                    for tensor in tree_leaves(value):
                        self._note(tensor)
        results = func(*args, **kwargs)
        if not any(result.alias_info for result in schema.returns):
            self._made.update(memory_of(tensor) for tensor in tree_leaves(results))
        return results

    def _note(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or memory_of(tensor) in self._made:
            return
        part = memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        if part not in self._written:
            self._written.add(part)
            self.found.append((tensor, tensor.detach().clone()))


def _cuda_random_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
