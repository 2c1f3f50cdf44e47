"""Temporary files of the process, in a folder that nobody else can write to."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def keep_temporary_files_private() -> Path:
    """Give the process a temporary folder of its own, which is removed when it exits.

    ``torch.compile`` keeps compiled code in ``torchinductor_NAME`` in the system's temporary folder, and runs
    what it finds there. On a machine with several users anybody can make that folder first. With
    ``TORCHINDUCTOR_CACHE_DIR`` it keeps code elsewhere, all but its precompiled headers, for which it still
    goes by the temporary folder. So both are set, before torch compiles anything. If the environment sets
    ``TORCHINDUCTOR_CACHE_DIR``, it stays: code that is kept there need not be compiled anew by every process.

    The setting holds for the whole process and those it starts. ``pyro-fmvae`` calls this function first.

    Returns:
        The folder, in the system's temporary folder (or in ``TMPDIR``), with mode 0700.
    """
    folder = tempfile.mkdtemp(prefix="pyro-fmvae-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "compiled"))
    return Path(folder)
