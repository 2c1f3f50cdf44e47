"""Finds what programs read besides their arguments: attributes, variables of closures, globals."""

import dis
import importlib.util
import os
import sys
import sysconfig
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.capture.guards.hooks import functions
from pyro_fmvae.capture.guards.places import MOST, PLAIN, Holder, Place

_OWN = frozenset(vars(torch.nn.Module()))  # what every module has
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
_LIBRARIES = tuple(
    folder + os.sep
    for folder in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")),
        str(Path(torch.__file__).parent),
        str(Path(__file__).parents[2]),
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
