"""A person's own data that stay on disk and are read as they are needed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data.array_file import ArrayFile, FileRows, RowArray, open_member, open_npy
from pyro_fmvae.data.count_table import CountOptions, CountTable
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.npz_arrays import read_arrays
from pyro_fmvae.data.own.column_file import FORMATS, decode_columns, is_numeric, large_integers, read_labels
from pyro_fmvae.data.own.h5ad_file import LARGE, DenseRows, open_h5ad
from pyro_fmvae.data.own.npz_file import OPTIONAL, check_shape, described
from pyro_fmvae.data.own.raw import Raw
from pyro_fmvae.data.own.zarr_store import STORE, decode_store
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.splitting import Digest, Splitting, split_fingerprint, split_rows
from pyro_fmvae.files.memory import check_fits

SUFFIXES: Final = (".npy", STORE, *FORMATS)
"""Endings of files whose rows stay on disk by default."""
CELLS: Final = ".h5ad"


class OnDisk(NamedTuple):
    """Checked description of a file whose observations are not read yet."""

    path: Path
    x: RowArray
    """[n, H, W], [n, H, W, 3] or [n, D]."""
    labels: np.ndarray | None = None
    """int64 [n, L], -1 = unknown."""
    label_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    value_names: tuple[tuple[str, ...], ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    written: Callable[[], Mapping[str, np.ndarray]] | None = None
    """Reads the columns again that `x` does not hold exactly, [n] by name."""

    @property
    def source(self) -> str:
        """Observations in messages."""
        return f"{self.path}: 'x'" if self.path.suffix.lower() in (".npz", STORE, CELLS) else str(self.path)

    def split(self, preprocessing: Preprocessing) -> Split:
        """All rows under a preprocessing, which is applied as they are read."""
        labels = None if self.labels is None else torch.from_numpy(self.labels)
        x = FileRows(self.x, preprocessing, self.source)
        raw = self.x if preprocessing.missing else None
        return Split(
            x, labels, signed=preprocessing.signed, places=torch.arange(len(x)), raw=raw, written=self.written
        )


def open_file(
    path: Path,
    in_memory: bool | None = None,
    values: Mapping[str, tuple[str, ...]] | None = None,
    left_out: dict[str, Counter[str]] | None = None,
    counts: CountOptions | None = None,
    batches: Sequence[str] = (),
) -> OnDisk | None:
    """Describe a file whose observations are to stay on disk.

    These are .npy, Parquet and Arrow files, zarr stores, .npz files that are not compressed and as large
    as `LARGE`, and .h5ad files as large. A sparse matrix of an .h5ad file is described as well.

    Args:
        path: the file.
        in_memory: whether they are to be held in memory instead; None: as above.
        values, left_out: of labels: see :func:`~pyro_fmvae.data.own.csv_file.read_csv`.
        counts, batches: see :func:`~pyro_fmvae.data.own.h5ad_file.open_h5ad`.

    Returns:
        The description; None if the file is to be read into memory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed, ``in_memory`` is False and its rows cannot be read one by one, or a
            layer of a file without layers.
    """
    suffix = path.suffix.lower()
    if counts is not None and counts.layer is not None and suffix != CELLS:
        raise ValueError(f"layer: expected a {CELLS} file, got {path}")
    if in_memory or suffix not in (*SUFFIXES, CELLS, ".npz"):
        if in_memory is False:
            known = ", ".join((*SUFFIXES, CELLS))
            raise ValueError(f"in_memory: expected a file that ends in {known} or .npz, {path} is read whole")
        return None
    if suffix == CELLS:
        rows, described_by = open_h5ad(path, counts, batches)
        if isinstance(rows, DenseRows) and in_memory is None and rows.nbytes < LARGE:
            return None
        return OnDisk(path, rows, **described_by)
    if suffix in FORMATS and not is_numeric(path):
        if in_memory is False:
            raise ValueError(f"in_memory: {path} has columns of words, and is read whole")
        return None
    if suffix in FORMATS:
        x, columns = decode_columns(path)
        return OnDisk(
            path,
            x,
            **read_labels(path, values or {}, left_out),
            column_names=columns,
            written=partial(large_integers, path, x),
        )
    if suffix == STORE:
        x, described_by = decode_store(path)
        return OnDisk(path, _pictures(x, path), **described_by)
    if suffix == ".npy":
        found = open_npy(path)
        return OnDisk(path, _pictures(found, path))
    try:
        member = open_member(path, "x")
    except ValueError:
        if in_memory is False:
            raise
        return None  # reading the file says what is wrong, or copes with it
    if member is None and in_memory is False:
        raise ValueError(f"in_memory: {path} is compressed, or has no array 'x'; write it by numpy.savez")
    if member is None or (in_memory is None and member.nbytes < LARGE):
        return None
    described_by = described(read_arrays(path, (), OPTIONAL), member.shape, path)
    return OnDisk(path, _pictures(member, path), **described_by)


def read_whole(
    path: Path, missing: bool = False, counts: CountOptions | None = None, batches: Sequence[str] = ()
) -> Raw:
    """Read a file of :func:`open_file` into memory.

    Args:
        path: a .npy, Parquet, Arrow or .h5ad file, or a zarr store.
        missing: accept NaN, as a missing number.
        counts, batches: see :func:`~pyro_fmvae.data.own.h5ad_file.open_h5ad`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is malformed, holds infinity or NaN, or takes more memory than there is.
    """
    found = open_file(path, False, counts=counts, batches=batches)
    assert found is not None
    check_fits(found.x.nbytes, str(path))
    x = found.x.read()
    if (np.isinf(x) if missing else ~np.isfinite(x)).any():
        raise ValueError(f"{found.source}: expected finite numbers{', or NaN' if missing else ''}")
    return Raw(
        x,
        found.labels,
        found.label_names,
        found.column_names,
        found.value_names,
        found.levels,
        written=found.written,
    )


def split_on_disk(
    data: OnDisk, seed: int, splitting: Splitting, counts: CountOptions | None = None
) -> Dataset:
    """Make a data set of a file whose rows stay on disk. It is read through once.

    The splits are those of :func:`~pyro_fmvae.data.own.files.split_file`, each in the order of the file
    unless the numbers are held in memory.

    Args:
        data: the file.
        seed: of the permutation that makes the splits, at least 0.
        splitting: their shares.
        counts: read a table of counts.

    Raises:
        ValueError: too few rows, numbers that are not finite, or a column that cannot be standardised.
    """
    staying = splitting.staying(data.labels)
    expected = f"{data.path}: expected at least 3 rows"
    parts = split_rows(len(data.x), seed, expected, splitting, staying)
    preprocessing, digest = _survey(data, np.sort(parts[0]), counts)
    everything = data.split(preprocessing)
    rows = parts if data.x.held else map(np.sort, parts)
    splits = [everything.select(torch.from_numpy(part)) for part in rows]
    return Dataset.of_splits(
        *splits,
        name=data.path.stem,
        preprocessing=preprocessing,
        label_names=data.label_names,
        label_sizes=() if data.labels is None else tuple((data.labels.max(axis=0) + 1).tolist()),
        value_names=data.value_names,
        fingerprint=split_fingerprint(digest, staying),
    )


def fit_counts(
    pieces: Iterable[np.ndarray],
    shape: tuple[int, ...],
    training: np.ndarray,
    counts: CountOptions,
    column_names: tuple[str, ...],
    levels: tuple[tuple[str, ...], ...],
    source: str,
) -> Preprocessing:
    """The preprocessing of a table of counts; arguments and errors are those of :meth:`CountTable.fit`."""
    table = CountTable.fit(pieces, shape, training, counts, column_names, levels, source)
    return Preprocessing(Kind.COUNTS, shape[1:], counts=table, levels=levels, column_names=column_names)


def _pictures(x: ArrayFile, path: Path) -> ArrayFile:
    """The array, without an axis of a single channel.

    Raises:
        ValueError: it cannot be the observations of a data set.
    """
    check_shape(x.shape, x.dtype, path)
    if x.ndim == 4 and x.shape[3] in (2, 4):
        raise ValueError(f"{path}: transparent pictures cannot be read from disk; put them on white first")
    shape = x.shape[:3] if x.ndim == 4 and x.shape[3] == 1 else x.shape
    return ArrayFile(x.path, shape, x.dtype, x.offset)


def _survey(data: OnDisk, train: np.ndarray, counts: CountOptions | None) -> tuple[Preprocessing, str]:
    """Choose the kind of the observations, fit a table's standardisation to its training rows, digest all.

    The moments of each piece are merged as by Chan, Golub and LeVeque (1983), "Algorithms for computing the
    sample variance", equation 2.1.

    Args:
        data: the file.
        train: training rows, ascending int64 [m].
        counts: how to read a table of counts; None: the file has something else.
    """
    x, digest = data.x, Digest(data.x.dtype, data.x.shape)

    def checked() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for rows, part in x.pieces():
            digest.update(part)
            if x.dtype.kind == "f" and not np.isfinite(part).all():
                raise ValueError(f"{data.source} must be finite, but holds NaN or infinity")
            yield rows, part

    if counts is not None:
        described = data.column_names, data.levels, data.source
        pieces = (part for _, part in checked())
        return fit_counts(pieces, x.shape, train, counts, *described), digest.hexadecimal
    table, most = x.ndim == 2 and x.dtype not in (np.bool_, np.uint8), 0
    mean, squares = np.zeros(x.shape[1:] if table else 0), np.zeros(x.shape[1:] if table else 0)
    low, high = np.full_like(mean, np.inf), np.full_like(mean, -np.inf)
    count = place = 0
    for rows, part in checked():
        most = max(most, int(part.max())) if x.dtype == np.uint8 else most
        until = place + int(np.searchsorted(train[place:], rows[-1], side="right"))
        chosen, place = train[place:until] - rows[0], until
        if table and len(chosen):
            known = part[chosen].astype(np.float64)
            low, high = np.minimum(low, known.min(0)), np.maximum(high, known.max(0))
            delta, total = known.mean(0) - mean, count + len(known)
            with np.errstate(over="ignore", invalid="ignore"):
                squares += np.square(known - known.mean(0)).sum(0) + delta**2 * (count * len(known) / total)
                mean, count = mean + delta * (len(known) / total), total
    if table:
        std = np.sqrt(squares / max(count, 1))
        names, source = data.column_names, data.source
        return Preprocessing.of_moments(mean, std, low, high, (), source, names), digest.hexadecimal
    binary = x.dtype == np.bool_ or (x.dtype == np.uint8 and most <= 1)
    return Preprocessing(Kind.BINARY if binary else Kind.IMAGE, x.shape[1:]), digest.hexadecimal
