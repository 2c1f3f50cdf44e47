"""CelebA: 202,599 aligned faces with forty binary attributes, in torchvision's layout."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import torch

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.decoded import user_cache
from pyro_fmvae.data.image_cache import load_images
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

FOLDER: Final = "celeba"
IMAGES: Final = "img_align_celeba"
ARCHIVE: Final = f"{IMAGES}.zip"
ATTRIBUTES: Final = "list_attr_celeba.txt"
PARTITION: Final = "list_eval_partition.txt"
SHA256: Final = {
    ARCHIVE: "46fb89443c578308acf364d7d379fe1b9efb793042c0af734b6112e4fd3a8c74",
    ATTRIBUTES: "f0e5da289d5ccf75ffe8811132694922b60f2af59256ed362afa03fefba324d0",
    PARTITION: "fc955bcb3ef8fbdf7d5640d9a8693a8431b5f2ee291a5c1449a1549e7e073fe7",
}
"""Checksums of what is downloaded."""
CROP: Final = 148
"""Side in pixels of the centre square that is kept of an image of 178 x 218."""
CACHE: Final = "pyro_fmvae_cache"
VALUES: Final = ("no", "yes")


def load_celeba(root: Path, image_size: int = 64) -> Dataset:
    """Load faces [S, S, 3] with int64 labels 0 and 1 for each attribute, in the official splits.

    Every image in the list of attributes is read; the list may be a part of the official one. Images are
    decoded once and kept in ``celeba/pyro_fmvae_cache``, or if that cannot be written in
    ``~/.cache/pyro_fmvae``.

    Args:
        root: the folder that holds, or after a download will hold, ``celeba/img_align_celeba``,
            ``celeba/list_attr_celeba.txt`` and ``celeba/list_eval_partition.txt``. They lie on Google Drive,
            from where torchvision fetches them by gdown; what it brings has to have the published SHA-256.
            Existing files are read as they are. Where images are missing and their archive is there, it is
            extracted (again).
        image_size: S, the side that the centre square of 148 pixels is resized to.

    Raises:
        FileNotFoundError: a listed image is missing, or the download failed.
        ValueError: a file is not as described.
    """
    folder = root / FOLDER
    if not _complete(folder):
        _download(root)
    names, labels, label_names = _read_attributes(folder / ATTRIBUTES)
    _extract_missing(folder, names)
    partition = _read_partition(folder / PARTITION)
    unlisted = next((name for name in names if name not in partition), None)
    if unlisted is not None:
        raise ValueError(f"{folder / PARTITION}: expected a line for {unlisted}, as in {ATTRIBUTES}")
    parts = np.array([partition[name] for name in names])
    order = np.argsort(parts, kind="stable")  # so that each split is one piece of the array
    sizes = np.bincount(parts, minlength=3).tolist()
    if 0 in sizes:
        raise ValueError(
            f"{folder / PARTITION}: expected images for training (0), validation (1) and testing (2), "
            f"got {', '.join(map(str, sizes))} of them"
        )
    shape = (image_size, image_size, 3)
    caches = (folder / CACHE, user_cache())
    images = load_images(folder / IMAGES, [names[row] for row in order], shape, caches, CROP)
    pieces = zip(
        torch.from_numpy(images).split(sizes), torch.from_numpy(labels[order]).split(sizes), strict=True
    )
    train, valid, test = (Split(x, known, signed=True) for x, known in pieces)
    count = len(label_names)
    return Dataset(
        name="celeba",
        train=train,
        valid=valid,
        test=test,
        preprocessing=Preprocessing(Kind.IMAGE, shape),
        label_names=label_names,
        label_sizes=(len(VALUES),) * count,
        value_names=(VALUES,) * count,
    )


def _complete(folder: Path) -> bool:
    return (folder / IMAGES).is_dir() and all((folder / name).is_file() for name in (ATTRIBUTES, PARTITION))


def _download(root: Path) -> None:
    """Let torchvision download all files, and delete them again if one is not the published one."""
    from pooch import file_hash  # needed only here
    from torchvision.datasets import CelebA  # heavy, likewise

    folder = root / FOLDER
    try:
        CelebA(root, split="all", download=True)
        reason = "it came incomplete"
    except Exception as error:  # no network, a quota, no gdown, a damaged archive: each of another kind
        reason = next(iter(str(error).splitlines()), type(error).__name__)
    if _complete(folder):
        found = [name for name in SHA256 if (folder / name).is_file()]
        wrong = [name for name in found if file_hash(folder / name) != SHA256[name]]
        if not wrong:
            return
        for name in found:
            (folder / name).unlink()
        reason = f"{wrong[0]} is another file than the published one"
    raise FileNotFoundError(
        f"data_root: expected {IMAGES}, {ATTRIBUTES} and {PARTITION} in {folder}, "
        f"and CelebA could not be downloaded: {reason}"
    )


def _extract_missing(folder: Path, names: list[str]) -> None:
    """Extract the archive of images, if there is one and an image is missing, as after an interruption."""
    archive = folder / ARCHIVE
    if archive.is_file() and not set(names) <= set(os.listdir(folder / IMAGES)):
        try:
            with zipfile.ZipFile(archive) as file:
                file.extractall(folder)
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{archive}: damaged: {error}") from error


def _read_attributes(path: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Read the file names of n images, their labels, int64 [n, L], and L names.

    The first line is n, the second one names the attributes, and each other line is a file name and L times
    1 or -1.
    """
    lines = _lines(path)
    if len(lines) < 3 or len(lines[0]) != 1 or not lines[0][0].isdecimal():
        raise ValueError(f"{path}: expected the number of images, a line of names, and a line for each image")
    label_names, rows = tuple(lines[1]), lines[2:]
    if int(lines[0][0]) != len(rows):
        raise ValueError(f"{path}: expected {lines[0][0]} images, as its first line says, got {len(rows)}")
    labels = np.empty((len(rows), len(label_names)), dtype=np.int64)
    for row, (name, *values) in enumerate(rows):
        if len(values) != len(label_names) or not set(values) <= {"1", "-1"}:
            raise ValueError(f"{path}: expected {len(label_names)} times 1 or -1 for {name}")
        labels[row] = [value == "1" for value in values]
    names = [row[0] for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: expected one line for each image, some have several")
    return names, labels, label_names


def _read_partition(path: Path) -> dict[str, int]:
    """Read the split of each file name: 0 training, 1 validation, 2 testing."""
    partition = {}
    for fields in _lines(path):
        if len(fields) != 2 or fields[1] not in ("0", "1", "2"):
            raise ValueError(f"{path}: expected lines of a file name and 0, 1 or 2, got '{' '.join(fields)}'")
        partition[fields[0]] = int(fields[1])
    return partition


def _lines(path: Path) -> list[list[str]]:
    """Read the fields of each line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file: {error}") from error
    return [line.split() for line in text.splitlines() if line.strip()]


LOADER: Final = Loader("celeba", lambda options: load_celeba(options.root, options.image_size))
