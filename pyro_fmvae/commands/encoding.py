"""The command ``encode``: write codes, responsibilities and means of data."""

from pathlib import Path

from jsonargparse import ArgumentParser

from pyro_fmvae.commands.annotated_data import H5AD, check_annotates, save_annotated
from pyro_fmvae.commands.command import Command
from pyro_fmvae.commands.data_rows import add_rows, file_names, rows_of
from pyro_fmvae.commands.output_files import check_different, check_ending, check_spares_data, save_arrays
from pyro_fmvae.commands.row_tables import TABLES, check_installed, encoded_columns, save_table
from pyro_fmvae.ranks import world
from pyro_fmvae.runs.by_batches import encode_rows, in_order, naming_far_rows
from pyro_fmvae.runs.run import Run, resolve_device


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`encode`."""
    add_rows(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz, .csv, .parquet, .h5ad")


def encode(
    run: str, data: str | None, data_root: str | None, split: str | None, out: str, device: str
) -> int:
    """Write what :func:`encode_rows` gives: arrays (.npz), a table (.csv, .parquet) or additions (.h5ad).

    Raises:
        ValueError: bad data, data without a finite bound, or a bad file name.
    """
    ranks = world()
    with ranks.agreeing(same_draws=False):
        opened, target = Run.open(Path(run)), Path(out)
        check_ending(target, (".npz", *TABLES, H5AD))
        check_annotates(data, target)
        check_installed(target)
        check_different(data=data, out=out)
        check_spares_data(opened, target)
        place = resolve_device(device)
        model = opened.load_model(place)
        rows, _ = rows_of(opened, data, data_root, split, by_name=False)
    with naming_far_rows(model, rows, place, ranks=ranks):
        arrays = encode_rows(opened.recipe, model, in_order(rows, place), ranks)
    if not ranks.leads:
        return 0
    if target.suffix == H5AD:
        added = save_annotated(opened, Path(str(data)), target, arrays)
        print(f"wrote {target}: {len(rows):,} rows with {', '.join(added)}")
    elif target.suffix in TABLES:
        columns = encoded_columns(opened, arrays, file_names(opened, data))
        save_table(target, columns)
        print(f"wrote {target}: {len(rows):,} rows, {len(columns)} columns")
    else:
        save_arrays(target, arrays)
        print(f"wrote {target}: {', '.join(f'{name} {array.shape}' for name, array in arrays.items())}")
    return 0


COMMAND = Command(
    "encode",
    "write codes, responsibilities and means of data",
    "Encode data: responsibilities, codes and means, in row order.",
    add_arguments,
    encode,
    shared=True,
)
