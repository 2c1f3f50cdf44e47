"""Replaying recorded tensor programs, as they are or compiled."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from pyro_fmvae.capture.recording import Layout, Recording, layouts
from pyro_fmvae.capture.shortcuts import shortened

TensorProgram = Callable[..., tuple[Tensor, ...]]
_aten = torch.ops.aten
_DEVICES = ("cpu", "cuda")
_EXPENSIVE = (_aten.digamma.default, _aten.lgamma.default, _aten.polygamma.default, _aten.pow.Scalar)


def plain(recording: Recording) -> TensorProgram:
    """Run the operations one after another: the kernels of the eager step, bit by bit.

    Rewrites the graph of the recording, as :func:`compiled` does.
    """
    short = shortened(recording)
    forward, state = short.function(), short.state

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with _as_recorded():
            return forward(*inputs, *state)

    return run


def compiled(recording: Recording) -> TensorProgram:
    """Let the compiler of ``torch.compile`` fuse the operations; random numbers stay those of the eager step.

    It gets the recorded graph as it is. ``torch.compile`` itself would find the graph anew, and compare all
    tensors with it before every call, which :class:`~pyro_fmvae.capture.guards.Assumptions` has just done.

    On a CPU it needs a C++ compiler. The first call compiles, which takes seconds.
    """
    from torch._inductor import compile as fuse  # seconds, and needed only here

    _share_exponentials(recording.graph)
    _keep_apart(recording.graph)
    on_gpu = any(tensor.is_cuda for tensor in recording.state)
    if on_gpu:
        _lay_out(recording.graph)
    module = GraphModule(torch.nn.Module(), recording.graph)
    state = [tensor.detach() for tensor in recording.state]  # the same memory, whatever class they are of
    fused: Callable[..., Any] | None = None

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        nonlocal fused
        with _as_recorded():
            if fused is None:
                options = {"fallback_random": True}
                if on_gpu:  # what was laid out stays so
                    options["layout_optimization"] = False
                fused = fuse(module, [*inputs, *state], options=options)
            return tuple(fused(*inputs, *state))

    return run


def casts() -> tuple[Hashable, ...]:
    """The types that ``torch.autocast`` around a step casts to, by device: the recording has them inside."""
    return tuple(torch.is_autocast_enabled(d) and torch.get_autocast_dtype(d) for d in _DEVICES)


@contextmanager
def _as_recorded() -> Iterator[None]:
    """Without gradients, and without an autocast around the replay: what it casts was recorded as cast."""
    with torch.no_grad(), ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, _DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def compiles(device: torch.device) -> str:
    """A line that says why ``torch.compile`` does not work on a device; empty if it works."""
    try:
        torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(2, device=device))
    except Exception as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def _keep_apart(graph: Graph) -> None:
    """Have the values of expensive functions stored, which fusion would compute again for every use.

    They are functions of one number per component (or of Adam's count of steps), but are used once per
    component *and* data point or dimension: fused into those loops, B·K digammas take longer than all the
    rest of a step, and conversions from float64 halve the speed of what is left.
    """
    for node in graph.nodes:
        if node.op == "call_function" and (node.target in _EXPENSIVE or _narrows(node)):
            with graph.inserting_after(node):
                stored = _stored(graph, node, layouts(node)[0])
            node.replace_all_uses_with(stored, delete_user_cb=lambda user, stored=stored: user is not stored)


def _lay_out(graph: Graph) -> None:
    """Let transposed convolutions to one channel pass back contiguous gradients.

    The compiler predicts the layout of such a gradient from that of the images, which may be channels last.
    cuDNN goes by the gradient that comes in, which with one channel counts as contiguous.
    """
    for node in graph.nodes:
        if node.target is not _aten.convolution_backward.default or not node.args[7]:  # transposed
            continue
        incoming, images, *_ = node.args
        if layouts(incoming)[0].shape[1] == 1:
            with graph.inserting_before(node):
                layout: dict[str, Any] = {"memory_format": torch.contiguous_format}
                laid = graph.call_function(_aten.clone.default, (images,), layout)
            laid.meta = {"layouts": [Layout.of(layouts(images)[0].empty("meta").contiguous())]}
            node.replace_input_with(images, laid)


def _stored(graph: Graph, node: Node, value: Layout) -> Node:
    """A node that has the value stored: a strided view is of memory only."""
    stored = graph.call_function(_aten.as_strided.default, (node, list(value.shape), list(value.stride)))
    stored.meta = {"layouts": [value]}
    return stored


def _narrows(node: Node) -> bool:
    if node.target is not _aten._to_copy.default:
        return False
    (given,), (result,) = layouts(node.all_input_nodes[0]), layouts(node)
    return given.dtype == torch.float64 and result.dtype == torch.float32


def _share_exponentials(graph: Graph) -> None:
    """Compute softmax and log-softmax of the same numbers from one exponential of each."""
    shared: dict[tuple[Any, ...], tuple[Node, ...]] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (
            _aten._softmax.default,
            _aten._log_softmax.default,
        ):
            continue
        logits, dim, _ = node.args
        with graph.inserting_before(node):
            if (logits, dim) not in shared:
                largest = graph.call_function(_aten.amax.default, (logits, [dim], True))
                moved = graph.call_function(_aten.sub.Tensor, (logits, largest))
                powers = graph.call_function(_aten.exp.default, (moved,))
                total = graph.call_function(_aten.sum.dim_IntList, (powers, [dim], True))
                shared[logits, dim] = moved, powers, total
            moved, powers, total = shared[logits, dim]
            if node.target is _aten._softmax.default:
                inverse = graph.call_function(_aten.reciprocal.default, (total,))
                total_of = layouts(node)[0].empty("meta").sum(dim, keepdim=True)
                stored = _stored(graph, inverse, Layout.of(total_of))
                result = graph.call_function(_aten.mul.Tensor, (powers, stored))
            else:
                result = graph.call_function(
                    _aten.sub.Tensor, (moved, graph.call_function(_aten.log.default, (total,)))
                )
        result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
