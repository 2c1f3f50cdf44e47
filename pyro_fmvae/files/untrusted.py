"""Checks of text from outside: its size before it is parsed, and the types of values after it.

A run's ``config.json``, the JSON of a checkpoint, configuration files and the names in a table may all come
from strangers.
"""

import json
import os
import reprlib
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import yaml

LARGEST: Final = 16 << 20
"""Bytes of text that are parsed."""
DEEPEST: Final = 100
"""Levels of lists and mappings in YAML."""
HUGE: Final = 3.4028234663852886e38
"""Largest number of float32."""

_NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false", NoneType: "nothing"}


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        largest: bytes that it may have.

    Raises:
        FileNotFoundError, OSError: it cannot be read.
        ValueError: it is no ordinary file, is too large, is nested too deeply, or is not JSON.
    """
    return parse_json(read_text(path, largest), largest)


def read_text(path: Path, largest: int = LARGEST) -> str:
    """Read a file in UTF-8.

    Args:
        path: the file.
        largest: bytes that it may have.

    Raises:
        FileNotFoundError, OSError: it cannot be read.
        ValueError: it is no ordinary file, which might never end, is too large, or is not UTF-8.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path}: not an ordinary file")
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{path}: expected at most {largest:,} bytes")
    return content.decode()


def parse_json(text: str, largest: int = LARGEST) -> Any:
    """Parse JSON.

    Args:
        text: to parse.
        largest: characters that it may have.

    Raises:
        ValueError: it is too large, is nested too deeply, or is not JSON.
    """
    if len(text) > largest:
        raise ValueError(f"expected at most {largest:,} characters of JSON, got {len(text):,}")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_yaml(text: str, strings: bool = False) -> None:
    """Check YAML before it is loaded, without building anything.

    Loaders call themselves at each level, which can end the process. With aliases (``*name``) a short text
    stands for an endless one. Of a name that is given twice, they would take the last value.

    Args:
        text: to check.
        strings: also check long strings in it, which a parser of options loads in their turn.

    Raises:
        ValueError: it is nested too deeply, has aliases, or gives a name twice.
        yaml.YAMLError: it is not YAML.
    """
    levels: list[list[Any]] = []  # what each list and mapping that is open has so far
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not allowed")
        if isinstance(event, yaml.CollectionEndEvent):
            found = levels.pop()
            names = Counter(found[::2] if isinstance(event, yaml.MappingEndEvent) else ())
            if twice := [name for name, number in names.items() if number > 1]:
                raise ValueError(f"{twice[0]} is given twice")
        elif isinstance(event, yaml.NodeEvent) and levels:
            levels[-1].append(getattr(event, "value", event))
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append([])
            if len(levels) > DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} levels deep")
        if strings and isinstance(event, yaml.ScalarEvent) and len(event.value) > DEEPEST:
            with suppress(yaml.YAMLError):
                check_yaml(event.value)


def check_printable(names: Iterable[str], source: str) -> None:
    """Check names that are going to be printed.

    Raises:
        ValueError: one has control characters, which a terminal would obey.
    """
    for name in names:
        if not name.isprintable():
            raise ValueError(f"{source}: expected names of printable characters, got {name!r}")


def printable(text: str) -> str:
    """A text on one line, with escape sequences in the place of characters that a terminal would obey."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; of a pipe, without waiting for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_type(name: str, value: Any, hint: Any) -> None:
    """Check that a value is of the type that an annotation says.

    This may be a class, a tuple, list or dict of one type, a ``Literal`` or a union.

    Args:
        name: of the value in messages.
        value: any. A float may also be an integer, but no number is a bool.
        hint: the annotation.

    Raises:
        ValueError: it is of another type, or a number that float32 does not hold.
    """
    if not _conforms(value, hint):
        raise ValueError(f"{name}: expected {_described(hint)}, got {reprlib.repr(value)}")
    if isinstance(value, int | float) and not abs(value) <= HUGE:
        raise ValueError(f"{name}: expected a number that float32 holds, got {reprlib.repr(value)}")


def _conforms(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_conforms(value, part) for part in parts)
    if kind is Literal:
        return isinstance(value, str) and value in parts
    if kind in (tuple, list):
        return isinstance(value, kind) and all(_conforms(part, parts[0]) for part in value)
    if kind is dict:
        of_keys, of_values = parts
        return isinstance(value, dict) and all(
            _conforms(key, of_keys) and _conforms(one, of_values) for key, one in value.items()
        )
    if isinstance(value, int) and abs(value) > HUGE:  # an integer that no float holds
        return False
    if hint is float:
        hint = int | float
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _described(hint: Any) -> str:
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(_described(part) for part in parts)
    if kind is Literal:
        return f"one of {', '.join(parts)}" if len(parts) > 1 else str(parts[0])
    if kind in (tuple, list):
        return f"a list, each {_described(parts[0])}"
    return _NAMES.get(hint, hint.__name__)
