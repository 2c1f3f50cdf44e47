"""Arrays that are written as they come, and never held as a whole."""

import shutil
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from pyro_fmvae.files import checkpoint


class _Spool:
    """Rows of one array, one part after another, in a temporary file.

    Args:
        file: the file.
        first: of the parts, whose dtype and row shape the others have.
    """

    def __init__(self, file: IO[bytes], first: np.ndarray) -> None:
        self.file, self.dtype, self.shape = file, first.dtype, (0, *first.shape[1:])

    def append(self, part: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(part).data)
        self.shape = (self.shape[0] + len(part), *self.shape[1:])

    def copy(self, member: IO[bytes]) -> None:
        """Write all rows as NumPy writes an array."""
        description = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": description, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(member, header)
        self.file.seek(0)
        shutil.copyfileobj(self.file, member, 1 << 20)


def save_array_parts(
    target: Path, parts: Iterable[Mapping[str, np.ndarray]], beside: Mapping[str, Any] | None = None
) -> dict[str, tuple[int, ...]]:
    """Write arrays to a .npz file, part after part and then in one step; make missing folders.

    Their numbers lie in temporary files beside the target until the last part is there, so that twice the
    room on the disk is needed. If anything fails, nothing is left, and an older file stays as it was.

    Args:
        target: the file.
        parts: arrays of the next rows, by name; the names, row shapes and dtypes are always the same.
        beside: further arrays and numbers, which are looked at when all parts have been written.

    Returns:
        The shapes of the arrays that came in parts.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder, ExitStack() as stack:
        spools: dict[str, _Spool] = {}
        for part in parts:
            for name, array in part.items():
                if name not in spools:
                    file = stack.enter_context(Path(folder, str(len(spools))).open("w+b"))
                    spools[name] = _Spool(file, array)
                spools[name].append(array)

        def write(path: Path) -> None:
            with zipfile.ZipFile(path, "w") as archive:
                for name, spool in spools.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        spool.copy(member)
                for name, value in (beside or {}).items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(value), allow_pickle=False)

        checkpoint.write_atomically(target, write)
        return {name: spool.shape for name, spool in spools.items()}
