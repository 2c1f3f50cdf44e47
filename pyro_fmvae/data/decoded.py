"""Files that are decoded once and kept, as arrays from which rows can be read."""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from pyro_fmvae.files.memory import describe, limit

KEPT: Final = 30 * 24 * 3600.0
"""Seconds for which a decoded file is kept after it was last used."""
UNPACKED: Final = 1000
"""Bytes, at most, that a byte of a file becomes on the disk, unless they are few."""

logger = logging.getLogger("pyro_fmvae")


def user_cache() -> Path:
    """Return the folder of downloaded and computed files of this user: ``~/.cache/pyro_fmvae``."""
    return Path.home() / ".cache" / "pyro_fmvae"


def first_writable(folders: Sequence[Path]) -> Path:
    """The first folder that can be written, made if it is missing.

    Raises:
        OSError: there is none.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(
        "expected a folder for decoded data that can be written to, but none of these can be: "
        + ", ".join(map(str, folders))
    )


def write_npy(target: Path, shape: tuple[int, ...], dtype: np.dtype, parts: Iterable[np.ndarray]) -> None:
    """Write rows to a .npy file under a temporary name of this process, sync it, and rename it.

    Args:
        target: the file.
        shape, dtype: of all rows.
        parts: rows one after another.

    Raises:
        ValueError: the parts have more or fewer numbers than the shape.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).data)
                if file.tell() - start > size:
                    break
            if file.tell() - start != size:
                raise ValueError(f"{target}: expected numbers of shape {list(shape)}, got others")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def decoded_rows(
    source: Path, key: str, shape: tuple[int, ...], dtype: np.dtype, parts: Callable[[], Iterable[np.ndarray]]
) -> Path:
    """Decode the rows of a file into ``~/.cache/pyro_fmvae/tables``, unless an earlier call has done so.

    Args:
        source: the file, for messages.
        key: all that the rows depend on. Another key makes another array.
        shape, dtype: of all rows.
        parts: decodes them, one after another.

    Returns:
        The .npy file of the rows.

    Raises:
        ValueError: there is no room on the disk.
    """
    folder = first_writable((user_cache() / "tables",))
    target = folder / f"rows-{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.npy"
    if target.exists():
        mark_used(target)
        return target
    forget_unused(folder, "rows")
    size, free = dtype.itemsize * int(np.prod(shape, dtype=object)), shutil.disk_usage(folder).free
    if size > free:
        raise ValueError(f"{source}: its rows take {describe(size)}, and {folder} has {describe(free)} left")
    if size > min(limit(), free // 10) and size > UNPACKED * (stored := _stored(source)):
        raise ValueError(
            f"{source}: its rows would take {describe(size)} on the disk, more than {UNPACKED:,} times "
            f"the {stored:,} bytes of the file; a greater "
            "--max-memory allows that where the disk has ten times the room"
        )
    logger.info("decoding %s rows of %s into %s (once)", f"{shape[0]:,}", source, folder)
    write_npy(target, shape, dtype, parts())
    return target


def _stored(source: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (source, *source.rglob("*")) if path.is_file())


def mark_used(path: Path) -> None:
    """Note that a decoded file is in use now: see :func:`forget_unused`."""
    with suppress(OSError):  # somebody else's
        os.utime(path)


def forget_unused(folder: Path, kind: str) -> None:
    """Delete decoded files that nobody has opened or read for `KEPT` seconds, and what was left half-written.

    Args:
        folder: where they lie.
        kind: what their names begin with: ``images`` or ``rows``.
    """
    for path in (*folder.glob(f"{kind}-*.npy"), *folder.glob(f".{kind}-*.tmp")):
        with suppress(OSError):  # somebody else's, or already deleted
            status = path.stat()
            if max(status.st_atime, status.st_mtime) < time.time() - KEPT:
                path.unlink()
                logger.info("deleted %s, unused for a month", path)
