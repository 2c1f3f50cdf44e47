"""Commands of the command line, one module each: a parser of its arguments beside the function."""

from typing import Final

from pyro_fmvae.commands import (
    drawing,
    editing,
    encoding,
    evaluation,
    judging,
    restoring,
    sampling,
    scoring,
)
from pyro_fmvae.commands.command import Command
from pyro_fmvae.commands.training import resume, train

__all__ = ["COMMANDS", "Command", "resume", "train"]

COMMANDS: Final = (
    evaluation.COMMAND,
    sampling.COMMAND,
    drawing.COMMAND,
    encoding.COMMAND,
    scoring.COMMAND,
    editing.COMMAND,
    restoring.COMMAND,
    judging.COMMAND,
)
"""Every command but ``train``, in the order of ``pyro-fmvae --help``."""
