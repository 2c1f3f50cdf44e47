"""The command ``sample``: draw from a run's model."""

from pathlib import Path

from jsonargparse import ArgumentParser

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command, add_device, add_run, add_seed, check_seed
from pyro_fmvae.app.commands.factor_settings import parse_codes
from pyro_fmvae.app.commands.output_files import TABLES, output_file, save_array_parts
from pyro_fmvae.app.commands.row_tables import drawn_columns, save_table
from pyro_fmvae.app.recipes.pictures import as_pixels
from pyro_fmvae.app.runs.by_batches import draw_rows
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.evaluate.randomness import resolve_device

LARGEST_GRID = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`sample`."""
    add_run(parser)
    parser.add_argument(
        "--out",
        type=str,
        required=True,
        help="file to write: .png or .npz; of a table .npz, .csv or .parquet",
    )
    parser.add_argument(
        "--codes", type=str | None, help="component of each factor, or * to draw it: blond,1,*"
    )
    parser.add_argument("--grid", type=str, default="8x8", help="rows x columns")
    add_seed(parser)
    add_device(parser)


def sample(run: str, out: str, codes: str | None, grid: str, seed: int, device: str) -> int:
    """Draw from a run's model, and write a grid of images (.png), arrays (.npz) or a table (.csv, .parquet).

    Raises:
        ValueError: bad codes, a bad grid or file name, or a model without a density of z.
    """
    opened = Run.open(Path(run))
    check_seed(seed)
    rows, columns = _grid(grid)
    target = output_file(opened, out, (".npz", ".png") if opened.recipe.image else (".npz", *TABLES))
    if codes is not None:
        opened.recipe.check_factors("codes", "choosing them")
    wanted = parse_codes(codes, opened).expand(rows * columns, -1)
    model = opened.load_model(resolve_device(device))
    mean, arrays = draw_rows(opened.recipe, model, wanted, seed)
    if target.suffix == ".npz":
        save_array_parts(target, [{"x": in_units(opened.recipe.preprocessing, mean), **arrays}])
    elif target.suffix in TABLES:
        save_table(target, [drawn_columns(opened, mean, arrays)])
    else:
        figures.save(figures.sample_grid(as_pixels(opened.recipe.preprocessing, mean), rows, columns), target)
    print(f"wrote {target}")
    return 0


def _grid(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and 0 < int(rows) * int(columns) <= LARGEST_GRID):
        raise ValueError(
            f"grid: expected rows x columns, such as 8x8, at most {LARGEST_GRID:,}, got '{text}'"
        )
    return int(rows), int(columns)


COMMAND = Command(
    "sample",
    "draw from a run's model",
    "Draw from a run's model: a grid of images (.png), arrays (.npz), or a table (.csv, .parquet).",
    add_arguments,
    sample,
)
