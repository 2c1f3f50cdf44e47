"""What a recorded program takes for granted about objects outside of it."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

_Fact = tuple[Mapping[Any, Any], Any, Any]


class Assumptions:
    """That modules and Pyro's store still hold the very tensors that a program was recorded with.

    A parameter that was replaced by another one would silently keep its old value in the program, and a
    module that went from training to evaluation its old behaviour.

    Args:
        modules: whose parameters, buffers, submodules and modes are to stay; all that is below them, too.
        names: of parameters in Pyro's store, or not.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], names: Iterable[str]) -> None:
        self._facts: list[_Fact] = []
        self.tensors: list[Tensor] = []
        for module in dict.fromkeys(part for whole in modules for part in whole.modules()):
            self._add(vars(module), ["training"])
            for held in (module._parameters, module._buffers, module._modules):
                self._add(held, held)
            held_tensors = (*module._parameters.values(), *module._buffers.values())
            self.tensors += [tensor for tensor in held_tensors if tensor is not None]
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}

    def _add(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        self._facts += [(holder, key, holder[key]) for key in keys]

    def hold(self) -> bool:
        """Whether everything is as it was."""
        for holder, key, value in self._facts:
            if holder.get(key) is not value:
                return False
        if self._stored:
            store = dict(pyro.get_param_store().named_parameters())
            return all(store.get(name) is value for name, value in self._stored.items())
        return True


def modules_of(*programs: Any) -> list[torch.nn.Module]:
    """The modules that programs are, or are bound methods of."""
    owners = (getattr(program, "__self__", program) for program in programs)
    return list(dict.fromkeys(owner for owner in owners if isinstance(owner, torch.nn.Module)))
