"""Fewer and faster calls with equal results, for programs that replay operation by operation.

A step on a small batch spends most of its time between the kernels. So what depends on no tensor from outside
is computed once, values that are equal by construction are computed once per step, views of everything are
left out, and each operation is called by torch's own Python function where that reaches the same kernel.
"""

import itertools
import operator
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.recording import Recording, has_effect, is_mutable, is_random, layouts

_aten = torch.ops.aten
_RESHAPING = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.expand.default,
    _aten.alias.default,
    _aten.detach.default,
}
_CONSTANTS = {
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
}
_MOST_BYTES = 2**20  # of a value that is kept between steps, or for longer than until its first use


def shortened(recording: Recording) -> Recording:
    """The program, to the bit, in fewer and faster calls; takes the recording's graph to pieces."""
    graph = recording.graph
    state = [*recording.state, *_fold(graph, recording.state)]
    _skip_views(graph)
    _skip_gathers(graph, state)
    _share(graph)
    graph.eliminate_dead_code(has_effect)
    _call_directly(graph, state)
    return Recording(graph, tuple(state))


def _fold(graph: Graph, state: Iterable[Tensor]) -> list[Tensor]:
    """Compute what depends on no tensor from outside; returns it, in the order of new inputs."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written, known = _written(graph), dict[Node, Any]()
    for node, tensor in zip(reversed(placeholders), reversed(list(state)), strict=False):
        if all(user.target is _aten.lift_fresh_copy.default for user in node.users):
            known[node] = tensor  # a number that the program has made into a tensor
    for node in _calls(graph):
        if is_mutable(node) or is_random(node) or _source(node) in written:
            continue
        values = _shapes_of(node.all_input_nodes) if node.target in _CONSTANTS and _is_small(node) else known
        if all(each in values for each in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            operation: Any = node.target
            value = operation(*args, **kwargs)
            if all(t.untyped_storage().nbytes() <= _MOST_BYTES for t in _tensors(value)):
                known[node] = value
    found, last, inputs = list[Tensor](), placeholders[-1], dict[Hashable, Node]()
    for node, value in known.items():
        if node.op == "placeholder" or not isinstance(value, Tensor) or node.users.keys() <= known.keys():
            continue
        numbers = _numbers(value)
        if numbers not in inputs:
            with graph.inserting_after(last):
                last = inputs[numbers] = graph.placeholder(f"folded{len(found)}")
            last.meta = dict(node.meta)
            found.append(value)
        node.replace_all_uses_with(inputs[numbers])
    return found


def _numbers(value: Tensor) -> Hashable:
    """Equal for tensors of the same numbers in the same layout; a large one is equal to itself alone."""
    if value.numel() * value.element_size() > _MOST_BYTES:
        return id(value)
    layout = value.dtype, value.device, value.shape, value.stride()
    row = value.detach().flatten().clone(memory_format=torch.contiguous_format)
    return *layout, row.view(torch.uint8).cpu().numpy().tobytes()


def _shapes_of(nodes: Iterable[Node]) -> dict[Node, Tensor]:
    """Tensors like the values of nodes, without their numbers."""
    return {node: each.empty() for node in nodes for each in layouts(node)}


def _skip_views(graph: Graph) -> None:
    """Leave out views of all elements in the same layout."""
    for node in list(_calls(graph)):
        source: Any = node.args[0] if node.args else None
        if node.target in _RESHAPING and layouts(source) == layouts(node):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _skip_gathers(graph: Graph, state: Iterable[Tensor]) -> None:
    """Leave out gathers, and sums by number, whose numbers are 0, 1, … for all rows."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    known = dict(zip(reversed(placeholders), reversed(list(state)), strict=False))
    folded = {node: value for node, value in known.items() if node.name.startswith("folded")}
    written = _written(graph)
    for node in list(_calls(graph)):
        given: Any = node.args
        if node.target is _aten.index_select.default:
            (source, dim, index), zeros = given, None
        elif node.target is _aten.index_add.default and not node.kwargs:
            zeros, dim, index, source = given
        else:
            continue
        if (
            index not in folded
            or layouts(source) != layouts(node)
            or {_source(node), _source(source)} & written
        ):
            continue
        adds_to_zeros = zeros is None or (zeros in folded and not folded[zeros].any())
        numbers = folded[index]
        if adds_to_zeros and torch.equal(numbers, torch.arange(layouts(node)[0].shape[dim]).to(numbers)):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _share(graph: Graph) -> None:
    """Compute equal values once, if they are small: a program may compute large ones twice to save memory."""
    written = {node for node in _written(graph) if node.op == "call_function"}
    known, readers = dict[Hashable, Node](), defaultdict[Node, list[Hashable]](list)
    for node in list(_calls(graph)):
        if is_mutable(node):
            changed = set(_changed(node))
            if any(each.op == "placeholder" for each in changed):  # which may share memory with others
                known.clear()
            for key in itertools.chain.from_iterable(readers.pop(each, ()) for each in changed):
                known.pop(key, None)
        elif not is_random(node) and _is_small(node) and _source(node) not in written:
            key = node.target, _key(node.args), _key(node.kwargs)
            same = known.setdefault(key, node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
            else:
                for source in map(_source, node.all_input_nodes):
                    readers[source].append(key)


def _call_directly(graph: Graph, state: Iterable[Tensor]) -> None:
    """Call operations past ``torch.ops``, which takes as long again as a small kernel."""
    values: dict[Node, Any] = {node: each.empty("meta") for node in graph.nodes for each in layouts(node)}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    values.update(zip(reversed(placeholders), reversed(list(state)), strict=False))
    for node in list(_calls(graph)):
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.partition("::")[2]
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        function: Any = getattr(torch._C._VariableFunctions, name, None)
        method = getattr(torch._C.TensorBase, name, None)
        if function is not None and _reaches(function, node.target, args, kwargs):
            node.target = function
        elif method is not None and _reaches(method, node.target, args, kwargs):
            node.op, node.target = "call_method", name


class _Reached(BaseException):
    """Carries the operation that a call arrived at."""


class _First(TorchDispatchMode):
    """Stops at the first operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reached(func, args, kwargs or {})


def _reaches(function: Any, operation: Any, args: Any, kwargs: Any) -> bool:
    """True if a function hands its arguments to an operation just as they are."""
    try:
        with _First():
            function(*args, **kwargs)
    except _Reached as reached:
        found, *given = reached.args
        ours, theirs = tree_leaves((args, kwargs)), tree_leaves(tuple(given))
        return found is operation and len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    except (TypeError, ValueError, RuntimeError):
        pass
    return False


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, Tensor) and type(one) is type(other) and one == other)


def _calls(graph: Graph) -> Iterable[Node]:
    return (node for node in graph.nodes if node.op == "call_function")


def _source(node: Node) -> Node:
    """The node whose memory a node's value is in."""
    while node.target is operator.getitem or getattr(node.target, "is_view", False) or _is_in_place(node):
        node = node.all_input_nodes[0]
    return node


def _is_in_place(node: Node) -> bool:
    """True for an operation that returns its first argument, changed."""
    operation: Any = node.target
    return is_mutable(node) and _is_written(operation._schema.arguments[0])


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _changed(node: Node) -> Iterable[Node]:
    """The values whose memory an operation changes."""
    operation: Any = node.target
    arguments = operation._schema.arguments
    given = {**{a.name: x for a, x in zip(arguments, node.args, strict=False)}, **node.kwargs}
    written = [given.get(a.name) for a in arguments if _is_written(a)]
    return (_source(each) for each in tree_leaves(written) if isinstance(each, Node))


def _written(graph: Graph) -> set[Node]:
    """Values that are changed in place, by the program or by whoever gets its results."""
    results = next(node for node in graph.nodes if node.op == "output").all_input_nodes
    changed = [each for node in filter(is_mutable, _calls(graph)) for each in _changed(node)]
    return {_source(node) for node in (*results, *changed)}


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _is_small(node: Node) -> bool:
    return all(each.nbytes <= _MOST_BYTES for each in layouts(node))


def _key(value: Any) -> Hashable:
    """Equal for arguments that are the same: 1, 1.0 and True are not."""
    if isinstance(value, list | tuple):
        return (type(value), *map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return value if isinstance(value, Node) else (type(value), repr(value))
