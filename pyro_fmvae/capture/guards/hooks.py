"""Hooks of modules and of gradients, and each module's ``forward``, which may be replaced."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.capture.refusals import CaptureError

_OF_A_MODULE = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_Hooks = tuple[Any, ...]


class Hooks:
    """The hooks of modules and tensors at one time, and each module's ``forward``.

    Args:
        modules: to watch, without the modules below them.
        tensors: leaves to watch.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], tensors: Iterable[Tensor]) -> None:
        self._modules = [
            (
                module,
                vars(module),
                type(module).forward,
                vars(module).get("forward"),
                _of_module(vars(module)),
            )
            for module in modules
        ]
        self._tensors = [(tensor, _of_tensor(tensor)) for tensor in tensors]

    def hold(self) -> bool:
        """True if all are as they were. It is asked before every step, and most modules have no hooks."""
        pre, after, back_pre, back = _OF_A_MODULE
        for module, held, forward, own, then in self._modules:
            if type(module).forward is not forward or held.get("forward") is not own:
                return False
            some = then or held[pre] or held[after] or held[back_pre] or held[back]
            if some and _of_module(held) != then:
                return False
        for tensor, then in self._tensors:
            some = then or tensor._backward_hooks or tensor._post_accumulate_grad_hooks
            if some and _of_tensor(tensor) != then:
                return False
        return True


def _of_module(held: Mapping[str, Any]) -> _Hooks:
    """A module's hooks, each with a number that torch gives to no other."""
    return tuple((name, *hook) for name in _OF_A_MODULE for hook in held[name].items())


def _of_tensor(tensor: Tensor) -> _Hooks:
    kinds = enumerate((tensor._backward_hooks, tensor._post_accumulate_grad_hooks))
    return tuple((kind, *hook) for kind, hooks in kinds for hook in (hooks or {}).items())


def functions(module: torch.nn.Module) -> list[Callable[..., Any] | None]:
    """Functions that run when a module is called, and on the way back: ``forward``, and its hooks."""
    held = vars(module)
    hooks = [held.get(name) for name in _OF_A_MODULE]
    hooks += [p._backward_hooks for p in module._parameters.values() if p is not None]
    forward = held.get("forward") or getattr(type(module), "forward", None)  # a ScriptModule's class has none
    return [forward, *(hook for each in hooks if each for hook in each.values())]


def refuse_hooks_on_sums(tensors: Iterable[Tensor]) -> None:
    """Refuse hooks that run once a gradient was added to ``grad``: they may take the optimiser's own step.

    Raises:
        CaptureError: a tensor that is learnt has one.
    """
    for tensor in tensors:
        if tensor.requires_grad and tensor._post_accumulate_grad_hooks:
            raise CaptureError(
                f"the step cannot be captured: a parameter of shape {list(tensor.shape)} has a hook of "
                "register_post_accumulate_grad_hook, which no replay would run. Use register_hook, or pass "
                "eager=True"
            )
