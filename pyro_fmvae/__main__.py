"""The command line: ``pyro-fmvae`` or ``python -m pyro_fmvae``."""

import gc
import sys
from collections.abc import Sequence

from pyro_fmvae.app.cli import run_command
from pyro_fmvae.app.runs.launching import stop_as_by_ctrl_c
from pyro_fmvae.files.memory import keep_freed_memory
from pyro_fmvae.files.temporary import keep_temporary_files_private


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with the status of :func:`~pyro_fmvae.app.cli.run_command`."""
    gc.freeze()  # what imports have made is no garbage, and need not be looked at again and again
    keep_freed_memory()
    keep_temporary_files_private()
    stop_as_by_ctrl_c()
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
