"""Files that commands write of rows: .csv and Parquet tables, and additions to .h5ad files."""

import csv
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.app.commands.output_files import TABLES
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.runs.by_batches import WORDS, joined, named_columns, taken_columns
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Split
from pyro_fmvae.data.own.h5ad_file import member, opened
from pyro_fmvae.data.own.row_names import RowNames
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.files import checkpoint

CSV, PARQUET = TABLES
H5AD: Final = ".h5ad"
GROUP: Final = 16 << 20
"""Bytes of rows that a Parquet file has in a group, about."""
CODES, MEAN, PREDICTED = "codes", "mean", "predicted"
CLUSTER: Final = ("cluster", "cluster_probability")
GIVEN: Final = "given "
"""Begins the names under which the columns of a table are with the encodings of its rows."""


def named_parts(
    parts: Iterable[Mapping[str, np.ndarray]], names: RowNames
) -> Iterator[dict[str, np.ndarray]]:
    """Put the names of points before their arrays, part after part.

    Args:
        parts: arrays of some points after others, each [B, ...], by name.
        names: of all points.
    """
    start = 0
    for arrays in parts:
        stop = start + len(next(iter(arrays.values())))
        yield {names.title: names.values[start:stop], **arrays}
        start = stop


def given_parts(
    parts: Iterable[Mapping[str, np.ndarray]], rows: Split, recipe: Recipe[Any], typed: bool
) -> Iterator[Mapping[str, np.ndarray]]:
    """Put the columns of a table as they were given beside the arrays of its rows, part after part.

    Where a code is the row itself, their gaps are filled with what is expected there, written as the column's
    first entry is.

    Args:
        parts: arrays of some rows after others, each [B, ...], by name.
        rows: all rows.
        recipe: of the model that encoded them.
        typed: give columns of numbers as numbers, not as they are written.
    """
    preprocessing, taken = recipe.preprocessing, taken_columns(recipe.preprocessing)
    written = dict(rows.written()) if rows.written is not None and rows.places is not None else {}
    like = {
        name: column.example(written[name], rows.comma)
        for name, (column, _) in taken.items()
        if name in written and written[name].dtype == object
    }
    if typed and isinstance(rows.raw, np.ndarray):
        for name in like:
            column, place = taken[name]
            numbers = rows.raw[:, place]
            if not (column.as_texts or (np.isnan(numbers) ^ column.is_gap(written[name], rows.comma)).any()):
                written[name] = numbers
    names, start = preprocessing.column_names, 0
    for arrays in parts:
        stop = start + len(next(iter(arrays.values())))
        here = torch.arange(start, stop)
        given = dict[str, np.ndarray]()
        if not preprocessing.plan and (raw := rows.raw_rows(here)) is not None:
            given = {names[c] if names else f"x_{c}": values for c, values in enumerate(raw.T)}
        if rows.places is not None and (given or preprocessing.plan):
            given |= {name: values[rows.places[here].numpy()] for name, values in written.items()}
        if given and recipe.rows_are_codes:
            means = in_units(preprocessing, torch.from_numpy(arrays[MEAN])).T
            given |= {
                name: column.fill(given[name], means[place], like.get(name, ""), rows.comma)
                for name, (column, place) in taken.items()
                if name in given
            }
        yield {**arrays, **{GIVEN + name: values for name, values in given.items()}}
        start = stop


def encoded_columns(run: Run, arrays: Mapping[str, np.ndarray], title: str) -> dict[str, np.ndarray]:
    """Columns of the encodings of n points.

    Args:
        run: whose model encoded them.
        arrays: of the model's ``encode``, each [n, ...], by name, with the
            names of the points before them, and the columns of a table as they were given under `GIVEN`.
        title: what these names are.

    Returns:
        Name → values [n]: the names of the points; for each factor its code, the name of its value if there
        is one, what is predicted where that is not by the code, and the probability of the code; the cluster
        and its probability, where components make up clusters; then every other array, a column per number.
        Where a code is the row itself, its columns have their names, units and words in place of ``mean``,
        and what was given stays as it was. A given column whose name is taken has ``(data)`` behind it.
    """
    columns = {title: arrays[title]}
    gammas = [f"responsibilities_{factor}" for factor in range(len(run.recipe.factors))]
    columns |= factor_columns(run, arrays, [arrays[name] for name in gammas])
    given = {name.removeprefix(GIVEN): values for name, values in arrays.items() if name.startswith(GIVEN)}
    left_out = [title, CODES, PREDICTED, *CLUSTER, *gammas, *map(GIVEN.__add__, given)]
    own: Iterable[tuple[str, np.ndarray]] = given.items()
    if run.recipe.rows_are_codes:
        own = own or named_columns(run.recipe.preprocessing, torch.from_numpy(arrays[MEAN]))
        left_out.append(MEAN)
    return _with_data(columns, own, _flat(arrays, without=left_out))


def _with_data(
    columns: Mapping[str, np.ndarray], data: Iterable[tuple[str, np.ndarray]], more: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns of data between others, which keep their names where both have the same."""
    found, given = dict(columns), dict(data)
    for name, values in given.items():
        new = name
        while new in found or new in more or (new != name and new in given):
            new += " (data)"
        found[new] = values
    return {**found, **more}


def drawn_columns(run: Run, mean: Tensor, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of n draws of a table.

    Args:
        run: of the model that they are drawn from.
        mean: E[x | z] of the draws as the model sees x, on the CPU, [n, D].
        arrays: drawn beside them, each [n, ...], by name.

    Returns:
        Name → values [n]: the columns of the data, by their names if these are known, with words for
        categories; for each factor its code and the name of its value; then ``z``, a column per dimension,
        unless z is the row itself.
    """
    words = [name for name in arrays if name.startswith(WORDS)]
    redundant = ("z",) if run.recipe.rows_are_codes else ()
    more = factor_columns(run, arrays, []) | _flat(arrays, without=(CODES, *redundant, *words))
    return _with_data({}, named_columns(run.recipe.preprocessing, mean), more)


def factor_columns(
    run: Run, arrays: Mapping[str, np.ndarray], gammas: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns of factors and clusters: see :func:`encoded_columns`; without responsibilities, codes alone."""
    columns = {}
    for factor, name in enumerate(run.recipe.factor_names):
        codes = columns[f"{name} code"] = arrays[CODES][:, factor]
        if run.recipe.component_names(factor):
            columns[f"{name} value"] = values_of(factor, codes, run)
        if PREDICTED in arrays and factor in run.recipe.labelled:
            columns[f"{name} {PREDICTED}"] = values_of(factor, arrays[PREDICTED][:, factor], run)
        if gammas:
            columns[f"{name} probability"] = gammas[factor][np.arange(len(codes)), codes]
    return columns | {name.replace("_", " "): arrays[name] for name in CLUSTER if name in arrays}


def _flat(arrays: Mapping[str, np.ndarray], without: Sequence[str]) -> dict[str, np.ndarray]:
    """A column for each number of a point's arrays, such as ``mean_0``; of a single number ``mean``."""
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name in without:
            continue
        flat = array.reshape(len(array), -1).T
        columns |= {name: flat[0]} if array.ndim == 1 else {f"{name}_{i}": row for i, row in enumerate(flat)}
    return columns


def save_table(target: Path, parts: Iterable[Mapping[str, np.ndarray]], comma: bool = False) -> list[str]:
    """Write a table, part after part and yet in one step, so that no half-written file remains.

    Missing folders are made.

    Args:
        target: .csv, with a header and numbers that read back as they are, or .parquet.
        parts: the next rows, name → values [n], one part at least; the names are always the same.
        comma: write a .csv with decimal commas, fields separated by semicolons.

    Returns:
        The names of the columns.
    """
    left = iter(parts)
    first = next(left)
    every = chain([first], left)

    def write_csv(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=";" if comma else ",")
            writer.writerow(first)
            for columns in every:
                values = [_fields(one, comma) for one in columns.values()]
                writer.writerows(zip(*values, strict=True))

    def write_parquet(path: Path) -> None:
        from pyarrow import parquet, table

        with ExitStack() as stack:
            writer = None
            for columns in _grouped(every):
                group = table(columns)
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(path, group.schema))
                writer.write_table(group)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write_csv if target.suffix == CSV else write_parquet)
    return list(first)


def _fields(values: np.ndarray, comma: bool) -> np.ndarray | list[str]:
    if np.ma.isMaskedArray(values):
        return np.ma.filled(values.astype(object), math.nan)
    commas = comma and values.dtype.kind == "f"
    return [str(value).replace(".", ",") for value in values] if commas else values


def _grouped(parts: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Parts put together into ones of `GROUP` bytes or more."""
    found: list[Mapping[str, np.ndarray]] = []
    for part in parts:
        found.append(part)
        if sum(array.nbytes for columns in found for array in columns.values()) >= GROUP:
            yield joined(found)
            found = []
    if found:
        yield joined(found)


# Encodings beside the data that they are of, in a .h5ad file of AnnData.


def save_annotated(run: Run, source: Path, target: Path, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Write a copy of a .h5ad file with the encodings of its rows, in one step; make missing folders.

    Codes, the names of their values, their probabilities and clusters become columns of ``obs``; all other
    arrays go to ``obsm``, the means as ``X_fmvae``, by the name of the model.

    Args:
        run: whose model encoded the rows.
        source: the file with the rows.
        target: the file to write.
        arrays: as the model's ``encode`` gives them, each [n, ...], by name.

    Returns:
        The names that were added.

    Raises:
        ValueError: the file has one of these names already, or its ``obs`` or ``obsm`` lies elsewhere.
    """
    gammas = [arrays[f"responsibilities_{factor}"] for factor in range(len(run.recipe.factors))]
    columns = factor_columns(run, arrays, gammas) if run.recipe.factorial else {}
    beside = {name: array for name, array in arrays.items() if name not in (CODES, MEAN, PREDICTED, *CLUSTER)}
    beside = {f"X_{run.recipe.name}": arrays[MEAN], **beside}

    def write(path: Path) -> None:
        shutil.copyfile(source, path)
        with opened(path, "r+") as file:
            _add(file, "obs", columns, source)
            _add(file, "obsm", beside, source)
            obs = file["obs"]
            order = [str(name) for name in obs.attrs.get("column-order", ())]
            obs.attrs["column-order"] = np.array([*order, *columns], dtype=object)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)
    return [*(f"obs[{name!r}]" for name in columns), *(f"obsm[{name!r}]" for name in beside)]


def _add(file: Any, name: str, arrays: Mapping[str, np.ndarray], source: Path) -> None:
    from anndata.io import write_elem

    if name not in file:
        write_elem(file, name, {})
    group = member(file, name, source)
    for key, array in arrays.items():
        if key in group:
            raise ValueError(f"out: {source} has {name}[{key!r}] already")
        write_elem(group, key, array)
