"""The plan of a table's columns: what each holds, and how a model takes it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final, get_type_hints

import numpy as np
import scipy  # type: ignore[import-untyped]

from pyro_fmvae.data.column_transform import MOST_VALUES, REPEATED, ColumnTransform, has_few_integers
from pyro_fmvae.files.untrusted import check_type

MOST_WORDS: Final = 50
"""Largest number of categories of a column, the one of all rarer words included."""
ASIDE: Final = ("id", "text", "constant", "ignored")
"""Kinds of columns that no model takes."""
MARKS: Final = ("", "na", "n/a", "nan", "?", "null", "#n/a", "<na>")
"""What stands for a missing value, in any letter case."""
_PURE = 0.8  # share of the entries that decides what a column holds
_DIFFERENT = 0.9  # share of different words from which a column names its rows
_FEW = 10  # rows, whose words may all differ by chance
_WORDY = 4  # words of an entry, on average, from which a column of different entries is text
_TRUTHS = ({"yes", "no"}, {"true", "false"}, {"t", "f"}, {"y", "n"})
_WHOSE = r".*[^a-z]|(?-i:.*[a-z](?=I[Dd]))|case|customer|patient|person|student|subject|user"
_OF_ROWS = re.compile(
    rf"({_WHOSE})?(id[ _]?(no|number)?|code|rownames?|row ?(no|number)?|nr|no)|(row[ _]?)?index|unnamed: 0",
    re.IGNORECASE,
)
_SIGN, _COIN = "[$€£¥]", "USD|EUR|GBP|CHF|JPY|CAD|AUD"
_SCALE = r"(?<=\s)([a-zµ][A-Za-z]{0,5}[²³]?|[A-Z]{3})|(?<=\d)(kg|g|km|cm|mm|m|s|h|ms|min)"
_MONEY = re.compile(
    rf"(?P<open>\()?[-+]?\s*(({_COIN})\s?)?{_SIGN}?\s*[-+]?(\d{{1,3}}([, ]\d{{3}})+|\d+)?(\.\d*)?\s*"
    rf"(?P<unit>({_COIN}|{_SIGN}|%|°[CF]?|{_SCALE})?)\s*\)?"
)
_DIGITS = re.compile(r"[.,]?\d(?:[\d., ]*[\d.,])?")
# a number with a decimal comma or dots between thousands, and perhaps a unit before or behind it
_COMMA = re.compile(r"([^\d,.]{0,5})(\d{1,3}(?:\.\d{3})+|\d+)(?:,(\d+))?([^\d,.]{0,5})")
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_DAY = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y", "%m/%d/%y")
_MORE = ("%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y")
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%I:%M:%S %p %z")
_MONTH = ("%Y %b", "%b %Y", "%Y %B", "%B %Y", "%b-%Y")
_QUARTER = "quarter"
_FORMATS = (
    "ISO8601",
    *_DAY,
    *_MORE,
    *(f"{day} {time}" for day in _DAY for time in _TIMES),
    *_MONTH,
    _QUARTER,
)
_OF_QUARTER = re.compile(r"(\d{4})([- ]?)Q([1-4])")
_COMPARED = 2000  # rows that show whether whole numbers are codes
_BALANCED = 8.0  # groups of one size that are as even as those of codes
_CLEAR = 8.0  # standard deviations by which a column differs between them
_MEASURES = ("number", "count", "integer", "date")
_OF_UNITS = "%$€£¥°"  # which a second row may hold
_NINES = re.compile(r"-99+")
_ZONE = re.compile(r"(?:GMT|UTC)([-+])(\d{1,2})$")
_DATE = re.compile(  # what may be one
    r"\d.*[-/.: ].*\d|[A-Za-z]{3,9} \d{1,2}, \d{4}|[A-Za-z]{3,9}[- ]\d{4}|\d{4} [A-Za-z]{3,9}|\d{4}-?Q[1-4]"
)
_DAYS = 86_400  # seconds of one
_HOUR = timedelta(hours=1)
_LAST = 106_751  # days before and after 1970 that pandas reads
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "month": tuple(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]),
    "weekday": tuple(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]),
    "hour": tuple(map(str, range(24))),
}
"""Parts of a date that a model may take beside it, and their values."""


def is_missing(field: str) -> bool:
    """True for an empty field and the usual marks of what is missing."""
    return field.strip().lower() in MARKS


def is_code(field: str) -> bool:
    """True for digits that begin with a 0, as those of a postal code may."""
    return field[:1] == "0" and len(field) > 1 and field.isdigit()


class Entries:
    """The entries of a column of a table.

    Args:
        name: of the column; empty if it has none.
        values: float64 [n], or texts as they are written, object [n]; NaN is missing.
        kind: that is asked for; empty: to be found out.
    """

    def __init__(self, name: str, values: np.ndarray, kind: str = "") -> None:
        self.name, self.values, self.kind = name, values, kind

    def without(self, gaps: Collection[str]) -> Entries:
        """These entries, but missing where they are one of these texts or their numbers."""
        if not gaps:
            return self
        if self.numeric:
            numbers = [_number(text) for text in gaps]
            values = np.where(np.isin(self.values, numbers), math.nan, self.values)
        else:
            values = np.array(["" if text in gaps else text for text in self.texts], dtype=object)
        return Entries(self.name, values, self.kind)

    @property
    def numeric(self) -> bool:
        """True if all of them are numbers."""
        return self.values.dtype.kind == "f"

    @cached_property
    def known(self) -> int:
        """Number of the entries that are not missing."""
        return int(np.count_nonzero(~np.isnan(self.values))) if self.numeric else self.counts.total()

    @cached_property
    def different(self) -> int:
        """Number of different entries."""
        if self.numeric:
            return len(np.unique(self.values[~np.isnan(self.values)]))
        return len(self.counts)

    @cached_property
    def texts(self) -> list[str]:
        """Text of each entry, empty where it is missing."""
        if self.numeric:
            return ["" if math.isnan(value) else f"{value:.15g}" for value in self.values.tolist()]
        stripped = {text: "" if is_missing(str(text)) else str(text).strip() for text in {*self.values}}
        return [stripped[text] for text in self.values]

    @cached_property
    def counts(self) -> Counter[str]:
        """In how many rows there is each text."""
        return Counter(filter(None, self.texts))

    @cached_property
    def numbers(self) -> Counter[str]:
        """The texts that are finite numbers, and in how many rows they are."""
        return Counter({text: count for text, count in self.counts.items() if math.isfinite(_number(text))})

    def by(self, read: Callable[[str], float]) -> np.ndarray:
        """A number for each entry, by its text; NaN where it is missing."""
        known = {text: read(text) for text in self.counts} | {"": math.nan}
        return np.array([known[text] for text in self.texts], dtype=np.float64)


@dataclass(frozen=True)
class PlannedColumn:
    """How a column of a table is read. The first five are the row of the plan that a person sees."""

    name: str
    kind: str
    values: str
    treatment: str
    why: str
    words: tuple[str, ...] = ()
    """Categories, in the order of their codes; empty for a column of numbers."""
    other: bool = False
    """The last category has all other words."""
    form: str = ""
    """How a number is written: ``money``, or the format of a date; empty: as usual."""
    parts: tuple[str, ...] = ()
    """Parts of a date, out of `PARTS`, that are columns of categories beside it."""
    gaps: tuple[str, ...] = ()
    """Texts that stand for a missing value in this column, beside `MARKS`."""

    @property
    def ignored(self) -> bool:
        """True if models leave it out. Constant numbers stay: some models take them."""
        return self.kind in ASIDE and not (self.kind == "constant" and not math.isnan(_number(self.values)))

    @property
    def features(self) -> dict[str, tuple[str, ...]]:
        """Columns that stand for it, by name: the words of each, none of a column of numbers."""
        return {self.name: self.words} | {f"{self.name} {part}".strip(): PARTS[part] for part in self.parts}

    @property
    def as_texts(self) -> bool:
        """True if its entries have to be read as they are written."""
        return bool(self.words or self.form)

    def read(self, entries: Entries) -> tuple[np.ndarray, Counter[str]]:
        """The numbers or codes of entries, [n, features], and the texts that count as missing."""
        entries = entries.without(self.gaps)
        if self.kind == "date":
            found = _dates(entries, self.form)
            if "%b" in self.form.lower():  # names of months, short or full: May is both
                other = re.sub("%[bB]", lambda name: name[0].swapcase(), self.form)
                found = np.where(np.isnan(found), _dates(entries, other), found)
        elif self.form:
            found = entries.by(_clock if self.form == "clock" else _money)
        elif not self.words:
            found = entries.values if entries.numeric else entries.by(_number)
        else:
            codes: dict[str, float] = {word: code for code, word in enumerate(self.words)}
            if entries.numeric and self.kind == "boolean":  # truth values beside gaps, in an array of objects
                codes |= {"0": 0.0, "1": 1.0}
            rest = float(len(self.words) - 1) if self.other else math.nan
            found = entries.by(lambda text: codes.get(text, codes.get(f"{_number(text):.15g}", rest)))
        lost = Counter[str]()
        if not self.ignored and found is not entries.values and (gone := np.isnan(found)).any():
            lost.update(
                text for text, none in zip(entries.texts, gone.tolist(), strict=True) if none and text
            )
        return np.stack([found, *(_part(found, part) for part in self.parts)], 1), lost

    def write(self, values: np.ndarray, like: str = "", comma: bool = False) -> np.ndarray:
        """Numbers or codes [n] as texts of the column, object [n]; '' where one is missing.

        Args:
            values: the numbers or codes.
            like: an entry of the column; ISO dates are written in the same way, numbers with its unit, and
                with an exponent only if it has one.
            comma: write numbers with a decimal comma.
        """
        if self.kind == "date":
            return date_texts(values, self.form, like)
        if self.words:
            place = np.nan_to_num(values, nan=len(self.words)).astype(int)
            return np.array([*self.words, ""], dtype=object)[place]
        if self.form == "clock":
            minutes = [None if math.isnan(value) else round(60 * value) for value in values.tolist()]
            clocks = ["" if one is None else f"{one // 60:02d}:{one % 60:02d}" for one in minutes]
            return np.array(clocks, dtype=object)
        texts = ["" if math.isnan(value) else f"{value:.15g}" for value in values.tolist()]
        money = self.form == "money"
        if money or not re.search(r"[\d.]e[-+]?\d", like, re.IGNORECASE):
            exponents = {text for text in texts if "e" in text}
            plain = {text: np.format_float_positional(float(text), trim="-") for text in exponents}
            texts = [plain.get(text, text) for text in texts]
        texts = [text.replace(".", ",") for text in texts] if comma else texts
        if money and len(around := _DIGITS.split(like, maxsplit=1)) == 2:
            before, behind = re.sub(r"[-+(]", "", around[0]).lstrip(), around[1].rstrip(" )")
            texts = [
                f"{'-' * (text[0] == '-')}{before}{text.lstrip('-')}{behind}" if text else ""
                for text in texts
            ]
        return np.array(texts, dtype=object)

    def example(self, written: np.ndarray, comma: bool = False) -> str:
        """The first of some texts, perhaps with decimal commas, that is read as an entry; '' if none is."""
        for start in range(0, len(written), 500):  # it is one of the first, mostly
            some = written[start : start + 500]
            known = some[~self.is_gap(some, comma)]
            entries = Entries(self.name, np.array([pointed(one) if comma else one for one in known], object))
            if (read := ~np.isnan(self.read(entries)[0][:, 0])).any():
                return str(known[read][0]).strip()
        return ""

    def fill(
        self, written: np.ndarray, values: np.ndarray, like: str = "", comma: bool = False
    ) -> np.ndarray:
        """Entries [n] as they are in a file, of which only the missing ones are computed.

        Args:
            written: texts, or numbers, NaN or masked where one is missing.
            values: numbers or codes [n], which are rounded for whole numbers.
            like, comma: how texts are written, as for :meth:`write`.
        """
        gaps = self.is_gap(written, comma)
        if not gaps.any():
            return written
        filled = values.round() if written.dtype.kind in "iu" else values
        if written.dtype == object:
            filled = self.write(values, like, comma)
        elif self.words:  # numbers; those of truth values are their codes
            numbers = np.array([_number(text) for text in self.write(values)])
            filled = np.where(np.isnan(numbers), values, numbers)
        found = np.array(np.ma.getdata(written))
        found[gaps] = filled[gaps]
        return found

    def is_gap(self, written: np.ndarray, comma: bool = False) -> np.ndarray:
        """Tell which entries [n] of a file, numbers or texts, perhaps with decimal commas, are missing."""
        numbers = {number for number in map(_number, self.gaps) if not math.isnan(number)}
        if written.dtype != object:
            data = np.ma.getdata(written)
            return np.ma.getmaskarray(written) | np.isnan(data) | np.isin(data, [*numbers])
        empty = {
            text
            for text in {*written}
            if is_missing(text)
            or text.strip() in self.gaps
            or _number(pointed(text) if comma else text) in numbers
        }
        return np.array([text in empty for text in written.tolist()], dtype=bool)


def plan_of(columns: Sequence[Entries]) -> tuple[PlannedColumn, ...]:
    """Find out what columns hold, unless their kinds are asked for."""
    plan = [_planned(column) for column in columns]
    maybe = [place for place, column in enumerate(columns) if _may_be_codes(column, plan[place])]
    if not maybe:
        return tuple(plan)
    number = min(len(columns[0].values), _COMPARED)
    rows = np.random.default_rng(0).permutation(len(columns[0].values))[:number]
    some = [Entries(column.name, column.values[rows]) for column in columns]
    for place in maybe:
        column, code = plan[place], columns[place].without(plan[place].gaps)
        others = [
            (p, e) for i, (p, e) in enumerate(zip(plan, some, strict=True)) if i != place and not p.ignored
        ]
        if _is_without_order(plan[place].read(some[place])[0][:, 0], others):
            row = partial(PlannedColumn, column.name, gaps=column.gaps)
            why = "whole numbers whose order says nothing about other columns; "
            plan[place] = _category(
                code, row, why + f"--kind {column.name or place + 1}=number takes them as such"
            )
        else:
            why = f"{column.why}; --kind {column.name or place + 1}=category if they are codes"
            plan[place] = replace(column, why=why)
    return tuple(plan)


def _may_be_codes(column: Entries, plan: PlannedColumn) -> bool:
    """Tell whether there are as few whole numbers as there may be categories, each repeatedly."""
    few = MOST_VALUES < column.different <= MOST_WORDS and column.different * REPEATED <= column.known
    return not column.kind and plan.kind == "count" and few


def _is_without_order(codes: np.ndarray, others: Sequence[tuple[PlannedColumn, Entries]]) -> bool:
    """Tell whether other columns differ between whole numbers, but between neighbours as between any two.

    The columns' ranks are compared, of those columns that differ clearly. The squared difference of two means
    is measured in units of the variance within, and what chance adds to it is taken off.

    Args:
        codes: whole numbers [n], NaN where one is missing.
        others: the other columns of the same rows.
    """
    values, sizes = np.unique(codes[~np.isnan(codes)], return_counts=True)
    often = values[sizes >= REPEATED]
    if len(often) <= MOST_VALUES or np.square(sizes.sum()) < _BALANCED * np.square(sizes).sum():
        return False
    near = far = 0.0
    for plan, entries in others:
        for y in plan.read(entries)[0].T if not plan.words else _indicators(plan, entries):
            known = np.isin(codes, often) & ~np.isnan(y)
            _, group, sizes = np.unique(codes[known], return_inverse=True, return_counts=True)
            ranks = scipy.stats.rankdata(y[known])
            means = np.bincount(group, ranks) / sizes
            within = np.square(ranks - means[group]).sum() / max(len(ranks) - len(sizes), 1)
            between = (sizes * np.square(means - ranks.mean())).sum()
            if not 0 < within * (len(sizes) + _CLEAR * math.sqrt(2 * len(sizes))) < between:
                continue
            apart = np.square(means[:, None] - means) / within - 1 / sizes[:, None] - 1 / sizes
            near += np.diagonal(apart, 1).mean()
            far += apart[np.triu_indices(len(sizes), 1)].mean()
    return near > far / 2 > 0


def _indicators(plan: PlannedColumn, entries: Entries) -> np.ndarray:
    """For each of the first words of a column, whether it is an entry's, [words, n]."""
    codes = plan.read(entries)[0][:, 0]
    return np.array([np.where(np.isnan(codes), codes, codes == code) for code in range(len(plan.words))][:10])


def features_of(plan: Sequence[PlannedColumn]) -> dict[str, Any]:
    """Names of the columns that stand for a plan's, their words, and which of them are ignored.

    Returns:
        Attributes of :class:`~pyro_fmvae.data.own.raw.Raw`.
    """
    found = [(name, words, column.ignored) for column in plan for name, words in column.features.items()]
    return {
        "column_names": tuple(name for name, *_ in found) if any(column.name for column in plan) else (),
        "levels": tuple(words for _, words, _ in found) if any(words for _, words, _ in found) else (),
        "ignored": tuple(place for place, (*_, ignored) in enumerate(found) if ignored),
    }


def continuous_columns(plan: Sequence[PlannedColumn]) -> list[int]:
    """Places of the columns that stand for a plan's whose few whole numbers are not categories."""
    kinds = [column.kind for column in plan for _ in column.features]
    return [place for place, kind in enumerate(kinds) if kind not in ("integer", "boolean")]


def read_columns(
    plan: Sequence[PlannedColumn], columns: Sequence[Entries], unseen: dict[str, Counter[str]] | None = None
) -> np.ndarray:
    """Read the columns of a table by its plan.

    Args:
        plan: of the columns.
        columns: their entries, in the order of the plan.
        unseen: where texts that count as missing are counted, by column.

    Returns:
        Numbers and codes of categories, float64 [n, D], NaN where one is missing.
    """
    found = []
    for number, (column, entries) in enumerate(zip(plan, columns, strict=True), 1):
        numbers, lost = column.read(entries)
        found.append(numbers)
        if lost and unseen is not None:
            unseen[f"column '{column.name}'" if column.name else f"column {number}"] = lost
    return np.concatenate(found, axis=1)


def unseen_words(plan: Sequence[PlannedColumn], columns: Sequence[Entries], x: np.ndarray) -> np.ndarray:
    """Tell where :func:`read_columns` found a word that its column does not have, bool [n, D]."""
    found, place = np.zeros(x.shape, dtype=bool), 0
    for column, entries in zip(plan, columns, strict=True):
        if column.words and not column.ignored:
            there = np.array([bool(text) for text in entries.without(column.gaps).texts])
            found[:, place] = np.isnan(x[:, place]) & there
        place += len(column.features)
    return found


def plan_lines(plan: Sequence[Mapping[str, str]]) -> list[str]:
    """The plan as a table of text.

    Args:
        plan: ``name``, ``kind``, ``values``, ``treatment`` and ``why`` of each column.
    """
    titles = ("column", "kind", "values", "treatment", "why")
    rows = [titles] + [
        (
            row["name"] or str(number),
            row["kind"],
            " ".join(row["values"].split()),
            row["treatment"],
            row["why"],
        )
        for number, row in enumerate(plan, 1)
    ]
    widths = [min(max(len(row[place]) for row in rows), 40) for place in range(4)]
    return [" | ".join([*(f"{row[i]:{widths[i]}}" for i in range(4)), row[4]]) for row in rows]


def shown_plan(
    plan: Sequence[PlannedColumn], transform: ColumnTransform | None = None
) -> list[dict[str, str]]:
    """Rows of a plan, as a report keeps them.

    Args:
        plan: of the columns.
        transform: of the columns that models take; None: they stay as they are.
    """
    rows, place = [], 0
    for column in plan:
        row = {name: getattr(column, name) for name in ("name", "kind", "values", "treatment", "why")}
        if transform is not None and not column.ignored:
            if values := transform.values[place]:
                row["treatment"] = f"{len(values)} categories"
            elif (power := transform.power[place]) != 1:
                row["treatment"] += f", by a power of {power:g}, as it is skewed"
        place += len(column.features)
        rows.append(row)
    return rows


def plan_to_json(plan: Sequence[PlannedColumn]) -> list[dict[str, Any]]:
    """A plan as a JSON object."""
    return [asdict(column) for column in plan]


def plan_from_json(state: Sequence[Mapping[str, Any]]) -> tuple[PlannedColumn, ...]:
    """Invert :func:`plan_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is not what that writes.
    """
    lists = ("words", "parts", "gaps")
    plan = tuple(PlannedColumn(**{**one, **{name: tuple(one[name]) for name in lists}}) for one in state)
    for column in plan:
        for name, hint in get_type_hints(PlannedColumn).items():
            check_type(name, getattr(column, name), hint)
        if not {*column.parts} <= {*PARTS}:
            raise ValueError(f"parts: expected some of {', '.join(PARTS)}, got {column.parts}")
    return plan


# ---------------------------------------------------------------------- what a column holds


def _planned(column: Entries) -> PlannedColumn:
    """The plan of a column, of which texts that stand for missing values are left out."""
    gaps = _gaps(column)
    plan = _of_known(column.without(gaps))
    listed = " and ".join(repr(text) for text in gaps)
    why = f"{plan.why}; {listed} {'counts' if len(gaps) == 1 else 'count'} as missing" if gaps else plan.why
    return replace(plan, why=why, gaps=gaps)


def _gaps(column: Entries) -> tuple[str, ...]:
    """Texts that stand for a missing value, beside `MARKS`.

    Texts without a letter or digit do among numbers, dates and amounts, and so does the only such text among
    several words. A number of nines below 0, such as -999, does if it is there repeatedly, and the other
    numbers are further from it than from 0.
    """
    if column.kind in ("category", "text", "id", "ignored"):
        return ()
    if not column.numeric:
        signs = {text for text in column.counts if not any(map(str.isalnum, text)) and text not in _OF_UNITS}
        others = column.without(signs)
        several = len(others.counts) > 1 and (len(signs) == 1 or _of_known(others).kind in _MEASURES)
        if signs and several:
            return tuple(sorted(signs))
        if not column.numbers or column.numbers.total() < _PURE * column.known:
            return ()
    if column.kind:
        return ()
    values = column.values if column.numeric else column.by(_number)
    known = np.sort(values[~np.isnan(values)])
    least = known[0] if len(known) else 0.0
    if not _NINES.fullmatch(f"{least:g}") or (times := np.count_nonzero(known == least)) in (1, len(known)):
        return ()
    return (f"{least:g}",) if known[times] > least / 2 else ()


def _of_known(column: Entries) -> PlannedColumn:
    name, kind, known, different = column.name, column.kind, column.known, column.different
    missing = len(column.values) - known
    gaps = f", {missing:,} missing" if missing else ""

    def row(kind: str, values: str, treatment: str, why: str, **more: Any) -> PlannedColumn:
        why = "asked for" if column.kind else why
        return PlannedColumn(name, kind, values + gaps, treatment, why, **more)

    if kind == "ignored":
        plain = _of_known(Entries(name, column.values))
        return replace(plain, kind=kind, treatment="set aside", why="asked for", parts=())
    if kind == "plain" and any(math.isnan(_number(text)) for text in column.counts):
        return _category(column, row, "")
    if kind in ("number", "plain") and different:
        return _numbers(column, row)
    if kind in ASIDE:
        return row(kind, f"{different:,} different", "set aside", "")
    if different < 2:
        only = next(iter(column.counts), "none")
        return replace(
            row("constant", only, "set aside", ""), values=only, why="it has no two different values"
        )
    if not kind and column.numeric:
        return _numbers(column, row)
    if kind == "category":
        return _category(column, row, "")
    if kind == "date" or (not kind and _may_be_dates(column)):
        form, share = max(
            ((form, np.count_nonzero(~np.isnan(_dates(column, form)))) for form in _FORMATS),
            key=lambda found: found[1],
        )
        if share >= _PURE * known or kind == "date":
            return _date(column, row, form)
    digits = not kind and not column.numeric and all(map(str.isdigit, column.counts))
    if digits and any(map(is_code, column.counts)):
        plan = _words(column, row)
        why = f"digits that begin with a 0; --kind {name or 'NAME'}=number takes them as numbers"
        return replace(plan, why=f"{plan.why}, {why}")
    if column.numbers.total() >= _PURE * known:
        return _numbers(column, row)
    units = _units(column)
    in_units = (
        f"numbers in {next(iter(units))}, as texts" if units else "numbers with units or separators, as texts"
    )
    for form, read, why in (
        ("money", _money, in_units),
        ("clock", _clock, "times of day or durations: 1:30 is 1.5"),
    ):
        found = column.by(read)
        lost = known - np.count_nonzero(~np.isnan(found))
        of_one = len(units) == 1 and units.total() >= _PURE * known
        if lost <= (0 if units else (1 - _PURE) * known) and (of_one or not units):
            none = f"; {lost:,} entries that are none count as missing" if lost else ""
            return row("number", _span(found), "number", why + none, form=form)
    return _words(column, row)


_Row = Callable[..., PlannedColumn]


def _words(column: Entries, row: _Row) -> PlannedColumn:
    known, different = column.counts.total(), len(column.counts)
    if {text.lower() for text in column.counts} in _TRUTHS:
        return row(
            "boolean",
            ", ".join(sorted(column.counts)),
            "2 categories",
            "two words of a truth value",
            words=tuple(sorted(column.counts)),
        )
    lengths = sum(count * len(text.split()) for text, count in column.counts.items())
    if different > MOST_WORDS and different > known / 2 and lengths >= _WORDY * known:
        why = f"{different:,} texts of {lengths / known:.0f} words on average"
        return row("text", f"{different:,} different", "set aside", why)
    if known >= _FEW and different >= _DIFFERENT * known:
        why = f"{different:,} different words in {known:,} entries"
        return row("id", f"{different:,} different", "set aside", why)
    return _category(column, row, "words that are repeated")


def _category(column: Entries, row: _Row, why: str) -> PlannedColumn:
    often = [word for word, _ in column.counts.most_common(MOST_WORDS)]
    often_in_words = ", ".join(often[:3]) + (", …" if len(often) > 3 else "")
    values = f"{len(column.counts):,} words: {often_in_words}"
    if len(column.counts) <= MOST_WORDS:
        return row("category", values, f"{len(often)} categories", why, words=tuple(sorted(often)))
    often = sorted(often[:-1])
    rest = column.counts.total() - sum(column.counts[word] for word in often)
    other = "other" if "other" not in column.counts else "(all others)"
    number = len(column.counts) - len(often)
    treatment = f"{MOST_WORDS} categories: the rarest {number:,} words, in {rest:,} rows, are '{other}'"
    return row("category", values, treatment, why, words=(*often, other), other=True)


def _numbers(column: Entries, row: _Row) -> PlannedColumn:
    found = column.values if column.numeric else column.by(_number)
    known = found[~np.isnan(found)]
    words = [] if column.numeric else [text for text in column.counts if math.isnan(_number(text))]
    lost = sum(column.counts[text] for text in words)
    listed = ", ".join(repr(word) for word in words[:3]) + (" …" if len(words) > 3 else "")
    none = "1 entry that is none counts" if lost == 1 else f"{lost:,} entries that are none count"
    note = f"; {none} as missing: {listed}" if words else ""
    span, whole = _span(found), len(known) > 0 and bool((known == np.round(known)).all())
    distinct = column.different if column.numeric else len(np.unique(known))
    if not column.kind and whole and distinct == len(found) and distinct >= _FEW:
        in_order = known.min() in (0, 1) and known.max() - known.min() == distinct - 1
        if in_order or (column.name and _OF_ROWS.fullmatch(column.name.strip())):
            named = f"different numbers, called as an id is; --kind {column.name}=number takes them as such"
            why = "whole numbers that count the rows" if in_order else named
            return row("id", span, "set aside", why)
    if column.kind not in ("number", "plain") and has_few_integers(known):
        kind = "boolean" if distinct == 2 and {*known} == {0, 1} else "integer"
        return row(kind, span, "number", f"few different whole numbers{note}")
    if whole and known.min() >= 0:
        return row(
            "count" if column.kind not in ("number", "plain") else "number",
            span,
            "number",
            f"whole numbers{note}",
        )
    return row("number", span, "number", f"numbers{note}")


def _date(column: Entries, row: _Row, form: str) -> PlannedColumn:
    days = _dates(column, form)
    known = days[~np.isnan(days)]
    first, last = (np.datetime64(int(day * _DAYS), "s").astype(object) for day in (known.min(), known.max()))
    clock = bool((known % 1).any())
    parts = []
    if last.toordinal() - first.toordinal() >= 2 * 365 and len(np.unique(_part(known, "month"))) > 2:
        parts.append("month")
    dates = np.floor(known).astype("M8[D]")
    of_months = (dates == dates.astype("M8[M]")).all()  # or of quarters
    if len(np.unique(dates)) >= 7 and len(np.unique(_part(known, "weekday"))) > 4 and not of_months:
        parts.append("weekday")
    if clock and len(np.unique(_part(known, "hour"))) > 2:
        parts.append("hour")
    beside = f", and its {' and '.join(parts)} as categories" if parts else ""
    values = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return row("date", values, f"number of days{beside}", f"dates, {form}", form=form, parts=tuple(parts))


def _span(found: np.ndarray) -> str:
    if np.isnan(found).all():
        return "none"
    return f"{np.nanmin(found):.6g} to {np.nanmax(found):.6g}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def pointed(field: Any) -> Any:
    """A number with a decimal comma as one with a point; anything else stays as it is."""
    found = _COMMA.fullmatch(field) if isinstance(field, str) else None
    if found is None:
        return field
    before, whole, decimals, behind = found.groups()
    return before + whole.replace(".", "") + (f".{decimals}" if decimals else "") + behind


def _money(text: str) -> float:
    """A number with a sign of money or per cent, or separators of thousands; NaN of another text."""
    found = _MONEY.fullmatch(text)
    digits = re.sub(r"[^\d.]", "", text)
    if found is None or not re.search(r"\d", digits) or bool(found["open"]) != text.endswith(")"):
        return math.nan
    return -float(digits) if found["open"] or "-" in text else float(digits)


def _clock(text: str) -> float:
    """Hours of a time of day or a duration, such as 13:45; NaN of another text."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return math.nan
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours + minutes / 60 + seconds / 3600


def _units(column: Entries) -> Counter[str]:
    """Units with letters behind the numbers of a column, and in how many rows they are."""
    units = Counter[str]()
    for text, count in column.counts.items():
        match = _MONEY.fullmatch(text)
        if match is not None and any(map(str.isalpha, match["unit"])):
            units[match["unit"]] += count
    return units


def _may_be_dates(column: Entries) -> bool:
    known = column.counts.total()
    likely = sum(count for text, count in column.counts.items() if _DATE.search(text))
    return not column.numeric and column.numbers.total() < _PURE * known and likely >= _PURE * known


def _dates(column: Entries, form: str) -> np.ndarray:
    """Days since 1970 of entries in a format, float64 [n]; NaN of others."""
    import pandas as pd

    texts = [*column.counts]
    plain = [_ZONE.sub(lambda zone: f"{zone[1]}{int(zone[2]):02d}00", text) for text in texts]
    if form == _QUARTER:
        quarters = map(_OF_QUARTER.fullmatch, texts)
        plain = [f"{one[1]}-{3 * int(one[3]) - 2:02d}-01" if one else "" for one in quarters]
        form = "ISO8601"
    try:
        found = pd.to_datetime(pd.Series(plain, dtype=object), format=form, errors="coerce", utc=True)
    except (ValueError, OverflowError):
        return np.full(len(column.values), math.nan)
    seconds = (found - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    days = dict(zip(texts, (seconds / _DAYS).tolist(), strict=True))
    return column.by(days.__getitem__)


def _part(days: np.ndarray, part: str) -> np.ndarray:
    """The code of a part of dates, float64 [n]; NaN where a date is missing."""
    import pandas as pd

    known = ~np.isnan(days)  # beside NaN, pandas multiplies memory that is not initialised
    dates = pd.to_datetime(np.where(known, days, 0) * _DAYS, unit="s")
    found = {"month": dates.month - 1, "weekday": dates.weekday, "hour": dates.hour}[part]
    return np.where(known, found, math.nan)


def _nearest_start(days: np.ndarray, months: int) -> np.ndarray:
    """The nearest first day, counted from 1970, of a period of so many months."""
    first = np.floor(days).astype("M8[D]").astype("M8[M]").astype(int) // months * months
    before, after = ((first + step).astype("M8[M]").astype("M8[D]").astype(float) for step in (0, months))
    return np.where(days - before < after - days, before, after)


def date_texts(days: np.ndarray, form: str = "ISO8601", like: str = "") -> np.ndarray:
    """Days since 1970 as the nearest dates of a format; '' where one is missing.

    ISO dates have a blank and the time of day if the date ``like`` has them, and quarters what separates
    their year. Without it, they have the time of day if one of them has any. Dates of other formats lie
    between 1677 and 2262.
    """
    known = ~np.isnan(days)
    days = np.where(known, days, 0)
    if form != "ISO8601":
        import pandas as pd

        days = np.clip(days, -_LAST, _LAST)
        if form == _QUARTER or form in _MONTH:
            days, unit = _nearest_start(days, 3 if form == _QUARTER else 1), _DAYS
        else:
            unit = 1 if "%S" in form else 60 if "%M" in form else _DAYS
        dates = pd.Series(pd.to_datetime(np.round(days * _DAYS / unit) * unit, unit="s", utc=True))
        if form == _QUARTER:
            found = _OF_QUARTER.fullmatch(like)
            texts = dates.dt.strftime(f"%Y{found[2] if found else ' '}Q") + dates.dt.quarter.astype(str)
        else:
            texts = dates.dt.strftime(form)
        return texts.where(known, "").to_numpy(dtype=object)
    length = max(len(like), len("2024-01-31"))
    whole = length == len("2024-01-31") if like else not (days % 1).any()
    unit = _DAYS if whole else 60 if length == len("2024-01-31 00:00") else 1
    seconds = (np.round(days * _DAYS / unit) * unit).astype("datetime64[s]")
    texts = np.datetime_as_string(seconds if like or not whole else seconds.astype("datetime64[D]"))
    if like:
        texts = np.array([text[:length] for text in texts.tolist()])
        texts = np.char.replace(texts, "T", " ") if " " in like else texts
    return np.where(known, texts, "")


def entries_of(name: str, values: Any) -> Entries:
    """A column of a data frame or an array of objects.

    Args:
        name: of the column.
        values: an array or a series [n]. Missing are NaN, None, and what data frames have for them.
    """
    column = dated(np.asarray(values))
    numbers = _as_numbers(column) if column.dtype.kind in "iufO" else None
    if numbers is not None and (
        column.dtype.kind != "O" or not any(isinstance(value, str) for value in column)
    ):
        return Entries(name, numbers)
    return Entries(name, np.array([word_of(value) for value in column.tolist()], dtype=object))


def dated(values: np.ndarray) -> np.ndarray:
    """An array, with dates and times as Python's objects, of which NaT is none, and durations in hours."""
    if values.dtype == object:  # a frame of several dtypes, as an array
        return np.frompyfunc(lambda value: value / _HOUR if isinstance(value, timedelta) else value, 1, 1)(
            values
        )
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "h")
    if values.dtype.kind != "M":
        return values
    days = ((values == values.astype("M8[D]")) | np.isnat(values)).all()
    return values.astype(f"M8[{'D' if days else 'us'}]").astype(object)


def _as_numbers(values: np.ndarray) -> np.ndarray | None:
    """Values of a column as float64 [n]; None if there are words among them."""
    plain = [math.nan if is_gap(value) else value for value in values] if values.dtype == object else values
    try:
        numbers = None if values.dtype.kind == "c" else np.asarray(plain, dtype=np.float64)
        return None if numbers is None or numbers.ndim != 1 else numbers
    except (TypeError, ValueError):
        return None


def word_of(value: Any) -> str:
    """A value as text; '' if it is missing."""
    return "" if is_gap(value) else str(value).strip()


def is_gap(value: Any) -> bool:
    """True for None, NaN, and the marks for missing values of data frames."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "<NA>", "NaT"))
