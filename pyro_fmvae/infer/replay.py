"""Replaying recorded tensor programs, as they are or compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from pyro_fmvae.infer.capture import Recording

Program = Callable[..., tuple[Tensor, ...]]
_aten = torch.ops.aten
_EXPENSIVE = (_aten.digamma.default, _aten.lgamma.default, _aten.polygamma.default)


def plain(recording: Recording) -> Program:
    """Run the operations one after another: the kernels of the eager step, bit by bit."""
    forward, state = recording.module.forward, recording.state

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return forward(*inputs, *state)

    return run


def compiled(recording: Recording) -> Program:
    """Let ``torch.compile`` fuse the operations; random numbers stay those of the eager step.

    On a CPU it needs a C++ compiler. The first call compiles, which takes seconds.
    """
    _keep_apart(recording.module)
    options: Any = {"fallback_random": True}
    fused = torch.compile(recording.module, fullgraph=True, dynamic=False, options=options)
    state = recording.state

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return fused(*inputs, *state)

    return run


def compiles(device: torch.device) -> str:
    """What keeps ``torch.compile`` from working on a device, in a line; empty if nothing does."""
    try:
        torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(2, device=device))
    except Exception as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def _keep_apart(module: GraphModule) -> None:
    """Have the values of expensive functions stored, which fusion would compute again for every use.

    They are functions of one number per component, but are used once per component *and* data point or
    dimension: fused into those loops, B·K digammas take longer than all the rest of a step. A strided view
    needs its argument in memory.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _EXPENSIVE:
            value = node.meta["val"]
            with module.graph.inserting_after(node):
                shape = list(value.shape), list(value.stride())
                stored = module.graph.call_function(_aten.as_strided.default, (node, *shape))
            node.replace_all_uses_with(stored, delete_user_cb=lambda user, stored=stored: user is not stored)
    module.recompile()
