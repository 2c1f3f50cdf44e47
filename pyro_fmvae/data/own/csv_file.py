"""Reading .csv files by pandas.

Own code does what pandas lacks: it tells whether the first row is a header, names lines in errors, and
refuses what pandas would change silently (it fills up short rows, and ends a text at a NUL).
"""

import csv
import math
import mmap
import shlex
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw, is_decimal, is_missing
from pyro_fmvae.files.memory import check_fits
from pyro_fmvae.files.untrusted import check_printable

MOST_LEVELS = 50
"""Largest number of categories of a column."""
LABEL = "label:"  # begins the names of columns that hold labels
_BYTES, _COLUMN = 10, 3000  # of memory that a byte of a table and a column take while they are read, about
_FEW = 10  # rows, whose words may all differ by chance
_WORDS = ("", "na", "n/a", "nan", "?")
_MISSING = ["".join(letters) for word in _WORDS for letters in product(*zip(word, word.upper(), strict=True))]


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
    unknown one; all other columns are features. Lines of blanks are skipped.

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
    check_fits(size := _BYTES * path.stat().st_size, str(path))
    with _opened(path) as file:
        line, first = next(_records(file), (0, []))
    if not first:
        raise ValueError(f"{path}: the file is empty")
    check_fits(size + _COLUMN * len(first), str(path))
    label_places = [place for place, name in enumerate(first) if name.strip().startswith(LABEL)]
    feature_places = sorted(set(range(len(first))) - set(label_places))
    known = [words or None for words in levels or ()] or [None if levels is None else ()] * len(first)
    texts = [place for place, words in zip(feature_places, known, strict=False) if words] + label_places
    columns = _columns(path, True, len(first), texts)
    titled = _has_header(path, line, first, columns, missing, None if levels is None else known, ignore)
    header = [name.strip() for name in first] if titled else []
    names = tuple(header[place].removeprefix(LABEL).strip() for place in label_places)
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"{path}, line {line}: label columns need different, non-empty names, got {list(names)}"
        )
    if not feature_places:
        raise ValueError(
            f"{path}, line {line}: all columns are labels; expected at least one feature{_hint(first[0])}"
        )
    titles = [header[place] for place in feature_places] if header else []
    check_different_names(filter(None, titles), f"{path}, line {line}")
    if not header:
        columns = _columns(path, False, len(first), texts)
    rows = len(columns[0].values)
    if not rows:
        raise ValueError(f"{path}: a header at line {line}, but no rows of numbers")
    if levels is not None and len(first) == 1 and (several := list(filter(_hint, columns[0].counts))):
        where, text = columns[0].first(several)
        raise ValueError(f"{where}: expected several fields, got {text!r}{_hint(text)}")
    if levels and len(levels) != len(feature_places):
        raise ValueError(f"{path}: expected {len(levels)} columns besides labels, got {len(feature_places)}")
    for number, place in enumerate(feature_places):
        columns[place].name, columns[place].words = titles[number] if titles else "", known[number]
    x, found, ignored = features([columns[place] for place in feature_places], missing, ignore, unseen)
    labels, named = [], []
    for place, name in zip(label_places, names, strict=True):
        unknown = None if left_out is None else left_out.setdefault(name, Counter())
        numbers, words = _labels(columns[place], f"{path}: {name!r}", (values or {}).get(name, ()), unknown)
        labels.append(numbers)
        named.append(words)
    check_printable(chain(header, *named, *found), str(path))
    return Raw(
        x,
        np.stack(labels, axis=1) if labels else None,
        names,
        tuple(titles),
        tuple(named) if any(named) else (),
        found,
        ignored=ignored,
        note=_note_on_header(path.name, titles, first),
    )


def _records(file: TextIO, width: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Last line, from 1, and fields of each record but those of a line of blanks, from the start of a table.

    A line of blanks is what pandas leaves out: spaces and tabs without quotes.

    Raises:
        ValueError: not text, or a record of another ``width``.
    """
    line, first = "", ""

    def lines() -> Iterator[str]:
        nonlocal line
        while line := file.readline():
            yield line

    reader = csv.reader(lines())
    try:
        for row in reader:
            if line.strip(" \t\r\n"):
                first = first or row[0]
                if len(row) != (width or len(row)):
                    where = f"{file.name}, line {reader.line_num}"
                    raise ValueError(f"{where}: expected {width} fields, got {len(row)}{_hint(first)}")
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        where = f"{file.name}, line {reader.line_num + 1}"
        raise ValueError(f"{where}: not comma separated text: {error}") from error


def _opened(path: Path) -> TextIO:
    return path.open(newline="", encoding="utf-8-sig")


class TableColumn:
    """A column: numbers, or fields as they are written; NaN is missing."""

    number = 0
    """Among the features, from 1."""
    name = ""
    """Empty if there is no header."""
    mixture = "; --model mixture takes missing entries and words"
    """End of the message about missing entries and words."""
    words: tuple[str, ...] | None = None
    """Names of the categories; empty to find them if there are words; None refuses words."""

    def __init__(self, path: Path, below: bool, place: int, values: np.ndarray) -> None:
        self.path, self.below, self.place, self.values = path, below, place, values

    def __str__(self) -> str:
        return f"column {self.name!r}" if self.name else f"column {self.number}"

    @property
    def beside(self) -> str:
        """What messages say beside the place of a row."""
        return ""

    @property
    def advice(self) -> str:
        """End of the message about words that are no categories."""
        named = self.name and "," not in self.name
        return f"; leave it out with --ignore {shlex.quote(self.name) if named else self.number}"

    @cached_property
    def texts(self) -> list[str]:
        """Text of each row, empty where it is missing."""
        return ["" if is_missing(text) else text.strip() for text in map(str, self.values.tolist())]

    @cached_property
    def counts(self) -> Counter[str]:
        """In how many rows there is each text."""
        return Counter(filter(None, self.texts))

    @cached_property
    def numbers(self) -> Counter[str]:
        """The texts that are numbers, and in how many rows they are."""
        return Counter({text: count for text, count in self.counts.items() if _is_number(text)})

    def first(self, wrong: Container[str]) -> tuple[str, str]:
        """Place of the first row whose text is one of these, in words, and the field as it is written."""
        return self._written(next(row for row, text in enumerate(self.texts) if text in wrong))

    def _written(self, row: int) -> tuple[str, str]:
        with _opened(self.path) as file:
            line, fields = next(islice(_records(file), self.below + row, None))
        return f"{self.path}, line {line}", fields[self.place]


def _columns(path: Path, below: bool, width: int, texts: Collection[int]) -> list[TableColumn]:
    """Parse the columns of a table.

    Args:
        path: of the table.
        below: leave the first record out.
        width: number of columns.
        texts: places of columns in which numbers are kept as they are written.

    Raises:
        ValueError: rows of other lengths, a NUL, or another encoding.
    """
    import pandas as pd  # takes half a second

    def parse(**options: Any) -> pd.DataFrame:
        with _opened(path) as file:
            if below:
                next(_records(file))
            options |= {"header": None, "low_memory": False, "float_precision": "round_trip"}
            return pd.read_csv(file, keep_default_na=False, na_values=_MISSING, **options)

    with path.open("rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"\0") >= 0:
            raise ValueError(f"{path}: not comma separated text: it has a NUL")
    frame, reason = pd.DataFrame(), ""
    try:
        frame = parse(dtype=dict.fromkeys(texts, object) or None)
    except pd.errors.EmptyDataError:
        return [TableColumn(path, below, place, np.empty(0)) for place in range(width)]
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        reason = str(error)
    if frame.shape[1] != width or frame[width - 1].isin([math.nan, ""]).any():
        with _opened(path) as file:
            deque(_records(file, width), 0)
    if reason:
        raise ValueError(f"{path}: not comma separated text: {reason}")
    others = [place for place, kind in enumerate(frame.dtypes) if kind.kind not in "iuf"]
    values = [*frame.drop(columns=others).to_numpy(np.float64).T]
    fields = parse(dtype=object, usecols=others) if others else frame  # truth values as they are written
    for place in others:
        values.insert(place, fields[place].to_numpy())
    return [TableColumn(path, below, place, one) for place, one in enumerate(values)]


def _has_header(
    path: Path,
    line: int,
    first: list[str],
    columns: Sequence[TableColumn],
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
    if any(field.strip().startswith(LABEL) for field in first):
        return True
    filled = [
        place
        for place, field in enumerate(first)
        if not (missing and is_missing(field)) and str(place + 1) not in ignore
    ]
    texts = [place for place in filled if not _is_number(first[place])]

    def is_value(place: int) -> bool:
        text, column = first[place].strip(), columns[place]
        if known is not None and place < len(known) and text in (known[place] or ()):
            return True
        return text in column.counts and 2 * column.numbers.total() < column.counts.total()

    if len(texts) == len(filled):
        return bool(filled) and (known is None or not all(map(is_value, texts)))
    numbers = [place for place in filled if place not in texts]
    names = {float(first[place]) for place in numbers}
    whole = len(names) == len(numbers) and all(map(float.is_integer, names))
    below = len(columns[0].values) > 0
    if below and whole and texts == filled[: len(texts)] and not any(map(is_value, texts)):
        if not texts:
            above = (place for place in numbers if columns[place].counts and not columns[place].numbers)
            return known is not None and not all(map(is_value, above))
        if all(_is_out_of_place(float(first[place]), columns[place].numbers) for place in numbers):
            return True
    for place in texts:
        if known is None or columns[place].numbers == columns[place].counts:
            raise ValueError(
                f"{path}, line {line}: expected a row of numbers or a header of names, "
                f"got {first[place]!r} among numbers{_hint(first[place])}"
            )
    return False


def _is_out_of_place(number: float, numbers: Counter[str]) -> bool:
    """Tell whether a whole number is beyond the range of numbers, or most of these are no whole numbers."""
    there = Counter({float(text): count for text, count in numbers.items()})
    whole = sum(count for value, count in there.items() if value.is_integer())
    return not there or not min(there) <= number <= max(there) or 2 * whole < there.total()


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


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def features(
    columns: Sequence[TableColumn],
    missing: bool,
    ignore: Collection[str],
    unseen: dict[str, Counter[str]] | None,
) -> tuple[np.ndarray, tuple[tuple[str, ...], ...], tuple[int, ...]]:
    """The numbers of columns [n, D], names of their categories, empty without words, and the columns ignored.

    Args and errors are those of :func:`read_csv`.
    """
    x = np.empty((len(columns[0].values), len(columns)))
    found, ignored = [], []
    for place, column in enumerate(columns):
        column.number = place + 1
        left = not {column.name, str(column.number)}.isdisjoint(ignore)
        if left:
            ignored.append(place)
        try:
            x[:, place], words = _feature(column, missing, None if left else unseen)
        except ValueError:
            if not left:
                raise
            x[:, place], words = math.nan, ()
        found.append(words)
    return x, tuple(found) if any(found) else (), tuple(ignored)


def _feature(
    column: TableColumn, missing: bool, unseen: dict[str, Counter[str]] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of a column, or those of its categories with their names; fields may be ``missing``."""
    if not column.words and column.values.dtype.kind == "f":
        wrong = np.isinf(column.values) if missing else ~np.isfinite(column.values)
        if not wrong.any():
            return column.values, ()
    words = column.counts - column.numbers
    if column.words or (words and column.words is not None):
        return _categories(column, words, unseen)
    if unseen is not None and 0 < 2 * words.total() <= column.counts.total():
        unseen[str(column)] = words
    else:
        words.clear()
    if faulty := {text for text in {*column.texts} if text not in words and _fault(column, text, missing)}:
        where, field = column.first(faulty)
        raise ValueError(f"{where}{column.beside}: {_fault(column, field, missing)}")
    known = {text: float(text) for text in column.counts if text not in words}
    return np.array([known.get(text, math.nan) for text in column.texts]), ()


def _categories(
    column: TableColumn, words: Counter[str], unseen: dict[str, Counter[str]] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of the categories of a column and their names.

    Args:
        column: to read.
        words: its texts that are no numbers.
        unseen: see :func:`read_csv`.
    """
    found = column.words or tuple(sorted(column.counts))
    if not column.words:
        if 2 * words.total() <= column.counts.total():
            where, field = column.first(words)
            raise ValueError(
                f"{where}: expected a number in {column}, "
                f"got {field.strip()!r}{_hint(field) or '; leave the field empty if it is unknown'}"
            )
        if len(found) > MOST_LEVELS:
            raise ValueError(
                f"{column.path}: {column} has {len(found):,} different words, at most {MOST_LEVELS} can be "
                f"categories{column.advice}"
            )
        if len(column.values) >= _FEW and len(found) == column.counts.total():
            raise ValueError(f"{column.path}: {column} has another word in every row{column.advice}")
    numbers = {text: float(number) for number, text in enumerate(found)}
    other = Counter({text: count for text, count in column.counts.items() if text not in numbers})
    if other and unseen is None:
        where, field = column.first(other)
        raise ValueError(f"{where}: expected one of {', '.join(found)} in {column}, got {field!r}")
    if other and unseen is not None:
        unseen[str(column)] = other
    return np.array([numbers.get(text, math.nan) for text in column.texts]), found


def _fault(column: TableColumn, field: str, missing: bool) -> str:
    """Say what is wrong with a field as a number; "" if nothing is."""
    if missing and is_missing(field):
        return ""
    try:
        value = float(field)
    except ValueError:
        return f"expected a number, got {field!r}{_hint(field) or ('' if missing else column.mixture)}"
    if math.isinf(value) or (math.isnan(value) and not missing):
        return f"expected a finite number, got {field!r}{column.mixture if math.isnan(value) else ''}"
    return ""


def _hint(field: str) -> str:
    """Return a hint for the error message if a field looks like several fields."""
    several = any(separator in field.strip() for separator in ";\t|")
    return "; fields are separated by commas" if several else ""


def _labels(
    column: TableColumn, source: str, known: tuple[str, ...], left_out: Counter[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a column, int64 [n], and the names of their values if these are words."""
    words = column.counts.keys() - column.numbers
    if (known or words) and not any(map(_hint, words)):
        texts = ["" if text == "-1" else text for text in column.texts]
        values = known or find_values(texts, source)
        return code(texts, values, source, left_out), values
    if wrong := {text for text in column.counts if _label_fault(text)}:
        where, field = column.first(wrong)
        raise ValueError(f"{where}{column.beside}: {_label_fault(field)}")
    return np.array([int(text or -1) for text in column.texts], dtype=np.int64), ()


def _label_fault(field: str) -> str:
    """Say what is wrong with a field as a label that is an integer; "" if nothing is."""
    try:
        value = int(field)
    except ValueError:
        return (
            f"expected an integer label, got {field!r}{DECIMAL_HINT if is_decimal(field) else _hint(field)}"
        )
    if value < -1:
        return f"expected a label >= -1, where -1 is unknown, got {value}"
    return f"expected a label of {LARGEST_LABEL} at most, got {value}" if value > LARGEST_LABEL else ""
