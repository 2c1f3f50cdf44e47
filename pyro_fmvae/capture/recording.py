"""Recording a function on tensors as a plain tensor program, with whatever Python did around it left behind.

The function runs once, on real tensors, and every operation that reaches the kernels is noted: nothing is
left of Pyro's handlers, of autograd and of Python itself. A program may be replayed because it has no other
inputs than tensors: those that were given, and those that the function found by itself (parameters, buffers,
constants), which are taken in by identity and read anew at every replay.
"""

import contextlib
import linecache
import logging
import operator
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.fx import Graph, Interpreter, Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_fmvae.distributions.recorded import recorded
from pyro_fmvae.infer.elbo.lazy import Lazy, uncompiled

# Refusals: programs that no recording could repeat, with the line that is to blame.


logger = logging.getLogger("pyro_fmvae")

PATIENCE = 5.0  # seconds that capturing may take without a word
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, pyro, contextlib))
_MACHINERY = tuple(_LIBRARIES[0] + name for name in ("_", "fx" + os.sep, "utils" + os.sep))
_PACKAGE = Path(__file__).parent.parent
_HERE = tuple(str(_PACKAGE / part) + os.sep for part in ("capture", "em", "infer"))
_LEAVES_TENSORS = {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr"}
_aten = torch.ops.aten
_COPIES_LISTS = {"tensor", "as_tensor", "asarray", "new_tensor"}


class CaptureError(RuntimeError):
    """A step that cannot be captured; the message names the line of the program that prevents it."""


class RefusedCalls(TorchFunctionMode):
    """Refuses calls that take values out of tensors unseen by dispatch; makes others recordable.

    Args:
        is_fixed: whether a tensor has the same numbers in every replay.
    """

    def __init__(self, is_fixed: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._is_fixed = is_fixed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _LEAVES_TENSORS:
            raise CaptureError(f"{name}() takes a tensor's values out")
        if name in _COPIES_LISTS and any(map(_has_tensors, (*args, *kwargs.values()))):
            raise CaptureError(f"{name}() takes the values of tensors in a list (torch.stack does not)")
        if name == "one_hot":
            return _one_hot(*args, **kwargs)
        if name == "lstm":  # on CPUs oneDNN's, whose way back no recording runs again
            with _without_onednn():
                return func(*args, **kwargs)
        if name == "__getitem__" and not isinstance(args[0], Lazy) and self._is_number(args[1]):
            return _aten.index.Tensor(args[0], [args[1]])  # Python would ask for the number
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._by_numbers(args[1]), *args[2:])
        return func(*args, **kwargs)

    def _is_number(self, index: Any) -> bool:
        """True for a tensor of one integer that may be another in the next replay."""
        is_number = (
            isinstance(index, Tensor) and not index.dim() and index.dtype in (torch.int64, torch.int32)
        )
        return is_number and not self._is_fixed(index)

    def _by_numbers(self, index: Any) -> Any:
        """A tensor's index, with the places of its ones for a mask that is fixed."""
        found: list[Any] = []
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, Tensor) and part.dtype == torch.bool and self._is_fixed(part):
                with _disable_current_modes():
                    places = [place.tolist() for place in part.nonzero(as_tuple=True)]
                found += [torch.tensor(place, dtype=torch.int64, device=part.device) for place in places]
            else:
                found.append(part)
        return index if len(found) == 1 and found[0] is index else tuple(found)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _one_hot(labels: Tensor, num_classes: int = -1) -> Tensor:
    """``torch.nn.functional.one_hot`` without the check of the labels, which takes their values out."""
    if num_classes < 0:
        raise CaptureError("one_hot() without a number of classes looks for the largest label")
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).long()


class OperationChecks:
    """Refuses operations whose result, or its shape, Python would have to know; says so if there are many."""

    def __init__(self) -> None:
        self._operations, self._started = 0, time.perf_counter()

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take an operation that is about to run.

        Raises:
            CaptureError: the value of a tensor is needed in Python, or a shape that depends on one, or a
                generator of random numbers besides torch's own.
        """
        self._operations += 1
        if self._started and time.perf_counter() - self._started > PATIENCE:
            self._started = 0.0
            logger.warning(
                "capturing the step, once for these shapes: %d operations in %.0f s so far. A plate, or a "
                "distribution of whole sequences, has fewer than a loop; eager=True captures nothing",
                self._operations,
                PATIENCE,
            )
        if torch.Tag.data_dependent_output in func.tags:
            raise CaptureError("a number or a truth value is asked of a tensor")
        if torch.Tag.dynamic_output_shape in func.tags and not _indexed_by_integers(func, args):
            raise CaptureError(f"the shape of {func.__name__.split('.')[0]}'s result depends on values")
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                raise CaptureError("random numbers come from a generator of its own")
            if isinstance(value, torch.UntypedStorage):
                raise CaptureError("a tensor takes over the memory of another (as by copy.deepcopy)")


def _indexed_by_integers(func: Any, args: Sequence[Any]) -> bool:
    if func is not torch.ops.aten.index.Tensor:
        return False
    return not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


def refuse_results(tensor: Tensor) -> None:
    """Refuse a tensor that was computed from parameters before: no replay would compute it again.

    Raises:
        CaptureError: it was.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise CaptureError(
            f"the step cannot be captured: a tensor of shape {list(tensor.shape)} was computed from "
            "parameters before the step. Compute it in the model or guide, or pass eager=True"
        )


def explain(error: Exception) -> str:
    """The message for an error, with the line of the user's code that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith((*_HERE, *_MACHINERY, "<"))]
    theirs = [f for f in outside if not f.filename.startswith(_LIBRARIES)] or outside
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    where, advice = "", "change the model"
    if theirs:
        frame, advice = theirs[-1], "replace the line (by torch.where, say)"
        if frame.filename.startswith(_LIBRARIES):
            advice = "replace the distribution or function of the model that runs this line"
        text = linecache.getline(frame.filename, frame.lineno or 0).strip()
        where = f", in {frame.filename}, line {frame.lineno}: {text}"
    return (
        f"the step cannot be captured: {reason}{where}. A captured program is tensor operations alone: "
        f"{advice}, or pass eager=True"
    )


_NUMBERS = (torch.ops.aten.scalar_tensor.default, torch.ops.aten.full.default)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides, dtype and device of a tensor: everything but its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout":
        """Read the layout of a tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    @property
    def nbytes(self) -> int:
        """Size of the numbers."""
        return self.shape.numel() * self.dtype.itemsize

    def empty(self, device: Any = None) -> Tensor:
        """A tensor with any numbers, on its own or another device."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device or self.device)


def layouts(node: Node) -> Sequence[Layout]:
    """Layouts of the tensors that are a node's value."""
    return node.meta.get("layouts", ())


@dataclass(frozen=True)
class Recording:
    """A tensor program.

    Attributes:
        graph: takes the given tensors and then ``state``, one by one; returns a tuple of tensors, and changes
            in place what the function changed in place.
        state: the tensors that the function found by itself.
    """

    graph: Graph
    state: tuple[Tensor, ...]

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The program as a Python function."""
        code = self.graph.python_code("self")
        names = dict(code.globals)
        exec(code.src, names)
        return partial(names["forward"], None)

    def on_device(self) -> bool:
        """True if all tensors are on a GPU, except numbers that are written into the program."""
        results = [node for node in self.graph.nodes if node.op == "call_function"]
        values = [each.device for node in results if node.target not in _NUMBERS for each in layouts(node)]
        return all(device.type == "cuda" for device in (*(each.device for each in self.state), *values))

    @property
    def eps(self) -> float:
        """ε of the coarsest type of floating-point numbers in the program."""
        types = {each.dtype for node in self.graph.nodes for each in layouts(node)}
        return max((torch.finfo(dtype).eps for dtype in types if dtype.is_floating_point), default=0.0)

    @property
    def draws_in_vain(self) -> bool:
        """True if it draws random numbers that nothing uses."""
        return any(is_random(node) and not node.users for node in self.graph.nodes)

    def split(self, num_inputs: int, *num_results: int) -> "list[Recording]":
        """Several programs out of one, to be run one after another.

        Results come in groups: each program ends with the last one of its group, the last program with what
        is left. Each takes the same first ``num_inputs`` tensors and then all that the one before it has
        returned; it returns its group, and behind that what the later ones need.
        """
        *nodes, output = self.graph.nodes
        placeholders = [node for node in nodes if node.op == "placeholder"]
        inputs, state = placeholders[:num_inputs], placeholders[num_inputs:]
        rest, later = list(output.args[0]), [node for node in nodes if node.op != "placeholder"]
        parts, taken = list[Recording](), list[Node]()
        for number in num_results:
            outputs, rest = rest[:number], rest[number:]
            end = max((later.index(node) for node in outputs if node in later), default=-1) + 1
            head, later = later[:end], later[end:]
            needed = {node for each in later for node in each.all_input_nodes}.union(rest)
            crossing = [node for node in (*taken, *head) if node in needed and node not in outputs]
            parts.append(self._part([*inputs, *taken], state, head, [*outputs, *crossing]))
            taken = list(dict.fromkeys((*outputs, *crossing)))
        return [*parts, self._part([*inputs, *taken], state, later, rest)]

    def _part(
        self, inputs: Sequence[Node], state: Sequence[Node], body: Sequence[Node], outputs: Sequence[Node]
    ) -> "Recording":
        used = [(node, t) for node, t in zip(state, self.state, strict=True) if node.users.keys() & set(body)]
        graph, copies = Graph(), dict[Node, Node]()
        for node in (*inputs, *(node for node, _ in used)):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in body:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        graph.output(tuple(copies[node] for node in outputs))
        return Recording(graph, tuple(tensor for _, tensor in used))


def record(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    state: Sequence[Tensor] = (),
    *,
    rest_is_fixed: bool = False,
) -> Recording:
    """Record a function.

    Args:
        function: takes ``inputs``; its results depend on nothing but tensors.
        inputs: tensors that may be others at each replay.
        state: tensors that the function may read or change in place. They are restored afterwards, as are the
            random number generators, so that recording changes nothing.
        rest_is_fixed: whether all other tensors that it reads, such as its data, have the same numbers in
            every replay, so that Python may know them.

    Raises:
        CaptureError: the function needs the value of a tensor in Python, or a shape that depends on one, or
            sets the state of a random number generator.
    """
    inputs = [tensor.detach() for tensor in inputs]
    known = list(dict.fromkeys(tensor for tensor in state if not any(tensor is x for x in inputs)))
    recorder = _Recorder(inputs, known, rest_is_fixed)
    with unchanged(known, inputs), torch.autograd.set_multithreading_enabled(False), _no_kept_casts():
        try:
            with recorded(), recorder, uncompiled(), RefusedCalls(recorder.is_fixed):
                results = function(*inputs)
        except Exception as error:
            raise CaptureError(explain(error)) from error
        drawn = _random_states(inputs)
    recording = recorder.recording(results)
    with unchanged(known, inputs), torch.no_grad():
        try:
            Interpreter(torch.nn.Module(), graph=recording.graph).run(*inputs, *recording.state)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CaptureError(
                f"the step cannot be captured: what was recorded does not run again ({reason}). "
                "Pass eager=True"
            ) from error
        if any(not torch.equal(a, b) for a, b in zip(drawn, _random_states(inputs), strict=True)):
            raise CaptureError(
                "the step cannot be captured: it sets the state of the random number generator (by a seed, "
                "or by checkpointing with dropout inside), so that a replay would draw other numbers. Pass "
                "eager=True"
            )
    return recording


class _Recorder(TorchDispatchMode):
    """Notes operations as nodes of a graph, as they reach the kernels."""

    def __init__(self, inputs: Sequence[Tensor], state: Sequence[Tensor], rest_is_fixed: bool) -> None:
        super().__init__()
        self._rest_is_fixed = rest_is_fixed
        self._graph, self._num_inputs = Graph(), len(inputs)
        self._inputs: list[tuple[Node, Tensor]] = []
        self._nodes, self._check = WeakTensorKeyDictionary(), OperationChecks()
        self._fixed = dict[Node, int]()  # what comes from fixed numbers alone, and its memory
        for tensor in (*inputs, *state):
            self._take(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and self.is_fixed(args[0]):
            return func(*args)
        self._check(func, args, kwargs)
        if func is torch.ops.aten.lift_fresh.default:  # the constant stays as it is, whatever is written
            func = torch.ops.aten.lift_fresh_copy.default
        given = map_aggregate((args, kwargs), self._node)
        node = self._graph.create_node("call_function", func, name="value")
        node.args, node.kwargs = given  # set later, torch does not look for symbols in them, slowly
        result = func(*args, **kwargs)
        is_own = func is torch.ops.aten.lift_fresh_copy.default or self._fixed.keys() >= set(
            node.all_input_nodes
        )
        if is_mutable(node):
            changed = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            self._fixed = {each: memory for each, memory in self._fixed.items() if memory not in changed}
        self._note(node, result, fixed=is_own and not is_mutable(node) and not is_random(node))
        return result

    def is_fixed(self, tensor: Tensor) -> bool:
        """True if a tensor comes from fixed numbers alone, such as the program's own."""
        return self._node(tensor) in self._fixed

    def recording(self, results: Any) -> Recording:
        """The program that was noted, which returns these results."""
        self._graph.output(map_aggregate(tuple(results), self._node))
        self._graph.eliminate_dead_code(has_effect)
        state = list[Tensor]()
        for node, tensor in self._inputs[self._num_inputs :]:
            if node.users:
                refuse_results(tensor)
                state.append(tensor)
            else:
                self._graph.erase_node(node)
        return Recording(self._graph, tuple(state))

    def _node(self, value: Any) -> Any:
        """The node of a tensor; any other value as it is."""
        if not isinstance(value, Tensor):
            return value
        return self._nodes.get(value) or self._take(value, self._rest_is_fixed)

    def _take(self, tensor: Tensor, fixed: bool = False) -> Node:
        """A tensor from outside as an input."""
        after = self._inputs[-1][0] if self._inputs else self._graph._root
        with self._graph.inserting_after(after):
            node = self._graph.placeholder(f"input{len(self._inputs)}")
        self._inputs.append((node, tensor))
        self._note(node, tensor, fixed)
        return node

    def _note(self, node: Node, value: Any, fixed: bool = False) -> None:
        """Take down that a node has this value: a tensor, or several."""
        if isinstance(value, Tensor):
            if fixed:
                self._fixed[node] = _memory(value)
            node.meta["layouts"] = [Layout.of(value)]
            self._nodes[value] = node
        elif isinstance(value, list | tuple):
            parts = [self._graph.call_function(operator.getitem, (node, i)) for i in range(len(value))]
            for part, each in zip(parts, value, strict=True):
                self._note(part, each, fixed)
            node.meta["layouts"] = [each for part in parts for each in layouts(part)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextlib.contextmanager
def _no_kept_casts() -> Iterator[None]:
    """Have ``torch.autocast`` cast parameters anew, where it would take casts from before the recording."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def unchanged(tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values of tensors and the state of the random number generators."""
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng(_cuda_devices((*tensors, *inputs))):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, copies, strict=True):
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _cuda_devices(tensors: Sequence[Tensor]) -> list[int]:
    return sorted({t.device.index for t in tensors if t.device.type == "cuda"})


def _random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _cuda_devices(tensors))]


def has_effect(node: Node) -> bool:
    """True for what stays in a program if nothing uses its value."""
    if node.op in ("placeholder", "output"):
        return True
    return is_mutable(node) or is_random(node)


def is_mutable(node: Node) -> bool:
    """True for an operation that changes a tensor in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_random(node: Node) -> bool:
    """True for an operation that draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
