"""Declaring options as fields of dataclasses, and how the command line writes them."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import field
from typing import Any

from pyro_fmvae.recipes.ranges import Check


class NotAList(ArgumentTypeError, ValueError):
    """A text or a value that is not the list that it should be, on a command line or in a file."""


class ListOf:
    """Converts text such as ``2,2,64`` to a tuple.

    Args:
        name: of the elements, for ``--help`` and messages.
        convert: converts one element.
        example: of a list.
    """

    def __init__(self, name: str, convert: Callable[[Any], Any], example: str) -> None:
        self.name, self.convert, self.example = name, convert, example

    def __call__(self, text: Any) -> tuple[Any, ...]:
        """The elements of a text or a list.

        Raises:
            NotAList: an element cannot be converted, or the value is neither a text nor a list.
        """
        parts = text if isinstance(text, list | tuple) else str(text).split(",")
        try:
            return tuple(self.convert(part) for part in parts)
        except (ValueError, TypeError, OverflowError):
            expected = f"expected {self.name} separated by commas, such as {self.example}"
            raise NotAList(f"{expected}, got '{text}'") from None

    def __repr__(self) -> str:
        return self.name  # which --help shows


SIZES = ListOf("sizes", int, "2,2,64")
NUMBERS = ListOf("numbers", int, "1,2")
NAMES = ListOf("names", lambda part: str(part).strip(), "hat,eyes")


def option(
    default: Any,
    text: str,
    check: Check | None = None,
    parse: ListOf | None = None,
    path: bool = False,
    example: str = "",
) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: of the option.
        text: for ``--help-all``.
        check: raises ValueError for values out of range; not asked about None.
        parse: converts text, where the option's type does not say how.
        path: the value is the path of a file or folder.
        example: a value as it is typed. Options with an example are those that matter first: ``--help`` shows
            them alone.
    """
    metadata = {"help": text, "check": check, "parse": parse, "path": path, "by_data": False}
    return field(default=default, metadata=metadata | {"example": example})


def by_data(text: str, check: Check | None = None, parse: ListOf | None = None, example: str = "") -> Any:
    """Declare an option whose default depends on the data: None until :meth:`Recipe.resolve` chooses it."""
    metadata = {"help": text, "check": check, "parse": parse, "path": False, "by_data": True}
    return field(default=None, metadata=metadata | {"example": example})


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def as_typed(value: Any) -> str:
    """The value of an option as the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
