"""Temporary files of the command, in a folder that nobody else can write to."""

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def keep_temporary_files_private() -> Path:
    """Use a folder of this user alone for temporary files, and for what ``torch.compile`` keeps.

    ``torch.compile`` keeps compiled code in ``torchinductor_NAME`` in the system's temporary folder, and runs
    what it finds there. On a machine with several users anybody can make that folder first. So this function
    sets the temporary folder, of this process and those it starts, to ``pyro-fmvae-UID`` in the one before.
    The folder stays, so that the next process need not compile the same code again. If somebody else made it,
    or others can write to it, this process has one of its own, which is removed at the end.

    ``pyro-fmvae`` calls this function first; it has to come before torch compiles anything. If the
    environment sets ``TORCHINDUCTOR_CACHE_DIR``, most compiled code goes there as before.

    Returns:
        The folder, with mode 0700. On Windows, the system's: there each user has another.
    """
    if not hasattr(os, "geteuid"):
        return Path(tempfile.gettempdir())
    folder = Path(tempfile.gettempdir(), f"pyro-fmvae-{os.geteuid()}")
    with suppress(OSError):
        folder.mkdir(mode=stat.S_IRWXU)
    if not _is_private(folder):
        folder = Path(tempfile.mkdtemp(prefix="pyro-fmvae-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def _is_private(path: Path) -> bool:
    """True for a folder, not a link to one, that is this user's and closed to all others."""
    with suppress(OSError):
        found = path.lstat()
        return found.st_uid == os.geteuid() and found.st_mode == stat.S_IFDIR | stat.S_IRWXU
    return False
