"""What a recorded program takes for granted about objects outside of it."""

import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.guards.hooks import Hooks
from pyro_fmvae.capture.guards.outside import Outside, attributes
from pyro_fmvae.capture.guards.places import Observed, Place, Trail
from pyro_fmvae.capture.recording import CaptureError, Recording
from pyro_fmvae.infer.elbo.operations import memory_of, uncompiled

_Fact = tuple[Mapping[Any, Any], Any, Any]


class Assumptions:
    """That modules and Pyro's store still hold the very tensors that a program was recorded with.

    A parameter that was replaced by another one would silently keep its old value in the program, as would
    numbers, strings and tensors among a module's attributes or in variables of a function, and a module that
    went from training to evaluation, or got a hook or another ``forward``, its old behaviour. What the
    program itself changes (counters) is left out.

    Args:
        modules: whose parameters, buffers, submodules, attributes, modes, hooks and ``forward`` are to stay;
            all that is below them, too.
        names: of parameters in Pyro's store, or not.
        places: what else is to stay.
        changing: what the program itself changes, among attributes and places: key → trails.
        replaced: attributes and variables into which the program puts another tensor each time, and the
            tensors that are there when it is recorded.
    """

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        names: Iterable[str],
        places: Iterable[Place] = (),
        changing: Mapping[tuple[int, Any], Collection[Trail]] | None = None,
        replaced: Iterable[tuple[str, Tensor]] = (),
    ) -> None:
        self._replaced = list(replaced)
        self._facts: list[_Fact] = []
        places = list(places)
        self.tensors: list[Tensor] = []
        parts = dict.fromkeys(part for whole in modules for part in whole.modules())
        known = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]  # no Python in those
        for module in known:
            self._add(vars(module), vars(module).keys() & {"training"})  # a compiled one asks that inside it
            places += attributes(module)
            for held in (module._parameters, module._buffers, module._modules):
                self._add(held, held)
            held_tensors = (*module._parameters.values(), *module._buffers.values())
            self.tensors += [tensor for tensor in held_tensors if tensor is not None]
        observed = {each.key: each for each in map(Observed, places)}
        changing = changing or {}
        self._changeable = [
            (each, changing.get(key, ())) for key, each in observed.items() if each.changeable
        ]
        others = [each for key, each in observed.items() if not (each.changeable or key in changing)]
        self._others = [(each.holder.get, each.name, each.then, each) for each in others]
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}
        tensors = dict.fromkeys((*self.tensors, *self._stored.values()))
        self._kinds = [(tensor, *_kind(tensor)) for tensor in tensors]
        self._hooks = Hooks(known, tensors)

    def _add(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        self._facts += [(holder, key, holder[key]) for key in keys]

    def check(self, recording: Recording) -> None:
        """That the program that was recorded keeps up with what it changes itself.

        Raises:
            CaptureError: it does not.
        """
        if not self.hold():
            raise CaptureError(
                "the step cannot be captured: the program puts another tensor in the place of a parameter or "
                "buffer, or changes a module's mode or hooks. Change tensors in place (by copy_, say), or "
                "pass eager=True"
            )
        read = {memory_of(tensor) for tensor in recording.state}
        for name, tensor in self._replaced:
            if memory_of(tensor) in read:
                raise CaptureError(
                    f"the step cannot be captured: it reads '{name}' and puts another tensor in its place. "
                    "Make it a buffer that is changed in place (by copy_, say), or pass eager=True"
                )

    def hold(self) -> bool:
        """Whether everything is as it was."""
        for holder, key, value in self._facts:
            if holder.get(key) is not value:
                return False
        for get, name, then, each in self._others:
            if get(name) is not then and not each.holds():
                return False
        if not all(each.holds(but) for each, but in self._changeable):
            return False
        for tensor, place, trainable in self._kinds:
            if tensor.data_ptr() != place or tensor.requires_grad != trainable:
                return False
        if not self._hooks.hold():
            return False
        if self._stored:
            store = dict(pyro.get_param_store().named_parameters())
            return all(store.get(name) is value for name, value in self._stored.items())
        return True


def _kind(tensor: Tensor) -> tuple[int, bool]:
    """Where a tensor's values are (elsewhere after ``module.to``), and whether it is learnt."""
    return tensor.data_ptr(), tensor.requires_grad


class Rehearsal:
    """A run of programs that finds what they depend on, and can be undone.

    Args:
        programs: functions, modules or their methods, which say more or less of what they are going to call.

    Attributes:
        modules: those that the programs show, and all that were called.
    """

    def __init__(self, *programs: Any) -> None:
        self._outside = Outside(programs)
        self.modules = list(self._outside.modules)
        self._parts: set[torch.nn.Module] = set()
        self._observed: dict[tuple[int, Any], Observed] = {}
        self._buffers: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        self._writes = _Writes()
        self._existing = {p for _, p in pyro.get_param_store().named_parameters()}
        self._random = torch.get_rng_state(), _cuda_random_states()
        self._trees = [(module, self._note(module)) for module in self.modules]
        self._observe(self._outside.places)

    @property
    def written(self) -> list[Tensor]:
        """Tensors, neither parameters nor buffers, that the run changed in place."""
        return [tensor for tensor, _ in self._writes.found]

    def _observe(self, places: Iterable[Place]) -> None:
        for each in map(Observed, places):
            self._observed.setdefault(each.key, each)

    def _note(self, module: torch.nn.Module) -> set[torch.nn.Module]:
        tree = set(module.modules())
        for part in tree:
            if part not in self._parts:
                self._parts.add(part)
                self._observe(attributes(part))
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
            self._observe(self._outside.places)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look out for the calls of modules, and for tensors that are written to."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            with uncompiled(), self._writes, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using `torch.compile.* global hooks on modules")
                yield
        finally:
            hook.remove()

    def made(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of the parameters was made in the run, or a module under one that was known."""
        if any(part not in tree for module, tree in self._trees for part in module.modules()):
            return True
        return not self._existing.issuperset(parameters)

    def assumptions(self, names: Iterable[str]) -> Assumptions:
        """What a program that is recorded now may rely on, given the names of its parameters."""
        changes = {key: each.changes() for key, each in self._observed.items()}
        changing = {key: trails for key, trails in changes.items() if trails}
        now = [(each.name, each.value) for key, each in self._observed.items() if key in changing]
        replaced = [(name, value) for name, value in now if isinstance(value, Tensor)]
        return Assumptions(self.modules, names, self._outside.places, changing, replaced)

    @torch.no_grad()
    def undo(self) -> None:
        """Give tensors that are no parameters their values from before, and rewind the random numbers."""
        for held, name, buffer, value in self._buffers:
            held[name] = buffer
            buffer.copy_(value)
        for tensor, value in reversed(self._writes.found):
            tensor.copy_(value)
        torch.set_rng_state(self._random[0])
        if self._random[1]:
            torch.cuda.set_rng_state_all(self._random[1])


class _Writes(TorchDispatchMode):
    """Finds tensors from outside that operations write to.

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
