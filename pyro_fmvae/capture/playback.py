"""Replaying recorded tensor programs, as they are or compiled."""

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import is_
from typing import Any, Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.recording import Layout, Recording, has_effect, is_mutable, is_random, layouts
from pyro_fmvae.infer.natural_gradient import refuse_natural_parameters

# Fewer and faster calls with equal results, for programs that replay operation by operation.
#
# A step on a small batch spends most of its time between the kernels. So what depends on no tensor from
# outside is computed once, values that are equal by construction are computed once per step, views of
# everything are left out, and each operation is called by torch's own Python function where that reaches the
# same kernel.

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


def shortened(recording: Recording, data: int = 0) -> list[Recording]:
    """The program, to the bit, in fewer and faster calls; takes the recording's graph to pieces.

    Args:
        recording: the program.
        data: how many of its inputs are data.

    Returns:
        The program; or two, the first of which computes what depends on the data alone, if there is such.
        The second one takes the results of the first behind the inputs.
    """
    graph = recording.graph
    state = [*recording.state, *_fold(graph, recording.state)]
    _skip_views(graph)
    _skip_gathers(graph, state)
    _share(graph)
    graph.eliminate_dead_code(has_effect)
    parts = _split_off(Recording(graph, tuple(state)), data)
    for part in parts:
        _call_directly(part.graph, part.state)
    return parts


def _split_off(recording: Recording, data: int) -> list[Recording]:
    """Split off what depends on the data alone, as far as its results are small.

    Those are kept as long as the data stay the same, so that an lgamma of all counts is taken once.
    """
    graph = recording.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs = placeholders[: len(placeholders) - len(recording.state)]
    most = max(_MOST_BYTES, sum(each.nbytes for node in inputs[:data] for each in layouts(node)) // 4)
    written = _written(graph)
    known = {*inputs[:data], *(node for node in placeholders if node.name.startswith("folded"))}
    known -= written
    ahead = dict[Node, None]()
    for node in _calls(graph):
        given = node.all_input_nodes
        pure = given and not is_mutable(node) and not is_random(node) and _source(node) not in written
        if pure and known.issuperset(given):
            known.add(node)
            ahead[node] = None
    for node in reversed(list(ahead)):
        if node.users.keys() - ahead.keys() and sum(each.nbytes for each in layouts(node)) > most:
            with graph.inserting_after(node):
                again = graph.node_copy(node)  # what is large is computed at each step, too
            node.replace_all_uses_with(again, delete_user_cb=lambda user: user not in ahead)
            if not node.users:
                del ahead[node]
                graph.erase_node(node)
    results = [node for node in ahead if node.users.keys() - ahead.keys()]
    if not (data and ahead):
        return [recording]
    for node in reversed(ahead):
        if placeholders[-1].next is not node:  # torch 2.6 warns of a node that is in its place
            placeholders[-1].append(node)
    output.args = ((*results, *output.args[0]),)
    return recording.split(len(inputs), len(results))


def resident(recording: Recording) -> Recording:
    """The program, with constants made on the host copied to the device once and for all."""
    graph, state = recording.graph, list(recording.state)
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    for node, value in _constants(graph, state).items():
        if (
            node.target is _aten._to_copy.default
            and layouts(node)[0].device != layouts(node.all_input_nodes[0])[0].device
        ):
            with graph.inserting_after(last):
                last = graph.placeholder(f"resident{len(state)}")
            last.meta = dict(node.meta)
            state.append(value)
            node.replace_all_uses_with(last)
    graph.eliminate_dead_code(has_effect)
    return Recording(graph, tuple(state))


def _constants(graph: Graph, state: Iterable[Tensor]) -> dict[Node, Any]:
    """The values that depend on no tensor from outside."""
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
    return known


def _fold(graph: Graph, state: Iterable[Tensor]) -> list[Tensor]:
    """Compute what depends on no tensor from outside; returns it, in the order of new inputs."""
    known = _constants(graph, state)
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    found, inputs = list[Tensor](), dict[Hashable, Node]()
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
    while (
        node.target is operator.getitem
        or node.target is _aten._unsafe_view.default  # a view that torch does not call one
        or getattr(node.target, "is_view", False)
        or _is_in_place(node)
    ):
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


# A torch optimiser's state, settings and hooks, which a recorded step relies on.


class OptimizerSnapshot:
    """An optimiser with its state, settings and hooks at one time.

    Learning rates may change, as may the numbers in the tensors of its state; tensors for further parameters
    may be added.

    Args:
        optimizer: the optimiser, or None if there is nothing to optimise.
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._optimizer = optimizer
        self.groups = [] if optimizer is None else list(optimizer.param_groups)
        self._settings = _settings(self.groups)
        self._hooks = step_hooks(optimizer)
        self.take_state()

    def take_state(self) -> None:
        """Expect the tensors that make up the state of every parameter now."""
        self._state: Any = {} if self._optimizer is None else self._optimizer.state
        parts = ((p, part) for p, part in self._state.items() if isinstance(part, dict))
        self._parts = [(p, part, tuple(part.values())) for p, part in parts]

    def holds(self, optimizer: Optimizer | None) -> bool:
        """True if this is the same optimiser, with the same state, settings and hooks."""
        if optimizer is not self._optimizer:
            return False
        if optimizer is None:
            return True
        if step_hooks(optimizer) != self._hooks or _settings(optimizer.param_groups) != self._settings:
            return False
        return optimizer.state is self._state and self._holds_state()

    def _holds_state(self) -> bool:
        get = self._state.get
        for p, part, values in self._parts:
            if get(p) is not part or len(part) != len(values) or not all(map(is_, part.values(), values)):
                return False
        return True

    @property
    def rates(self) -> list[float | Tensor]:
        """The learning rate of every group, as it is now."""
        return [group["lr"] for group in self.groups]


def step_hooks(optimizer: Optimizer | None) -> tuple[Any, ...]:
    """Hooks that run before and after an optimiser's step: its own, and the global ones but the library's."""
    if optimizer is None:
        return ()
    given = (hook for hook in _global_optimizer_pre_hooks.items() if hook[1] is not refuse_natural_parameters)
    return (
        *(("before", *hook) for hook in given),
        *(("before", *hook) for hook in optimizer._optimizer_step_pre_hooks.items()),
        *(("after", *hook) for hook in optimizer._optimizer_step_post_hooks.items()),
        *(("after", *hook) for hook in _global_optimizer_post_hooks.items()),
    )


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings of parameter groups without their learning rates, and the ids of their parameters."""
    return [
        {
            name: tuple(map(id, value)) if name == "params" else value
            for name, value in group.items()
            if name != "lr"
        }
        for group in groups
    ]


# Steps as CUDA graphs: all kernels of a step launched at once, the optimiser's among them.


Result = TypeVar("Result")

_WARM_UP = 3  # calls before the one that is recorded, for libraries and the allocator to settle


class NotRecordable(RuntimeError):
    """A function that a graph cannot hold; nothing was executed."""


class CUDAGraph(Generic[Result]):
    """A function on tensors as one graph.

    The first calls run as they are, on a stream of their own; the next one is recorded, which executes
    nothing, and replayed. Random numbers are fresh at each replay: torch's graphs see to that.

    Args:
        function: takes tensors on a GPU, changes nothing but tensors, in place, and returns tensors. It finds
            tensors that stay in their places by itself.

    Raises:
        NotRecordable: at the call that is to be recorded.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []  # where the graph reads them
        self._result: Result

    def __call__(self, *inputs: Tensor) -> Result:
        """The function's result; that of a graph is overwritten by the next call."""
        if not self._inputs:
            self._inputs = _like(inputs)
        with torch.cuda.device(inputs[0].device if inputs else None):
            for static, given in zip(self._inputs, inputs, strict=True):
                static.copy_(given)
            if self._graph is None and self._calls < _WARM_UP:
                self._calls += 1
                return self._aside()
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()
            return self._result

    def _aside(self) -> Result:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._result = self.function(*self._inputs)
        except RuntimeError as error:
            raise NotRecordable(str(error).splitlines()[0]) from error
        return graph


def _like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Fresh tensors of the same shapes and strides."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]


class OptimizerOnDevice:
    """A torch optimiser whose steps read nothing from the host, so that a graph may hold them.

    Args:
        optimizer: a fused or capturable one, or None if there is nothing to optimise.
        device: where its parameters are.
    """

    def __init__(self, optimizer: Optimizer | None, device: torch.device) -> None:
        self.optimizer, self._snapshot = optimizer, OptimizerSnapshot(optimizer)
        self._groups = self._snapshot.groups
        # As the fused kernels read them, whatever torch's default is.
        self._rates = [torch.zeros((), dtype=torch.float32, device=device) for _ in self._groups]
        self._filled: list[float | None] = [None] * len(self._groups)

    @staticmethod
    def possible(optimizer: Optimizer | None) -> bool:
        """True if the optimiser can do without the host, and has no hooks, which no replay would run."""
        groups = [] if optimizer is None else optimizer.param_groups
        return not step_hooks(optimizer) and all(
            group.get("fused") or group.get("capturable") for group in groups
        )

    def current(self, optimizer: Optimizer | None) -> bool:
        """True if the optimiser still is the one that was given, with the same state."""
        return self._snapshot.holds(optimizer)

    def fill(self) -> None:
        """Copy the learning rates to the device, where they have changed."""
        for number, (rate, lr) in enumerate(zip(self._rates, self._snapshot.rates, strict=True)):
            if isinstance(lr, Tensor):
                rate.copy_(lr)
            elif lr != self._filled[number]:
                rate.fill_(lr)
                self._filled[number] = lr

    @contextmanager
    def steps(self, skip: Tensor | None) -> Iterator[None]:
        """Let the optimiser read learning rates from the device, and skip its step where ``skip`` is true.

        Only fused optimisers can skip.
        """
        optimizer: Any = self.optimizer
        settings = [(group, group["lr"], group.get("capturable")) for group in self._groups]
        fused = bool(settings) and all(group.get("fused") for group in self._groups)
        for (group, _, capturable), rate in zip(settings, self._rates, strict=True):
            group["lr"] = rate
            if capturable is not None:
                group["capturable"] = True
        if fused and skip is not None:
            optimizer.found_inf = skip.float()
        try:
            yield
            self._snapshot.take_state()  # a first step made it; a graph writes to it from then on
        finally:
            for group, lr, capturable in settings:
                group["lr"] = lr
                if capturable is not None:
                    group["capturable"] = capturable
            if fused and skip is not None:
                del optimizer.found_inf


TensorProgram = Callable[..., tuple[Tensor, ...]]

_DEVICES = ("cpu", "cuda")
_EXPENSIVE = (_aten.digamma.default, _aten.lgamma.default, _aten.polygamma.default, _aten.pow.Scalar)


def plain(recording: Recording, data: int = 0) -> TensorProgram:
    """Run the operations one after another: the kernels of the eager step, bit by bit.

    Rewrites the graph of the recording, as :func:`compiled` does.

    Args:
        recording: the program.
        data: how many of its inputs are data. What depends on nothing else is computed anew when one of them
            is another tensor, or was changed in place.
    """
    *ahead, rest = shortened(recording, data)
    first, forward, state = [(each.function(), each.state) for each in ahead], rest.function(), rest.state
    seen, known = list[tuple[Any, int, int]](), tuple[Tensor, ...]()

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        nonlocal seen, known
        with _as_recorded():
            for function, constants in first:
                given = inputs[:data]
                now = [(ref(x), x._version, x.data_ptr()) for x in given if _is_watched(x)]
                same = len(now) == len(seen) == data
                if not (same and all(x is y and v == w for (x, *v), (y, *w) in zip(now, seen, strict=True))):
                    known = ()  # freed before there is another
                    seen, known = now, function(*inputs, *constants)
            return forward(*inputs, *known, *state)

    return run


def _is_watched(tensor: Tensor) -> bool:
    """True if torch counts all changes of a tensor: NumPy or other processes have no part in its memory."""
    if tensor.layout != torch.strided or tensor.is_inference():
        return False
    return tensor.untyped_storage().resizable() and not tensor.is_shared()


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
    if node.target is not _aten._to_copy.default or not node.all_input_nodes:
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
