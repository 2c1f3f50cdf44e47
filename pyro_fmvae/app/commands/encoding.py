"""The command ``encode``: write codes, responsibilities and means of data."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command
from pyro_fmvae.app.commands.data_rows import add_rows, names_of, rows_of
from pyro_fmvae.app.commands.output_files import TABLES, output_file, save_array_parts
from pyro_fmvae.app.commands.row_tables import (
    H5AD,
    PARQUET,
    encoded_columns,
    given_parts,
    named_parts,
    save_annotated,
    save_table,
)
from pyro_fmvae.app.runs.by_batches import encoded_parts, in_order, joined, naming_far_rows
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.evaluate.randomness import resolve_device

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.estimator_run import EstimatorRun


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`encode`."""
    add_rows(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz, .csv, .parquet, .h5ad")


def encode(
    run: str, data: str | None, data_root: str | None, split: str | None, out: str, device: str
) -> int:
    """Write what :func:`encoded_parts` gives: arrays (.npz), a table (.csv, .parquet) or additions (.h5ad).

    Rows are written as they come, and only those of a .h5ad file are held in memory.

    Raises:
        ValueError: bad data, data without a finite bound, or a bad file name.
    """
    from pyro_fmvae.app.runs import estimator_run  # here, as --help has no use for scikit-learn

    if (found := estimator_run.opened(run, device)) is not None:
        return _encode_by(found, data, split, out)
    opened = Run.open(Path(run))
    target = output_file(opened, out, (".npz", *TABLES, H5AD), data=data)
    if target.suffix == H5AD and (data is None or Path(data).suffix != H5AD):
        raise ValueError(f"out: a {H5AD} file is written beside the data of one: give --data cells{H5AD}")
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, _ = rows_of(opened, data, data_root, split, by_name=False)
    names = names_of(opened, data, rows)
    parts = encoded_parts(model, in_order(rows, place))
    with naming_far_rows(model, rows, place):
        if target.suffix == H5AD:
            added = save_annotated(opened, Path(str(data)), target, joined(parts))
            print(f"wrote {target}: {len(rows):,} rows with {', '.join(added)}")
        elif target.suffix in TABLES:
            given = given_parts(parts, rows, opened.recipe, target.suffix == PARQUET)
            named = named_parts(given, names)
            tables = (encoded_columns(opened, part, names.title) for part in named)
            columns = save_table(target, tables, rows.comma)
            print(f"wrote {target}: {len(rows):,} rows, {len(columns)} columns")
        else:
            shapes = save_array_parts(target, named_parts(parts, names) if names.given else parts)
            print(f"wrote {target}: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}")
    return 0


def _encode_by(run: "EstimatorRun", data: str | None, split: str | None, out: str) -> int:
    """Write the probabilities of states, or the shares of topics."""
    target = output_file(None, out, (".npz", *TABLES), data=data or run.config.data)
    if split is not None:
        raise ValueError(f"split: expected none, a run of {run.name} encodes all rows")
    arrays = run.codes(run.load(data)[0])
    if target.suffix in TABLES:
        columns = dict[str, np.ndarray]()
        for name, array in arrays.items():
            several = {f"{name} {number}": column for number, column in enumerate(array.T)}
            columns |= {name: array} if array.ndim == 1 else several
        save_table(target, [columns])
    else:
        save_array_parts(target, [arrays])
    print(f"wrote {target}: {len(next(iter(arrays.values()))):,} rows with {', '.join(arrays)}")
    return 0


COMMAND = Command(
    "encode",
    "write codes, responsibilities and means of data",
    "Encode data: responsibilities, codes and means, in row order.",
    add_arguments,
    encode,
)
