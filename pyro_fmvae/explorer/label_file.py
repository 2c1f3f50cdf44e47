"""The file ``labels.csv`` in a run's folder: labels that were given by click."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyro_fmvae import checkpoint
from pyro_fmvae.data.own.folder import TABLE, read_table
from pyro_fmvae.data.own.row_names import RowNames

UNKNOWN: Final = ""


def read_labels(folder: Path, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """Read the labels that were given so far.

    Args:
        folder: of the run.
        names: of its training points.

    Returns:
        Property → place of the point among ``names`` → name of the value.

    Raises:
        ValueError: the file is malformed, or labels other points.
    """
    path = folder / TABLE
    if not path.is_file():
        return {}
    return {
        name: {row: text for row, text in enumerate(texts) if text != UNKNOWN}
        for name, texts in read_table(path, names).items()
    }


def write_labels(folder: Path, names: RowNames, labels: Mapping[str, Mapping[int, str]]) -> None:
    """Write the labels that were given so far in one step: a row for each labelled point.

    A folder of images takes the file as its own ``labels.csv``.

    Args:
        folder: of the run.
        names: of its training points.
        labels: property → place of the point → name of the value.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    rows = sorted({row for given in labels.values() for row in given})

    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([names.title, *labels])
            writer.writerows(
                [names.values[row], *(given.get(row, UNKNOWN) for given in labels.values())] for row in rows
            )

    checkpoint.write_atomically(folder / TABLE, write)
