"""The command ``search``: find what is like a picture, or like the rows of a file."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jsonargparse import ArgumentParser

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command
from pyro_fmvae.app.commands.data_rows import add_rows, names_of, rows_of
from pyro_fmvae.app.commands.output_files import TABLES, output_file
from pyro_fmvae.app.commands.row_tables import save_table
from pyro_fmvae.app.recipes.pictures import as_pixels
from pyro_fmvae.app.recipes.settings import is_own
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.search import MEASURES, Index
from pyro_fmvae.data import Split, whole
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.data.own.pictures import SUFFIXES
from pyro_fmvae.data.own.row_names import RowNames, row_names
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.learn.options import count

SHOWN = 20  # queries, and finds of each, on a sheet of pictures


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`search`."""
    add_rows(parser)
    parser.add_argument(
        "--like",
        type=str,
        required=True,
        help="picture, or file of rows (.npz, .csv, .h5ad, ...), to search for",
    )
    parser.add_argument("-n", type=int, default=10, help="number of finds for each")
    parser.add_argument("--by", type=str, default="mean", help=f"measure of nearness: {', '.join(MEASURES)}")
    parser.add_argument(
        "--quantised", action="store_true", help="store the means in one byte per two dimensions"
    )
    parser.add_argument("--out", type=str | None, help="file to write: .csv, .parquet, or .png of pictures")


def search(
    run: str,
    data: str | None,
    data_root: str | None,
    split: str | None,
    like: str,
    n: int,
    by: str,
    quantised: bool,
    out: str | None,
    device: str,
) -> int:
    """Print or write what is nearest to a picture, or to each row of a file, among the rows of some data.

    Raises:
        ValueError: bad data, a bad file name, or a measure that the model lacks.
    """
    opened = Run.open(Path(run))
    count(1)("n", n)
    if out is not None:
        output_file(opened, out, (*TABLES, ".png") if opened.recipe.image else TABLES, data=data, like=like)
    if data is None and split is None and is_own(opened.config):
        data = opened.config.data  # whole
    queries = _queries(opened, like)
    place = resolve_device(device)
    rows, _ = rows_of(opened, data, data_root, split, by_name=False)
    index = Index(opened.recipe, opened.load_model(place), rows, place, by, quantised)
    found, values = index.near(queries, n)
    if out is not None and out.endswith(".png"):
        _draw(opened, queries, rows, found[:, :SHOWN], Path(out))
    else:
        names = row_names(like, queries), names_of(opened, data, rows)
        columns = _columns(found, values, by, *names)
        if out is None:
            _print(columns)
            return 0
        save_table(Path(out), [columns])
    print(f"wrote {out}: {found.shape[1]} of {len(rows):,} for each of {len(found):,}")
    return 0


def _queries(run: Run, like: str) -> Split:
    """The picture, or the rows of the file, that others are to be like.

    Raises:
        FileNotFoundError, ValueError: it is neither, or it does not fit the run.
    """
    if Path(like).suffix.lower() in SUFFIXES:
        return read_image(Path(like), run.recipe.preprocessing)
    return rows_of(run, like, None, None, by_name=False)[0]


def _columns(
    found: np.ndarray, values: np.ndarray, by: str, queries: RowNames, names: RowNames
) -> dict[str, np.ndarray]:
    """Columns of a table with a row for each query and find, the nearest first."""
    number, n = found.shape
    return {
        "query": np.repeat(queries.values, n),
        "rank": np.tile(np.arange(1, n + 1), number),
        names.title: names.values[found.ravel()],
        by: values.ravel(),
    }


def _print(columns: Mapping[str, np.ndarray]) -> None:
    """A table on standard output: numbers have four decimals."""
    texts = [
        [name, *(f"{value:.4f}" if values.dtype.kind == "f" else str(value) for value in values)]
        for name, values in columns.items()
    ]
    widths = [max(map(len, column)) for column in texts]
    for line in zip(*texts, strict=True):
        print("  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)))


def _draw(run: Run, queries: Split, rows: Split, found: np.ndarray, target: Path) -> None:
    """A row of pictures for each query: itself, and what was found, the nearest first."""
    shown = []
    for number, of_query in enumerate(found[:SHOWN]):
        splits = queries.select(torch.tensor([number])), rows.select(torch.from_numpy(of_query))
        shown += [whole(split)[0] for split in splits]
    titles = ["like", *map(str, range(1, found.shape[1] + 1))] * (len(shown) // 2)
    pictures = as_pixels(run.recipe.preprocessing, torch.cat(shown))
    figures.save(figures.sample_grid(pictures, len(shown) // 2, found.shape[1] + 1, titles), target)


COMMAND = Command(
    "search",
    "find what is like a picture or a row",
    "Find the points that are nearest to a picture, or to each row of a file, by their encodings.",
    add_arguments,
    search,
)
