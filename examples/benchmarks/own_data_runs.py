"""The side of ``own_data.py`` that is measured: runs of the command line, used in Python."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, train_judge
from own_data_sets import Data, write

from pyro_fmvae import TrainedRun, load
from pyro_fmvae.data import Split


@dataclass(frozen=True)
class Training:
    """How to train.

    Args:
        folder: for files and the run.
        pictures_in_folder: write pictures as a folder.
        seed: of the training.
        minutes: of ``--max-minutes``, or None to leave it out.
    """

    folder: Path
    pictures_in_folder: bool
    seed: int
    minutes: float | None


class Trained:
    """Data written as a user would have them, and a run that the command line trains on them.

    Args:
        data: labels are written if ``labelled``.
        training: how to train.
        labelled: train on the labels as well.
        options: further options of the command.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """

    def __init__(self, data: Data, training: Training, labelled: bool, *options: str) -> None:
        self._folder = training.folder
        file = write(data, self._folder / "data", labelled, training.pictures_in_folder)
        command = [sys.executable, "-m", "pyro_fmvae", "train", "--data", str(file)]
        command += ["--out", str(self._folder / "run"), "--seed", str(training.seed), *options]
        command += ["--labels", "1"] if labelled else []
        command += ["--max-minutes", str(training.minutes)] if training.minutes is not None else []
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, text=True)
        self.seconds = time.perf_counter() - began
        self.run: TrainedRun = load(self._folder / "run", "cpu")

    def about(self) -> dict[str, Any]:
        """Entries of a row about the training: its time, its model and its bounds on validation data.

        The bounds are the best of all phases but ``pretrain``, and that of the model that the run keeps, in
        nats per point.
        """
        run = self.run.run
        lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        bounds = [line["elbo"] for line in map(json.loads, lines) if line["phase"] != "pretrain"]
        kept = json.loads((run.folder / "kept.json").read_text(encoding="utf-8"))["kept"]["value"]
        found = {"best": max(bounds, default=kept), "kept": kept}
        return {"seconds": round(self.seconds, 1), "model": run.config.model, "bound": found}

    def codes(self, data: Data) -> np.ndarray:
        """Codes of the first factor, [n]."""
        return self.run.encode(self._given(data))["codes"][:, 0]

    def scores(self, data: Data) -> dict[str, np.ndarray]:
        """Every outlier score, by name, each [n]."""
        return self.run.score(self._given(data))

    def predictions(self, data: Data) -> np.ndarray:
        """Predicted labels, [n, L]."""
        found = self.run.predict(self._given(data))
        pairs = zip(data.names, data.values, strict=True)
        return np.stack([_numbers(found[name], values) for name, values in pairs], -1)

    def predictions_alone(self, data: Data) -> np.ndarray:
        """Labels predicted by a mixture without its regression and forest, which the run loses, [n, L]."""
        self.run.model.predictors.clear()
        return self.predictions(data)

    def edits(self, train: Data, test: Data, seed: int) -> dict[str, dict[str, float | None]]:
        """Give each test picture another value of each property, and let a classifier say what has changed.

        Args:
            train: pictures that the classifier learns from, with all their labels.
            test: pictures of at least 16×16 pixels.
            seed: of the new values.

        Returns:
            Property → ``judge``: the classifier's accuracy on the pictures; ``flipped``: share of the edited
            pictures that it says have the new value; ``kept``: share of the other properties that it sees as
            in the unedited picture, None if there are no others.
        """
        sizes = [len(values) for values in test.values]
        judge = train_judge(_split(train.x, train.labels), sizes)
        given, before = self._given(test), _judged(judge, test.x)
        rng, result = np.random.default_rng(seed), {}
        for column, (name, values) in enumerate(zip(test.names, test.values, strict=True)):
            truth = test.labels[:, column]
            asked = (truth + rng.integers(1, len(values), len(truth))) % len(values)
            after = np.empty_like(before)
            for value in np.unique(asked):
                edited = self.run.edit(given[asked == value], {name: self._called(name, values, int(value))})
                after[asked == value] = _judged(judge, edited)
            others = np.arange(len(sizes)) != column
            result[name] = {
                "judge": float((before[:, column] == truth).mean()),
                "flipped": float((after[:, column] == asked).mean()),
                "kept": float((after == before)[:, others].mean()) if others.any() else None,
            }
        return result

    def _given(self, data: Data) -> Any:
        """Observations as a user of the run would give them: an array, or a data frame if there are words."""
        if data.words:
            import pandas

            return pandas.read_csv(write(data, self._folder / "new", labelled=False, folder=False))
        shape = self.run.run.recipe.preprocessing.event_shape
        grey_as_colours = data.pictures and len(shape) > data.x.ndim - 1
        return np.repeat(data.x[..., None], shape[-1], -1) if grey_as_colours else data.x

    def _called(self, name: str, values: Sequence[str], value: int) -> str | int:
        """A value as the run calls it."""
        run = self.run.run
        named = run.recipe.value_names and run.recipe.value_names[run.recipe.label_names.index(name)]
        return values[value] if named else value


def _numbers(found: np.ndarray, values: Sequence[str]) -> np.ndarray:
    """Values as numbers; those of folders are names."""
    return found if found.dtype.kind in "iu" else np.array([values.index(str(value)) for value in found])


def _judged(judge: Judge, pictures: np.ndarray) -> np.ndarray:
    """The judge's values, [n, L], of pictures in uint8; greys that a run has made colours are greys again."""
    if pictures.ndim - 1 > len(judge.image_shape):
        pictures = pictures.mean(-1).round().astype(np.uint8)
    return judge.predict(_split(pictures).observations).numpy()


def _split(pictures: np.ndarray, labels: np.ndarray | None = None) -> Split:
    known = None if labels is None else torch.from_numpy(labels)
    return Split(torch.from_numpy(pictures), known, signed=True)
