"""Facts that a recorded program takes for granted about objects besides its arguments."""

import dis
import importlib.util
import os
import sys
import sysconfig
import warnings
import weakref
from argparse import Namespace
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, Protocol

import pyro
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.recording import CaptureError, Recording
from pyro_fmvae.infer.elbo.lazy import memory_of, uncompiled

# Places that programs read, compared with their contents at an earlier time.

PLAIN = (bool, int, float, complex, str)
MOST = 256  # things in a container that is looked into
_DEEPEST = 4


class Holder(Protocol):
    """A dictionary, the closure of a function, or anything else that has things by name."""

    def get(self, name: Any, /) -> Any:
        """The thing of this name; None if there is none."""


Place = tuple[Holder, Any]
"""A holder, and a name in it."""
Trail = tuple[Any, ...]
"""Names and numbers that lead from a container to something in it; () is the container itself."""


class _Container(NamedTuple):
    kind: type
    length: int


class Observed:
    """A place, with its contents when this object was made.

    Lists, tuples, dictionaries, dataclasses and namespaces are the same if all that is in them is, to a few
    levels and unless it is much; numbers and strings if they are equal; anything else if it is the very
    object.

    Attributes:
        holder, name: the place.
        then: its contents at that time.
        changeable: whether the contents may change although the object stays the same.
    """

    __slots__ = ("_parts", "changeable", "holder", "name", "then")

    def __init__(self, place: Place) -> None:
        self.holder, self.name = place
        self.then = self.value
        self._parts = _parts(self.then)
        self.changeable = isinstance(self._parts[()], _Container) and _changeable(self.then)

    @property
    def value(self) -> Any:
        """Its contents now."""
        return self.holder.get(self.name)

    @property
    def key(self) -> tuple[int, Any]:
        """A key, equal for equal places."""
        return id(self.holder), self.name

    def changes(self) -> set[Trail]:
        """Trails to everything that is another thing now; () stands for the whole."""
        now = self.value
        if now is self.then and not self.changeable:
            return set()
        then, parts = self._parts, _parts(now)
        missing = object()
        return {
            trail
            for trail in then.keys() | parts.keys()
            if not _same(then.get(trail, missing), parts.get(trail, missing))
        }

    def holds(self, but: Collection[Trail] = ()) -> bool:
        """True if its contents are the same now.

        Args:
            but: trails to parts that may have changed, with all that is below them.
        """
        changes = self.changes()
        return not changes or all(any(trail[: len(free)] == free for free in but) for trail in changes)


def _parts(value: Any) -> dict[Trail, Any]:
    """A value, or everything in a container, by trail; a container's own entry is its type and length."""
    found: dict[Trail, Any] = {}
    waiting: list[tuple[Trail, Any]] = [((), value)]
    while waiting:
        trail, part = waiting.pop()
        inner = _inside(part) if len(trail) < _DEEPEST else None
        if inner is None or len(inner) > MOST:
            found[trail] = part
        else:
            found[trail] = _Container(type(part), len(inner))
            waiting += [((*trail, name), each) for name, each in inner.items()]
        if len(found) + len(waiting) > MOST:
            return {(): value}
    return found


def _inside(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return vars(value) if isinstance(value, SimpleNamespace | Namespace) else None


def _changeable(value: Any) -> bool:
    inner = _inside(value)
    if inner is None:
        return False
    params: Any = getattr(value, "__dataclass_params__", None)
    fixed = params.frozen if params is not None else isinstance(value, tuple)
    return not fixed or any(map(_changeable, inner.values()))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    return isinstance(one, (*PLAIN, _Container)) and bool(one == other)


# Hooks of modules and of gradients, and each module's ``forward``, which may be replaced.

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


# Finds what programs read besides their arguments: attributes, variables of closures, globals.


_OWN = frozenset(vars(torch.nn.Module()))  # what every module has
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")

_LIBRARIES = tuple(
    folder + os.sep
    for folder in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")),
        str(Path(torch.__file__).parent),
        str(Path(__file__).parents[1]),
    )
)

_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Closure:
    """The variables of a function that belong to the functions around it."""

    def __init__(self, function: FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def get(self, name: Any, /) -> Any:
        """The variable's value, None if it has none yet."""
        try:
            return self._cells[name].cell_contents
        except ValueError:
            return None


class Slots:
    """The attributes of an object that its class keeps in ``__slots__``."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def get(self, name: Any, /) -> Any:
        """The attribute's value, None if it has none yet."""
        return getattr(self._owner, name, None)


class Outside:
    """Finds what programs read, from their bytecode: nothing is run.

    Functions are followed into the functions that they call, and objects into their attributes: from a
    variable that a function reads, by every name of an attribute that one of the functions reads. Code and
    objects of installed packages are left out.

    Args:
        programs: functions, methods, modules, other objects that can be called, or containers of these.

    Attributes:
        modules: modules that the programs are, belong to, or read from a variable.
        places: variables and attributes that the programs read.
    """

    def __init__(self, programs: Iterable[Any]) -> None:
        self.modules: list[torch.nn.Module] = []
        self.places: list[Place] = []
        self._seen: dict[int, Any] = {}
        self._read: set[str] = set()  # names of attributes, of whatever object
        self._objects: list[Any] = []
        self._classes: dict[type, Mapping[str, Any]] = {}  # one holder for each, as vars() makes a new one
        self._imported: dict[str, None] = {}  # modules that functions import once they run
        for program in programs:
            self.look_at(program)

    def look_at(self, value: Any) -> None:
        """Follow a value to the functions, modules and objects that it leads to."""
        if type(value) in weakref.ProxyTypes or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
            for part in value.modules():
                self._take(part)
                for function in functions(part):
                    self.look_at(function)
        elif isinstance(value, partial):
            self.look_at(value.func)
            self._add_all(dict(enumerate(value.args)))
            self._add_all(value.keywords)
        elif isinstance(value, MethodType):
            self._take(value.__self__)
            self.look_at(value.__self__)
            self.look_at(value.__func__)
        elif isinstance(value, FunctionType):
            self._look_at_function(value)
        elif isinstance(value, staticmethod | classmethod):
            self.look_at(value.__func__)
        elif isinstance(value, property):
            self.look_at(value.fget)
        elif isinstance(value, cached_property):
            self.look_at(value.func)
        elif isinstance(value, type | ModuleType):
            if _is_own(value):
                self._take(value)
        elif isinstance(value, list | tuple | dict) and len(value) <= MOST:
            for part in value.values() if isinstance(value, dict) else value:
                self.look_at(part)
        elif _is_own(type(value)):
            self._take(value)
            self.look_at(getattr(type(value), "__call__", None))  # noqa: B004

    def look_at_imports(self) -> None:
        """Follow the modules that functions import themselves; call it once they have run."""
        while self._imported:
            self.look_at(sys.modules.get(self._imported.popitem()[0]))

    def _take(self, value: Any) -> None:
        """Look at an object's attributes, each once a function has been found that reads its name."""
        if not any(value is known for known in self._objects):
            self._objects.append(value)
            for name in tuple(self._read):
                self._look_at_attribute(value, name)

    def _look_at_attribute(self, value: Any, name: str) -> None:
        if name in _OWN and isinstance(value, torch.nn.Module):
            return
        held = getattr(value, "__dict__", {})
        kind = value if isinstance(value, type) else type(value)
        base = next((base for base in kind.__mro__ if name in vars(base)), None)
        default = vars(base)[name] if base else None
        if isinstance(default, MemberDescriptorType):
            self._add(Slots(value), name)
            return
        if _is_code(default):
            self.look_at(default)
        if base and (_is_own(base) or not _is_code(default)):
            self._add(self._classes.setdefault(base, vars(base)), name)
            self._add(held, name)  # an object may get what its class has now
        elif name in held:
            self._add(held, name)

    def _look_at_function(self, function: FunctionType) -> None:
        closure = Closure(function)
        if _is_library(function.__code__.co_filename):  # a wrapper of the user's functions, say
            for name in closure:
                self.look_at(closure.get(name))
            return
        for name in closure:
            self._add(closure, name)
        self._add_all(dict(enumerate(function.__defaults__ or ())))
        self._add_all(function.__kwdefaults__ or {})
        variables, attributes, imported = _names_read(function.__code__)
        package = function.__globals__.get("__package__")
        for name in imported:
            if package or not name.startswith("."):
                parts = importlib.util.resolve_name(name, package).split(".")
                self._imported |= {".".join(parts[:end]): None for end in range(1, len(parts) + 1)}
        for name in variables:
            if name in function.__globals__:
                self._add(function.__globals__, name)
        new = attributes - self._read
        self._read |= new
        for known in tuple(self._objects):
            for name in new:
                self._look_at_attribute(known, name)

    def _add_all(self, holder: Any) -> None:
        for name in holder:
            self._add(holder, name)

    def _add(self, holder: Holder, name: Any) -> None:
        value = holder.get(name)
        if type(value) in weakref.ProxyTypes:
            return
        if not isinstance(value, ModuleType | BuiltinFunctionType | type):
            self.places.append((holder, name))
        self.look_at(value)


def _names_read(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Names of globals, of attributes, and of modules to import, that a function and those inside it read."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    variables = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    attributes = {step.argval for step in steps if step.opname in _READS}
    imported = {
        "." * level.argval + step.argval
        for level, _, step in zip(steps, steps[1:], steps[2:], strict=False)
        if step.opname == "IMPORT_NAME"
    }
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names_read(inner)
            variables |= more[0]
            attributes |= more[1]
            imported |= more[2]
    return variables, attributes, imported


def _is_own(value: type | ModuleType) -> bool:
    """True of a class or Python module of the user's, not of an installed package."""
    module = sys.modules.get(value.__module__) if isinstance(value, type) else value
    if getattr(module, "__name__", "") == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return file is not None and not _is_library(file)


def _is_library(file: str) -> bool:
    """True of a file of Python, of torch, of this library or of an installed package, wherever that is."""
    return file.startswith(_LIBRARIES) or any(folder in file for folder in _INSTALLED)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod | property | cached_property)


def attributes(module: torch.nn.Module) -> list[Place]:
    """A module's numbers, strings and tensors, without the attributes that every module has."""
    held = vars(module)
    plain = (*PLAIN, Tensor, type(None))
    return [(held, name) for name, value in held.items() if name not in _OWN and isinstance(value, plain)]


_Fact = tuple[Mapping[Any, Any], Any, Any]


class Assumptions:
    """Modules, variables and Pyro's parameter store as they are when a program is recorded.

    Make it before the recording, call :meth:`check` after it, and ask :meth:`hold` before every replay. What
    the recorded run changes itself (a counter, say) is watched no longer.

    Args:
        modules: their parameters, buffers, submodules, attributes, modes, hooks and ``forward`` are watched;
            so are those of all modules below them.
        names: parameters in Pyro's store to watch; others may be among them.
        places: variables and attributes to watch.

    Attributes:
        tensors: parameters and buffers of the modules.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], names: Iterable[str], places: Iterable[Place] = ()
    ) -> None:
        self._facts: list[_Fact] = []
        places = list(places)
        self.tensors: list[Tensor] = []
        parts = dict.fromkeys(part for whole in modules for part in whole.modules())
        known = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]  # no Python in those
        for module in known:
            self._add(vars(module), vars(module).keys() & {"training"})  # a compiled one asks that inside it
            places += attributes(module)
            for held in (module._parameters, module._buffers, module._modules):
                self._add(held, held)
            held_tensors = (*module._parameters.values(), *module._buffers.values())
            self.tensors += [tensor for tensor in held_tensors if tensor is not None]
        self._containers: list[tuple[Observed, Collection[Trail]]]
        self._values: list[tuple[Callable[[Any], Any], Any, Any, Observed]]
        self._watch((each, ()) for each in {each.key: each for each in map(Observed, places)}.values())
        store = dict(pyro.get_param_store().named_parameters())
        self._stored = {name: store[name] for name in names if name in store}
        tensors = dict.fromkeys((*self.tensors, *self._stored.values()))
        self._kinds = [(tensor, *_kind(tensor)) for tensor in tensors]
        self._hooks = Hooks(known, tensors)

    def _add(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        self._facts += [(holder, key, holder[key]) for key in keys]

    def _watch(self, observed: Iterable[tuple[Observed, Collection[Trail]]]) -> None:
        """Watch places, each but for the trails to what may change; those without contents go faster."""
        self._containers, self._values = [], []
        for each, free in observed:
            if each.changeable:
                self._containers.append((each, free))
            else:
                self._values.append((each.holder.get, each.name, each.then, each))

    def refuse_hooks(self, learnt: Iterable[Tensor]) -> None:
        """Refuse hooks that would take a step of their own once a gradient is there.

        Args:
            learnt: parameters of the program, besides those of the modules.

        Raises:
            CaptureError: a parameter has a hook of ``register_post_accumulate_grad_hook``.
        """
        refuse_hooks_on_sums([*learnt, *self.tensors])

    def check(self, recording: Recording) -> None:
        """Watch the tensors of a recording too, and no longer what the recorded run has changed.

        Raises:
            CaptureError: the program replaces a parameter, a buffer or a tensor that it reads, or changes a
                module's mode or hooks: replays would not.
        """
        read = {memory_of(tensor) for tensor in recording.state}
        kept = []
        for each in (*(each for each, _ in self._containers), *(each for *_, each in self._values)):
            changes = each.changes()
            if changes and isinstance(each.then, Tensor) and memory_of(each.then) in read:
                raise CaptureError(
                    f"the step cannot be captured: it reads '{each.name}' and puts another tensor in its "
                    "place. Make it a buffer that is changed in place (by copy_, say), or pass eager=True"
                )
            if () not in changes:
                kept.append((each, changes))
        self._watch(kept)
        if not self.hold():
            raise CaptureError(
                "the step cannot be captured: the program puts another tensor in the place of a parameter or "
                "buffer, or changes a module's mode or hooks. Change tensors in place (by copy_, say), or "
                "pass eager=True"
            )
        known = {id(tensor) for tensor, *_ in self._kinds}
        found = [tensor for tensor in recording.state if id(tensor) not in known and memory_of(tensor)]
        self._kinds += [(tensor, *_kind(tensor)) for tensor in found]

    def hold(self) -> bool:
        """True if everything is as it was."""
        for holder, key, value in self._facts:
            if holder.get(key) is not value:
                return False
        for get, name, then, each in self._values:
            if get(name) is not then and not each.holds():
                return False
        if not all(each.holds(but) for each, but in self._containers):
            return False
        for tensor, place, trainable, strides, shape in self._kinds:
            if tensor.data_ptr() != place or tensor.requires_grad != trainable:
                return False
            if tensor.stride() != strides or tensor.shape != shape:
                return False
        if not self._hooks.hold():
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


# A run of programs that finds what they call and write to, and is undone.


class Rehearsal:
    """Finds what programs depend on, by reading their code and by running them once; undoes the run.

    Args:
        programs: functions, modules or their methods, and whatever they are called with.

    Attributes:
        modules: modules that the code shows, and all that were called.
    """

    def __init__(self, *programs: Any) -> None:
        self._outside = Outside(programs)
        self.modules = list(self._outside.modules)
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
            self._outside.look_at(module)

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
        self._outside.look_at_imports()
        return Assumptions(self.modules, names, self._outside.places)

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


# The watch over what a recorded program takes for granted: rehearse a program, then hold its assumptions.
