"""The command line: ``pyro-fmvae`` or ``python -m pyro_fmvae``."""

import sys
from collections.abc import Sequence

from pyro_fmvae.cli import run_command
from pyro_fmvae.memory import keep_freed_memory


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 on success, 2 with one line on standard error for bad input."""
    keep_freed_memory()
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
