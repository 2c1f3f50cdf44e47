"""Reading Parquet and Arrow files, whose columns are decoded once into rows on disk."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyro_fmvae.data.array_file import ArrayFile, open_npy
from pyro_fmvae.data.column_plan import PlannedColumn, entries_of, is_missing
from pyro_fmvae.data.decoded import decoded_rows
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.own.csv_file import INDEX, LABEL, index_of, table_of
from pyro_fmvae.data.own.folder import code, find_values
from pyro_fmvae.data.own.raw import LARGEST_LABEL, Raw
from pyro_fmvae.files.memory import check_fits, confined
from pyro_fmvae.files.untrusted import check_printable

FORMATS: Final = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc"}
"""Format of a file, as pyarrow calls it, by its suffix."""
_VERSION: Final = 1  # of what is decoded: another one makes all older arrays invalid
_CELL: Final = 64  # bytes that a field of a table with words takes, about
_EXACT: Final = 2**53  # below which float64 holds all whole numbers
_ROWS: Final = 1 << 14  # that are decoded at once


def decode_columns(path: Path) -> tuple[ArrayFile, tuple[str, ...]]:
    """Decode the columns of numbers of a Parquet or Arrow file, or open what an earlier call has decoded.

    Rows are kept in ``~/.cache/pyro_fmvae/tables`` as one array of float64, or of float32 where that loses
    nothing. Another size or time of change of the file makes a new one.

    Args:
        path: the file. Columns called ``label:NAME`` are labels: see :func:`read_labels`.

    Returns:
        The array [n, D], missing numbers as NaN, and the names of its columns.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: pyarrow is not installed, the file is damaged, has no rows or other columns than numbers,
            or would not fit on the disk.
    """
    table = _opened(path)
    names = [name for name in table.schema.names if not name.startswith(LABEL)]
    check_printable(names, str(path))
    kinds = [_kind(table.schema.field(name), path) for name in names]
    rows = table.count_rows()
    if not names or not rows:
        raise ValueError(f"{path}: expected rows with at least one column that is no label")
    dtype = np.result_type(np.float32, *kinds)
    status = path.stat()
    key = f"{_VERSION} {path.resolve()} {status.st_size} {status.st_mtime_ns}"
    with _naming(path):
        target = decoded_rows(path, key, (rows, len(names)), dtype, lambda: _rows(path, table, names, dtype))
    return open_npy(target), tuple(names)


def read_labels(
    path: Path,
    known: Mapping[str, tuple[str, ...]],
    left_out: dict[str, Counter[str]] | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Read the columns called ``label:NAME`` of a Parquet or Arrow file: integers or words, or nothing.

    Args:
        path: the file.
        known, left_out: as ``values`` and ``left_out`` of :func:`~pyro_fmvae.data.own.csv_file.read_csv`.
        names: of the columns of labels; None: those called ``label:NAME``.

    Returns:
        Attributes of :class:`~pyro_fmvae.data.own.raw.Raw`: ``labels``, ``label_names`` and ``value_names``.

    Raises:
        ValueError: a label that is neither, or a number below -1.
    """
    table = _opened(path)
    if names is None:
        names = [name for name in table.schema.names if name.startswith(LABEL)]
    if not names:
        return {}
    check_printable(names, str(path))
    labels, values = [], []
    with _naming(path):
        check_fits(8 * table.count_rows() * len(names), f"{path}: labels")
        columns = table.to_table(columns=names, use_threads=False)
        columns.validate(full=True)
        for column in names:
            name = column.removeprefix(LABEL)
            counts = None if left_out is None else left_out.setdefault(name, Counter())
            numbers, words = _labels(columns.column(column), f"{path}: {name!r}", known.get(name, ()), counts)
            labels.append(numbers)
            values.append(words)
    return {
        "labels": np.stack(labels, axis=1),
        "label_names": tuple(name.removeprefix(LABEL) for name in names),
        "value_names": tuple(values) if any(values) else (),
    }


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in the errors of pyarrow, which are of many kinds, and limit what it allocates."""
    import pyarrow

    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others have a gigabyte in reserve
    try:
        with confined(str(path)):
            yield
    except pyarrow.ArrowException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path}: cannot be read: {reason}") from error
    finally:
        pyarrow.set_memory_pool(before)


def _opened(path: Path) -> Any:
    """The file as a data set of pyarrow's, of which nothing but the description is read yet."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if find_spec("pyarrow") is None:
        raise ValueError(f"{path}: reading it needs pyarrow: pip install 'pyro_fmvae[parquet]'")
    from pyarrow import dataset

    with _naming(path):
        return dataset.dataset(path, format=FORMATS[path.suffix.lower()])


def is_numeric(path: Path) -> bool:
    """True if all features of a Parquet or Arrow file are columns of numbers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: pyarrow is not installed, or the file is damaged.
    """
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_boolean)
    fields = [field for field in _opened(path).schema if not field.name.startswith(LABEL)]
    return all(any(test(field.type) for test in tests) for field in fields)


def read_words(
    path: Path,
    asked: TableOptions | None = None,
    plan: Sequence[PlannedColumn] = (),
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    unseen: dict[str, Counter[str]] | None = None,
) -> Raw:
    """Read a Parquet or Arrow file with words into memory, by pandas.

    Arguments are those of :func:`~pyro_fmvae.data.own.csv_file.read_csv`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: pyarrow is not installed, the file is damaged or too large, or holds no features.
    """
    asked, frame = asked or TableOptions(), _read(path).to_pandas()
    names = list(frame)
    labelled = [name for name in names if name.startswith(LABEL) or name in asked.labels]
    columns = [entries_of(name, frame[name]) for name in names if name not in labelled]
    if not len(frame) or not columns:
        raise ValueError(f"{path}: expected rows with at least one column that is no label")
    raw = table_of(columns, str(path), asked, plan, unseen)
    return raw._replace(
        **read_labels(path, values or {}, left_out, labelled), written=partial(_written, path)
    )


def large_integers(path: Path, decoded: ArrayFile) -> dict[str, np.ndarray]:
    """The columns of whole numbers that float64 may not hold, [n] by name, masked where one is missing.

    Args:
        path: the file.
        decoded: its columns of numbers, by :func:`decode_columns`.
    """
    table = _opened(path)
    names = [name for name in table.schema.names if not name.startswith(LABEL)]
    kinds = [_kind(table.schema.field(name), path) for name in names]
    wide = [place for place, kind in enumerate(kinds) if kind.kind in "iu" and kind.itemsize == 8]
    if not wide:
        return {}
    greatest = np.max([np.fmax.reduce(np.abs(part[:, wide])) for _, part in decoded.pieces()], axis=0)
    chosen = [names[place] for place, most in zip(wide, greatest.tolist(), strict=True) if most >= _EXACT]
    with _naming(path):
        check_fits(8 * table.count_rows() * len(chosen), str(path))
        read = table.to_table(columns=chosen, use_threads=False)
        read.validate(full=True)
        return {name: _whole(read[name]) for name in chosen}


def _whole(column: Any) -> np.ndarray:
    """A column of whole numbers, masked where one is missing."""
    numbers = column.fill_null(0).to_numpy()
    return np.ma.array(numbers, mask=column.is_null().to_numpy()) if column.null_count else numbers


def _read(path: Path) -> Any:
    """A Parquet or Arrow file as a table of pyarrow's."""
    table = _opened(path)
    names = table.schema.names
    check_fits(_CELL * table.count_rows() * len(names), str(path))
    with _naming(path):
        read = table.to_table(use_threads=False)
        read.validate(full=True)
        return read


def _written(path: Path) -> dict[str, np.ndarray]:
    """All columns of a file, [n] by name: numbers as they are, others as texts.

    Whole numbers that float64 may not hold are masked where one is missing.
    """
    from pyarrow import types

    read = _read(path)
    frame = read.to_pandas()
    columns = {INDEX + name if name in frame else name: values for name, values in index_of(frame).items()}
    columns |= {name: np.asarray(frame[name]) for name in frame}
    for name in frame:
        if types.is_integer(read.schema.field(name).type) and np.fmax.reduce(np.abs(columns[name])) >= _EXACT:
            columns[name] = _whole(read[name])
    return {
        name: values if values.dtype.kind in "biuf" else entries_of(name, values).values
        for name, values in columns.items()
    }


def _kind(field: Any, path: Path) -> np.dtype:
    """NumPy's type of a column of numbers."""
    from pyarrow import types

    if types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type):
        return np.dtype(field.type.to_pandas_dtype())
    raise ValueError(
        f"{path}: expected numbers in column {field.name!r}, got {field.type}; call a column of labels "
        f"{LABEL}{field.name}, or --label {field.name}"
    )


def _batches(path: Path, table: Any, names: list[str]) -> Iterator[Any]:
    """Decode some rows after the other: of Parquet `_ROWS`, of Arrow those that were written at once."""
    from pyarrow import parquet

    if FORMATS[path.suffix.lower()] == "parquet":  # of which a scanner decodes a whole row group
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield from file.iter_batches(_ROWS, columns=names, use_threads=False)
    else:
        settings = {"batch_size": _ROWS, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
        yield from table.scanner(columns=names, **settings).to_batches()


def _rows(path: Path, table: Any, names: list[str], dtype: np.dtype) -> Iterator[np.ndarray]:
    """The numbers of some rows after the other, [k, D]."""
    for batch in _batches(path, table, names):
        batch.validate()  # it may say that it is longer than its buffers
        if batch.num_rows:
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in names]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # numbers that float32 does not hold
                yield np.stack([column.astype(dtype) for column in columns], axis=1)


def _labels(
    column: Any, source: str, known: tuple[str, ...], left_out: Counter[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a column, int64 [n], and the names of their values if these are words."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) and not known:
        numbers = column.cast("int64").fill_null(-1).to_numpy()
        if numbers.min() < -1 or numbers.max() > LARGEST_LABEL:
            raise ValueError(f"{source}: expected labels from -1, where -1 is unknown, to {LARGEST_LABEL}")
        return numbers, ()
    if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
        raise ValueError(f"{source}: expected labels that are integers or words, got {kind}")
    coded = column.cast("string").dictionary_encode().unify_dictionaries().combine_chunks()
    if hasattr(coded, "chunks"):
        coded = coded.chunk(0)
    texts = [text.strip() for text in coded.dictionary.to_pylist()]
    check_printable(texts, source)
    texts = ["" if text == "-1" or is_missing(text) else text for text in texts]
    indices = coded.indices.fill_null(len(texts)).to_numpy()
    values = known or find_values(texts, source)
    unknown: Counter[str] = Counter()
    numbers = np.append(code(texts, values, source, None if left_out is None else unknown), -1)[indices]
    if left_out is not None:
        number = np.bincount(indices, minlength=len(texts))
        left_out.update({text: int(number[place]) for place, text in enumerate(texts) if unknown[text]})
    return numbers, values
