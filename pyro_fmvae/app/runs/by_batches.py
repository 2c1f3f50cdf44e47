"""A run's model applied to many rows, batch by batch: what the commands and Python have in common."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.data import Batches, Preprocessing, Split
from pyro_fmvae.data.column_plan import PlannedColumn, entries_of
from pyro_fmvae.data.loader import TableOptions
from pyro_fmvae.data.own.csv_file import table_of, unique
from pyro_fmvae.data.own.files import load_file, unseen_categories
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.data.own.in_memory import names_of
from pyro_fmvae.data.own.pictures import SUFFIXES
from pyro_fmvae.data.own.raw import Raw, check_columns, check_seen, some_of, warn_unseen
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.evaluate import bound, dominating, outlier_scores, rows_without_bound, score_parts
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.cluster_tree import Clusters

# Data that Python hands to a run, preprocessed as in its training.

Given = ArrayLike | PathLike[str]
"""Data as Python hands them over: an array, a data frame, or a path."""


def given_rows(
    preprocessing: Preprocessing, array: Given, strict: bool = False, source: str = "array"
) -> Split:
    """Preprocess data as in the training.

    In a table that may have gaps, a word or category that the training data did not have counts as missing; a
    warning says how many of them each column has.

    Args:
        preprocessing: of the run.
        array: n observations in their own units, dense or sparse, a data frame, or the path of a picture,
            of a file of data or of a folder: see :func:`~pyro_fmvae.data.own.files.load_file`. Its labels do
            not count.
        strict: such a word or category in an array is an error.
        source: name of the argument in messages.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: other data than the run's; it names the argument, or the file.
    """
    if isinstance(array, str | PathLike):
        path = Path(array)
        if path.suffix.lower() in SUFFIXES:
            return read_image(path, preprocessing)
        return replace(load_file(path, preprocessing, left_out={})[0], labels=None)
    unseen: dict[str, Counter[str]] = {}
    given = _given_columns(preprocessing, array, source, unseen)
    raw = given.x
    if raw.shape == preprocessing.event_shape:
        raise ValueError(
            f"{source}: expected observations [n, ...], got one of {list(raw.shape)}; add an axis"
        )
    if not raw.size:
        raise ValueError(f"{source}: expected at least one observation, got {list(raw.shape)}")
    if raw.dtype.kind not in "buif":
        wanted = "numbers" if preprocessing.image else "numbers, or a data frame"
        raise ValueError(f"{source}: expected {wanted}, got dtype {raw.dtype}")
    if strict or preprocessing.counts is not None:
        check_seen(unseen, preprocessing.levels, preprocessing.column_names, source)
    x = preprocessing(raw, source)
    unseen |= preprocessing.unseen(raw)
    if strict and unseen:
        column, values = next(iter(unseen.items()))
        raise ValueError(
            f"{source}: expected a value that training had in {column}, got {next(iter(values))}"
        )
    warn_unseen(unseen, source)
    new = unseen_categories(preprocessing, given, x) if preprocessing.missing else None
    return Split(x, signed=preprocessing.signed, places=torch.arange(len(x)), unseen=new)


def _given_columns(
    preprocessing: Preprocessing, array: ArrayLike, source: str, unseen: dict[str, Counter[str]]
) -> Raw:
    """An array; of a data frame, or of objects, the numbers of its columns by the plan of the run.

    Args:
        preprocessing: of the run.
        array, source: as for :func:`given_rows`.
        unseen: where texts that the plan does not have are counted.
    """
    names = tuple(unique([str(name) for name in names_of(array)])[0])
    plan: Sequence[PlannedColumn] = preprocessing.plan
    if not plan:
        plan = [PlannedColumn("", "category", "", "", "", words) for words in preprocessing.levels]
        check_columns(preprocessing.column_names, names, source)
    try:
        array = array.toarray() if hasattr(array, "toarray") else array  # of SciPy
        raw = np.require(array, requirements="W")  # torch warns of arrays that it must not write to
    except ValueError:  # NumPy's message is about its own parts
        raise ValueError(f"{source}: expected observations of one shape, got several shapes") from None
    if raw.ndim != 2 or not raw.size or not (names or raw.dtype.kind in "OUS"):
        return Raw(raw)
    columns = [entries_of(name, raw[:, place]) for place, name in enumerate(names or [""] * raw.shape[1])]
    if plan:
        return table_of(columns, source, TableOptions(), plan, unseen)
    if not all(column.numeric for column in columns):
        raise ValueError(f"{source}: expected numbers in every column, got words")
    return Raw(np.stack([column.values for column in columns], axis=1))


WORDS = "words_"
"""Begins the name of the array that holds the words drawn of a column, before its number."""
EVALUATION_BATCH = 500
COMPARED = 5000
"""Training points that outlier scores are compared with."""


def in_order(rows: Split, device: torch.device, most: int | None = None) -> Batches:
    """Batches of the rows in their order, or of the first ``most`` of them, for evaluation."""
    if most is not None:
        rows = rows.select(torch.arange(min(most, len(rows))))
    return Batches(rows, EVALUATION_BATCH, shuffle=False, device=device)


@contextmanager
def naming_far_rows(
    model: Any, rows: Split, device: torch.device, seed: int = 0, argument: str = "data"
) -> Iterator[None]:
    """Name the rows that have no finite bound if the computation inside fails because of them.

    Raises:
        ValueError: there are such rows; it begins with the name of the ``argument`` that they came from.
    """
    try:
        yield
    except ValueError:
        far = rows_without_bound(model, in_order(rows, device), seed)
        if not len(far):
            raise
        rows_are = f"row {far[0]} is" if len(far) == 1 else f"row {far[0]} and {len(far) - 1} others are"
        raise ValueError(
            f"{argument}: {rows_are} so far from what the model was trained on that there is no finite "
            "bound; score counts such rows as inf"
        ) from None


def encoded_parts(model: Any, batches: Batches) -> Iterator[dict[str, np.ndarray]]:
    """Encode batch after batch: the arrays of the model's ``encode`` on the CPU, each [B, ...].

    Where the networks have not learnt all labels, ``predicted`` [B, I] is beside them: the codes, but of
    these labels what is predicted without the networks. Where components make up clusters, so are ``cluster``
    [B] and ``cluster_probability`` [B].
    """
    clusters = Clusters.of_model(model)

    def encode(x: Tensor) -> dict[str, Tensor]:
        encoded = model.encode(x)
        if getattr(model, "labelled", ()) and model.predictors:
            encoded["predicted"] = model.predicted_codes(x)
        if clusters is not None:
            cluster, probability = clusters.assign_encoded(model, encoded)
            encoded |= {"cluster": cluster, "cluster_probability": probability}
        return encoded

    for x, *_ in batches:
        with torch.no_grad():
            encoded = encode(x)
        yield {name: tensor.cpu().numpy() for name, tensor in encoded.items()}


def scored_parts(
    recipe: Recipe[Any],
    model: Any,
    rows: Split,
    device: torch.device,
    num_samples: int,
    seed: int,
    most: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Score batch after batch: see :func:`~pyro_fmvae.evaluate.score_parts`.

    Where a row has categories that training did not have, they count as missing; of a mixture of rows, their
    surprise is added to all scores but ``kl``.
    """
    start = 0
    for part in score_parts(model, in_order(rows, device, most), num_samples, seed):
        here = torch.arange(start, start := start + len(part["reconstruction"]))
        new = rows.unseen_rows(here) if recipe.rows_are_codes else None
        if new is not None and new.any():
            x = rows.select(here).observations.to(device)
            more = model.surprise(x, new.to(device)).cpu().numpy()
            part = {kind: values if kind == "kl" else values + more for kind, values in part.items()}
        yield part


def joined(parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of the same names, one after another: each [N, ...]."""
    arrays: dict[str, list[np.ndarray]] = {}
    for part in parts:
        for name, array in part.items():
            arrays.setdefault(name, []).append(array)
    masked = {name: any(map(np.ma.isMaskedArray, found)) for name, found in arrays.items()}
    return {name: (np.ma if masked[name] else np).concatenate(found) for name, found in arrays.items()}


def encode_rows(model: Any, batches: Batches) -> dict[str, np.ndarray]:
    """Encode every row, in row order: the arrays of :func:`encoded_parts`, each [N, ...]."""
    return joined(encoded_parts(model, batches))


@torch.no_grad()
def decode_rows(model: Any, z: Tensor) -> Tensor:
    """E[x | z] of every row of z [n, J], as the model sees x, on the CPU: ``[n, *event_shape]``."""
    return torch.cat([model.decode(part).cpu() for part in z.split(EVALUATION_BATCH)])


@torch.no_grad()
def draw_rows(
    recipe: Recipe[Any], model: Any, codes: Tensor, seed: int
) -> tuple[Tensor, dict[str, np.ndarray]]:
    """Draw from the prior, and decode. The generators are left as they were.

    Args:
        recipe: of the model.
        model: as trained.
        codes: component of each factor, int64 [n, I], -1 where it is to be drawn; [n, 0] without factors.
        seed: of the draws.

    Returns:
        E[x | z] as the model sees x, on the CPU, ``[n, *event_shape]``; and ``z`` [n, J]; of a factorial
        model ``codes``; where z is a row, ``words_i`` of each column i of categories.

    Raises:
        ValueError: the model has no density of z.
    """
    if not model.bounded:
        raise ValueError("run: an auto-encoder (--posterior point) has no density of z to draw from")
    with seeded(seed):
        drawn = {"codes": model.sample_codes(len(codes), codes)} if recipe.factorial else {}
        z = model.sample_latent(len(codes), *drawn.values())
    arrays = {name: part.cpu().numpy() for name, part in ({"z": z} | drawn).items()}
    for column, words in enumerate(recipe.preprocessing.levels if recipe.rows_are_codes else ()):
        if words:
            arrays[f"{WORDS}{column}"] = np.array(words)[arrays["z"][:, column].astype(int)]
    return decode_rows(model, z), arrays


@torch.no_grad()
def map_rows(function: Callable[[Tensor], Tensor], batches: Batches) -> Tensor:
    """A function of each batch [B, ...], the results one after another on the CPU: [N, ...]."""
    return torch.cat([function(x).cpu() for x, *_ in batches])


# Rows of a table as columns with their names, units and words.


def named_columns(preprocessing: Preprocessing, rows: Tensor) -> Iterator[tuple[str, np.ndarray]]:
    """Columns that are not ignored.

    Args:
        preprocessing: of a table.
        rows: as the model sees them, on the CPU, [n, D].

    Yields:
        Name and values [n] of each column: numbers, NaN where one is missing, or words, '' where one is.
    """
    values = in_units(preprocessing, rows).T
    whole = len(values) == preprocessing.event_shape[0]  # decoded counts are without their batch
    names = preprocessing.column_names if whole else preprocessing.decoded.column_names
    names = names or tuple(f"x_{column}" for column in range(len(values)))
    levels = preprocessing.levels if whole and preprocessing.levels else ((),) * len(values)
    dates = {column.name: column for column in preprocessing.plan if column.kind == "date"}
    for column, (name, words) in enumerate(zip(names, levels, strict=True)):
        if column not in preprocessing.ignored:
            if name in dates:
                yield name, dates[name].write(values[column])
            elif words:
                place = np.nan_to_num(values[column], nan=len(words)).astype(int)
                yield name, np.array([*words, ""])[place]
            else:
                yield name, values[column]


def taken_columns(preprocessing: Preprocessing) -> dict[str, tuple[PlannedColumn, int]]:
    """The columns of a table that its model takes, by name, and their places."""
    names, place, found = preprocessing.column_names, 0, dict[str, tuple[PlannedColumn, int]]()
    plan = preprocessing.plan or [PlannedColumn(name, "number", "", "", "") for name in names]
    plan = plan or [PlannedColumn("", "number", "", "", "")] * preprocessing.event_shape[0]
    for number, column in enumerate(plan):
        if not column.ignored:
            found[column.name or f"x_{number}"] = column, place
        place += len(column.features)
    return found


def finite_bound(model: Any, rows: Split, device: torch.device) -> tuple[dict[str, float], Tensor]:
    """The bound of some rows, and the numbers of those that it is the mean of: all that have a finite one."""
    try:
        return bound(model, in_order(rows, device)), torch.arange(len(rows))
    except ValueError:
        far = rows_without_bound(model, in_order(rows, device))
        if not 0 < len(far) < len(rows):
            raise
    mask = torch.ones(len(rows), dtype=torch.bool)
    mask[far] = False
    near = mask.nonzero().squeeze(-1)
    measures, nearer = finite_bound(model, rows.select(near), device)
    return measures, near[nearer]


def domination(model: Any, rows: Split, device: torch.device) -> str:
    """A sentence about the few rows that decide the mean bound of all; empty if there are none.

    Args:
        model: as trained.
        rows: with finite bounds; those are named by their places in the file, from 0.
    """
    kind = "elbo" if model.bounded else "reconstruction"
    losses = outlier_scores(model, in_order(rows, device), 1, kinds=[kind])[kind]
    few = dominating(losses)
    if not len(few):
        return ""
    share = np.abs(losses[few]).sum() / np.abs(losses).sum()
    places = (few if rows.places is None else rows.places[few].numpy()).tolist()
    name = "bound" if model.bounded else "reconstruction"
    verb = "row {} carries" if len(few) == 1 else "rows {} carry"
    return (
        f"{len(few)} of {len(rows):,} rows decide the mean: {verb.format(some_of([*map(str, places)]))} "
        f"{share:.0%} of the {name}; the median row has {-np.median(losses):.2f} nats"
    )


@contextmanager
def evaluating(*modules: torch.nn.Module) -> Iterator[None]:
    """Modules in the mode for evaluation, then in that of before.

    The program of a phase may be another module than the model whose networks it shares: its mode is its own.
    """
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.train(mode)
