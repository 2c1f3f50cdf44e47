"""What programs read from outside of their arguments: attributes, variables of closures, globals."""

import dis
import sysconfig
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch

_PLAIN = (bool, int, float, complex, str)
_LONGEST = 64  # of lists and the like that are looked into
_DEEPEST = 4
_OWN = frozenset(vars(torch.nn.Module()))  # what every module has
_LIBRARIES = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
)


class Holder(Protocol):
    """What has things by name: a dictionary, or a :class:`Closure`."""

    def get(self, name: str, /) -> Any:
        """The thing of this name, None if there is none."""


Place = tuple[Holder, str]
"""Where something is read from: a holder, and a name in it."""


class Closure:
    """The variables of a function that belong to the functions around it."""

    def __init__(self, function: FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def get(self, name: str, /) -> Any:
        """The variable's value, None if it has none yet."""
        try:
            return self._cells[name].cell_contents
        except ValueError:
            return None


class Outside:
    """What can be seen of programs without running them.

    Functions are followed into those that they call, as long as these are variables of theirs, too, and no
    part of a library.

    Args:
        programs: functions, methods, modules or other objects that can be called.

    Attributes:
        modules: that the programs are, belong to, or have in a variable.
        places: variables of the programs, and attributes of objects that are no modules.
    """

    def __init__(self, programs: Iterable[Any]) -> None:
        self.modules: list[torch.nn.Module] = []
        self.places: list[Place] = []
        self._seen: dict[int, Any] = {}
        for program in programs:
            self._look_at_program(program)

    def look_at(self, value: Any) -> None:
        """Find what a value leads to: a module, or a function."""
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
            for part in value.modules():
                self._look_at_methods(type(part))
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.look_at(part)
        elif isinstance(value, MethodType):
            self._look_at_program(value.__self__)
            self.look_at(value.__func__)
        elif isinstance(value, FunctionType):
            self._look_at_function(value)
        elif isinstance(value, list | tuple | dict) and len(value) <= _LONGEST:
            for part in value.values() if isinstance(value, dict) else value:
                self.look_at(part)

    def _look_at_program(self, program: Any) -> None:
        self.look_at(program)
        if not isinstance(program, torch.nn.Module | FunctionType | MethodType | partial | type):
            self._look_at_methods(type(program))
            for name in getattr(program, "__dict__", {}):
                self._add(vars(program), name)

    def _look_at_methods(self, kind: type) -> None:
        for base in kind.__mro__:
            for method in vars(base).values():
                if isinstance(method, FunctionType):
                    self.look_at(method)

    def _look_at_function(self, function: FunctionType) -> None:
        closure = Closure(function)
        if function.__code__.co_filename.startswith(_LIBRARIES):  # a wrapper of the user's functions, say
            for name in closure:
                self.look_at(closure.get(name))
            return
        for name in closure:
            self._add(closure, name)
        for name in _globals_read(function.__code__):
            if name in function.__globals__:
                self._add(function.__globals__, name)

    def _add(self, holder: Holder, name: str) -> None:
        value = holder.get(name)
        if not isinstance(value, ModuleType | BuiltinFunctionType | type):
            self.places.append((holder, name))
            self.look_at(value)


def _globals_read(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def attributes(module: torch.nn.Module) -> list[Place]:
    """A module's attributes, without what every module has."""
    held = vars(module)
    return [(held, name) for name in held if name not in _OWN]


class Observed:
    """A place, and what was there when it was made.

    Lists, tuples, dictionaries, dataclasses and namespaces are the same if all that is in them is, to a few
    levels and unless they are long; numbers and strings if they are equal; anything else if it is the very
    object.

    Attributes:
        holder, name: the place.
        then: what was there.
        changeable: whether there may be a change although the very object is still there.
    """

    __slots__ = ("_content", "changeable", "holder", "name", "then")

    def __init__(self, place: Place) -> None:
        self.holder, self.name = place
        self.then = self.value
        self._content = _content(self.then)
        self.changeable = self._content is not self.then and _changeable(self.then)

    @property
    def value(self) -> Any:
        """What is there now."""
        return self.holder.get(self.name)

    @property
    def key(self) -> tuple[int, str]:
        """The same for the same place."""
        return id(self.holder), self.name

    def holds(self) -> bool:
        """Whether the same is there now."""
        now = self.value
        return (now is self.then and not self.changeable) or _same(_content(now), self._content)


def _content(value: Any, depth: int = _DEEPEST) -> Any:
    if depth and not isinstance(value, type):
        if isinstance(value, SimpleNamespace | Namespace) or is_dataclass(value):
            inner: Any = getattr(value, "__dict__", None)
        else:
            inner = value
        if isinstance(inner, dict) and len(inner) <= _LONGEST:
            return type(value), tuple((name, _content(part, depth - 1)) for name, part in inner.items())
        if isinstance(inner, list | tuple) and len(inner) <= _LONGEST:
            return type(value), tuple(_content(part, depth - 1) for part in inner)
    return value


def _changeable(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_changeable, value))
    if is_dataclass(value) and not isinstance(value, type):
        params: Any = getattr(value, "__dataclass_params__", None)
        return not params.frozen or any(map(_changeable, getattr(value, "__dict__", {}).values()))
    return isinstance(value, list | dict | SimpleNamespace | Namespace)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, _PLAIN) and one == other
