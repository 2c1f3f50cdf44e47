"""The command line: assembles the parsers of ``app.commands``, and turns errors into one line."""

import sys
import traceback
from collections.abc import Sequence

import torch
from jsonargparse import ArgumentParser, Namespace

from pyro_fmvae.app import commands
from pyro_fmvae.app.commands.command import UsageError
from pyro_fmvae.app.commands.parser import PROGRAM, HelpAll, Parser
from pyro_fmvae.app.runs.launching import (
    TIMEOUT,
    LostRankError,
    SpokenElsewhereError,
    Stopped,
    exit_status,
    launched,
    quiet_unless_first,
)
from pyro_fmvae.app.version import __version__
from pyro_fmvae.files.memory import at_most, parse_size
from pyro_fmvae.files.untrusted import printable

BAD_INPUT, OUR_FAILURE, INTERRUPTED = 2, 1, 130
ISSUES = "https://github.com/pyro-fmvae/pyro_fmvae/issues"
DEBUG = "--debug"


def run_command(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the command; without arguments, print the help.

    Returns:
        The exit status: 0; 2 for bad input and 1 for an error of this program, both with one line on standard
        error, and a traceback before it with ``--debug``; 130 after Ctrl-C, and 128 + the number of another
        signal.
    """
    try:
        with quiet_unless_first():
            namespace = build_parser(arguments).parse_args(list(arguments) or ["--help"])
        return _dispatch(namespace, arguments)
    except SpokenElsewhereError as error:
        cause = error.__cause__
        return _explain(cause, arguments)[1] if isinstance(cause, Exception) else _status(cause)
    except KeyboardInterrupt as stop:
        print(f"{PROGRAM}: stopped", file=sys.stderr)
        return _status(stop)
    except Exception as error:
        if DEBUG in arguments:
            traceback.print_exc()
        message, status = _explain(error, arguments)
        rank = getattr(error, "rank", 0)
        named = f"rank {rank}: " if rank and not isinstance(error, LostRankError) else ""
        print(f"{PROGRAM}: error: {named}{printable(message)}", file=sys.__stderr__ if rank else sys.stderr)
        return status


def _status(stop: BaseException | None) -> int:
    return exit_status(stop.number) if isinstance(stop, Stopped) else INTERRUPTED


def build_parser(arguments: Sequence[str] = ()) -> ArgumentParser:
    """Build the parser with a subparser for each command.

    Args:
        arguments: of the command line; some commands depend on them. Where they name a command, the others
            have no arguments: it takes time to add hundreds of them.
    """
    description = "Factorial mixture VAEs, from training to edited images."
    parser = Parser(prog=PROGRAM, description=description, version=__version__)
    subcommands = parser.add_subcommands(dest="command")
    known = commands.all_commands(arguments)
    named = [command for command in known if command.name in arguments] or known
    for command in known:
        subparser = Parser(description=command.description)
        subcommands.add_subcommand(command.name, subparser, help=command.help)
        if command not in named:
            continue
        command.add_arguments(subparser)
        subparser.add_argument(
            "--max-memory",
            type=str | None,
            help="most memory that one file may unpack to, such as 8G; default: half of all memory",
        )
        text = (
            "show the traceback of an error; under torchrun, also check that all ranks have the same numbers"
        )
        subparser.add_argument(DEBUG, action="store_true", help=text)
        text = "under torchrun, seconds to wait for a rank that does not answer"
        subparser.add_argument("--rank-timeout", type=float, default=TIMEOUT, help=text)
        if command.brief:
            subparser.brief, subparser.usage = command.brief, f"{PROGRAM} {command.name} [options]"
            subparser.add_argument("--help-all", action=HelpAll)
        subparser.positional = {action.dest for action in subparser._actions if not action.option_strings}
        parser.positional |= subparser.positional
    return parser


def _dispatch(namespace: Namespace, arguments: Sequence[str]) -> int:
    (command,) = (one for one in commands.all_commands(arguments) if one.name == namespace.command)
    given = vars(namespace[namespace.command])
    size, timeout, checked = (given.pop(name) for name in ("max_memory", "rank_timeout", "debug"))
    with at_most(None if size is None else parse_size(size)), launched(timeout, checked) as ranks:
        return command.run(**given) if ranks.leads or command.shared else 0


def _explain(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """The line that says what went wrong, and the exit status."""
    if isinstance(error, UsageError):
        known = {command.name for command in commands.all_commands()}
        named = [argument for argument in arguments if argument in known][:1]
        return f"{error} (see {' '.join([PROGRAM, *named, '--help'])})", BAD_INPUT
    if isinstance(error, MemoryError) or _is_memory(error):
        return f"not enough memory: {(str(error).splitlines() or ['nothing is left'])[0]}", BAD_INPUT
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror.lower()}", BAD_INPUT
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, OSError):
        return f"{error.strerror.lower() if error.strerror else error}{notes}", BAD_INPUT
    if isinstance(error, ValueError):
        return str(error), BAD_INPUT
    if isinstance(error, LostRankError):
        return f"{error}{notes}", OUR_FAILURE
    text = f"{type(error).__name__}: {error}"
    return f"unforeseen, please report it to {ISSUES}, with what {DEBUG} shows: {text}{notes}", OUR_FAILURE


def _is_memory(error: Exception) -> bool:
    """Tell an error of memory from others; on the CPU only torch's message shows it."""
    texts = ("allocate memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and (
        isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)
    )
