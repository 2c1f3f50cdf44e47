"""The contract of a command, and the arguments that nearly all commands take."""

from collections.abc import Callable
from dataclasses import dataclass

from jsonargparse import ArgumentParser

from pyro_fmvae.learn.options import count

# The seed of a command's random numbers.


def add_seed(parser: ArgumentParser) -> None:
    """Add ``--seed``."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")


def check_seed(seed: int) -> None:
    """Raise ValueError unless random generators accept a seed."""
    count(0)("seed", seed)


class UsageError(Exception):
    """Arguments that could not be understood."""


@dataclass(frozen=True)
class Command:
    """A subcommand of ``pyro-fmvae``: each module of a command ends with one."""

    name: str
    """As it is typed."""
    help: str
    """One line for ``pyro-fmvae --help``."""
    description: str
    """One sentence for ``pyro-fmvae NAME --help``."""
    add_arguments: Callable[[ArgumentParser], None]
    """Adds the command's arguments to its parser."""
    run: Callable[..., int]
    """Carries the command out, given its arguments by name, and returns the exit status. It raises
    ValueError, naming the argument, for bad input."""
    brief: str = ""
    """Text of ``--help`` where all arguments would fill several screens: these are for ``--help-all``."""
    shared: bool = False
    """True if the ranks of torchrun do it together; else rank 0 does it alone."""


def add_run(parser: ArgumentParser) -> None:
    """Add the positional argument ``run``."""
    parser.add_argument("run", type=str, help="folder of a run, or exported .fmvae file")


def add_device(parser: ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device", type=str, default="auto", help="cpu, cuda, ... or auto, which takes a GPU if there is one"
    )
