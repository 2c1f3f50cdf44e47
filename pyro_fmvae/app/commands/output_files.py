"""The files that commands write: their names, checked before anything is computed, and their contents."""

import shutil
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import numpy as np
from PIL import Image
from torch import Tensor

from pyro_fmvae.app.runs.run import Run, check_parents
from pyro_fmvae.data.own.pictures import SUFFIXES
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.files import checkpoint

TABLES: Final = (".csv", ".parquet")
"""Endings of the files that hold tables."""


def output_file(
    run: Run | None, name: str | Path, endings: Iterable[str], argument: str = "out", **given: str | None
) -> Path:
    """The file that a command is to write.

    Args:
        run: whose data it must not replace; None: no run's.
        name: of the file.
        endings: those allowed.
        argument: name of the argument in messages.
        **given: files that the command reads or writes beside it, by the names of their arguments.

    Raises:
        ValueError: another ending, a folder of that name, a parent that is no folder, one of the other files,
            the run's data, or a package that is not installed.
    """
    target = Path(name)
    if target.suffix not in endings:
        raise ValueError(f"{argument}: expected a name that ends in {' or '.join(endings)}, got '{target}'")
    if target.is_dir():
        raise ValueError(f"{argument}: {target} is a folder")
    check_parents(target, argument)
    if target.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError("out: Parquet needs pyarrow: pip install 'pyro_fmvae[parquet]', or write .csv")
    for beside, other in given.items():
        if other is not None and Path(other).resolve() == target.resolve():
            raise ValueError(f"{beside}, {argument}: expected different files")
    if run is not None:
        check_spares_data(run, target, argument)
    return target


def check_spares_data(run: Run, target: Path, argument: str = "out") -> None:
    """Check that writing a file does not replace the data of a run.

    Args:
        run: the run.
        target: the file.
        argument: name of the argument in messages.

    Raises:
        ValueError: the file is the run's data file, or an image in its data folder.
    """
    if run.config.data in LOADERS:
        return
    data, resolved = Path(run.config.data).resolve(), target.resolve()
    image = data in resolved.parents and resolved.suffix.lower() in SUFFIXES and resolved.exists()
    if image or resolved == data:
        raise ValueError(f"{argument}: {target} holds data that the run was trained on")


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


def save_pixels(target: Path, pixels: Tensor) -> None:
    """Write an image to a .png file in one step, one pixel per value; make missing folders.

    Args:
        target: the file.
        pixels: values in [0, 1], [H, W] or [H, W, 3].
    """
    picture = Image.fromarray(to_uint8(pixels))
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, lambda path: picture.save(path, format="PNG"))
