"""The rows of data that a command works on."""

import logging
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import add_device, add_run
from pyro_fmvae.app.recipes.registry import data_name, own_first
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Split, load
from pyro_fmvae.data.column_plan import MOST_WORDS
from pyro_fmvae.data.own.files import READERS, load_file
from pyro_fmvae.data.own.raw import some_of
from pyro_fmvae.data.own.row_names import RowNames, row_names
from pyro_fmvae.data.own.zarr_store import is_folder
from pyro_fmvae.data.registry import LOADERS, published_namesake

logger = logging.getLogger("pyro_fmvae")

LeftOut: TypeAlias = dict[str, dict[str, int]]
"""Label → value that the run does not know → number of points."""


def add_rows(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rows_of`, with the run before and the device behind them."""
    add_run(parser)
    parser.add_argument(
        "--data", type=str | None, help="name of a data set, or file; default: the data of the run"
    )
    parser.add_argument("--data-root", type=str | None, help="folder of published data sets")
    split = (
        "split of the run's data or of a named data set; default: test, or else valid; a file is taken whole"
    )
    parser.add_argument("--split", type=Literal["train", "valid", "test", "unseen"] | None, help=split)
    add_device(parser)


def rows_of(
    run: Run,
    data: str | None,
    data_root: str | None,
    split: str | None,
    by_name: bool = True,
    left_out: LeftOut | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """Load the rows that a command works on, under the run's own preprocessing.

    Args:
        run: the run.
        data: name of a data set, or a file or folder, which is taken whole; None: the run's own data.
        data_root: folder of published data sets; None: the run's.
        split: of the run's data or of a named data set; None: test, or else validation or training.
        by_name: match the label columns of a file to those of the run's data. Values that the run does not
            know become unknown; a message tells how many points that concerns.
        left_out: where these points are counted, by label and value.

    Returns:
        The rows, and the name of each label column. Without ``by_name`` the names are those in the file.

    Raises:
        FileNotFoundError: no such data.
        ValueError: bad data, data of another shape or kind than the run's, or ambiguous label columns.
    """
    if data is not None:
        own = own_first(data, data_root)
        if own != data:
            logger.warning("%s", published_namesake(own))
        data = data_name(run.recipe.name, own)
    if data is None or data == run.config.data in LOADERS:
        dataset = run.load_data(data_root)
        return dataset.split(split or dataset.tested), dataset.label_names
    if data not in LOADERS and (is_folder(Path(data)) or Path(data).suffix.lower() in READERS):
        words: dict[str, Counter[str]] = {}
        rows, names = load_file(
            data, run.recipe.preprocessing, run.recipe.label_names, run.recipe.value_names, words
        )
        if not by_name:
            return rows, names
        names = _names(run, data, names)
        values = {name: _values(run, name) for name in names if name in run.recipe.label_names}
        rows, numbers = known_values(
            rows, names, {name: len(known) for name, known in values.items() if known}
        )
        found = {name: dict(counts) for name, counts in (words | numbers).items() if counts}
        for name, counts in found.items():
            tell_left_out(name, counts, values[name])
        if left_out is not None:
            left_out.update(found)
        return rows, names
    config, sparse = run.config, run.recipe.reading(run.config, data)
    if sparse is not None:
        sparse = replace(sparse, transform=run.recipe.preprocessing.patches)
    root = data_root or config.data_root
    dataset = load(
        data,
        Path(root) if root else None,
        binarization=config.binarization,
        image_size=config.image_size,
        sparse=sparse,
    )
    ours, theirs = run.recipe.preprocessing, dataset.preprocessing
    if (ours.kind, ours.event_shape) != (theirs.kind, theirs.event_shape):
        raise ValueError(
            f"data: the run was trained on {ours.kind.value} data of shape {ours.event_shape}, "
            f"'{data}' is {theirs.kind.value} data of shape {theirs.event_shape}"
        )
    return dataset.split(split or dataset.tested), dataset.label_names


def _values(run: Run, name: str) -> list[str]:
    """The values that a label of a run can have; none if it has no names and was not trained on."""
    column = run.recipe.label_names.index(name)
    size = len(run.recipe.value_names[column]) if run.recipe.value_names else 0
    if not size and column in run.recipe.labelled:
        size = run.recipe.num_values[column]
    return [run.recipe.value_text(column, value) for value in range(size)]


def known_values(
    rows: Split, names: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[Split, dict[str, Counter[str]]]:
    """Make labels unknown whose numbers are no values.

    Args:
        rows: the rows.
        names: of their label columns.
        sizes: number of values of some labels.

    Returns:
        The rows, and by label how many have each of the numbers that became unknown.
    """
    if rows.labels is None:
        return rows, {}
    labels, found = rows.labels.clone(), {}
    for column, name in enumerate(names):
        beyond = labels[:, column] >= sizes.get(name, math.inf)
        if beyond.any():
            found[name] = Counter(map(str, labels[beyond, column].tolist()))
            labels[beyond, column] = -1
    return replace(rows, labels=labels), found


def tell_left_out(name: str, counts: Mapping[str, int], values: Sequence[str]) -> None:
    """Say on standard error how many points have values of a label that training did not have.

    Args:
        name: of the label.
        counts: value → number of points.
        values: those that training had; none if they have no names and are not known.
    """
    number = sum(counts.values())
    points = "1 point" if number == 1 else f"{number:,} points"
    had = some_of(values, MOST_WORDS) or "other values"
    each = [f"'{value}' ({count:,})" if len(counts) > 1 else f"'{value}'" for value, count in counts.items()]
    print(f"left out {points} whose '{name}' is {some_of(each)}: training had {had}", file=sys.stderr)


def names_of(run: Run, data: str | None, rows: Split) -> RowNames:
    """Names of the rows that :func:`rows_of` took: see :func:`~pyro_fmvae.data.own.row_names.row_names`."""
    return row_names(run.config.data if data is None else data, rows)


def _names(run: Run, data: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Name a file's label columns: as the file does, else as in the run's data, in their order there."""
    if not names or not run.recipe.label_names:
        return names
    numbered = names == tuple(f"label{column}" for column in range(len(names)))
    if not numbered or set(names) == set(run.recipe.label_names):
        return names
    if len(names) != len(run.recipe.label_names):
        count = len(run.recipe.label_names)
        raise ValueError(f"labels: {data} has {len(names)} columns of labels, the run's data have {count}")
    if run.config.label_names is not None and len(names) > 1:  # what order they had before is not known
        raise ValueError(
            f"labels: the run's labels were put in another order by label_names, so {data} has to say, in an "
            f"array 'label_names', which of its columns is which of {', '.join(run.recipe.label_names)}"
        )
    return run.recipe.label_names
