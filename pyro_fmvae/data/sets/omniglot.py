"""Omniglot: handwritten characters of fifty alphabets, 28x28, binarised dynamically or by a threshold."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.download import Source, downloaded
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

SOURCE: Final = Source(
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    {
        "images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        "images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    },
)
MATLAB: Final = "chardata.mat"
ARCHIVE: Final = "omniglot28.npz"
FOLDER: Final = "omniglot-py"
SHAPE: Final = (28, 28)
SIDE: Final = 105
"""Height and width in pixels of an original image."""
ALPHABETS: Final = (
    *("Alphabet_of_the_Magi", "Anglo-Saxon_Futhorc", "Arcadian", "Armenian", "Asomtavruli_(Georgian)"),
    *("Balinese", "Bengali", "Blackfoot_(Canadian_Aboriginal_Syllabics)", "Braille", "Burmese_(Myanmar)"),
    *("Cyrillic", "Early_Aramaic", "Futurama", "Grantha", "Greek", "Gujarati", "Hebrew"),
    *("Inuktitut_(Canadian_Aboriginal_Syllabics)", "Japanese_(hiragana)", "Japanese_(katakana)", "Korean"),
    *("Latin", "Malay_(Jawi_-_Arabic)", "Mkhedruli_(Georgian)", "N_Ko"),
    *("Ojibwe_(Canadian_Aboriginal_Syllabics)", "Sanskrit", "Syriac_(Estrangelo)", "Tagalog", "Tifinagh"),
)
"""Alphabets of the background set, sorted."""
_VALID = 10  # one training image in so many
_SEED = 0


class _Part(NamedTuple):
    """Images for training or for testing."""

    x: np.ndarray
    """Ink, [n, 28, 28]: uint8, 255 = full, or float32 in [0, 1]."""
    columns: dict[str, np.ndarray]
    """Labels by name, int64 [n]."""


class _Source(NamedTuple):
    """Contents of a file or folder."""

    train: _Part
    test: _Part | None
    """Its labels are unknown if only `train` has labels."""
    alphabets: tuple[str, ...] = ()
    """Names of the values of the label ``alphabet``, if they are known."""


def load_omniglot(root: Path, binarization: Binarization) -> Dataset:
    """Load images [28, 28], ink = 1, with the labels ``alphabet`` and ``character`` as far as they are known.

    They are read from the first of these that lies in `root`:

    * ``chardata.mat`` of Burda et al. (2016), which most published likelihoods are reported on: ``data``
      [784, n] and ``testdata`` [784, m] in [0, 1], each image column by column, n = 24,345 and m = 8,070;
      optionally ``target`` and ``testtarget``, the alphabets one-hot [A, n] and [A, m], and ``targetchar``
      and ``testtargetchar``, the number of the character in its alphabet, n and m integers.
    * ``omniglot28.npz``, made of the background set: ``x_train`` uint8 [n, 28, 28], ink = 255, n = 19,280;
      optionally ``x_test``, likewise, ``alphabet_train`` [n], places in `ALPHABETS`, and ``y_train`` [n],
      numbers of characters.
    * ``omniglot-py``, torchvision's folder of the original images, black on white of 105 x 105, which are
      averaged over the whole pixels under each of 28 x 28: ``images_background``, 19,280 for training, and
      ``images_evaluation``, 13,180 for testing. It is downloaded if none of the three is there, and has to
      have the published SHA-256; an existing folder is read as it is. Images are shrunk, ordered and numbered
      as in the archive.

    A tenth of the training images, drawn with a fixed seed, is the validation split. Training keeps other
    images of the same characters and by the same hands, so validation is easier than the test split of the
    folder, whose alphabets and characters are all new. Since none of them occurs in training, the labels of
    that split are -1, unknown, and so are those of ``x_test``. The splits of ``chardata.mat`` share their
    alphabets and characters. Without ``x_test`` or ``images_evaluation`` there is no test split.

    Args:
        root: the folder of these.
        binarization: as in `load_mnist`. 'dynamic' draws each pixel with a probability equal to its grey
            level: training pixels at every visit, those of the other splits once, with a fixed seed.
            'threshold' takes grey >= 1/2.

    Raises:
        FileNotFoundError: ``omniglot-py`` lacks ``images_background``, or the download failed.
        ValueError: a file is not as described.
    """
    if (path := root / MATLAB).is_file():
        source = _read_matlab(path)
    elif (path := root / ARCHIVE).is_file():
        source = _read_archive(path)
    else:
        path = root / FOLDER
        if not path.is_dir():
            _download(root)
        source = _read_folder(path)
    x, n = source.train.x, len(source.train.x)
    if n < 2:
        raise ValueError(f"{path}: expected at least 2 training images, got {n}")
    preprocessing = Preprocessing(Kind.BINARY, SHAPE, binarization)
    names = tuple(source.train.columns)
    labels = _labels(source.train, names)
    everything = Split(preprocessing(x, f"{path}: training images"), labels)
    greys = Split(torch.from_numpy(x), labels, resample=True) if binarization == "dynamic" else everything
    order = torch.from_numpy(np.random.default_rng(_SEED).permutation(n))
    valid = max(1, n // _VALID)
    test = source.test and Split(
        preprocessing(source.test.x, f"{path}: test images"), _labels(source.test, names)
    )
    return Dataset(
        name="omniglot",
        train=greys.select(order[valid:]),
        valid=everything.select(order[:valid]),
        test=test,
        preprocessing=preprocessing,
        label_names=names,
        label_sizes=tuple(_size(source, name) for name in names),
        value_names=tuple(source.alphabets if name == "alphabet" else () for name in names),
    )


def _labels(part: _Part, names: Sequence[str]) -> torch.Tensor | None:
    """Put the columns of these names side by side, int64 [n, L], -1 where there is no such column."""
    if not names:
        return None
    unknown = np.full(len(part.x), -1)
    return torch.from_numpy(np.stack([part.columns.get(name, unknown) for name in names], axis=1))


def _size(source: _Source, name: str) -> int:
    """Count the values of a label."""
    if name == "alphabet" and source.alphabets:
        return len(source.alphabets)
    parts = [source.train] if source.test is None else [source.train, source.test]
    return 1 + max(int(part.columns[name].max()) for part in parts if name in part.columns)


def _read_matlab(path: Path) -> _Source:
    from scipy.io import loadmat  # type: ignore[import-untyped]  # needed only here

    images, alphabets, numbers = ((name, f"test{name}") for name in ("data", "target", "targetchar"))
    try:
        with path.open("rb") as file:
            arrays = loadmat(file, variable_names=[*images, *alphabets, *numbers])
    except Exception as error:  # of many kinds, whatever is wrong with the file
        raise ValueError(f"{path}: not a .mat file that can be read: {error}") from error
    x = [_matlab_images(arrays, name, path) for name in images]
    if not all(name in arrays for name in alphabets):
        return _Source(_Part(x[0], {}), _Part(x[1], {}))
    columns = [
        {"alphabet": _one_hot(arrays[name], len(part), f"{path}: {name!r}")}
        for name, part in zip(alphabets, x, strict=True)
    ]
    if all(name in arrays for name in numbers):
        in_alphabet = [
            _integers(np.asarray(arrays[name]).ravel(), len(part), f"{path}: {name!r}")
            for name, part in zip(numbers, x, strict=True)
        ]
        pairs = np.stack(
            [np.concatenate([part["alphabet"] for part in columns]), np.concatenate(in_alphabet)], axis=1
        )
        characters = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        for part, character in zip(columns, np.split(characters, [len(x[0])]), strict=True):
            part["character"] = character
    train, test = map(_Part, x, columns)
    return _Source(train, test)


def _matlab_images(arrays: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    """Unpack images, float32 [n, 28, 28], from columns [784, n] that hold an image's left column first."""
    x = arrays.get(name)
    if x is None:
        raise ValueError(f"{path}: expected an array {name!r}")
    fits = isinstance(x, np.ndarray) and x.dtype.kind in "buif" and x.ndim == 2 and x.shape[0] == 784
    if not fits or x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise ValueError(
            f"{path}: expected {name!r} to be numbers in [0, 1] of shape [784, n], got {_kind(x)}"
        )
    return np.ascontiguousarray(x.T.reshape(-1, *SHAPE).swapaxes(1, 2), dtype=np.float32)


def _one_hot(array: np.ndarray, n: int, source: str) -> np.ndarray:
    """Decode n one-hot columns to the values they stand for, int64 [n]."""
    fits = isinstance(array, np.ndarray) and array.dtype.kind in "buif" and array.shape[1:] == (n,)
    if not fits or not ((array == 0) | (array == 1)).all() or not (array.sum(axis=0) == 1).all():
        raise ValueError(f"{source}: expected a single 1 in each of {n} columns of 0, got {_kind(array)}")
    return array.argmax(axis=0).astype(np.int64)


def _integers(array: np.ndarray, n: int, source: str, below: int | None = None) -> np.ndarray:
    """Check that an array holds n integers >= 0, and convert it to int64 [n]."""
    fits = array.dtype.kind in "uif" and array.shape == (n,) and (array >= 0).all() and (array % 1 == 0).all()
    if not fits or (below is not None and (array >= below).any()):
        upper = "" if below is None else f", below {below}"
        raise ValueError(f"{source}: expected {n} integers >= 0{upper}, got {_kind(array)}")
    return array.astype(np.int64)


def _kind(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    numbers = array.dtype.kind in "buif" and array.size
    extent = f" in [{array.min():g}, {array.max():g}]" if numbers else ""
    return f"{array.dtype} {list(array.shape)}{extent}"


def _read_archive(path: Path) -> _Source:
    arrays = read_arrays(path, ("x_train",), ("x_test", "alphabet_train", "y_train"))
    for name in arrays.keys() & {"x_train", "x_test"}:
        x = arrays[name]
        if x.dtype != np.uint8 or x.shape[1:] != SHAPE or len(x) == 0:
            raise ValueError(f"{path}: expected {name!r} uint8 [n, 28, 28], got {x.dtype} {list(x.shape)}")
    columns = {}
    for name, key, below in (("alphabet", "alphabet_train", len(ALPHABETS)), ("character", "y_train", None)):
        if key in arrays:
            columns[name] = _integers(arrays[key], len(arrays["x_train"]), f"{path}: {key!r}", below)
    test = _Part(arrays["x_test"], {}) if "x_test" in arrays else None
    return _Source(_Part(arrays["x_train"], columns), test, ALPHABETS)


def _download(root: Path) -> None:
    """Download and unpack both sets, in a temporary folder until they are complete."""
    with downloaded("Omniglot", SOURCE, root) as files:
        for name in SOURCE.sha256:
            shutil.unpack_archive(files / name, files / FOLDER)
        (files / FOLDER).rename(root / FOLDER)


def _read_folder(folder: Path) -> _Source:
    background, evaluation = folder / "images_background", folder / "images_evaluation"
    if not background.is_dir():
        raise FileNotFoundError(f"{background}: no such folder")
    paths = _find_images(background)
    alphabets = tuple(sorted({path.parts[-3] for path in paths}))
    characters = {folder: number for number, folder in enumerate(dict.fromkeys(p.parent for p in paths))}
    columns = {
        "alphabet": np.array([alphabets.index(path.parts[-3]) for path in paths]),
        "character": np.array([characters[path.parent] for path in paths]),
    }
    test = _Part(_shrink_all(_find_images(evaluation)), {}) if evaluation.is_dir() else None
    return _Source(_Part(_shrink_all(paths), columns), test, alphabets)


def _find_images(folder: Path) -> list[Path]:
    """List paths ALPHABET/CHARACTER/NNNN_DD.png, sorted by the character's number, then the drawer's."""
    paths = sorted(folder.glob("*/*/*.png"), key=lambda path: (path.name, path))
    if not paths:
        raise ValueError(f"{folder}: expected images ALPHABET/CHARACTER/NNNN_DD.png, but there are none")
    return paths


def _shrink_all(paths: Sequence[Path]) -> np.ndarray:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack(list(pool.map(_shrink, paths)))


def _shrink(path: Path) -> np.ndarray:
    """Shrink an image to its ink, uint8 [28, 28]: means over 4, 4, 3, 4, 4, 4, 3, 4, … rows and columns."""
    try:
        with Image.open(path) as file:
            image = ImageOps.invert(file.convert("L"))
    except Exception as error:  # PIL's readers raise many kinds on a damaged file
        raise ValueError(f"{path}: not an image that can be read: {error}") from error
    if image.size != (SIDE, SIDE):
        raise ValueError(f"{path}: expected {SIDE} x {SIDE} pixels, got {image.width} x {image.height}")
    return np.asarray(image.resize(SHAPE, Image.Resampling.BOX))


LOADER: Final = Loader("omniglot", lambda options: load_omniglot(options.root, options.binarization))
