"""Places that programs read, compared with their contents at an earlier time."""

from argparse import Namespace
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

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
