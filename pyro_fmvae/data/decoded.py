"""Files that are decoded once and kept, as arrays from which rows can be read."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np


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
    raise OSError(f"decoded data can be kept nowhere: no writing in {', '.join(map(str, folders))}")


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
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).data)
            if file.tell() - start != dtype.itemsize * int(np.prod(shape, dtype=object)):
                raise ValueError(f"{target}: expected numbers of shape {list(shape)}, got others")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
