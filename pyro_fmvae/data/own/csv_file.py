"""Reading .csv files."""

import csv
import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw, is_decimal, is_missing
from pyro_fmvae.files.memory import check_fits
from pyro_fmvae.files.untrusted import check_printable

MOST_LEVELS = 50
"""Largest number of categories of a column."""
LABEL = "label:"  # begins the names of columns that hold labels
_MIXTURE = "; --model mixture takes missing entries and words"
_BYTES = 10  # of memory that a byte of a table takes while it is read, about
_FEW = 10  # rows, whose words may all differ by chance
_SHARED = 1 << 16  # different texts that are held once, however many fields have them


def read_csv(
    path: Path,
    missing: bool = False,
    levels: Sequence[tuple[str, ...]] | None = None,
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    ignore: Collection[str] = (),
    unseen: dict[str, Counter[str]] | None = None,
) -> Raw:
    """Read a table of comma separated values.

    A first row of words is a header, unless all of them are values of their columns. A first row with whole
    numbers is one if these do not fit the columns below: see :func:`_has_header`. Columns that it calls
    ``label:NAME`` hold labels, integers or words, where an empty field, ``NA``, ``nan``, ``?`` or -1 is an
    unknown one; all other columns are features. Empty lines are skipped.

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
        unseen: where words that are no categories of their columns, and words in columns where at least half
            of the fields are numbers, are counted, by column; they are NaN. None: they are errors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: anything else; the message names the file and the line, counted from 1.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    check_fits(_BYTES * path.stat().st_size, str(path))
    lines, rows = _rows(path)
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    line, first = lines[0], rows[0]
    known = [words or None for words in levels or ()] or [None if levels is None else ()] * len(first)
    titled = _has_header(path, lines, rows, missing, None if levels is None else known, ignore)
    header = [name.strip() for name in first] if titled else []
    label_columns = [column for column, name in enumerate(header) if name.startswith(LABEL)]
    names = tuple(header[column].removeprefix(LABEL).strip() for column in label_columns)
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"{path}, line {line}: label columns need different, non-empty names, got {list(names)}"
        )
    feature_columns = sorted(set(range(len(first))) - set(label_columns))
    if not feature_columns:
        raise ValueError(
            f"{path}, line {line}: all columns are labels; expected at least one feature{_hint(first[0])}"
        )
    titles = [header[column] for column in feature_columns] if header else []
    check_different_names(filter(None, titles), f"{path}, line {line}")
    if header:
        del lines[0], rows[0]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(first):
            raise ValueError(
                f"{path}, line {line}: expected {len(first)} fields, got {len(row)}{_hint(first[0])}"
            )
        if levels is not None and len(row) == 1 and _hint(row[0]):
            raise ValueError(f"{path}, line {line}: expected several fields, got {row[0]!r}{_hint(row[0])}")
    if not rows:
        raise ValueError(f"{path}: a header at line {line}, but no rows of numbers")
    if levels and len(levels) != len(feature_columns):
        raise ValueError(f"{path}: expected {len(levels)} columns besides labels, got {len(feature_columns)}")
    x = np.empty((len(rows), len(feature_columns)))
    found, ignored = [], []
    for place, column in enumerate(feature_columns):
        fields = [row[column] for row in rows]
        read = _Column(path, lines, fields, place + 1, titles[place] if titles else "", known[place])
        left = not {read.name, str(read.number)}.isdisjoint(ignore)
        if left:
            ignored.append(place)
        x[:, place], words = _features(read, missing, left, None if left else unseen)
        found.append(words)
    labels, named = [], []
    for column, name in zip(label_columns, names, strict=True):
        unknown = None if left_out is None else left_out.setdefault(name, Counter())
        fields = [row[column] for row in rows]
        numbers, words = _labels(lines, fields, path, name, (values or {}).get(name, ()), unknown)
        labels.append(numbers)
        named.append(words)
    check_printable(chain(header, *named, *found), str(path))
    return Raw(
        x,
        np.stack(labels, axis=1) if labels else None,
        names,
        tuple(titles),
        tuple(named) if any(named) else (),
        tuple(found) if any(found) else (),
        ignored=tuple(ignored),
        note=_note_on_header(path.name, titles, first),
    )


def _has_header(
    path: Path,
    lines: list[int],
    rows: list[list[str]],
    missing: bool,
    known: Sequence[tuple[str, ...] | None] | None,
    ignore: Collection[str],
) -> bool:
    """Tell whether the first row holds names, not data.

    It does if it has words alone, and not each of them is a value of its column. (A word that stands in a
    column of numbers again is a name: files with headers have been joined.) It does if a column's name begins
    with ``label:``; and if, behind words that are no values of their columns, it has different whole numbers
    that do not fit theirs, such as years: they are out of the range of what is below, or that is no whole
    numbers. If it has different whole numbers alone, it does if one of them is above a column of words.

    Raises:
        ValueError: it has numbers, and what may be names.
    """
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if any(field.strip().startswith(LABEL) for field in first):
        return True
    filled = [
        column
        for column, field in enumerate(first)
        if not (missing and is_missing(field)) and str(column + 1) not in ignore
    ]
    texts = [column for column in filled if not _is_number(first[column])]

    def is_value(column: int) -> bool:
        text = first[column].strip()
        if known is not None and column < len(known) and text in (known[column] or ()):
            return True
        fields = [row[column].strip() for row in below if not is_missing(row[column])]
        return text in fields and 2 * sum(map(_is_number, fields)) < len(fields)

    if len(texts) == len(filled):
        return bool(filled) and (known is None or not all(map(is_value, texts)))
    numbers = [column for column in filled if column not in texts]
    names = {float(first[column]) for column in numbers}
    whole = len(names) == len(numbers) and all(map(float.is_integer, names))
    if below and whole and texts == filled[: len(texts)] and not any(map(is_value, texts)):
        if not texts:
            above = (column for column in numbers if _has_words_alone(row[column] for row in below))
            return known is not None and not all(map(is_value, above))
        if all(_is_out_of_place(float(first[column]), [row[column] for row in below]) for column in numbers):
            return True
    for column in texts:
        if known is None or all(_is_number(row[column]) or is_missing(row[column]) for row in below):
            raise ValueError(
                f"{path}, line {lines[0]}: expected a row of numbers or a header of names, "
                f"got {first[column]!r} among numbers{_hint(first[column])}"
            )
    return False


def _has_words_alone(fields: Iterable[str]) -> bool:
    """Tell whether there are words in a column, and no numbers."""
    filled = (field for field in fields if not is_missing(field))
    return not _is_number(next(filled, "0")) and not any(map(_is_number, filled))


def _is_out_of_place(number: float, fields: Sequence[str]) -> bool:
    """Tell whether a whole number is beyond the range of a column, or most of that is no whole numbers."""
    there = [float(field) for field in fields if _is_number(field) and not is_missing(field)]
    whole = sum(map(float.is_integer, there))
    return not there or not min(there) <= number <= max(there) or 2 * whole < len(there)


def check_different_names(names: Iterable[str], source: str) -> None:
    """Raise ValueError if two columns have the same name."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 1))
    if count > 1:
        raise ValueError(f"{source}: expected different names of columns, got {name!r} twice")


def _note_on_header(name: str, titles: Sequence[str], first: Sequence[str]) -> str:
    """Describe what is odd about the first row of a table; "" if nothing is.

    Args:
        name: of the file.
        titles: names of the columns of features; none if there is no header.
        first: the fields of the first row.
    """
    numbers = [field for field in first if _is_number(field)]
    if not titles:
        why = "there are numbers in its first row" if numbers else "its first row has values of its columns"
        return f"{name} has no header, as {why}"
    notes = (
        [f"the first row of {name} is its header, as its numbers do not fit the columns"] if numbers else []
    )
    if nameless := ", ".join(str(number) for number, title in enumerate(titles, 1) if not title):
        notes.append(f"{name} has columns without a name, which are features: {nameless}")
    return "; ".join(notes)


def _rows(path: Path) -> tuple[list[int], list[list[str]]]:
    """The line number, counted from 1, and the fields of each row that is not empty."""
    lines: list[int] = []
    rows: list[list[str]] = []
    shared: dict[str, str] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            for row in filter(None, reader):
                lines.append(reader.line_num)
                rows.append([shared.get(field, field) for field in row])
                if len(shared) < _SHARED:
                    shared.update(zip(rows[-1], rows[-1], strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path}, line {reader.line_num + 1}: not comma separated text: {error}"
            ) from error
    return lines, rows


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


class _Column(NamedTuple):
    path: Path
    lines: Sequence[int]
    """Line of each row."""
    fields: Sequence[str]
    """Text of each row."""
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


def _features(
    column: _Column, missing: bool, ignored: bool, unseen: dict[str, Counter[str]] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of a column, or those of its categories with their names.

    With ``missing`` fields may be missing; with ``ignored`` NaN takes the place of an error.
    """
    if not column.words:
        with suppress(ValueError):
            numbers = np.array([*map(float, column.fields)])
            if np.isfinite(numbers).all():
                return numbers, ()
    try:
        fields = column.fields
        texts = ["" if is_missing(field) else field.strip() for field in fields]
        words = Counter(text for text in texts if text and not _is_number(text))
        if column.words or (words and column.words is not None):
            return _categories(column, texts, words.total(), unseen)
        if unseen is not None and 0 < 2 * words.total() <= sum(map(bool, texts)):
            fields = ["" if text in words else field for text, field in zip(texts, fields, strict=True)]
            unseen[str(column)] = words
        numbered = zip(fields, column.lines, strict=True)
        return np.array([_feature(field, column.path, line, missing) for field, line in numbered]), ()
    except ValueError:
        if not ignored:
            raise
        return np.full(len(column.fields), math.nan), ()


def _categories(
    column: _Column, texts: list[str], words: int, unseen: dict[str, Counter[str]] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of the categories of a column and their names.

    Args:
        column: to read.
        texts: of its fields, empty where they are missing.
        words: how many of them are no numbers.
        unseen: see :func:`read_csv`.
    """
    filled = [text for text in texts if text]
    found = column.words or tuple(sorted(set(filled)))
    if not column.words:
        if 2 * words <= len(filled):
            row = next(row for row, text in enumerate(texts) if text and not _is_number(text))
            raise ValueError(
                f"{column.path}, line {column.lines[row]}: expected a number in {column}, "
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
    other = Counter(text for text in texts if text not in numbers)
    if other and unseen is None:
        row = next(row for row, text in enumerate(texts) if text in other)
        raise ValueError(
            f"{column.path}, line {column.lines[row]}: expected one of {', '.join(found)} in {column}, "
            f"got {column.fields[row]!r}"
        )
    if other and unseen is not None:
        unseen[str(column)] = other
    return np.array([numbers.get(text, math.nan) for text in texts]), found


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
    lines: Sequence[int],
    fields: Sequence[str],
    path: Path,
    name: str,
    known: tuple[str, ...],
    left_out: Counter[str] | None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a column, int64 [n], and the names of their values if these are words."""
    texts = ["" if is_missing(field) else field.strip() for field in fields]
    words = [text for text in texts if text and not _is_number(text)]
    if not (known or words) or any(_hint(word) for word in words):
        numbered = zip(fields, lines, strict=True)
        return np.array([_label(field, path, line) for field, line in numbered], dtype=np.int64), ()
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
