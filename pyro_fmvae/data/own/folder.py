"""A person's own folder of images, and the table of their properties in it."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data.column_plan import is_missing
from pyro_fmvae.data.dataset import Split
from pyro_fmvae.data.decoded import user_cache
from pyro_fmvae.data.image_cache import decode, load_images
from pyro_fmvae.data.own.pictures import find_images
from pyro_fmvae.data.own.raw import DECIMAL_HINT, is_decimal, some_of
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.files.untrusted import check_printable, read_text

SPARSE = 100  # integers from here on may be names
TABLE: Final = "labels.csv"
LARGEST_TABLE: Final = 1 << 30
"""Bytes of a table that are read."""
CLASS: Final = "class"
"""Name of the property that subfolders stand for."""
SPLIT_OF: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Split that a folder holds, by its name in lower case."""
_NAMED = 8  # folders that a note lists


class Folder(NamedTuple):
    """Contents of a folder, as text."""

    path: Path
    names: tuple[str, ...]
    """n file names relative to `path`, with forward slashes, sorted."""
    columns: dict[str, list[str]]
    """For each property in the table, its value for each of the n images; '' where it is unknown."""
    splits: tuple[str, ...] = ()
    """Split of each of the n images, if folders say so: 'train', 'valid' or 'test'; else empty."""
    note: str = ""
    """Sentence on what its subfolders stand for; empty: nothing."""

    def images(self, shape: tuple[int, ...], order: Sequence[int] | None = None) -> np.ndarray:
        """Decode the images, uint8 [n, *shape], and keep them in ``~/.cache/pyro_fmvae/images``.

        Args:
            shape: (H, W) or (H, W, 3): see `decode`.
            order: a permutation of the rows.
        """
        names = self.names if order is None else [self.names[row] for row in order]
        return load_images(self.path, names, shape, (user_cache() / "images",))

    def labels(
        self, values: Sequence[tuple[str, ...]], left_out: dict[str, Counter[str]] | None = None
    ) -> np.ndarray | None:
        """Convert the columns to labels, int64 [n, L]; None if there are no columns.

        Args:
            values: names of the values of each column: see `code`.
            left_out: where other values are counted, by column; None: they are errors.

        Raises:
            ValueError: a value that is none of them.
        """
        if not self.columns:
            return None
        coded = [
            code(
                texts,
                known,
                f"{self.path}: {name!r}",
                None if left_out is None else left_out.setdefault(name, Counter()),
            )
            for (name, texts), known in zip(self.columns.items(), values, strict=True)
        ]
        return np.stack(coded, axis=1)


def read_folder(path: Path) -> Folder:
    """Find the images of a folder (`find_images`), and read the table of their properties if it has one.

    The table is ``labels.csv``, or else the only .csv file; names that begin with a dot are skipped. The
    first row is a header, the first column holds file names relative to the folder, and each other column is
    a property. An empty field or -1 is an unknown value; an image without a row has unknown values only.

    Without a table, its subfolders, or those of its splits (`split_by_folders`), are the values of the
    property `CLASS`, if each (training) image lies in one and there are at least two.

    Raises:
        ValueError: there are no images, several tables could be meant, or the table is malformed.
    """
    names = find_images(path)
    table = _find_table(path)
    splits, inside = split_by_folders(names)
    classes, notes = [_top(name) for name in inside], []
    if splits:
        tops = [_top(outer) for outer in _without_common_folders(names)]
        notes.append(f"the folders {_listed(tops)} are the splits")
    training = [name for row, name in enumerate(classes) if not splits or splits[row] == "train"]
    columns = {}
    if table is not None:
        columns = read_table(table, names)
    elif all(training) and len({*classes} - {""}) > 1:
        columns = {CLASS: classes}
        notes.append(f"the folders {_listed(classes)} are the values of the label '{CLASS}'")
    check_printable(chain(columns, *columns.values()), str(path if table is None else table))
    return Folder(path, tuple(names), columns, splits, "; ".join(notes))


def split_by_folders(names: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Find the splits that the folders of images say.

    Folders that all images lie in, such as ``data`` of an archive, do not count. If all folders at the top
    are then called train, training, valid, val, validation, test or testing, in any case, they are the
    splits, if one is for training and another is not.

    Args:
        names: n paths with forward slashes.

    Returns:
        Split of each image, empty if folders say none; and the paths inside of folders with such names.
    """
    names = _without_common_folders(names)
    splits = tuple(SPLIT_OF.get(_top(name).lower(), "") for name in names)
    if all(splits):
        names = [name.partition("/")[2] for name in names]
    return splits if all(splits) and "train" in splits and len(set(splits)) > 1 else (), names


def _without_common_folders(names: Sequence[str]) -> list[str]:
    """The paths below the folders that all of them lie in."""
    names = list(names)
    while all("/" in name for name in names) and len({_top(name) for name in names}) == 1:
        names = [name.partition("/")[2] for name in names]
    return names


def _top(name: str) -> str:
    """The first folder in a relative path; '' if there is none."""
    return name.partition("/")[0] if "/" in name else ""


def _listed(names: Sequence[str]) -> str:
    """Some of the different names."""
    return some_of(sorted({*names} - {""}), _NAMED)


def find_values(texts: Sequence[str], source: str = "labels") -> tuple[str, ...]:
    """Find the names of a column's values, sorted; there are none if the values are 0, 1, 2 and so on.

    Large integers with wide gaps, such as years, are names too.

    Args:
        texts: n values, '' where one is unknown.
        source: name of the column in messages.

    Raises:
        ValueError: the values are decimal numbers.
    """
    known = {text for text in texts if text}
    decimal = sorted(text for text in known if is_decimal(text))
    if decimal:
        raise ValueError(f"{source}: expected words or integers, got {decimal[0]!r}{DECIMAL_HINT}")
    if not all(map(_is_number, known)):
        return tuple(sorted(known))
    numbers = sorted(known, key=int)
    return tuple(numbers) if numbers and sparse(int(numbers[-1]), len(numbers)) else ()


def sparse(largest: int, count: int) -> bool:
    """Tell whether ``count`` different integers >= 0 have wide gaps, the largest being a large number."""
    return largest >= max(2 * count, SPARSE)


def code(
    texts: Sequence[str], values: Sequence[str], source: str, left_out: Counter[str] | None = None
) -> np.ndarray:
    """Convert the values of a column to numbers, int64 [n]: -1 where the text is empty.

    Args:
        texts: n values.
        values: names of the values 0, 1, …; empty if the texts are the numbers themselves. A column in which
            none of the names occurs may give the numbers instead.
        source: name of the column in messages.
        left_out: where texts that are neither are counted; their number is -1. None: they are errors.

    Raises:
        ValueError: a text that is neither.
    """
    known = {text for text in texts if text}
    numbers = {text: index for index, text in enumerate(values)}
    if not values or (known.isdisjoint(values) and all(map(_is_number, known))):
        numbers = {text: int(text) for text in known if _is_number(text)}
        if values:
            numbers = {text: number for text, number in numbers.items() if number < len(values)}
    unknown = known - set(numbers)
    if unknown and left_out is None:
        expected = f"one of {', '.join(values)}" if values else "integers >= 0"
        raise ValueError(f"{source}: expected {expected}, got {min(unknown)!r}")
    if left_out is not None:
        left_out.update(text for text in texts if text in unknown)
        numbers |= dict.fromkeys(unknown, -1)
    return np.array([numbers[text] if text else -1 for text in texts], dtype=np.int64)


def load_folder(
    path: Path,
    preprocessing: Preprocessing,
    label_names: Sequence[str] = (),
    value_names: Sequence[tuple[str, ...]] = (),
    left_out: dict[str, Counter[str]] | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """Load all images of a folder, sorted by name, under the preprocessing of a run.

    Args:
        path: the folder.
        preprocessing: the run's. Images take its shape, and become grey or coloured accordingly.
        label_names: the run's labels. Columns of these names are coded as in the run, others on their own.
        value_names: names of the values of each of the run's labels.
        left_out: where values that the run does not know are counted, by label; None: they are errors.

    Returns:
        The images, and the names of their properties.

    Raises:
        ValueError: no images or a malformed table, a value that the run does not know, or a run that was
            trained on something else than images.
    """
    folder = read_folder(path)
    shape = _image_shape(preprocessing, path)
    named = dict(zip(label_names, value_names or [()] * len(label_names), strict=True))
    values = [
        named[name] if name in named else find_values(texts, f"{path}: {name!r}")
        for name, texts in folder.columns.items()
    ]
    labels = folder.labels(values, left_out)
    images = folder.images(shape)
    rows = _split(images, labels, preprocessing, str(path))
    return replace(rows, places=torch.arange(len(rows))), tuple(folder.columns)


def read_image(path: Path, preprocessing: Preprocessing) -> Split:
    """Read one image file under the preprocessing of a run: a split of one row without labels.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no image, or the run was trained on something else than images.
    """
    image = decode(path, _image_shape(preprocessing, path))
    return _split(image[None], None, preprocessing, str(path))


def _split(images: np.ndarray, labels: np.ndarray | None, preprocessing: Preprocessing, source: str) -> Split:
    """Preprocess images, uint8 [n, *event_shape], as a run does; black and white become binary pixels."""
    if preprocessing.binary and preprocessing.binarization is None and not (images % 255).any():
        images = images == 255
    known = None if labels is None else torch.from_numpy(labels)
    return Split(preprocessing(images, source), known, signed=preprocessing.signed)


def _image_shape(preprocessing: Preprocessing, path: Path) -> tuple[int, ...]:
    shape = preprocessing.event_shape
    if preprocessing.kind is Kind.PATCHES:
        raise ValueError(f"{path}: a whole image, but the run was trained on patches")
    if not preprocessing.image:
        raise ValueError(f"{path}: images, but the run was trained on data of shape {list(shape)}")
    return shape


def _find_table(path: Path) -> Path | None:
    files = (file for file in path.iterdir() if not file.name.startswith("."))
    tables = sorted(file for file in files if file.suffix.lower() == ".csv" and file.is_file())
    chosen = [file for file in tables if file.name == TABLE] or tables
    if len(chosen) > 1:
        listed = ", ".join(file.name for file in chosen)
        raise ValueError(f"{path}: expected one table, or one that is called {TABLE}, got {listed}")
    return chosen[0] if chosen else None


def read_table(path: Path, images: Sequence[str]) -> dict[str, list[str]]:
    """Read a table of properties.

    Args:
        path: the table.
        images: names of n images, or of other points, as its first column has them.

    Returns:
        Property → its text for each image, '' where it is unknown.

    Raises:
        ValueError: the table is malformed, or names an image twice or one that there is not.
    """
    try:
        text = read_text(path, LARGEST_TABLE).removeprefix("\ufeff")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, [field.strip() for field in row]) for row in reader if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not comma separated text: {error}") from error
    header = rows[0][1] if rows else []
    properties = header[1:]
    if not properties or "" in properties or len(set(properties)) != len(properties) or header[0] in images:
        raise ValueError(
            f"{path}: expected a header, separated by commas: a name for the column of files, then different "
            f"names of properties; got {','.join(header)!r}"
        )
    row_of = {name: row for row, name in enumerate(images)}
    line_of: dict[str, int] = {}
    columns = {name: [""] * len(images) for name in properties}
    for line, (file, *fields) in rows[1:]:
        name = PurePath(file).as_posix()
        if len(fields) != len(properties):
            raise ValueError(f"{path}, line {line}: expected {len(header)} fields, got {len(fields) + 1}")
        if name not in row_of:
            raise ValueError(f"{path}, line {line}: no image {file!r} in the folder")
        if name in line_of:
            raise ValueError(f"{path}, line {line}: a second row for {file!r}, after line {line_of[name]}")
        line_of[name] = line
        for texts, text in zip(columns.values(), fields, strict=True):
            texts[row_of[name]] = "" if text == "-1" or is_missing(text) else text
    return columns


def _is_number(text: str) -> bool:
    """Tell whether a text is an integer >= 0 that int64 holds."""
    return text.isascii() and text.isdecimal() and len(text) < 19
