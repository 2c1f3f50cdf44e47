"""The parser of commands: its errors are raised, in the command line's own words."""

import re
from argparse import SUPPRESS, Action
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, get_loader, set_loader

from pyro_fmvae.app.commands.command import UsageError
from pyro_fmvae.files.untrusted import DEEPEST, LARGEST, check_yaml
from pyro_fmvae.learn.options import flag

PROGRAM = "pyro-fmvae"
YAML = "yaml with limits"
"""Name that jsonargparse knows :func:`load_yaml` by."""
LONGEST_YAML = 1 << 20  # characters; JSON, which takes less time, may have more
TYPES = {"float": "a number", "int": "an integer", "bool": "true or false", "str": "text"}


class Parser(ArgumentParser):
    """Parser that raises its errors, in the command line's own words."""

    positional: Set[str] = frozenset()
    """Names of arguments without a flag, of this parser and of its subcommands."""

    brief: str = ""
    """Text of ``--help``; if it is empty, all arguments are shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"parser_mode": YAML} | kwargs)

    def format_help(self, *args: Any) -> str:
        return self.brief or super().format_help(*args)

    def parse_args(self, args: Any = None, *rest: Any, **others: Any) -> Any:
        for text in args or ():
            value = text.partition("=")[2] if text.startswith("--") else text
            if len(value) > DEEPEST:
                try:
                    with suppress(yaml.YAMLError):
                        check_yaml(value)
                except ValueError as error:
                    raise UsageError(f"{text[:20]}…: {error}") from None
        try:
            return super().parse_args(args, *rest, **others)
        except OverflowError:  # of an integer of hundreds of digits
            raise UsageError("expected numbers that float32 holds, got a larger one") from None

    def parse_path(self, path: Any, *args: Any, **others: Any) -> Any:
        try:
            return super().parse_path(path, *args, **others)
        except UnicodeDecodeError:
            raise UsageError(f"config: {path} is not UTF-8 text; save it as UTF-8") from None

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UsageError(translate(message, self.positional))


class HelpAll(Action):
    """``--help-all``: show all arguments."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        text = "show every option, by group, and exit"
        super().__init__(option_strings, SUPPRESS, nargs=0, default=SUPPRESS, help=text)

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.brief = ""
        parser.print_help()
        parser.exit()


def load_yaml(text: str, path: str = "") -> Any:
    """Load YAML, of which JSON is a part, without constructors of Python's objects.

    Args:
        text: to load.
        path: the file that it is from, for messages.

    Raises:
        ValueError: it is too large, or :func:`~pyro_fmvae.files.untrusted.check_yaml` refuses it.
    """
    largest = LARGEST if text.lstrip().startswith("{") else LONGEST_YAML
    try:
        if len(text) > largest:
            raise ValueError(f"expected at most {largest:,} characters, got {len(text):,}")
        check_yaml(text, strings=True)
        return get_loader("yaml")(text)
    except (yaml.YAMLError, ValueError) as error:
        message = str(error).replace(' in "<unicode string>",', " at")
        raise ValueError(f"{path}: {message}" if path else message) from None


set_loader(YAML, load_yaml, (ValueError,))


def translate(message: str, positional: Set[str] = frozenset()) -> str:
    """Reword a message of jsonargparse without Python's types; leave messages it does not know as they are.

    Args:
        message: the parser's.
        positional: names of arguments without a flag.
    """
    message = " ".join(message.split())
    if required := re.match("the following arguments are required: (.*)", message):
        names = [name.rpartition(".")[2] for name in required[1].split(", ")]
        return f"required: {', '.join(name if name in positional else flag(name) for name in names)}"
    message = message.replace("Problems parsing config:", "config:")
    message = re.sub(r"^argument (--[\w-]+): ", r"\1: ", message)
    if not (found := re.match(r'Parser key "([\w.]+)": (.*)', message)):
        return message
    name, text = found[1].rpartition(".")[2], found[2]
    argument = name if name in positional else flag(name)
    wrong = re.search(r"Given value: (.*)", text) or re.search(r"Got value: (.*)", text)
    types = text[: wrong.start()].partition("Given value type")[0] if wrong else ""
    wanted = [choices.replace("'", "") for choices in re.findall(r"Literal\[(.*?)\]", types)]
    expected = [f"one of {choices}" if "," in choices else choices for choices in wanted]
    expected += [TYPES[name] for name in re.findall(r"<class '(\w+)'>", types) if name in TYPES]
    if not (wrong and expected):
        return f"{argument}: {text}"
    return f"{argument}: expected {' or '.join(dict.fromkeys(expected))}, got '{wrong[1]}'"
