"""Telling Pyro about the parameters of a module without putting them into its global store."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import effectful
from torch import Tensor


def param_statements(name: str, module: torch.nn.Module) -> None:
    """Issue a ``pyro.param`` statement for every parameter of a module, for handlers and ``SVI`` to see.

    ``pyro.module`` keeps parameters in a global store under their names; a second module of the same name is
    then silently left untrained. These statements carry the module's own parameters and store nothing,
    whatever ``pyro.settings`` says about ``module_local_params``.

    Args:
        name: prefix of the statements' names, unique within a model or guide.
        module: the module; parameters that need no gradient are left out.
    """
    for suffix, parameter in module.named_parameters():
        if parameter.requires_grad:
            _statement(f"{name}$$${suffix}", parameter)


class GivenParameters(Messenger):
    """Gives ``pyro.param`` statements the values that they have elsewhere, so that nothing is stored.

    Args:
        values: by the statements' full names, those of ``pyro.module`` included.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._values = values

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] in self._values:
            msg["value"], msg["done"] = self._values[msg["name"]], True


def _value(parameter: Any, constraint: constraints.Constraint) -> Any:
    return parameter


_param = effectful(_value, type="param")


class _Reference(weakref.ref[Any]):
    """A weak reference that is left out of pickles: a parameter with one can be in them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _statement(name: str, parameter: Any) -> None:
    parameter.unconstrained = _Reference(parameter)
    _param(parameter, constraint=constraints.real, name=name)
