"""One point: what the model says of it, and how it looks with another value of a property."""

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.runs.by_batches import given_rows, naming_far_rows
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.data import Split, whole
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.evaluate import edit

LIKELIEST: Final = 3
"""Components of a factor whose probabilities are shown."""


class Reading(NamedTuple):
    """A point as the model reads it."""

    codes: list[int]
    """Component of each factor."""
    probabilities: list[list[tuple[str, float]]]
    """For each factor its likeliest components, by name, and their probabilities."""


class Change(NamedTuple):
    """A point before and after a change of a property."""

    before: Tensor
    """What the model makes of the point as it is, ``[1, *event_shape]``."""
    after: Tensor
    """The same with another component of one factor."""
    kept: list[tuple[str, str, str]]
    """For each of the other factors its name, and its value before and after, as the model reads both."""


def open_picture(explored: Exploration, path: Path) -> Split:
    """Read an image file as the run does.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no image, or the run was trained on something else.
    """
    return read_image(path, explored.run.recipe.preprocessing)


def open_row(explored: Exploration, cells: list[str]) -> Split:
    """Read a row of a table as :meth:`Exploration.table` shows it.

    Raises:
        ValueError: another number of cells, or one that is no number or unknown word.
    """
    preprocessing = explored.run.recipe.preprocessing
    shown = [column for column in range(preprocessing.event_shape[0]) if column not in preprocessing.ignored]
    if len(cells) != len(shown):
        raise ValueError(f"row: expected {len(shown)} cells, got {len(cells)}")
    whole_row = np.full((1, preprocessing.event_shape[0]), "", object)
    whole_row[0, shown] = cells
    return given_rows(preprocessing, whole_row, strict=True)


@torch.no_grad()
def read(explored: Exploration, point: Split) -> Reading:
    """Find the code of a point.

    Args:
        explored: the run.
        point: a split of one row.

    Raises:
        ValueError: a model without factors, or a point without a finite bound.
    """
    run, model = explored.run, explored.trained.model
    run.recipe.check_factors("run", "a code")
    with naming_far_rows(model, point, explored.trained.device, argument="point"):
        gammas = model.responsibilities(whole(point, explored.trained.device)[0])
    likeliest = []
    for factor, gamma in enumerate(gammas):
        order = gamma[0].argsort(descending=True, stable=True)[:LIKELIEST].cpu()
        names = values_of(factor, order.numpy(), run)
        likeliest.append(
            [(str(name), float(gamma[0, k])) for name, k in zip(names, order.tolist(), strict=True)]
        )
    return Reading([int(gamma[0].argmax()) for gamma in gammas], likeliest)


@torch.no_grad()
def change(explored: Exploration, point: Split, factor: int, component: int) -> Change:
    """Give a factor of a point another component, as the command ``edit`` does.

    Args:
        explored: the run.
        point: a split of one row.
        factor, component: by number.

    Raises:
        ValueError: as for :func:`read`.
    """
    run, model, device = explored.run, explored.trained.model, explored.trained.device
    x = whole(point, device)[0]
    present = read(explored, point)
    before, after = model.reconstruct(x), edit(model, x, {factor: component})
    read_after = model.codes(after)[0].tolist()
    others = []
    for other, name in enumerate(run.recipe.factor_names):
        if other != factor:
            was, now = values_of(other, np.array([present.codes[other], read_after[other]]), run)
            others.append((name, str(was), str(now)))
    return Change(before.cpu(), after.cpu(), others)
