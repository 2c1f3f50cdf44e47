"""Reading .csv files."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pyro_fmvae.data.own.raw import DECIMAL_HINT, LARGEST_LABEL, Raw, is_decimal

_LABEL = "label:"


def read_csv(path: Path, missing: bool = False) -> Raw:
    """Read a table of comma separated numbers.

    A first row without any number is a header. Columns that it calls ``label:NAME`` hold integer labels,
    where an empty field or -1 is an unknown one; all other columns are features. Empty lines are skipped.

    Args:
        path: the file.
        missing: accept an empty field, or ``nan``, as a missing number (NaN).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: anything else; the message names the file and the line, counted from 1.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    rows = _rows(path)
    line, first = next(rows, (0, []))
    if not first:
        raise ValueError(f"{path}: the file is empty")
    filled = [field for field in first if field.strip()] if missing else first
    numbers = [_is_number(field) for field in filled]
    if any(numbers) and not all(numbers):
        raise ValueError(
            f"{path}, line {line}: expected a row of numbers or a header of names, "
            f"got {filled[numbers.index(False)]!r} among numbers{_hint(filled[numbers.index(False)])}"
        )
    header = [] if any(numbers) or not numbers else [name.strip() for name in first]
    label_columns = [column for column, name in enumerate(header) if name.startswith(_LABEL)]
    names = tuple(header[column].removeprefix(_LABEL).strip() for column in label_columns)
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"{path}, line {line}: label columns need different, non-empty names, got {list(names)}"
        )
    feature_columns = [column for column in range(len(first)) if column not in label_columns]
    if not feature_columns:
        raise ValueError(
            f"{path}, line {line}: all columns are labels; expected at least one feature{_hint(first[0])}"
        )

    features: list[list[float]] = []
    labels: list[list[int]] = []
    if not header:
        features.append([_feature(field, path, line, missing) for field in first])
    for line, row in rows:
        if len(row) != len(first):
            raise ValueError(f"{path}, line {line}: expected {len(first)} fields, got {len(row)}")
        features.append([_feature(row[column], path, line, missing) for column in feature_columns])
        labels.append([_label(row[column], path, line) for column in label_columns])
    if not features:
        raise ValueError(f"{path}: a header at line {line}, but no rows of numbers")
    return Raw(
        np.array(features),
        np.array(labels, dtype=np.int64) if names else None,
        names,
        tuple(header[column] for column in feature_columns) if header else (),
    )


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


def _feature(field: str, path: Path, line: int, missing: bool) -> float:
    if missing and not field.strip():
        return math.nan
    try:
        value = float(field)
    except ValueError as error:
        raise ValueError(f"{path}, line {line}: expected a number, got {field!r}{_hint(field)}") from error
    if math.isinf(value) or (math.isnan(value) and not missing):
        raise ValueError(f"{path}, line {line}: expected a finite number, got {field!r}")
    return value


def _hint(field: str) -> str:
    """Return a hint for the error message if a field looks like several fields."""
    several = any(separator in field.strip() for separator in ";\t|")
    return "; fields are separated by commas" if several else ""


def _label(field: str, path: Path, line: int) -> int:
    if not field.strip():
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
