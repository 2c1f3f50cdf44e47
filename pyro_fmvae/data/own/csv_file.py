"""Reading tables of text by pandas: .csv and .tsv, compressed or not, and sheets of .xlsx.

Own code does what pandas lacks: it tells whether the first row is a header, names lines in errors, and
refuses what pandas would change silently (it fills up short rows, and ends a text at a NUL).
"""

import csv
import gzip
import math
import mmap
import zipfile
from collections import Counter, deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, count, islice, product, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

import numpy as np

from pyro_fmvae.data.column_plan import (
    MARKS,
    Entries,
    PlannedColumn,
    dated,
    features_of,
    is_code,
    plan_of,
    pointed,
    read_columns,
    unseen_words,
)
from pyro_fmvae.data.column_transform import column_in_words
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw, is_decimal, some_of
from pyro_fmvae.files.memory import check_fits
from pyro_fmvae.files.untrusted import check_printable

SHEET: Final = ".xlsx"
ENDINGS: Final = (".csv", ".tsv", ".txt", ".gz", SHEET)
"""Endings of the files that :func:`read_csv` reads."""
LABEL = "label:"  # begins the names of columns that hold labels
INDEX = "index:"  # begins the names of columns that name rows
_BYTES, _COLUMN = 10, 3000  # of memory that a byte of a table and a column take while they are read, about
_SEPARATORS = ",;\t|"
_LOOKED_AT = 50  # records that show how fields are separated
_ZEROS = 500  # records that show whether numbers begin with a 0
_PIECE = 1 << 20
_MISSING = ["".join(letters) for word in MARKS for letters in product(*zip(word, word.upper(), strict=True))]
_YEARS = range(1500, 2200)


@dataclass(frozen=True)
class _Text:
    """A table of text: where it lies and how it is written."""

    path: Path
    source: Path
    """The file in messages."""
    encoding: str = "utf-8-sig"
    separator: str = ","
    decimal: str = "."
    indexed: bool = False
    """The first row has no name for the first column, which names the rows."""
    ended: bool = False
    """All rows but the first end with a separator."""
    above: int = 0
    """Lines of comments before the table."""

    def opened(self) -> TextIO:
        file = self.path.open(newline="", encoding=self.encoding)
        for _ in range(self.above):
            file.readline()
        return file

    def records(self, width: int | None = None) -> Iterator[tuple[int, list[str]]]:
        """Last line, from 1, and fields of each record but those of a line of blanks.

        A line of blanks is what pandas leaves out: spaces and tabs without quotes.

        Raises:
            ValueError: not text, or a record of another ``width``.
        """
        line = ""

        def lines() -> Iterator[str]:
            nonlocal line
            while line := file.readline():
                yield line

        with self.opened() as file:
            reader, first = csv.reader(lines(), delimiter=self.separator), True
            try:
                for row in reader:
                    if line.strip(" \t\r\n") or (self.separator == "\t" and "\t" in line):
                        row = ["", *row] if first and self.indexed else row
                        row = [*row, ""] if first and self.ended else row
                        first, number = False, reader.line_num + self.above
                        if len(row) != (width or len(row)):
                            where = f"{self.source}, line {number}"
                            raise ValueError(f"{where}: expected {width} fields, got {len(row)}")
                        yield number, row
            except (csv.Error, UnicodeDecodeError) as error:
                where = f"{self.source}, line {reader.line_num + self.above + 1}"
                raise ValueError(f"{where}: not a table of text: {error}") from error


class _Field(Entries):
    """A column of a file of text."""

    def __init__(self, text: _Text, below: bool, place: int, values: np.ndarray) -> None:
        super().__init__("", values)
        self.text, self.below, self.place = text, below, place

    def first(self, wrong: Container[str]) -> tuple[str, str]:
        """Place of the first row whose text is one of these, in words, and the field as it is written."""
        row = next(row for row, text in enumerate(self.texts) if text in wrong)
        line, fields = next(islice(self.text.records(), self.below + row, None))
        return f"{self.text.source}, line {line}", fields[self.place]


def read_csv(
    path: Path,
    asked: TableOptions | None = None,
    plan: Sequence[PlannedColumn] = (),
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    unseen: dict[str, Counter[str]] | None = None,
) -> Raw:
    """Read a table of text.

    Fields are separated by commas, semicolons, tabs or bars, whichever makes several columns of all rows;
    text is UTF-8 or UTF-16, or else Windows-1252. Numbers have decimal commas where fields are not separated
    by commas. Columns that the header calls ``label:NAME``, and those that are asked for, hold labels,
    integers or words, where -1 and marks of what is missing are unknown; those that it calls ``index:NAME``
    name rows; all others are features. Lines of blanks are skipped.

    Args:
        path: the file, one of text, or compressed by gzip, or the first sheet of an .xlsx file.
        asked: what a person says about columns; None: nothing.
        plan: of the features, that of an earlier table; empty: found in this one.
        values: names of the values of labels that are known already, by label. Others are found in the file.
        left_out: where words of such labels that are none of their values are counted, by label; None: they
            are errors.
        unseen: where texts of a column that its plan does not have are counted; they are NaN.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: anything else; the message names the file and the line, counted from 1.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with _plain(path) as plain:
        return _read(plain, path, asked or TableOptions(), plan, values or {}, left_out, unseen)


def _read(
    plain: Path,
    path: Path,
    asked: TableOptions,
    plan: Sequence[PlannedColumn],
    values: Mapping[str, tuple[str, ...]],
    left_out: dict[str, Counter[str]] | None,
    unseen: dict[str, Counter[str]] | None,
) -> Raw:
    check_fits(size := _BYTES * plain.stat().st_size, str(path))
    text, notes = _described(plain, path, plan, asked)
    line, first = next(text.records(), (0, []))
    if not first:
        raise ValueError(f"{path}: the file is empty")
    check_fits(size + _COLUMN * len(first), str(path))
    known = {column.name: column for column in plan}
    named = [name.strip().removeprefix(LABEL).strip() for name in first]
    texts = [
        place
        for place, name in enumerate(first)
        if name.strip().startswith(LABEL)
        or named[place] in asked.labels
        or (named[place] in known and known[named[place]].as_texts)
    ]
    if plan and not set(known) - {""}:
        texts = [place for place, column in enumerate(plan) if column.as_texts]
    texts += [place for place in _with_zeros(text) if place not in texts]
    columns = _columns(text, True, len(first), texts)
    titled = _has_header(first, columns, plan, asked)
    if not titled:
        columns = _columns(text, False, len(first), texts)
    if not len(columns[0].values):
        raise ValueError(f"{path}: a header at line {line}, but no rows of numbers")
    header, renamed = unique([name.strip() for name in first] if titled else [])
    notes += [_note_on_header(path.name, titled, first), renamed]
    label_places = [
        place for place, name in enumerate(header) if name.startswith(LABEL) or name in asked.labels
    ]
    label_names = tuple(header[place].removeprefix(LABEL).strip() for place in label_places)
    if "" in label_names or len(set(label_names)) != len(label_names):
        raise ValueError(
            f"{path}, line {line}: label columns need different, non-empty names, got {list(label_names)}"
        )
    index_places = [place for place, name in enumerate(header) if name.startswith(INDEX)]
    features = [place for place in range(len(first)) if place not in (*label_places, *index_places)]
    if not features:
        raise ValueError(f"{path}, line {line}: all columns are labels; expected at least one feature")
    for place in features if header else ():
        columns[place].name = header[place]
    raw = table_of([columns[place] for place in features], str(path), asked, plan, unseen)
    labels, words = [], []
    for place, name in zip(label_places, label_names, strict=True):
        unknown = None if left_out is None else left_out.setdefault(name, Counter())
        numbers, found = _labels(columns[place], f"{path}: {name!r}", values.get(name, ()), unknown)
        labels.append(numbers)
        words.append(found)
    check_printable(chain(header, *words), str(path))
    names = header or [column.name for column in plan] or [""] * len(first)
    names = [name or f"x_{place}" for place, name in enumerate(names)]
    return raw._replace(
        written=partial(_written, path, text, titled, names),
        comma=text.decimal == ",",
        labels=np.stack(labels, axis=1) if labels else None,
        label_names=label_names,
        value_names=tuple(words) if any(words) else (),
        note="; ".join(filter(None, notes)),
    )


def _written(path: Path, text: _Text, titled: bool, names: Sequence[str]) -> dict[str, np.ndarray]:
    """All fields of a file as they are written, object [n], by the names of their columns."""
    with _plain(path) as plain:
        as_is = replace(text, path=plain, decimal=".")
        fields = _columns(as_is, titled, len(names), range(len(names)), marks=False)
    bare = [name.removeprefix(INDEX) for name in names]
    own = [name if bare.count(one) > 1 else one for name, one in zip(names, bare, strict=True)]
    return {name: field.values for name, field in zip(own, fields, strict=True)}


def table_of(
    columns: Sequence[Entries],
    source: str,
    asked: TableOptions,
    plan: Sequence[PlannedColumn] = (),
    unseen: dict[str, Counter[str]] | None = None,
) -> Raw:
    """The features of a table by its plan.

    Args:
        columns: of features, with their names.
        source: of them, in messages.
        asked: what a person says about columns.
        plan: that of an earlier table; empty: found in this one.
        unseen: see :func:`~pyro_fmvae.data.column_plan.read_columns`.

    Raises:
        ValueError: there is no row, or no column that the plan, or a person, names; a number is infinite; or
            nothing is left to learn from.
    """
    if not len(columns[0].values):
        raise ValueError(f"{source}: expected at least one row, got 0")
    names = [column.name for column in columns]
    if plan:
        columns = _matched(columns, plan, source)
    else:
        for name, kind in asked.kinds_of(names):
            columns[name].kind = kind
        plan = plan_of(columns)
        if all(column.ignored for column in plan):
            raise ValueError(
                f"{source}: expected a column to learn from, but all are names, texts or constants; "
                "--kind NAME=category takes one in"
            )
    described = features_of(plan)
    check_printable(chain(described["column_names"], *described["levels"]), source)
    lost: dict[str, Counter[str]] = {}
    x = read_columns(plan, columns, lost)
    if unseen is not None:
        unseen |= lost
    for row, place in np.argwhere(np.isinf(x)).tolist():
        if place in described["ignored"]:
            x[row, place] = math.nan
            continue
        column = column_in_words(place, described["column_names"])
        raise ValueError(
            f"{source}, row {row + 1}: expected a finite number in {column}, got {x[row, place]:g}"
        )
    return Raw(x, **described, plan=tuple(plan), unseen=unseen_words(plan, columns, x) if lost else None)


def _matched(columns: Sequence[Entries], plan: Sequence[PlannedColumn], source: str) -> Sequence[Entries]:
    """The columns of a plan, in its order: by name, where both have names.

    Raises:
        ValueError: there are others, or one of them is not there.
    """
    names, wanted = [column.name for column in columns], [column.name for column in plan]
    if any(names) and any(wanted):
        missing = [repr(column.name) for column in plan if column.name not in names and not column.ignored]
        if missing:
            raise ValueError(
                f"{source}: expected the columns {', '.join(wanted)}, got no {', '.join(missing)}"
            )
        found, rows = dict(zip(names, columns, strict=True)), len(columns[0].values)
        empty = np.full(rows, math.nan)
        return [found.get(name) or Entries(name, empty) for name in wanted]
    if len(columns) != len(plan):
        raise ValueError(f"{source}: expected {len(plan)} columns besides labels, got {len(columns)}")
    return columns


# ---------------------------------------------------------------------- how a file is written


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    """The file, or what it has unpacked to text, as long as that fits into memory.

    Raises:
        ValueError: it is damaged, would unpack to more, or openpyxl is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in (".gz", SHEET):
        yield path
        return
    with TemporaryDirectory() as folder:
        target = Path(folder, "table.csv")
        try:
            if suffix == SHEET:
                _unpack_sheet(path, target)
            else:
                size = 0
                with gzip.open(path) as source, target.open("wb") as unpacked:
                    while piece := source.read(_PIECE):
                        check_fits(_BYTES * (size := size + len(piece)), str(path))
                        unpacked.write(piece)
        except (OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{path}: cannot be unpacked: {error}") from error
        yield target


def _unpack_sheet(path: Path, target: Path) -> None:
    if find_spec("openpyxl") is None:
        raise ValueError(f"{path}: reading it needs openpyxl: pip install 'pyro_fmvae[xlsx]'")
    import pandas as pd

    with zipfile.ZipFile(path) as archive:
        check_fits(_BYTES * sum(entry.file_size for entry in archive.infolist()), str(path))
    sheet = pd.read_excel(path, header=None, dtype=object, engine="openpyxl", keep_default_na=False)
    sheet.to_csv(target, header=False, index=False)


def _described(
    plain: Path, path: Path, plan: Sequence[PlannedColumn], asked: TableOptions
) -> tuple[_Text, list[str]]:
    """How a file of text is written, and notes on what is unusual about it.

    Raises:
        ValueError: it has a NUL, or nothing but comments.
    """
    notes, encoding = [], "utf-8-sig"
    with plain.open("rb") as file:
        start = file.read(2)
    if start in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
        notes.append(f"{path.name} is read as UTF-16")
    elif plain.stat().st_size:
        with plain.open("rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"\0") >= 0:
                raise ValueError(f"{path}: not a table of text: it has a NUL")
        if not _decodes(plain, encoding):
            encoding = "cp1252" if _decodes(plain, "cp1252") else "latin-1"
            name = "Windows-1252" if encoding == "cp1252" else "Latin-1"
            notes.append(f"{path.name} is not UTF-8, and is read as {name}")
    with plain.open(newline="", encoding=encoding) as lines:
        above = sum(1 for _ in takewhile(lambda line: line.startswith("#"), lines))
    rows: dict[str, list[list[str]]] = {}
    for separator in _SEPARATORS:
        text = _Text(plain, path, encoding, separator, above=above)
        try:
            rows[separator] = [row for _, row in islice(text.records(), _LOOKED_AT)]
        except ValueError:
            rows[separator] = []
    widths = {one: [len(row) for row in found] for one, found in rows.items()}
    even = {one: len({*found}) == 1 < found[0] for one, found in widths.items()}
    separator = max(
        _SEPARATORS,
        key=lambda one: (
            even[one],
            even[one] and one != "," and _has_decimal_commas(rows[one]),
            _columns_of(widths[one]),
        ),
    )
    text = _Text(plain, path, encoding, separator, above=above)
    if _indexed(widths[separator]):
        ended = all(row[-1] == "" for row in rows[separator][1:])
        text = replace(text, indexed=not ended, ended=ended)
    if separator != ",":
        notes.append(f"fields of {path.name} are separated by {_called(separator)}")
        if _has_decimal_commas(rows[separator]):
            notes.append(f"numbers of {path.name} have decimal commas")
            text = replace(text, decimal=",")
    if above and _titled_by_comment(text, plan, asked):
        text = replace(text, above=above - 1)
    if text.above:
        lines_of = "a line" if text.above == 1 else f"{text.above} lines"
        notes.append(f"{path.name} begins with {lines_of} of comments")
    return text, notes


def _titled_by_comment(text: _Text, plan: Sequence[PlannedColumn], asked: TableOptions) -> bool:
    """Tell whether the last comment is the header: it has a name for each of several columns of data.

    Raises:
        ValueError: there is nothing below the comments.
    """
    _, first = next(text.records(), (0, []))
    if not first:
        raise ValueError(f"{text.source}: expected a table below its comments, got none")
    with replace(text, above=text.above - 1).opened() as file:
        last = next(csv.reader([file.readline()], delimiter=text.separator))
    if not 1 < len(last) == len(first) or text.indexed or text.ended or asked.header is False:
        return False
    columns = _columns(text, True, len(first), range(len(first)))
    return not _has_header(first, columns, plan, replace(asked, header=None))


def _with_zeros(text: _Text) -> list[int]:
    """Places of columns in which whole numbers begin with a 0, as codes do."""
    rows = [row for _, row in islice(text.records(), 1, _ZEROS)]
    return [place for place, column in enumerate(zip(*rows, strict=False)) if any(map(is_code, column))]


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether more numbers below the first row have a decimal comma than a point."""
    fields = [field for row in rows[1:] for field in row]
    return sum(pointed(field) != field for field in fields if "," in field) > sum(map(is_decimal, fields))


def _called(separator: str) -> str:
    return {";": "semicolons", "\t": "tabs", "|": "bars"}[separator]


def _indexed(widths: Sequence[int]) -> bool:
    """Tell whether all rows but the first have one field more than that."""
    return len(widths) > 1 and widths[0] > 0 and {*widths[1:]} == {widths[0] + 1}


def _columns_of(widths: Sequence[int]) -> int:
    """How many columns there are if all rows are of one width; 1 if they are not."""
    return widths[-1] if len({*widths}) == 1 or _indexed(widths) else 1


def _decodes(path: Path, encoding: str) -> bool:
    with path.open(encoding=encoding, newline="") as file:
        try:
            while file.read(_PIECE):
                pass
        except UnicodeDecodeError:
            return False
    return True


def _columns(
    text: _Text, below: bool, width: int, texts: Collection[int], marks: bool = True
) -> list[_Field]:
    """Parse the columns of a table.

    Args:
        text: of the table.
        below: leave the first record out.
        width: number of columns.
        texts: places of columns in which numbers are kept as they are written.
        marks: of what is missing become NaN.

    Raises:
        ValueError: rows of other lengths, or another encoding.
    """
    import pandas as pd  # takes half a second

    lines = 0
    if below:
        lines = next(text.records())[0] - text.above

    def parse(**options: Any) -> pd.DataFrame:
        with text.opened() as file:
            for _ in range(lines):
                file.readline()
            options |= {"header": None, "low_memory": False, "float_precision": "round_trip"}
            options |= {"sep": text.separator, "decimal": text.decimal, "index_col": False}
            return pd.read_csv(file, keep_default_na=False, na_values=_MISSING, na_filter=marks, **options)

    frame, reason = pd.DataFrame(), ""
    try:
        frame = parse(dtype=dict.fromkeys(texts, object) or None)
    except pd.errors.EmptyDataError:
        return [_Field(text, below, place, np.empty(0)) for place in range(width)]
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        reason = str(error)
    if frame.shape[1] != width or frame[width - 1].isin([math.nan, ""]).any():
        deque(text.records(width), 0)
    if reason:
        raise ValueError(f"{text.source}: not a table of text: {reason}")
    others = [place for place, kind in enumerate(frame.dtypes) if kind.kind not in "iuf"]
    values = [*frame.drop(columns=others).to_numpy(np.float64).T]
    fields = parse(dtype=object, usecols=others) if others else frame  # truth values as they are written
    for place in others:
        found = fields[place].to_numpy()
        if text.decimal == ",":  # which pandas only converts in columns of numbers
            found = np.array([pointed(field) for field in found], dtype=object)
        values.insert(place, found)
    return [_Field(text, below, place, one) for place, one in enumerate(values)]


# ---------------------------------------------------------------------- the header


def _has_header(
    first: Sequence[str], columns: Sequence[_Field], plan: Sequence[PlannedColumn], asked: TableOptions
) -> bool:
    """Tell whether the first row holds names, not data.

    It does unless every entry of it looks like its column: a number above numbers, a word that occurs again
    below. (A word that stands in a column of numbers again is a name: files with headers have been joined.)
    Missing entries say nothing, and neither do words above words that all differ where there are numbers in
    the row. Numbers are names if all of them are different whole ones that do not fit their columns beside
    words, or years in order.
    """
    if asked.header is not None:
        return asked.header
    names = [field.strip() for field in first]
    if columns[0].text.decimal == ",":
        names = [pointed(name) for name in names]
    if any(name.startswith(LABEL) for name in names) or {*asked.labels}.intersection(names):
        return True
    wanted = [column.name for column in plan if not column.ignored]
    if any(wanted) and {*wanted} <= {*names}:
        return True
    if plan and not any(wanted) and len(plan) == len(first):
        return not any(_fits(column, name) for column, name in zip(plan, names, strict=True) if name)
    filled = [place for place, name in enumerate(names) if name.lower() not in MARKS]
    numbers = [place for place in filled if _is_number(names[place])]
    words = [place for place in filled if place not in numbers]
    if not numbers:
        return bool(words) and not all(_is_value(names[place], columns[place]) for place in words)
    if any(columns[place].counts and not columns[place].numbers for place in numbers):
        return True  # a number above words
    wholes = {float(names[place]) for place in numbers}
    whole = len(wholes) == len(numbers) and all(map(float.is_integer, wholes))
    out = whole and all(_is_out_of_place(float(names[place]), columns[place].numbers) for place in numbers)
    if not words:
        years = [float(names[place]) for place in numbers]
        return len(years) > 2 and out and years == sorted(years) and all(year in _YEARS for year in years)
    if all(_is_value(names[place], columns[place]) for place in words):
        return False
    if all(_is_value(names[place], columns[place]) or _differ(columns[place]) for place in words):
        return out
    return True


def _fits(column: PlannedColumn, text: str) -> bool:
    return text in column.words if column.words else _is_number(text) and not column.ignored


def _is_value(text: str, column: Entries) -> bool:
    return text in column.counts and 2 * column.numbers.total() < column.counts.total()


def _differ(column: Entries) -> bool:
    """Tell whether nearly all words of a column of words differ."""
    return not column.numbers and len(column.counts) > 0.9 * column.counts.total()


def _is_out_of_place(number: float, numbers: Counter[str]) -> bool:
    """Tell whether a whole number is beyond the range of numbers, or most of these are no whole numbers."""
    there = Counter({float(text): count for text, count in numbers.items()})
    whole = sum(count for value, count in there.items() if value.is_integer())
    return not there or not min(there) <= number <= max(there) or 2 * whole < there.total()


def unique(names: Sequence[str]) -> tuple[list[str], str]:
    """Make names of columns different, as pandas does, and say which were not."""
    taken, seen, found = {*names}, set[str](), list[str]()
    for place, name in enumerate(names):
        new = base = name or (f"column {place + 1}" if place else "index")
        numbers = count(1)
        while new in seen or (new != name and new in taken):
            new = f"{base}.{next(numbers)}"
        seen.add(new)
        found.append(new)
    pairs = zip(names, found, strict=True)
    renamed = [f"{name!r} is {new!r}" for name, new in pairs if name and name != new]
    return found, f"names of columns are there more than once: {some_of(renamed)}" if renamed else ""


def index_of(frame: Any) -> dict[str, np.ndarray]:
    """Levels of the index of a frame of pandas' by their names; empty if it only counts the rows."""
    index: Any = getattr(frame, "index", None)
    if not hasattr(index, "to_frame") or list(index) == list(range(len(index))):
        return {}
    names = unique([str(name or "index") for name in index.names])[0]
    return {name: dated(np.asarray(index.get_level_values(at))) for at, name in enumerate(names)}


def _note_on_header(name: str, titled: bool, first: Sequence[str]) -> str:
    """Describe what is odd about the first row of a table; "" if nothing is."""
    numbers = [field for field in first if _is_number(field)]
    if not titled:
        why = "there are numbers in its first row" if numbers else "its first row has values of its columns"
        return f"{name} has no header, as {why}; --header yes reads its first row as one"
    notes = [f"the first row of {name} is its header, though it has numbers"] if numbers else []
    if nameless := ", ".join(str(number) for number, title in enumerate(first, 1) if not title.strip()):
        notes.append(f"{name} has columns without a name: {nameless}")
    return "; ".join(notes)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- labels


def _labels(
    column: _Field, source: str, known: tuple[str, ...], left_out: Counter[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a column, int64 [n], and the names of their values if these are words."""
    if known or column.counts.keys() - column.numbers:
        texts = ["" if text == "-1" else text for text in column.texts]
        values = known or find_values(texts, source)
        return code(texts, values, source, left_out), values
    if wrong := {text for text in column.counts if _label_fault(text)}:
        where, field = column.first(wrong)
        raise ValueError(f"{where}: {_label_fault(field)}")
    return np.array([int(text or -1) for text in column.texts], dtype=np.int64), ()


def _label_fault(field: str) -> str:
    """Say what is wrong with a field as a label that is an integer; "" if nothing is."""
    try:
        value = int(field)
    except ValueError:
        return f"expected an integer label, got {field!r}{DECIMAL_HINT if is_decimal(field) else ''}"
    if value < -1:
        return f"expected a label >= -1, where -1 is unknown, got {value}"
    return f"expected a label of {LARGEST_LABEL} at most, got {value}" if value > LARGEST_LABEL else ""
