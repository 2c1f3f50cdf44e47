"""A run that is explored: its model, its training data, and what was computed of them."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.app.recipes.pictures import as_pixels
from pyro_fmvae.app.runs.by_batches import encode_rows, in_order, named_columns
from pyro_fmvae.app.runs.factor_names import rename_all, values_of
from pyro_fmvae.app.runs.pages.prototypes import POINTS
from pyro_fmvae.data import Split
from pyro_fmvae.data.own.row_names import ROW, RowNames, row_names
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.evaluate import NEAREST, Neighbours, outlier_scores

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run
    from pyro_fmvae.app.runs.trained import TrainedRun

ENLARGED = 112  # pixels that the longer side of a picture has on the page at least
DIGITS = 4  # of numbers in tables


class Exploration:
    """A run that is explored.

    Args:
        trained: the run with its model, of :func:`~pyro_fmvae.load`.
        data_root: as for :meth:`Run.load_data`.

    Attributes:
        rows: its first training points, at most 5,000; None if they are not there.
        note: why there are none.
    """

    def __init__(self, trained: "TrainedRun", data_root: str | None = None) -> None:
        self.trained = trained
        self.rows: Split | None = None
        self.note = ""
        try:
            train = self.run.load_data(data_root).train
            self.rows = train.select(torch.arange(min(POINTS, len(train))))
        except (FileNotFoundError, ValueError) as error:
            self.note = str(error)

    @property
    def run(self) -> "Run":
        """The run, with the names that its components have now."""
        return self.trained.run

    @property
    def points(self) -> Split:
        """Training points.

        Raises:
            ValueError: they are not there.
        """
        if self.rows is None:
            raise ValueError(f"There are no training points here: {self.note}")
        return self.rows

    @cached_property
    def encoded(self) -> dict[str, np.ndarray]:
        """Encodings of the training points, by name: see :meth:`TrainedRun.encode`."""
        return encode_rows(self.trained.model, in_order(self.points, self.trained.device))

    @cached_property
    def row_names(self) -> RowNames:
        """Names of the training points, strings [n]; numbers of rows also where names are not different."""
        found = row_names(self.run.config.data, self.points)
        if len(set(found.values)) < len(self.points) and self.points.places is not None:
            found = RowNames(ROW, self.points.places.numpy())
        return found._replace(values=found.values.astype(str))

    def choices(self, factor: int) -> list[tuple[str, int]]:
        """Names of a factor's components, and their numbers."""
        size = self.run.recipe.num_values[factor]
        return [(str(name), k) for k, name in enumerate(values_of(factor, np.arange(size), self.run))]

    @property
    def factors(self) -> list[tuple[str, int]]:
        """Names of the factors, and their numbers."""
        return [(name, factor) for factor, name in enumerate(self.run.recipe.factor_names)]

    def rename(self, factor: int, component: int, name: str) -> None:
        """Give a component a name: see :func:`~pyro_fmvae.app.runs.factor_names.rename_all`."""
        self.check_folder()
        value = component % self.run.recipe.num_values[factor]
        self.trained.run = rename_all(self.run, factor, None, {value: name})

    def name_factor(self, factor: int, own: str, components: Sequence[int], values: str) -> None:
        """Name a factor and its components.

        Args:
            factor: by number.
            own: its name, empty for none; that of its label where it was trained on one.
            components: by number.
            values: their names in this order, with commas between them; those left out have none.

        Raises:
            ValueError: more names than components, or one that is not possible: see
                :func:`~pyro_fmvae.app.runs.factor_names.rename_all`.
        """
        self.check_folder()
        texts = [text.strip() for text in values.split(",")]
        if len(texts) > len(components):
            raise ValueError(f"values: expected at most {len(components)} names, got {len(texts)}")
        size = self.run.recipe.num_values[factor]
        names = dict.fromkeys((k % size for k in components), "")
        names |= {k % size: text for k, text in zip(components, texts, strict=False) if text != str(k)}
        self.trained.run = rename_all(self.run, factor, own, names)

    def check_folder(self) -> None:
        """Raise ValueError if nothing can be saved with the run: it is no folder, or no longer exists."""
        if self.run.folder.is_file():
            raise ValueError(f"run: {self.run.folder} is a single file, in which nothing can be saved")
        if not self.run.folder.is_dir():
            raise ValueError(f"run: {self.run.folder} no longer exists, so nothing can be saved in it")

    # ------------------------------------------------------------------ how points look

    def pictures(self, x: Tensor) -> list[np.ndarray]:
        """Images as the model sees them ``[n, *event_shape]``, as uint8 for the page, small ones enlarged."""
        pixels = to_uint8(as_pixels(self.run.recipe.preprocessing, x.cpu()))
        times = max(1, -(-ENLARGED // max(pixels.shape[1:3])))
        return list(pixels.repeat(times, 1).repeat(times, 2))

    def table(self, x: Tensor) -> tuple[list[str], list[list[str]]]:
        """Rows of a table as the model sees them [n, D], as text: the names of the columns, and the cells."""
        columns = dict(named_columns(self.run.recipe.preprocessing, x.cpu()))
        cells = [[_cell(value) for value in values.tolist()] for values in columns.values()]
        return list(columns), [list(row) for row in zip(*cells, strict=True)]


def _cell(value: float | str) -> str:
    """A number with four digits, words as they are; nothing where a value is missing."""
    if isinstance(value, str):
        return value
    return "" if np.isnan(value) else f"{value:.{DIGITS}g}"


# Training points ranked by how little the model expects them.


SAMPLES: Final = 4
"""Draws of z per point."""


class Ranked(NamedTuple):
    """A training point and its score."""

    row: int
    """Its place among :attr:`Exploration.points`."""
    score: float
    """The higher, the less the model expects it."""


def scores_of(explored: Exploration) -> dict[str, np.ndarray]:
    """Scores of the training points, by name, the most useful first: see ``docs/concepts/outliers.md``.

    Raises:
        ValueError: there are no training points.
    """
    recipe, model = explored.run.recipe, explored.trained.model
    batches = in_order(explored.points, explored.trained.device)
    scores = outlier_scores(model, batches, SAMPLES)
    if recipe.gaussian_codes and model.bounded:
        scores[NEAREST] = Neighbours(model, batches).among_training_points()
    return dict(reversed(scores.items()))


def rank(scores: np.ndarray, most: int) -> list[Ranked]:
    """The points of the highest scores, highest first.

    Args:
        scores: of one kind, [n].
        most: how many at most.
    """
    order = np.argsort(-scores, kind="stable")[:most]
    return [Ranked(int(row), float(scores[row])) for row in order]
