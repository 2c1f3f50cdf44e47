"""Models and guides as modules, so that their parameters are found."""

import inspect
from collections.abc import Callable
from typing import Any

import pyro.poutine as poutine
import torch

_EXPECTED = "expected a torch.nn.Module, a bound method of one or a function without parameters"


class BoundMethod(torch.nn.Module):
    """A bound method of a module, as a module of its own that shares the owner's parameters."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.owner = method.__self__
        self.name = method.__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return getattr(self.owner, self.name)(*args, **kwargs)


class Function(torch.nn.Module):
    """A function without parameters as a module."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            ValueError: it has parameters, which are not among those of this module.
        """
        with poutine.trace(param_only=True) as capture:
            result = self.function(*args, **kwargs)
        if found := sorted(capture.trace.nodes):
            raise ValueError(f"{self.name}: {_EXPECTED}, got a function with the parameter '{found[0]}'")
        return result


def as_module(name: str, program: Any) -> torch.nn.Module:
    """A module as it is; a bound method of one, or a function without parameters, as a module.

    The function may be wrapped by handlers, such as ``config_enumerate``.

    Args:
        name: its name in error messages.
        program: a model or a guide.

    Raises:
        TypeError: something else, or a function that uses a module, whose parameters could not be found.
    """
    if isinstance(program, torch.nn.Module):
        return program
    if inspect.ismethod(program) and isinstance(program.__self__, torch.nn.Module):
        return BoundMethod(program)
    function = inspect.unwrap(program)
    if not inspect.isfunction(function):
        raise TypeError(f"{name}: {_EXPECTED}, got {type(program).__name__}")
    uses = inspect.getclosurevars(function)
    for variable, value in {**uses.globals, **uses.nonlocals}.items():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{name}: {_EXPECTED}, got a function that uses the module '{variable}'")
    return Function(name, program)
