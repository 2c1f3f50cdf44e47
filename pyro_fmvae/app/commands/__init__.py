"""Commands of the command line, one module each: a parser of its arguments beside the function."""

from collections.abc import Sequence
from typing import Final

from pyro_fmvae.app.commands import (
    drawing,
    editing,
    encoding,
    evaluation,
    exploring,
    exporting,
    reporting,
    sampling,
    scoring,
    searching,
    training,
)
from pyro_fmvae.app.commands.command import Command

__all__ = ["COMMANDS", "Command", "all_commands"]

COMMANDS: Final = (
    evaluation.COMMAND,
    reporting.COMMAND,
    sampling.COMMAND,
    drawing.COMMAND,
    encoding.COMMAND,
    scoring.COMMAND,
    searching.COMMAND,
    editing.COMMAND,
    exploring.COMMAND,
    exporting.COMMAND,
)
"""Every command but ``train``, in the order of ``pyro-fmvae --help``."""


def all_commands(arguments: Sequence[str] = ()) -> tuple[Command, ...]:
    """Every command.

    Args:
        arguments: of the command line, by which ``train`` knows its model and what was typed.
    """
    return (training.command(arguments), *COMMANDS)
