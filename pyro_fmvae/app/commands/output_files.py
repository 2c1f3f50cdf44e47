"""The files that commands write: their names, checked before anything is computed, and their contents."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data.own.pictures import SUFFIXES
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.files import checkpoint


def check_ending(target: Path, endings: tuple[str, ...], argument: str = "out") -> None:
    """Check that a file can be written under this name.

    Args:
        target: the file.
        endings: the endings allowed.
        argument: name of the argument in messages.

    Raises:
        ValueError: another ending, a folder of that name, or a parent that is no folder.
    """
    if target.suffix not in endings:
        raise ValueError(f"{argument}: expected a name that ends in {' or '.join(endings)}, got '{target}'")
    if target.is_dir():
        raise ValueError(f"{argument}: {target} is a folder")
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{argument}: {parent} is no folder")


def check_different(**files: str | None) -> None:
    """Check that the files given for these arguments differ; None stands for no file.

    Raises:
        ValueError: two of them are the same file.
    """
    paths = [Path(name).resolve() for name in files.values() if name is not None]
    if len(set(paths)) < len(paths):
        raise ValueError(f"{', '.join(files)}: expected different files")


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


def save_arrays(target: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to a .npz file in one step, so that no half-written file remains; make missing folders."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)


def save_pixels(target: Path, pixels: Tensor) -> None:
    """Write an image to a .png file in one step, one pixel per value; make missing folders.

    Args:
        target: the file.
        pixels: values in [0, 1], [H, W] or [H, W, 3].
    """
    picture = Image.fromarray(to_uint8(pixels))
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, lambda path: picture.save(path, format="PNG"))
