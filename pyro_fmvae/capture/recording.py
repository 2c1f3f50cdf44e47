"""Recording a function on tensors as a plain tensor program, with whatever Python did around it left behind.

``make_fx`` runs the function once, on real tensors, and notes every operation that reaches the kernels: of
Pyro's handlers, of autograd and of Python itself nothing is left. A program may be replayed because it has no
other inputs than tensors: those that were given, and those that the function found by itself (parameters,
buffers, constants), which are taken in by identity and read anew at every replay.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fmvae.capture.refusals import CaptureError, explain, refusals, refuse_results
from pyro_fmvae.infer.elbo.operations import uncompiled

_NUMBERS = (torch.ops.aten.scalar_tensor.default, torch.ops.aten.full.default)


@dataclass(frozen=True)
class Recording:
    """A tensor program.

    Attributes:
        module: takes the given tensors and then ``state``, one by one; returns a tuple of tensors, and
            changes in place what the function changed in place.
        state: the tensors that the function found by itself.
    """

    module: GraphModule
    state: tuple[Tensor, ...]

    def on_device(self) -> bool:
        """True if all tensors are on a GPU, except numbers that are written into the program."""
        results = [node for node in self.module.graph.nodes if node.op == "call_function"]
        values = [node.meta.get("val") for node in results if node.target not in _NUMBERS]
        tensors = [*self.state, *(value for value in values if isinstance(value, Tensor))]
        return all(tensor.device.type == "cuda" for tensor in tensors)

    @property
    def eps(self) -> float:
        """ε of the coarsest type of floating-point numbers in the program."""
        values = [node.meta.get("val") for node in self.module.graph.nodes]
        types = {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}
        return max((torch.finfo(dtype).eps for dtype in types), default=0.0)

    @property
    def draws_in_vain(self) -> bool:
        """True if it draws random numbers that nothing uses."""
        return any(is_random(node) and not node.users for node in self.module.graph.nodes)

    def split(self, num_inputs: int, *num_results: int) -> "list[Recording]":
        """Several programs out of one, to be run one after another.

        Results come in groups: each program ends with the last one of its group, the last program with what
        is left. Each takes the same first ``num_inputs`` tensors and then all that the one before it has
        returned; it returns its group, and behind that what the later ones need.
        """
        *nodes, output = self.module.graph.nodes
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
        kept = [(node, t) for node, t in zip(state, self.state, strict=True) if node.users.keys() & set(body)]
        graph, copies = Graph(), dict[Node, Node]()
        for node in (*inputs, *(node for node, _ in kept)):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in body:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        graph.output(tuple(copies[node] for node in outputs))
        return Recording(GraphModule(torch.nn.Module(), graph), tuple(tensor for _, tensor in kept))


def record(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], state: Sequence[Tensor] = ()
) -> Recording:
    """Record a function.

    Args:
        function: takes ``inputs``; its results depend on nothing but tensors.
        inputs: tensors that may be others at each replay.
        state: tensors that the function may read or change in place. They are restored afterwards, as are the
            random number generators, so that recording changes nothing.

    Raises:
        CaptureError: the function needs the value of a tensor in Python, or a shape that depends on one, or
            sets the state of a random number generator.
    """
    inputs = [tensor.detach() for tensor in inputs]
    known = list(dict.fromkeys(tensor for tensor in state if not any(tensor is x for x in inputs)))

    def run(*_: Tensor) -> tuple[Tensor, ...]:
        with uncompiled(), refusals():
            return function(*inputs)

    with unchanged(known, inputs), torch.autograd.set_multithreading_enabled(False), _one_fake_mode():
        try:
            module = make_fx(run, tracing_mode="real")(*inputs, *known)
        except Exception as error:
            raise CaptureError(explain(error)) from error
        drawn = _random_states(inputs)
    module.graph.eliminate_dead_code(has_effect)
    recording = Recording(module, _lift(module, len(inputs), known))
    with unchanged(known, inputs), torch.no_grad():
        try:
            module(*inputs, *recording.state)
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


def _one_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """Have shapes and types of all results noted in one mode; ``make_fx`` makes one for each, slowly."""
    return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))


@contextlib.contextmanager
def unchanged(tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values of tensors and the state of the random number generators."""
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng(_cuda_devices((*tensors, *inputs))):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
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


def _lift(module: GraphModule, num_inputs: int, known: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Make every constant an input, and drop those that are not used; returns the tensors of the state."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    state = []
    for node, tensor in zip(placeholders[num_inputs:], known, strict=True):
        if node.users:
            state.append(tensor)
        else:
            module.graph.erase_node(node)
    # New placeholders go before the first node that is not erased below.
    first = next(node for node in module.graph.nodes if node.op not in ("placeholder", "get_attr"))
    lifted: dict[str, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in lifted:
            with module.graph.inserting_before(first):
                lifted[node.target] = module.graph.placeholder(f"constant{len(lifted)}")
            lifted[node.target].meta = dict(node.meta)
            constant = getattr(module, node.target)
            refuse_results(constant)
            state.append(constant)
        node.replace_all_uses_with(lifted[node.target])
        module.graph.erase_node(node)
    module.delete_all_unused_submodules()
    for name in lifted:
        delattr(module, name)
    module.recompile()
    return tuple(state)
