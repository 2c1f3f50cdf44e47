"""Reading .csv files."""

import csv
import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw, is_decimal, is_missing, note_on_header
from pyro_fmvae.memory import check_fits
from pyro_fmvae.untrusted import check_printable

MOST_LEVELS = 50
"""Largest number of categories of a column."""
LABEL = "label:"  # begins the names of columns that hold labels
_MIXTURE = "; --model mixture takes missing entries and words"
_BYTES = 10  # of memory that a byte of a table takes while it is read, about
_FEW = 10  # rows, whose words may all differ by chance


def read_csv(
    path: Path,
    missing: bool = False,
    levels: Sequence[tuple[str, ...]] | None = None,
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    ignore: Collection[str] = (),
) -> Raw:
    """Read a table of comma separated values.

    A first row without any number is a header. Columns that it calls ``label:NAME`` hold labels, integers or
    words, where an empty field, ``NA``, ``nan``, ``?`` or -1 is an unknown one; all other columns are
    features. Empty lines are skipped.

    Args:
        path: the file.
        missing: accept an empty field, ``NA``, ``nan`` or ``?`` as a missing number (NaN).
        levels: names of the categories of each column, empty for columns of numbers; empty to find out which
            columns have words. None refuses words.
        values: names of the values of labels that are known already, by label. Others are found in the file.
        left_out: where words of such labels that are none of their values are counted, by label; None: they
            are errors.
        ignore: columns of features, by name or by number from 1, that may hold anything. One that cannot be
            read is NaN.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: anything else; the message names the file and the line, counted from 1.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    check_fits(_BYTES * path.stat().st_size, str(path))
    rows = list(_rows(path))
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    (line, first), *others = rows
    header = (
        [] if _is_data(rows, path, missing, levels is not None, ignore) else [name.strip() for name in first]
    )
    label_columns = [column for column, name in enumerate(header) if name.startswith(LABEL)]
    names = tuple(header[column].removeprefix(LABEL).strip() for column in label_columns)
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"{path}, line {line}: label columns need different, non-empty names, got {list(names)}"
        )
    feature_columns = [column for column in range(len(first)) if column not in label_columns]
    if not feature_columns:
        raise ValueError(
            f"{path}, line {line}: all columns are labels; expected at least one feature{_hint(first[0])}"
        )
    titles = [header[column] for column in feature_columns if header and header[column]]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise ValueError(f"{path}, line {line}: expected different names of columns, got {twice!r} twice")
    body = others if header else rows
    for line, row in body:
        if len(row) != len(first):
            raise ValueError(
                f"{path}, line {line}: expected {len(first)} fields, got {len(row)}{_hint(first[0])}"
            )
        if levels is not None and len(row) == 1 and _hint(row[0]):
            raise ValueError(f"{path}, line {line}: expected several fields, got {row[0]!r}{_hint(row[0])}")
    if not body:
        raise ValueError(f"{path}: a header at line {line}, but no rows of numbers")
    columns = [[(line, row[column]) for line, row in body] for column in range(len(first))]
    if levels:
        known = [words or None for words in levels]
    else:
        known = [None if levels is None else ()] * len(feature_columns)
    if len(known) != len(feature_columns):
        raise ValueError(f"{path}: expected {len(known)} columns besides labels, got {len(feature_columns)}")
    read = [
        _Column(path, columns[column], number, header[column] if header else "", words)
        for number, (column, words) in enumerate(zip(feature_columns, known, strict=True), 1)
    ]
    ignored = tuple(column.number - 1 for column in read if {column.name, str(column.number)} & set(ignore))
    features, found = zip(
        *(_features(column, missing, column.number - 1 in ignored) for column in read), strict=True
    )
    labels, named = [], []
    for column, name in zip(label_columns, names, strict=True):
        unknown = None if left_out is None else left_out.setdefault(name, Counter())
        numbers, words = _labels(columns[column], path, name, (values or {}).get(name, ()), unknown)
        labels.append(numbers)
        named.append(words)
    check_printable(chain(header, *named, *found), str(path))
    return Raw(
        np.stack(features, axis=1),
        np.stack(labels, axis=1) if labels else None,
        names,
        tuple(header[column] for column in feature_columns) if header else (),
        tuple(named) if any(named) else (),
        tuple(found) if any(found) else (),
        ignored=ignored,
        note=note_on_header(path.name, [header[column] for column in feature_columns] if header else None),
    )


def _is_data(
    rows: list[tuple[int, list[str]]], path: Path, missing: bool, words: bool, ignore: Collection[str]
) -> bool:
    """Tell whether the first row holds data, not names.

    Raises:
        ValueError: it has numbers, and what may be names.
    """
    (line, first), *others = rows
    filled = [
        column
        for column, field in enumerate(first)
        if not (missing and is_missing(field)) and str(column + 1) not in ignore
    ]
    texts = [column for column in filled if not _is_number(first[column])]
    if len(texts) == len(filled):
        return not filled
    below = [row for _, row in others if len(row) == len(first)]
    for column in texts:
        if not words or all(_is_number(row[column]) or is_missing(row[column]) for row in below):
            raise ValueError(
                f"{path}, line {line}: expected a row of numbers or a header of names, "
                f"got {first[column]!r} among numbers{_hint(first[column])}"
            )
    return True


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number, counted from 1, and the fields of each row that is not empty."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path}, line {reader.line_num + 1}: not comma separated text: {error}"
            ) from error


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


class _Column(NamedTuple):
    """A column of features."""

    path: Path
    fields: list[tuple[int, str]]
    """Line and text of each row."""
    number: int
    """From 1."""
    name: str
    """Empty if there is no header."""
    words: tuple[str, ...] | None
    """Names of the categories; empty to find them if there are words; None refuses words."""

    def __str__(self) -> str:
        return f"column {self.name!r}" if self.name else f"column {self.number}"

    @property
    def advice(self) -> str:
        """End of the message about words that are no categories."""
        named = self.name and "," not in self.name
        return f"; leave it out with --ignore {shlex.quote(self.name) if named else self.number}"


def _features(column: _Column, missing: bool, ignored: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of a column, or those of its categories with their names.

    With ``missing`` fields may be missing; with ``ignored`` NaN takes the place of an error.
    """
    try:
        texts = ["" if is_missing(field) else field.strip() for _, field in column.fields]
        words = sum(bool(text) and not _is_number(text) for text in texts)
        if column.words or (words and column.words is not None):
            return _categories(column, texts, words)
        return np.array([_feature(field, column.path, line, missing) for line, field in column.fields]), ()
    except ValueError:
        if not ignored:
            raise
        return np.full(len(column.fields), math.nan), ()


def _categories(column: _Column, texts: list[str], words: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of the categories of a column and their names.

    Args:
        column: to read.
        texts: of its fields, empty where they are missing.
        words: how many of them are no numbers.
    """
    filled = [text for text in texts if text]
    found = column.words or tuple(sorted(set(filled)))
    if not column.words:
        if 2 * words <= len(filled):
            row = next(row for row, text in enumerate(texts) if text and not _is_number(text))
            raise ValueError(
                f"{column.path}, line {column.fields[row][0]}: expected a number in {column}, "
                f"got {texts[row]!r}{_hint(texts[row]) or '; leave the field empty if it is unknown'}"
            )
        if len(found) > MOST_LEVELS:
            raise ValueError(
                f"{column.path}: {column} has {len(found):,} different words, at most {MOST_LEVELS} can be "
                f"categories{column.advice}"
            )
        if len(texts) >= _FEW and len(found) == len(filled):
            raise ValueError(f"{column.path}: {column} has another word in every row{column.advice}")
    numbers = {text: float(number) for number, text in enumerate(found)} | {"": math.nan}
    for (line, field), text in zip(column.fields, texts, strict=True):
        if text not in numbers:
            raise ValueError(
                f"{column.path}, line {line}: expected one of {', '.join(found)} in {column}, got {field!r}"
            )
    return np.array([numbers[text] for text in texts]), found


def _feature(field: str, path: Path, line: int, missing: bool) -> float:
    if missing and is_missing(field):
        return math.nan
    try:
        value = float(field)
    except ValueError as error:
        hint = _hint(field) or ("" if missing else _MIXTURE)
        raise ValueError(f"{path}, line {line}: expected a number, got {field!r}{hint}") from error
    if math.isinf(value) or (math.isnan(value) and not missing):
        hint = _MIXTURE if math.isnan(value) else ""
        raise ValueError(f"{path}, line {line}: expected a finite number, got {field!r}{hint}")
    return value


def _hint(field: str) -> str:
    """Return a hint for the error message if a field looks like several fields."""
    several = any(separator in field.strip() for separator in ";\t|")
    return "; fields are separated by commas" if several else ""


def _labels(
    fields: list[tuple[int, str]],
    path: Path,
    name: str,
    known: tuple[str, ...],
    left_out: Counter[str] | None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a column, int64 [n], and the names of their values if these are words."""
    texts = ["" if is_missing(field) else field.strip() for _, field in fields]
    words = [text for text in texts if text and not _is_number(text)]
    if not (known or words) or any(_hint(word) for word in words):
        return np.array([_label(field, path, line) for line, field in fields], dtype=np.int64), ()
    texts = ["" if text == "-1" else text for text in texts]
    source = f"{path}: {name!r}"
    values = known or find_values(texts, source)
    return code(texts, values, source, left_out), values


def _label(field: str, path: Path, line: int) -> int:
    if is_missing(field):
        return -1
    try:
        value = int(field)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {line}: expected an integer label, got {field!r}"
            f"{DECIMAL_HINT if is_decimal(field) else _hint(field)}"
        ) from error
    if value < -1:
        raise ValueError(f"{path}, line {line}: expected a label >= -1, where -1 is unknown, got {value}")
    if value > LARGEST_LABEL:
        raise ValueError(f"{path}, line {line}: expected a label of {LARGEST_LABEL} at most, got {value}")
    return value
