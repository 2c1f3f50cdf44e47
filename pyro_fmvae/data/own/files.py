"""Data sets in a person's own files and folders."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.column_plan import PlannedColumn
from pyro_fmvae.data.count_table import CountOptions
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.image_cache import measure, read_pixels
from pyro_fmvae.data.loader import SparseOptions, TableOptions
from pyro_fmvae.data.own.column_file import FORMATS, is_numeric, read_words
from pyro_fmvae.data.own.csv_file import ENDINGS as TEXTS
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.data.own.folder import Folder, code, find_values, load_folder, read_folder, split_by_folders
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.own.npz_file import read_npz
from pyro_fmvae.data.own.on_disk import (
    CELLS,
    SUFFIXES,
    OnDisk,
    fit_counts,
    open_file,
    read_whole,
    split_on_disk,
)
from pyro_fmvae.data.own.pictures import choose_shape, find_images, other_files
from pyro_fmvae.data.own.raw import Raw, check_columns, check_seen, warn_unseen
from pyro_fmvae.data.own.zarr_store import is_folder
from pyro_fmvae.data.patch_sets import Pictures, greys_of, load_patches, stacked
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.splitting import SHARE, Splitting, fingerprint, split_fingerprint, split_rows

READERS = {
    ".npz": read_npz,
    **dict.fromkeys(TEXTS, read_csv),
    **dict.fromkeys((CELLS, *SUFFIXES), read_whole),
}
"""Readers by the suffix of the file."""


def read(
    path: Path | InMemory,
    missing: bool = False,
    asked: TableOptions | None = None,
    plan: Sequence[PlannedColumn] = (),
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    counts: CountOptions | None = None,
    unseen: dict[str, Counter[str]] | None = None,
    batches: Sequence[str] = (),
) -> Raw:
    """Read a file by its suffix, or what Python holds.

    Args:
        path: the file, or the data.
        missing: accept missing numbers in arrays, as NaN; tables may have them.
        asked, plan, values, left_out, unseen: of a table: see `read_csv`.
        counts: where counts and batches are in a .h5ad file.
        batches: of such a file: see `open_h5ad`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an unknown suffix, or contents that the reader refuses.
    """
    if isinstance(path, InMemory):
        return path.read(missing, asked, plan, unseen)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected a file that ends in {' or '.join(READERS)}")
    if reader is read_csv:
        return read_csv(path, asked, plan, values, left_out, unseen)
    if path.suffix.lower() in FORMATS and not is_numeric(path):
        return read_words(path, asked, plan, values, left_out, unseen)
    if reader is read_whole:
        return read_whole(path, missing, counts, batches)
    return read_npz(path, missing)


def load_file(
    path: str | Path,
    preprocessing: Preprocessing,
    label_names: Sequence[str] = (),
    value_names: Sequence[tuple[str, ...]] = (),
    left_out: dict[str, Counter[str]] | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """Load a whole file, in row order, under the preprocessing of an existing run.

    If that makes patches, they are cut from the images at random, as in training, but with a fixed seed.
    Patches have no labels. In a table that may have gaps, a word or category that the training data did not
    have counts as missing; a warning says how many of them each column has.

    Args:
        path: a file whose ending is one of `READERS`, or a folder of images: those come sorted by name, see
            `load_folder`.
        preprocessing: the run's.
        label_names: the run's labels, which give meaning to the words in a table.
        value_names: names of the values of each label; empty where the values are just numbers.
        left_out: where words in a table that are none of the run's values are counted, by label;
            such a label is unknown. None: they are errors.

    Returns:
        The rows, and the names of their labels.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed, its observations are not of the run's shape or range, its
            columns have other names than the run's, or a label is none of the run's values.
    """
    path = Path(path)
    if preprocessing.patches is not None:
        return load_patches(open_pictures(path), preprocessing.patches), ()
    if is_folder(path):
        return load_folder(path, preprocessing, label_names, value_names, left_out)
    values = dict(zip(label_names, value_names, strict=False))
    counts = None if preprocessing.counts is None else preprocessing.counts.options
    batches = preprocessing.levels[-1] if preprocessing.levels and counts is not None else ()
    if (
        not preprocessing.plan
        and (opened := open_file(path, None, values, left_out, counts, batches)) is not None
    ):
        opened = opened._replace(labels=_numbered(opened, values, path, left_out))
        check_columns(preprocessing.column_names, opened.column_names, str(path))
        if preprocessing.powers is not None and preprocessing.powers.coded:
            found: dict[str, Counter[str]] = {}
            for _, piece in opened.x.pieces():
                for column, numbers in preprocessing.unseen(piece).items():
                    found.setdefault(column, Counter()).update(numbers)
            warn_unseen(found, str(path))
        return opened.split(preprocessing), opened.label_names
    unseen: dict[str, Counter[str]] = {}
    plan = preprocessing.plan
    asked = TableOptions(labels=tuple({*label_names} - {column.name for column in plan}))
    raw = read(path, preprocessing.allows_missing, asked, plan, values, left_out, counts, unseen, batches)
    raw = raw._replace(labels=_numbered(raw, values, path, left_out))
    check_columns(preprocessing.column_names, raw.column_names, str(path))
    if unseen and counts is not None:
        check_seen(unseen, preprocessing.levels, preprocessing.column_names, str(path))
    warn_unseen(unseen | preprocessing.unseen(raw.x), str(path))
    return _split(raw, preprocessing, source=_source(path)), raw.label_names


def _source(path: Path | InMemory) -> str:
    """Observations of a file in messages."""
    return str(path) if _file(path).suffix.lower() in TEXTS else f"{path}: 'x'"


def _file(path: Path | InMemory) -> Path:
    """The file itself, or the one that a run keeps of what Python holds."""
    return path.file if isinstance(path, InMemory) else path


def _numbered(
    raw: Raw | OnDisk,
    known: Mapping[str, tuple[str, ...]],
    path: Path,
    left_out: dict[str, Counter[str]] | None,
) -> np.ndarray | None:
    """Labels numbered as a run does, int64 [n, L], where the file and the run both name their values.

    Raises:
        ValueError: a value that the run does not know, unless ``left_out`` counts them.
    """
    if raw.labels is None or not raw.value_names:
        return raw.labels
    columns = []
    for column, name, values in zip(raw.labels.T, raw.label_names, raw.value_names, strict=True):
        if values and known.get(name):
            texts = [values[label] if label >= 0 else "" for label in column]
            counts = None if left_out is None else left_out.setdefault(name, Counter())
            column = code(texts, known[name], f"{path}: {name!r}", counts)
        columns.append(column)
    return np.stack(columns, axis=1)


def split_file(
    path: Path | InMemory,
    seed: int,
    options: SparseOptions | None = None,
    splitting: Splitting | None = None,
    in_memory: bool | None = None,
) -> Dataset:
    """Make a data set of a file: 80 % training, 10 % validation, 10 % test (at least one row in each).

    Args:
        path: a file whose ending is one of `READERS`, or what Python holds.
        seed: of the permutation that makes the splits, at least 0.
        options: of these, `as_is`, `mixed`, `table` and `counts`. The first two hold the rows in memory.
        splitting: other shares.
        in_memory: whether its rows are held in memory: see `open_file`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed or has too few rows, or a column cannot be standardised because it
            has no numbers or too large ones.
    """
    options, splitting = options or SparseOptions(), splitting or Splitting()
    as_is, mixed, counts = options.as_is, options.mixed, options.counts
    if as_is or mixed:
        if in_memory is False:
            raise ValueError("in_memory: this model learns from all rows at once, and holds them in memory")
    elif isinstance(path, Path) and (opened := open_file(path, in_memory, counts=counts)) is not None:
        return split_on_disk(opened, seed, splitting, counts)
    asked = options.table
    if not mixed:
        asked = replace(asked, rest="plain")
    raw = read(path, as_is or mixed, asked, counts=counts)
    if options.gaps and raw.plan and (raw.levels or np.isnan(raw.x).any()):
        mixed, raw = True, read(path, True, options.table)
    if absent := [name for name in asked.labels if name not in raw.label_names]:
        listed = ", ".join((*raw.column_names, *raw.label_names)) or "no names"
        raise ValueError(f"label: expected columns out of {listed}, got {absent[0]!r}")
    if raw.plan and not mixed:
        _check_numbers(raw, counts, as_is, str(path))
    staying = splitting.staying(raw.labels)
    expected = f"{path}: expected at least 3 rows"
    train, valid, test = split_rows(len(raw.x), seed, expected, splitting, staying)
    source = _source(path)
    if counts is not None:
        described = raw.column_names, raw.levels, source
        preprocessing = fit_counts([raw.x], raw.x.shape, train, counts, *described)
        preprocessing = replace(preprocessing, plan=raw.plan)
    elif as_is and not raw.plan:
        preprocessing = Preprocessing(Kind.REAL, raw.x.shape[1:])
    else:
        preprocessing = _fit(raw, train, as_is or mixed, source, mixed)
    everything = _split(raw, preprocessing, source)
    splits = (everything.select(torch.from_numpy(rows)) for rows in (train, valid, test))
    return Dataset.of_splits(
        *splits,
        name=_file(path).stem,
        preprocessing=preprocessing,
        label_names=raw.label_names,
        label_sizes=() if raw.labels is None else tuple((raw.labels.max(axis=0) + 1).tolist()),
        value_names=raw.value_names,
        fingerprint=split_fingerprint(fingerprint(raw.x), staying),
        note=raw.note,
    )


def _check_numbers(raw: Raw, counts: CountOptions | None, missing: bool, source: str) -> None:
    """Raise ValueError unless the columns of a table are numbers, but for a batch, without gaps if asked."""
    batch = None if counts is None else counts.batch_column
    if batch is not None and batch not in (*raw.column_names, *map(str, range(1, len(raw.plan) + 1))):
        return  # which the table of counts refuses
    for number, column in enumerate(raw.plan, 1):
        if batch in (column.name, str(number)):
            continue
        if counts is not None and column.words:
            raise ValueError(
                f"{source}: expected counts in column {column.name or number!r}, got {column.words[0]!r}"
            )
        advice = "model='mixture'" if source == "data" else "--model mixture"
        if column.words:
            raise ValueError(
                f"{source}: expected numbers alone, got words in column {column.name or number!r}; "
                f"{advice} takes them"
            )
        gaps = np.flatnonzero(np.isnan(raw.x[:, number - 1]))
        if len(gaps) and not missing:
            raise ValueError(
                f"{source}, row {gaps[0] + 1}: expected a number in column {column.name or number!r}, "
                f"got none; {advice} takes gaps"
            )
        if missing and column.kind == "constant" and np.isnan(raw.x[:, number - 1]).all():
            raise ValueError(
                f"{source}: expected training numbers in each column, "
                f"but column {column.name or number!r} has none"
            )


def split_folder(
    path: Path,
    image_size: int | None,
    seed: int,
    as_is: bool = False,
    splitting: Splitting | None = None,
    shape: tuple[int, ...] | None = None,
) -> Dataset:
    """Make a data set of a folder of images, split as its own folders say, or else as `split_file` does.

    Args:
        path: the folder: see `read_folder`.
        image_size: S, to have squares of this side; None: see `choose_shape`.
        seed: of the permutation that makes the splits, at least 0.
        as_is: see `SparseOptions`.
        splitting: other shares.
        shape: (H, W) or (H, W, 3) that the images had in a run; None: chosen by their files.

    Raises:
        ValueError: too few images, a damaged one, a malformed table of labels, or shares of splits that
            folders hold.
    """
    folder, splitting = read_folder(path), splitting or Splitting()
    notes = [folder.note]
    if shape is None:
        shape, resized = choose_shape([path / name for name in folder.names], image_size)
        notes += [resized, other_files(path)]
    preprocessing = Preprocessing(Kind.REAL if as_is else Kind.IMAGE, shape)
    value_names = tuple(find_values(texts, f"{path}: {name!r}") for name, texts in folder.columns.items())
    labels = folder.labels(value_names)
    staying = splitting.staying(labels)
    rows = _split_images(folder, seed, splitting, staying)
    order, sizes = np.concatenate(rows).tolist(), [len(part) for part in rows]
    # Decoded in the order of the splits, so that each is one piece of the array on disk.
    x = preprocessing(folder.images(preprocessing.event_shape, order), str(path))
    known = [None] * 3 if labels is None else torch.from_numpy(labels[order]).split(sizes)
    signed, places = preprocessing.signed, torch.tensor(order).split(sizes)
    pieces = zip(x.split(sizes), known, places, strict=True)
    return Dataset.of_splits(
        *(Split(part, names, signed=signed, places=place) for part, names, place in pieces),
        name=path.resolve().name,
        preprocessing=preprocessing,
        label_names=tuple(folder.columns),
        label_sizes=() if labels is None else tuple((labels.max(axis=0) + 1).tolist()),
        value_names=value_names,
        fingerprint=split_fingerprint(fingerprint(np.array(folder.names)), staying),
        note="; ".join(filter(None, notes)),
    )


def _split_images(
    folder: Folder, seed: int, how: Splitting, staying: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a folder for training, validation and testing: see `split_rows`.

    Where folders are the splits, images for validation that they lack are drawn from those for training; so
    are images for testing if a share or a fold is asked for.
    """
    expected = f"{folder.path}: expected at least 3 images"
    if not folder.splits:
        return split_rows(len(folder.names), seed, expected, how, staying)
    train, valid, test = (
        np.flatnonzero(np.array(folder.splits) == one) for one in ("train", "valid", "test")
    )
    if len(test) and (how.test is not None or how.fold is not None):
        raise ValueError(f"test, fold: {folder.path} has its own test images; leave the option out")
    if len(valid) and how.valid != SHARE:
        raise ValueError(f"valid: {folder.path} has its own validation images; leave the option out")
    expected = f"{folder.path}: expected at least 3 training images"
    share = how.test if how.test is not None or how.fold is not None else 0.0
    drawn = replace(how, valid=0.0 if len(valid) else how.valid, test=share)
    training_only = None if staying is None else staying[train]
    left, more_valid, more_test = (
        train[rows] for rows in split_rows(len(train), seed, expected, drawn, training_only)
    )
    return left, np.concatenate([valid, more_valid]), np.concatenate([test, more_test])


def _fit(raw: Raw, train: np.ndarray, missing: bool, source: str, unskew: bool = False) -> Preprocessing:
    """Choose the kind of a file's observations; fit a table's standardisation to its training rows alone."""
    x = raw.x
    if x.dtype == np.bool_ or (x.dtype == np.uint8 and x.max() <= 1):
        return Preprocessing(Kind.BINARY, x.shape[1:])
    if x.ndim == 2 and x.dtype != np.uint8:
        return Preprocessing.standardizing(
            x[train], missing, source, raw.column_names, raw.levels, unskew, raw.ignored, x, raw.plan
        )
    return Preprocessing(Kind.IMAGE, x.shape[1:])


def _split(raw: Raw, preprocessing: Preprocessing, source: str) -> Split:
    labels = None if raw.labels is None else torch.from_numpy(raw.labels)
    x = preprocessing(raw.x, source)
    everything = Split(
        x,
        labels,
        signed=preprocessing.signed,
        places=torch.arange(len(x)),
        written=raw.written,
        comma=raw.comma,
    )
    if not preprocessing.missing:
        return everything
    return replace(everything, raw=raw.x, unseen=unseen_categories(preprocessing, raw, x))


def unseen_categories(preprocessing: Preprocessing, raw: Raw, x: Tensor) -> np.ndarray | None:
    """Where a table has words or integers that are no category of their column, bool [n, D]; None: nowhere.

    Args:
        preprocessing: that made the observations x [n, D] of it.
        raw: the table.
        x: NaN where it has such a value.
    """
    found = raw.unseen
    if preprocessing.powers is not None and preprocessing.powers.coded:
        others = x.isnan().numpy() & ~np.isnan(raw.x)
        found = others if found is None else found | others
    return found if found is not None and found.any() else None


def open_pictures(path: Path | InMemory) -> Pictures:
    """Open the images of a folder, sorted by name, or of a .npz file or an array, at their own size.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there are no images, or one is damaged.
    """
    if isinstance(path, InMemory):
        return stacked(path.read().x, "data: 'x'")
    if is_folder(path):
        names = find_images(path)
        files = [path / name for name in names]
        return Pictures(
            [str(file) for file in files],
            [measure(file) for file in files],
            lambda number: greys_of(read_pixels(files[number]), str(files[number])),
            split_by_folders(names)[0],
        )
    if path.suffix.lower() != ".npz":
        raise ValueError(f"patch_size: expected a folder or a .npz file of images to cut, got {path}")
    return stacked(read_npz(path).x, f"{path}: 'x'")
