"""Labels given by click, a model that is refined by them, and the points to label next."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.recipes.further_labels import further, refine
from pyro_fmvae.app.recipes.labelling import labelled_points
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.runs.by_batches import encode_rows, in_order
from pyro_fmvae.app.runs.factor_names import LONGEST
from pyro_fmvae.data.own.folder import TABLE, read_table
from pyro_fmvae.data.own.row_names import RowNames
from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.untrusted import check_printable
from pyro_fmvae.learn.phase import Budget

# The file ``labels.csv`` in a run's folder: labels that were given by click.

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


# Which points to label next, so that few labels tell of many points.

POOL: Final = 1500
"""Points that are compared at most, drawn at random; those whose label is known are always among them."""
SHARE: Final = 0.5
"""Points that one label tells of, as a share of an equal part of the pool."""
FEWEST: Final = 5
"""Neighbours that a label tells of at least."""
NOISE: Final = 0.1
"""Variance of a label about the function that it is a value of."""


def most_telling(points: np.ndarray, known: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Choose the points whose labels, beside those that are known, say most about all the others.

    A label is a noisy value of a function of the point, a Gaussian process with variance 1 and covariance
    exp(-d²/(h h')), where d is the distance of two points and h, h' their distances to a near neighbour. A
    point tells of another one by as much as its label lowers the other's variance; one after another, the
    point that lowers the sum of the variances most is taken (active learning of Cohn, 1996). So points are
    taken from the middle of crowded regions of which no label tells yet, and no two from one place. The more
    labels there are, the nearer the neighbour that a label tells of.

    Args:
        points: encodings [N, J], in units in which distances mean something.
        known: indices of the points whose label is known, int64 [n].
        count: how many to choose.
        seed: of the pool.

    Returns:
        Indices of the chosen points in order, fewer than ``count`` if there are not as many.
    """
    rest = np.setdiff1d(np.arange(len(points)), known)
    drawn = np.random.default_rng(seed).permutation(rest)[:POOL]
    pool = np.concatenate([known, drawn]).astype(np.int64)
    neighbours = max(FEWEST, int(SHARE * len(pool) / (len(known) + count)))
    covariance = _covariance(points[pool].astype(np.float64), neighbours)
    for place in range(len(known)):
        _condition(covariance, place)
    chosen: list[int] = []
    for _ in range(min(count, len(drawn))):
        gain = np.square(covariance).sum(1) / (covariance.diagonal() + NOISE)
        gain[: len(known)] = gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        _condition(covariance, chosen[-1])
    return pool[chosen]


def _covariance(points: np.ndarray, neighbours: int) -> np.ndarray:
    """Covariance of the function at points [n, J], each with the scale of its own surroundings: [n, n]."""
    squares = np.square(points).sum(1)
    distances = (squares[:, None] + squares - 2 * points @ points.T).clip(min=0)
    near = min(neighbours, len(points) - 1)
    scale = np.sqrt(np.partition(distances, near, axis=1)[:, near]).clip(min=np.finfo(np.float32).tiny)
    covariance: np.ndarray = np.exp(-distances / np.outer(scale, scale))
    return covariance


def _condition(covariance: np.ndarray, place: int) -> None:
    """The covariance after the label of a point is known, in place."""
    column = covariance[:, place].copy()
    covariance -= np.outer(column, column) / (column[place] + NOISE)


RESERVED: Final = (UNKNOWN, "-1")
"""Texts that a table of labels has for unknown values."""


class Tally(NamedTuple):
    """How often the model knew a label before it was used."""

    right: int
    of: int


@dataclass
class Property:
    """A property that points are labelled by.

    Attributes:
        values: names of its values.
        given: point → its value, by click.
        guesses: point → what the model said before its label was used, where it said anything.
        learnt: number of labels that the model has learnt from.
    """

    values: list[str]
    given: dict[int, int] = field(default_factory=dict)
    guesses: dict[int, int] = field(default_factory=dict)
    learnt: int = 0

    @property
    def tally(self) -> Tally:
        """How many of the labels the model guessed right, among those it had a guess for."""
        right = sum(self.given[row] == guess for row, guess in self.guesses.items() if row in self.given)
        return Tally(right, sum(row in self.given for row in self.guesses))


class LabelSession:
    """Labels of a run's training points, saved as ``labels.csv`` in its folder.

    Properties are those that the run was trained on, those in the file, and any that are begun here. The
    run's own model stays as it is: a copy is refined, with a factor for each further property.

    Args:
        explored: the run.

    Raises:
        ValueError: a model without factors, no training points, or a malformed ``labels.csv``.
    """

    def __init__(self, explored: Exploration) -> None:
        run = explored.run
        run.recipe.check_factors("run", "labelling")
        self.explored = explored
        self.properties: dict[str, Property] = {}
        for factor in run.recipe.labelled:
            values = [name for name, _ in explored.choices(factor)]
            self.properties[run.recipe.label_names[factor]] = Property(values)
        for name, texts in read_labels(run.folder, explored.row_names.values.tolist()).items():
            found = self.properties.setdefault(name, Property([]))
            found.values += sorted(set(texts.values()) - set(found.values))
            found.given = {row: found.values.index(text) for row, text in texts.items()}
        self._trained = self._labels_of_training()
        self._base = replace(run.recipe, num_data=len(explored.points))
        self._recipe: Recipe[Any] = self._base
        self._model = explored.trained.model
        self._columns = [run.recipe.label_names[factor] for factor in run.recipe.labelled]
        self._values: dict[str, tuple[str, ...]] = {}  # of the further properties that the model has
        self._probabilities = self._read(explored.encoded)

    def _labels_of_training(self) -> Tensor:
        """Labels that the run was trained on, of the points, int64 [N, L], -1 = unknown."""
        run, points = self.explored.run, self.explored.points
        if not run.recipe.labelled:
            return torch.full((len(points), 0), -1)
        return labelled_points(run.recipe, points).labels

    # ------------------------------------------------------------------ labels

    def begin(self, name: str, values: Sequence[str]) -> None:
        """Begin a property, or add values to one that was begun here.

        Args:
            name: of the property.
            values: names of its values.

        Raises:
            ValueError: a name that cannot be kept, fewer than two values, or values of a property that the
                run was trained on.
        """
        name, values = name.strip(), [value.strip() for value in values if value.strip()]
        for text in (name, *values):
            if not text or len(text) > LONGEST or text in RESERVED:
                raise ValueError(f"property: expected names of 1 to {LONGEST} characters, got '{text}'")
        check_printable([name, *values], "property")
        known = self.properties.get(name, Property([]))
        if name in self._columns[: len(self.explored.run.recipe.labelled)] and set(values) - set(
            known.values
        ):
            raise ValueError(f"property: '{name}' was trained on, its values are {', '.join(known.values)}")
        merged = [*known.values, *(value for value in dict.fromkeys(values) if value not in known.values)]
        if len(merged) < 2:
            raise ValueError("values: expected two names or more, separated by commas")
        known.values = merged
        self.properties[name] = known

    def give(self, name: str, row: int, value: int) -> None:
        """Label a point, and keep it in the file. The model's guess is noted first.

        Raises:
            ValueError: the run's folder no longer exists.
        """
        self.explored.check_folder()
        chosen = self.properties[name]
        if name in self._probabilities and row not in chosen.given:
            chosen.guesses[row] = int(self._probabilities[name][row].argmax())
        chosen.given[row] = value
        self._write()

    def take_back(self, name: str) -> int | None:
        """Take back the label that was given last, and return its point; None if there is none."""
        self.explored.check_folder()
        chosen = self.properties[name]
        if not chosen.given:
            return None
        row, _ = chosen.given.popitem()
        chosen.guesses.pop(row, None)
        self._write()
        return row

    def _write(self) -> None:
        labels = {
            name: {row: one.values[value] for row, value in one.given.items()}
            for name, one in self.properties.items()
            if one.given
        }
        write_labels(self.explored.run.folder, self.explored.row_names, labels)

    # ------------------------------------------------------------------ model

    def probabilities(self, name: str) -> np.ndarray | None:
        """Probabilities of a property's values at each point, [N, K]; None before the model knows it."""
        return self._probabilities.get(name)

    def next(self, name: str, count: int) -> list[int]:
        """The points whose label would tell most: see :func:`most_telling`.

        Args:
            name: of the property.
            count: how many.
        """
        encoded = self.explored.encoded
        known = np.union1d(self._known(name), np.array([], np.int64)).astype(np.int64)
        units = encoded["scale"].mean(0) if "scale" in encoded else 1.0
        return most_telling(encoded["mean"] / units, known, count).tolist()

    def _known(self, name: str) -> np.ndarray:
        """Points whose label is known, by click or from the training."""
        given = np.fromiter(self.properties[name].given, np.int64)
        if name not in self._columns[: self._trained.shape[1]]:
            return given
        trained = self._trained[:, self._columns.index(name)] >= 0
        return np.union1d(given, trained.nonzero().squeeze(-1).numpy())

    def refine(self, budget: Budget) -> None:
        """Learn from all labels; what the model says of each property is new then.

        Args:
            budget: iterations or minutes of learning.

        Raises:
            ValueError: no label was given, or a property has labels of a single value.
        """
        labelled = {name: one for name, one in self.properties.items() if one.given}
        if not labelled:
            raise ValueError("refine: expected a label, none was given yet")
        trained = self._columns[: len(self.explored.run.recipe.labelled)]
        values = {name: tuple(one.values) for name, one in labelled.items() if name not in trained}
        for name in values:
            if len(set(labelled[name].given.values())) < 2:
                raise ValueError(f"refine: expected labels of two different values of '{name}' at least")
        if self._model is self.explored.trained.model or values != self._values:
            self._recipe, self._model = further(
                self._base, self.explored.trained.model, list(values), list(values.values())
            )
            self._columns, self._values = [*trained, *values], values
        rows = replace(self.explored.points, labels=self._labels())
        refine(self._recipe, self._model, rows, budget, range(len(trained), len(self._columns)))
        device = self.explored.trained.device
        encoded = encode_rows(self._model, in_order(self.explored.points, device))
        self._probabilities = self._read(encoded)
        for one in labelled.values():
            one.learnt = len(one.given)

    def _read(self, encoded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Probabilities [N, K] of the values of each property that the model has."""
        found = {}
        for factor, name in enumerate(self._columns):
            gamma, size = encoded[f"responsibilities_{factor}"], self._recipe.num_values[factor]
            found[name] = gamma.reshape(len(gamma), -1, size).sum(1)
        return found

    def _labels(self) -> Tensor:
        """Labels of all points, int64 [N, L], those that were given in the place of those of the training."""
        count, trained = len(self.explored.points), self._trained.shape[1]
        labels = torch.full((count, len(self._columns)), -1)
        labels[:, :trained] = self._trained
        for column, name in enumerate(self._columns):
            given = self.properties[name].given
            labels[list(given), column] = torch.tensor(list(given.values()), dtype=torch.int64)
        return labels
