"""The command line: assembles the parsers of :mod:`pyro_fmvae.commands`, and turns errors into one line."""

import sys
from collections.abc import Sequence

import torch
from jsonargparse import ArgumentParser, Namespace

from pyro_fmvae import commands
from pyro_fmvae.commands.command import UsageError
from pyro_fmvae.commands.parser import PROGRAM, HelpAll, Parser
from pyro_fmvae.version import __version__

INTERRUPTED = 130


def run_command(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command.

    Returns:
        The exit status: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    try:
        namespace = build_parser(arguments).parse_args(list(arguments))
        return _dispatch(namespace, arguments)
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


def build_parser(arguments: Sequence[str] = ()) -> ArgumentParser:
    """Build the parser with a subparser for each command.

    Args:
        arguments: of the command line; some commands depend on them.
    """
    description = "Factorial mixture VAEs, from training to edited images."
    parser = Parser(prog=PROGRAM, description=description, version=__version__)
    subcommands = parser.add_subcommands(dest="command")
    for command in commands.all_commands(arguments):
        subparser = Parser(description=command.description)
        command.add_arguments(subparser)
        if command.brief:
            subparser.brief, subparser.usage = command.brief, f"{PROGRAM} {command.name} [options]"
            subparser.add_argument("--help-all", action=HelpAll)
        subparser.positional = {action.dest for action in subparser._actions if not action.option_strings}
        parser.positional |= subparser.positional
        subcommands.add_subcommand(command.name, subparser, help=command.help)
    return parser


def _dispatch(namespace: Namespace, arguments: Sequence[str]) -> int:
    (command,) = (one for one in commands.all_commands(arguments) if one.name == namespace.command)
    return command.run(**vars(namespace[namespace.command]))


def _is_memory(error: RuntimeError) -> bool:
    """Tell an error of memory from others; on the CPU only torch's message shows it."""
    texts = ("allocate memory", "Storage size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _complain(message: str) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return 2
