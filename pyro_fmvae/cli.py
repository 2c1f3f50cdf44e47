"""The command line: assembles the parsers of :mod:`pyro_fmvae.commands`, and turns errors into one line."""

import re
import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Sequence, Set
from dataclasses import fields
from typing import Any, NoReturn

import torch
from jsonargparse import ArgumentParser, Namespace

from pyro_fmvae import commands
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.runs.run import DERIVED

PROGRAM = "pyro-fmvae"
INTERRUPTED = 130
TYPES = {"float": "a number", "int": "an integer", "bool": "true or false", "str": "text"}


class UsageError(Exception):
    """Arguments that could not be understood."""


class _Parser(ArgumentParser):
    """Parser that raises its errors, in the command line's own words."""

    positional: Set[str] = frozenset()
    """Names of arguments without a flag, of this parser and of its subcommands."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UsageError(_translate(message, self.positional))


def run_command(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command.

    Returns:
        The exit status: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    try:
        namespace = build_parser().parse_args(list(arguments))
        return _dispatch(namespace)
    except UsageError as error:
        return _complain(f"{_one_line(error)} (see {PROGRAM} --help)")
    except (ValueError, OSError, MemoryError) as error:
        return _complain(_one_line(error))
    except RuntimeError as error:
        if not _is_memory(error):
            raise
        return _complain(f"not enough memory: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> ArgumentParser:
    """Build the parser with a subparser for each command."""
    parser = _Parser(prog=PROGRAM, description="Factorial mixture VAEs, from training to edited images.")
    subcommands = parser.add_subcommands(dest="command")
    text = "train a model; without options, on generated smileys"
    subcommands.add_subcommand("train", _train_parser(), help=text)
    for command in commands.COMMANDS:
        subparser = _Parser(description=command.description)
        command.add_arguments(subparser)
        subparser.positional = {action.dest for action in subparser._actions if not action.option_strings}
        parser.positional |= subparser.positional
        subcommands.add_subcommand(command.name, subparser, help=command.help)
    return parser


def _train_parser() -> ArgumentParser:
    parser = _Parser(description="Train a model. Defaults that depend on the data are chosen by it.")
    parser.add_argument("--config", action="config", help="YAML or JSON file with any of these options")
    for option in fields(TrainConfig):
        flag = _flag(option.name)
        kind = _PARSERS.get(option.name, option.type)
        bare: dict[str, Any] = {"nargs": "?", "const": True} if kind in (bool, bool | None) else {}
        parser.add_argument(flag, type=kind, default=option.default, help=option.metadata["help"], **bare)
    parser.add_argument("--" + DERIVED, type=dict | None, help=SUPPRESS)  # of a run's config.json; not read
    parser.add_argument("--out", type=str | None, help="folder of the run; default: a new one in runs/")
    parser.add_argument("--resume", type=str | None, metavar="RUN", help="continue an interrupted run")
    return parser


class _List:
    """Parser of values separated by commas. It is an object so that ``--help`` shows its name.

    Args:
        name: what the values are called.
        convert: parser of one value.
        example: of the text, for the error message.
    """

    def __init__(self, name: str, convert: Callable[[Any], Any], example: str) -> None:
        self.name, self.convert, self.example = name, convert, example

    def __call__(self, text: Any) -> tuple[Any, ...]:
        parts = text if isinstance(text, list | tuple) else str(text).split(",")
        try:
            return tuple(self.convert(part) for part in parts)
        except (ValueError, TypeError):
            expected = f"expected {self.name} separated by commas, such as {self.example}"
            raise ArgumentTypeError(f"{expected}, got '{text}'") from None

    def __repr__(self) -> str:
        return self.name


_SIZES = _List("sizes", int, "2,2,64")
_PARSERS: dict[str, Any] = {
    "factors": _SIZES,
    "hidden": _SIZES,
    "label_names": _List("names", lambda part: str(part).strip(), "hat,eyes"),
    "slope": _List("numbers", float, "50,200"),
    "warm_up": _List("shares", float, "0,0.1"),
}


def _dispatch(namespace: Namespace) -> int:
    options = namespace[namespace.command]
    if namespace.command == "train":
        given = {option.name: getattr(options, option.name) for option in fields(TrainConfig)}
        if options.resume is not None:
            return _resume(options, given)
        return commands.train(TrainConfig(**given), options.out)
    (command,) = (command for command in commands.COMMANDS if command.name == namespace.command)
    return command.run(**vars(options))


def _resume(options: Namespace, given: dict[str, Any]) -> int:
    free = ("data_root", "device", "eager", "compile")
    changed = [
        _flag(option.name)
        for option in fields(TrainConfig)
        if option.name not in free and given[option.name] != option.default
    ]
    if options.out is not None:
        changed.append("--out")
    if changed:
        raise UsageError(f"--resume continues a run as it was started: {', '.join(changed)} can't be changed")
    return commands.resume(options.resume, **{name: given[name] for name in free})


def _translate(message: str, positional: Set[str] = frozenset()) -> str:
    """Reword a message of jsonargparse without Python's types; leave messages it does not know as they are.

    Args:
        message: the parser's.
        positional: names of arguments without a flag.
    """
    message = " ".join(message.split())
    if required := re.match("the following arguments are required: (.*)", message):
        names = [name.rpartition(".")[2] for name in required[1].split(", ")]
        return f"required: {', '.join(name if name in positional else _flag(name) for name in names)}"
    message = re.sub(r"^argument (--[\w-]+): ", r"\1: ", message)
    if not (found := re.match(r'Parser key "([\w.]+)": (.*)', message)):
        return message
    name, text = found[1].rpartition(".")[2], found[2]
    argument = name if name in positional else _flag(name)
    wrong = re.search(r"(?:Got|Given) value: (.*)", text)
    types = text[: wrong.start()].partition("Given value type")[0] if wrong else ""
    wanted = [choices.replace("'", "") for choices in re.findall(r"Literal\[(.*?)\]", types)]
    expected = [f"one of {choices}" for choices in wanted]
    expected += [TYPES[name] for name in re.findall(r"<class '(\w+)'>", types) if name in TYPES]
    if not (wrong and expected):
        return f"{argument}: {text}"
    return f"{argument}: expected {' or '.join(dict.fromkeys(expected))}, got '{wrong[1]}'"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_memory(error: RuntimeError) -> bool:
    """Tell an error of memory from others; on the CPU only torch's message shows it."""
    texts = ("allocate memory", "Storage size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _complain(message: str) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return 2
