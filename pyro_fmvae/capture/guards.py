"""Arguments of a recorded program, and facts that it takes for granted besides, found by a rehearsal."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pyro_fmvae.capture.recording import CaptureError, Recording
from pyro_fmvae.infer.elbo.lazy import memory_of, uncompiled

_NUMBERS = (bool, int, float, complex, str)
_PLAIN = (*_NUMBERS, Tensor, type(None))
_COMPARED = (*_PLAIN, torch.nn.Module, FunctionType)
_LIBRARIES = ("builtins", "pyro", "torch")
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


MOST_STEPS = 8  # captured at a time

# The arguments of a step, taken apart into data and constants of a captured program.

_CONSTANTS = (bool, int, float, complex, str, torch.dtype, torch.device, Enum, FunctionType, torch.nn.Module)


class Call:
    """Arguments, however nested, taken apart.

    Attributes:
        data: the tensors among them.
        key: equal for calls that one program serves: for tensors of the same shapes, strides, types and
            devices, and for the same constants.

    Raises:
        ValueError: an argument that is neither a tensor nor a constant, or a tensor that a gradient is wanted
            of: that of an argument is not computed.
    """

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._leaves, self._spec = tree_flatten((args, kwargs))
        self.data: list[Tensor] = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.key: Hashable = (str(self._spec), *map(_signature, self._leaves))

    def arguments(self, data: Iterable[Tensor]) -> tuple[Any, Any]:
        """Positional and keyword arguments with other tensors in the place of the data."""
        tensors = iter(data)
        leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of the data."""
        return tuple(tensor.shape for tensor in self.data)

    @property
    def rows(self) -> int:
        """Length of the first of the data; 1 of a scalar, 0 where there are none."""
        return int(self.data[0].shape[:1].numel()) if self.data else 0


def _signature(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        if leaf.requires_grad:
            raise ValueError(
                f"a captured step takes data, got a tensor of shape {list(leaf.shape)} that requires a "
                "gradient: detach it, make it a parameter of the model or guide, or pass eager=True"
            )
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
    if leaf is None or isinstance(leaf, _CONSTANTS):
        return type(leaf), leaf  # 1, 1.0 and True are equal, but not the same to a program
    raise ValueError(
        "a captured step takes tensors, and numbers, strings, functions and modules as constants, got "
        f"{type(leaf).__name__}; make a tensor of it, or pass eager=True"
    )


# What a recording relies on.


class Fact(NamedTuple):
    """A name that a program reads, by ``read(name)``, and the value that it had."""

    read: Callable[[Any], Any]
    name: Any
    value: Any

    def holds(self) -> bool:
        """True if it is the same object, or an equal number or string, now."""
        now = self.read(self.name)
        if now is self.value:
            return True
        return isinstance(now, _NUMBERS) and type(now) is type(self.value) and bool(now == self.value)


class ReadByName:
    """Finds what the functions of a program read by name, in their code: nothing is run.

    Functions are followed into those of their closures, into those of their globals in the same file, and
    into the methods and properties of objects and modules that they read by name.

    Args:
        programs: functions, methods, modules and other objects that can be called.

    Attributes:
        modules: modules that the programs are, belong to or read, without the modules below them.
    """

    def __init__(self, programs: Iterable[Any]) -> None:
        self.modules: list[torch.nn.Module] = []
        self._variables: list[Fact] = []
        self._objects: list[dict[str, Any]] = []  # their attributes
        self._classes: dict[type, None] = {}  # of objects and modules
        self._attributes: set[str] = set()  # of attributes that a function may read
        self._found: dict[int, Any] = {}  # by identity; with the objects, so that no other gets their ids
        for program in programs:
            self.follow(program)

    @property
    def facts(self) -> list[Fact]:
        """Variables, and attributes of objects that are no modules."""
        known = -1
        while known != len(self._found):  # a method may read further names
            known = len(self._found)
            methods = [
                vars(kind)[name] for kind in self._classes for name in vars(kind).keys() & self._attributes
            ]
            for method in methods:
                self.follow(method.fget if isinstance(method, property) else method)
        read = [(held, name) for held in self._objects for name in held.keys() & self._attributes]
        return [*self._variables, *(Fact(held.get, name, held[name]) for held, name in read)]

    def follow(self, value: Any) -> None:
        """Add what a value leads to."""
        if id(value) in self._found or isinstance(value, (type, ModuleType, *_PLAIN)):
            return
        self._found[id(value)] = value
        leads: Sequence[Any] = ()
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
            parts = list(value.modules())
            leads = [getattr(type(part), "forward", None) for part in parts]
            self._see_classes(map(type, parts))
            leads += [held for part in parts for held in vars(part).values()]
        elif isinstance(value, partial):
            leads = value.func, *value.args, *value.keywords.values()
        elif isinstance(value, MethodType):
            leads = value.__self__, value.__func__
        elif isinstance(value, FunctionType):
            self._follow_function(value)
        else:
            self._objects.append(getattr(value, "__dict__", {}))
            self._see_classes([type(value)])
            leads = (getattr(type(value), "__call__", None),)  # noqa: B004
        for each in leads:
            self.follow(each)

    def _see_classes(self, kinds: Iterable[type]) -> None:
        """Look at the methods of classes, but for those of libraries, once a name of theirs is read."""
        bases = (base for kind in kinds for base in kind.__mro__)
        self._classes.update(
            {base: None for base in bases if base.__module__.split(".")[0] not in _LIBRARIES}
        )

    def _follow_function(self, function: FunctionType) -> None:
        self.follow(getattr(function, "__wrapped__", None))
        names, own = set(_names(function.__code__)), function.__globals__
        self._attributes |= names
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a variable that has no value yet
                self._variables.append(Fact(partial(getattr, cell), "cell_contents", cell.cell_contents))
                self.follow(cell.cell_contents)
        for name in names & own.keys():
            self._variables.append(Fact(own.get, name, own[name]))
            if getattr(own[name], "__globals__", own) is own:
                self.follow(own[name])


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and in those inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


class Assumptions:
    """Facts that a recording relies on: make it before the recording, ask :meth:`hold` before every replay.

    Args:
        modules: their parameters, buffers, modes and plain attributes are watched, and those of all modules
            below them.
        names: parameters in Pyro's store to watch; others may be among them.
        facts: variables and attributes to watch, those that hold numbers, strings, tensors, modules or
            functions, or None.

    Attributes:
        tensors: parameters and buffers of the modules.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], names: Iterable[str], facts: Iterable[Fact] = ()
    ) -> None:
        parts = dict.fromkeys(part for whole in modules for part in whole.modules())
        held = [vars(part) for part in parts if not isinstance(part, torch.jit.ScriptModule)]
        tables = [table[kind] for table in held for kind in ("_parameters", "_buffers", "_modules")]
        # A compiled module has no mode of its own.
        self._modes = [
            Fact(table.get, "training", table["training"]) for table in held if "training" in table
        ]
        self._parts = [Fact(table.get, name, part) for table in tables for name, part in table.items()]
        attributes = (
            Fact(table.get, name, value)
            for table in held
            for name, value in table.items()
            if name not in _OF_EVERY_MODULE
        )
        self._plain = [fact for fact in (*attributes, *facts) if isinstance(fact.value, _COMPARED)]
        parameters = [fact.value for fact in self._parts if isinstance(fact.value, Tensor)]
        self.tensors: list[Tensor] = list(dict.fromkeys(parameters))
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}
        self._kinds = [(t, *_kind(t)) for t in dict.fromkeys((*self.tensors, *self._stored.values()))]

    def refuse_hooks(self, learnt: Iterable[Tensor]) -> None:
        """Refuse hooks that run once a gradient was added to ``grad``: they may take the optimiser's step.

        Args:
            learnt: parameters of the program, besides those of the modules.

        Raises:
            CaptureError: a parameter has a hook of ``register_post_accumulate_grad_hook``.
        """
        for tensor in (*learnt, *self.tensors):
            if tensor.requires_grad and tensor._post_accumulate_grad_hooks:
                raise CaptureError(
                    f"the step cannot be captured: a parameter of shape {list(tensor.shape)} has a hook of "
                    "register_post_accumulate_grad_hook, which no replay would run. Use register_hook, or "
                    "pass eager=True"
                )

    def check(self, recording: Recording) -> None:
        """Watch the tensors of a recording too, and no longer what the recorded run has changed.

        Raises:
            CaptureError: the program replaces a parameter, a buffer or a tensor that it reads, or changes a
                module's mode: replays would not.
        """
        read = {memory_of(tensor) for tensor in recording.state}
        for name, value in ((fact.name, fact.value) for fact in self._plain if not fact.holds()):
            if isinstance(value, Tensor) and memory_of(value) in read:
                raise CaptureError(
                    f"the step cannot be captured: it reads '{name}' and puts another tensor in its "
                    "place. Make it a buffer that is changed in place (by copy_, say), or pass eager=True"
                )
        self._plain = [fact for fact in self._plain if fact.holds()]
        if not self.hold():
            raise CaptureError(
                "the step cannot be captured: the program puts another tensor in the place of a parameter or "
                "buffer, or changes a module's mode. Change tensors in place (by copy_, say), or pass "
                "eager=True"
            )
        known = {id(tensor) for tensor, *_ in self._kinds}
        found = [tensor for tensor in recording.state if id(tensor) not in known and memory_of(tensor)]
        self._kinds += [(tensor, *_kind(tensor)) for tensor in found]

    def hold(self) -> bool:
        """True if everything is as it was."""
        for read, name, value in (*self._modes, *self._parts):
            if read(name) is not value:
                return False
        for fact in self._plain:
            if fact.read(fact.name) is not fact.value and not fact.holds():
                return False
        for tensor, place, trainable, strides, shape in self._kinds:
            if tensor.data_ptr() != place or tensor.requires_grad != trainable:
                return False
            if tensor.stride() != strides or tensor.shape != shape:
                return False
        if self._stored:
            store = dict(pyro.get_param_store().named_parameters())
            return all(store.get(name) is value for name, value in self._stored.items())
        return True


def _kind(tensor: Tensor) -> tuple[int, bool, tuple[int, ...], torch.Size]:
    """Address of a tensor's values, if it is learnt, its strides and shape: ``t.data = …`` changes these.

    Programs take strides and shape for granted, and a part of a matrix may have its address.
    """
    return tensor.data_ptr(), tensor.requires_grad, tensor.stride(), tensor.shape


class Rehearsal:
    """Finds what programs depend on, by reading their code and by running them once; undoes the run.

    Args:
        programs: functions, modules or their methods, and what they are called with, nested at will.

    Attributes:
        modules: modules that the code shows, and all that were called.
    """

    def __init__(self, *programs: Any) -> None:
        self._reads = ReadByName(tree_leaves(programs))
        self.modules = list(self._reads.modules)
        self._parts: set[torch.nn.Module] = set()
        self._buffers: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        self._writes = _Writes()
        self._existing = {p for _, p in pyro.get_param_store().named_parameters()}
        self._random = torch.get_rng_state(), _cuda_random_states()
        self._trees = [(module, self._note(module)) for module in self.modules]
        self._changed: dict[Tensor, None] = {}

    @property
    def written(self) -> list[Tensor]:
        """Tensors from outside that operations of the run wrote to."""
        return [tensor for tensor, _ in self._writes.found]

    @property
    def changed(self) -> list[Tensor]:
        """Once the run was undone, the buffers and other tensors that it had changed in place."""
        return list(dict.fromkeys((*self._changed, *self.written)))

    def _note(self, module: torch.nn.Module) -> set[torch.nn.Module]:
        tree = set(module.modules())
        for part in tree:
            if part not in self._parts:
                self._parts.add(part)
                parameters = (p for p in part._parameters.values() if p is not None)
                self._existing.update(p for p in parameters if not torch.nn.parameter.is_lazy(p))
                for name, buffer in part._buffers.items():
                    if buffer is not None and not torch.nn.parameter.is_lazy(buffer):
                        self._buffers.append((part._buffers, name, buffer, buffer.detach().clone()))
        return tree

    def _called(self, module: torch.nn.Module, _: Any) -> None:
        if module not in self._parts:
            self.modules.append(module)
            self._trees.append((module, self._note(module)))
            self._reads.follow(module)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note which modules are called, and which tensors are written to."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            with uncompiled(), self._writes, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using `torch.compile.* global hooks on modules")
                yield
        finally:
            hook.remove()

    def made(self, parameters: Iterable[Tensor]) -> bool:
        """True if the run made one of the parameters, or put a module under one that was known."""
        if any(part not in tree for module, tree in self._trees for part in module.modules()):
            return True
        return not self._existing.issuperset(parameters)

    def assumptions(self, names: Iterable[str]) -> Assumptions:
        """Facts for a program that is recorded now; ``names`` are those of its parameters."""
        return Assumptions(self.modules, names, self._reads.facts)

    @torch.no_grad()
    def undo(self) -> None:
        """Give tensors that are no parameters their values from before, and rewind the random numbers."""
        for held, name, buffer, value in self._buffers:
            held[name] = buffer
            if not torch.equal(buffer, value):
                self._changed[buffer] = None
                buffer.copy_(value)
        for tensor, value in reversed(self._writes.found):
            tensor.copy_(value)
        torch.set_rng_state(self._random[0])
        if self._random[1]:
            torch.cuda.set_rng_state_all(self._random[1])


class _Writes(TorchDispatchMode):
    """Notes the tensors, made outside of this mode, that operations write to.

    Attributes:
        found: tensors with their values before the first write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []
        self._made: set[int] = set()  # memory of results
        self._written: set[Hashable] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable:
            for number, argument in enumerate(schema.arguments):
                if argument.is_write:
                    value = args[number] if number < len(args) else kwargs.get(argument.name)
                    for tensor in tree_leaves(value):
                        self._note(tensor)
        results = func(*args, **kwargs)
        if not any(result.alias_info for result in schema.returns):
            self._made.update(memory_of(tensor) for tensor in tree_leaves(results))
        return results

    def _note(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or memory_of(tensor) in self._made:
            return
        part = memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        if part not in self._written:
            self._written.add(part)
            self.found.append((tensor, tensor.detach().clone()))


def _cuda_random_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
