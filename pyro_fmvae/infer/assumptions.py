"""What a recorded program takes for granted about objects outside of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

_Fact = tuple[Mapping[Any, Any], Any, Any]
_PLAIN = (bool, int, float, complex, str, Tensor)


class Assumptions:
    """That modules and Pyro's store still hold the very tensors that a program was recorded with.

    A parameter that was replaced by another one would silently keep its old value in the program, as would
    numbers, strings and tensors among a module's attributes, and a module that went from training to
    evaluation its old behaviour. Attributes that the program itself changes (counters) are left out.

    Args:
        modules: whose parameters, buffers, submodules and modes are to stay; all that is below them, too.
        names: of parameters in Pyro's store, or not.
        changing: (id of a module's attributes, name) of those that the program itself changes.
    """

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        names: Iterable[str],
        changing: Collection[tuple[int, str]] = (),
    ) -> None:
        self._facts: list[_Fact] = []
        self._plain: list[_Fact] = []
        self.tensors: list[Tensor] = []
        for module in dict.fromkeys(part for whole in modules for part in whole.modules()):
            self._add(vars(module), ["training"])
            self._plain += _plain_attributes(module)
            for held in (module._parameters, module._buffers, module._modules):
                self._add(held, held)
            held_tensors = (*module._parameters.values(), *module._buffers.values())
            self.tensors += [tensor for tensor in held_tensors if tensor is not None]
        self._plain = [fact for fact in self._plain if (id(fact[0]), fact[1]) not in changing]
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}
        tensors = dict.fromkeys((*self.tensors, *self._stored.values()))
        self._kinds = [(tensor, *_kind(tensor)) for tensor in tensors]

    def _add(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        self._facts += [(holder, key, holder[key]) for key in keys]

    def hold(self) -> bool:
        """Whether everything is as it was."""
        for holder, key, value in self._facts:
            if holder.get(key) is not value:
                return False
        for attributes, name, value in self._plain:
            now = attributes.get(name)
            if now is not value and (type(now) is not type(value) or isinstance(now, Tensor) or now != value):
                return False
        for tensor, place, trainable in self._kinds:
            if tensor.data_ptr() != place or tensor.requires_grad != trainable:
                return False
        if self._stored:
            store = dict(pyro.get_param_store().named_parameters())
            return all(store.get(name) is value for name, value in self._stored.items())
        return True


def _plain_attributes(module: torch.nn.Module) -> list[_Fact]:
    held = vars(module)
    return [(held, name, value) for name, value in held.items() if value is None or isinstance(value, _PLAIN)]


def _kind(tensor: Tensor) -> tuple[int, bool]:
    """Where a tensor's values are (elsewhere after ``module.to``), and whether it is learnt."""
    return tensor.data_ptr(), tensor.requires_grad


def modules_of(*programs: Any) -> list[torch.nn.Module]:
    """The modules that programs are, or are bound methods of."""
    owners = (getattr(program, "__self__", program) for program in programs)
    return list(dict.fromkeys(owner for owner in owners if isinstance(owner, torch.nn.Module)))


class Rehearsal:
    """A run of a program that finds its modules, and can be undone.

    A program may be a plain function over modules, which says nothing about what it is going to call.

    Args:
        modules: those that are known beforehand.

    Attributes:
        modules: those, and all that were called.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.modules = list(modules)
        self._parts: set[torch.nn.Module] = set()
        self._plain: list[_Fact] = []
        self._buffers: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        self._existing = {p for _, p in pyro.get_param_store().named_parameters()}
        self._random = torch.get_rng_state(), _cuda_random_states()
        self._trees = [(module, self._note(module)) for module in self.modules]

    def _note(self, module: torch.nn.Module) -> set[torch.nn.Module]:
        tree = set(module.modules())
        for part in tree:
            if part not in self._parts:
                self._parts.add(part)
                self._plain += _plain_attributes(part)
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

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look out for the calls of modules."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            yield
        finally:
            hook.remove()

    def made(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of the parameters was made in the run, or a module under one that was known."""
        if any(part not in tree for module, tree in self._trees for part in module.modules()):
            return True
        return not self._existing.issuperset(parameters)

    def changed(self) -> set[tuple[int, str]]:
        """Attributes of the modules that the run changed."""
        return {(id(held), name) for held, name, value in self._plain if held.get(name) is not value}

    @torch.no_grad()
    def undo(self) -> None:
        """Give buffers their values from before their modules were called, and rewind the random numbers."""
        for held, name, buffer, value in self._buffers:
            held[name] = buffer
            buffer.copy_(value)
        torch.set_rng_state(self._random[0])
        if self._random[1]:
            torch.cuda.set_rng_state_all(self._random[1])


def _cuda_random_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
