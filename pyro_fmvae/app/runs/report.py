"""The report at the end of a training: measures on test data, printed and saved, figures, and the page."""

import json
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.labelling import labelled_points, shortened
from pyro_fmvae.app.runs.by_batches import domination, finite_bound, in_order, map_rows
from pyro_fmvae.app.runs.closing_table import (
    METRICS,
    REPORT,
    SPLITS,
    TRAINING,
    SelectedModel,
    cut_short,
    lines,
)
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.app.runs.label_measures import agreement, references
from pyro_fmvae.app.runs.pages import PAGE, write_page
from pyro_fmvae.app.runs.run import FIGURES, Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import Dataset, Kind, Split
from pyro_fmvae.data.column_plan import shown_plan
from pyro_fmvae.data.own.zarr_store import is_folder
from pyro_fmvae.evaluate import overcalled
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.files import checkpoint

CHECKED_POINTS = 500
"""Labelled points of each kind, at most, that predictions of labels are checked on."""


def collapses(trainer: Trainer) -> list[str]:
    """Describe labelled factors that call unlabelled training points by one value too often.

    Args:
        trainer: of a run, its model in the mode for evaluation.

    Returns:
        A sentence for each of these factors, by the rule of :func:`~pyro_fmvae.evaluate.overcalled`.
    """
    run, labels = trainer.run, trainer.training.labels
    if labels is None or not run.recipe.labelled:
        return []
    rows = (labels < 0).any(-1).nonzero().squeeze(-1)[:CHECKED_POINTS]
    if not len(rows):
        return []
    unlabelled = replace(trainer.training.select(rows), labels=None)
    with seeded(0):
        codes = map_rows(trainer.model.predicted_codes, in_order(unlabelled, trainer.device))
    sentences = []
    for factor in run.recipe.labelled:
        known = labels[:, factor] >= 0
        values = codes[~known[rows], factor] % run.recipe.num_values[factor]
        found = overcalled(values, labels[known, factor])
        if found is not None:
            value = values_of(factor, np.array([found.value]), run)[0]
            sentences.append(
                f"{run.recipe.label_names[factor]}: {found.predicted:.0%} of the training points without "
                f"this label are called {value}, of the labels {found.labelled:.0%} are; either the factor "
                f"has collapsed, or {value} is commoner in the data than among the labels, as where "
                "these were chosen value by value"
            )
    return sentences


LEAST_SIDE = 16  # pixels: the smallest size of pictures that is advised
CONFUSED = 4  # labels, at most, whose confusion with clusters is drawn


def report(trainer: Trainer, dataset: Dataset) -> None:
    """Measure what was learnt, on test data if there are any; print, save and draw it."""
    run, model = trainer.run, trainer.model.eval()
    tested = dataset.tested
    rows, splits = dataset.split(tested), {}
    for name in [tested] if dataset.unseen is None else [tested, "unseen"]:
        splits[name], measured = _measure(trainer, dataset, dataset.split(name))
        rows = measured if name == tested else rows
    if in_training := _agreement_in_training(trainer, dataset, splits[tested]):
        splits["train"] = in_training
    selected = SelectedModel.read(run.folder)
    found = {
        "split": tested,
        "splits": splits,
        "labelled": _labelled(run, dataset),
        "columns": shown_plan(run.recipe.preprocessing.plan, run.recipe.preprocessing.powers),
        "summary": [*(selected.summary() if selected else ()), *run.recipe.summary(model)],
        "warnings": [
            *(selected.warnings() if selected else ()),
            *_cut_short(run, trainer.progress.total_steps, selected),
            *_warnings(run, dataset, splits[tested]),
            *_dominated(trainer, rows),
            *collapses(trainer),
        ],
    }
    content = json.dumps(found, indent=1) + "\n"
    checkpoint.write_atomically(run.folder / REPORT, lambda path: path.write_text(content))
    print()
    print("\n".join(lines(found)))
    draw(run, model, rows, tested, splits[tested])
    write_page(run, run.folder / PAGE, model, dataset)
    print(
        f"report in {run.folder / PAGE}, figures in {run.folder / FIGURES}, everything else in {run.folder}"
    )


def _measure(trainer: Trainer, dataset: Dataset, everything: Split) -> tuple[dict[str, Any], Split]:
    """Measures of the rows of a split that have a finite bound, and these rows."""
    run, model, device = trainer.run, trainer.model, trainer.device
    bounds, near = finite_bound(model, everything, device)
    rows = everything if len(near) == len(everything) else everything.select(near)
    measures: dict[str, Any] = {**bounds, "left_out": len(everything) - len(rows)}
    if not model.bounded:
        measures |= {"elbo": None, "kl_z": None}
    if not run.recipe.factorial:
        del measures["kl_r"], measures["kl_global"]
    if rows.labels is None or not run.recipe.factorial:
        return measures, rows
    names = dataset.label_names
    measures |= agreement(run, model, rows, names, device)
    if classified := measures["classification"]:
        beside = references(run, model, dataset.train, rows, names, device)
        measures["classification"] = {name: classified[name] | beside[name] for name in classified}
    return measures, rows


def _agreement_in_training(
    trainer: Trainer, dataset: Dataset, measures: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Agreement of codes with unused labels of training points, if no other points have these labels."""
    run, labels = trainer.run, dataset.train.labels
    if labels is None or not run.recipe.factorial or measures["accuracy"] or measures["clustering"]:
        return None
    free = [
        column for column, factor in enumerate(run.recipe.factors_of(dataset.label_names)) if factor is None
    ]
    known = (labels[:, free] >= 0).any(-1).nonzero().squeeze(-1)
    if not len(known):
        return None
    rows = replace(dataset.train, labels=labels[:, free]).select(known)
    names = [dataset.label_names[column] for column in free]
    return {"n": len(rows)} | agreement(run, trainer.model, rows, names, trainer.device)


def _labelled(run: Run, dataset: Dataset) -> dict[str, int] | None:
    """How many training points are labelled; None of a run without labels."""
    if not run.recipe.labelled:
        return None
    return {"used": labelled_points(run.recipe, dataset.train).used, "of": run.recipe.num_data}


def _cut_short(run: Run, steps: int, selected: SelectedModel | None) -> list[str]:
    """A warning if the clock ended a training of networks after few of its steps."""
    if not cut_short(run, steps, selected):
        return []
    config, usual = run.config, run.config.usual_steps
    more = "--max-minutes" if config.max_minutes else "--time-limit"
    side = max(run.recipe.preprocessing.event_shape[:2])
    sized = run.recipe.image and side >= 2 * LEAST_SIDE and is_folder(Path(config.data))
    smaller = f", or make the pictures smaller (--image-size {side // 2})" if sized else ""
    return [
        f"the time was up after {steps:,} of {usual:,} steps, so the model has hardly learnt and its results "
        f"are not to be trusted: give more {more}{smaller}"
    ]


def _warnings(run: Run, dataset: Dataset, measures: Mapping[str, Any]) -> list[str]:
    """Sentences about what makes the measures of a run less than they seem to be."""
    found = []
    if dataset.tested == "train":
        found.append(
            "the measures are those of training points, because there are no validation or test points"
        )
    elif not dataset.validated:
        found.append("there are no validation points: training was watched on its own points")
    if not run.recipe.labelled:
        return found
    found += labelled_points(run.recipe, dataset.train).scarce
    missing = [
        name
        for name in run.recipe.factor_names[: len(run.recipe.labelled)]
        if name not in measures["accuracy"]
    ]
    if missing:
        found.append(
            f"no validation or test point has a known label of {', '.join(missing)}; "
            "--test 0.2 tests on a fifth of all points, labelled ones too"
        )
    return found + _untested(run, dataset, set(missing))


def _dominated(trainer: Trainer, rows: Split) -> list[str]:
    """A sentence about rows of a table that decide its mean bound, if there are a few such."""
    if trainer.run.recipe.preprocessing.kind is not Kind.TABLE:
        return []
    return [*filter(None, [domination(trainer.model, rows, trainer.device)])]


def _untested(run: Run, dataset: Dataset, missing: Set[str]) -> list[str]:
    """A sentence for each label, but for the missing ones, with values that no tested point has."""
    found = []
    for factor in run.recipe.labelled:
        name, splits = run.recipe.label_names[factor], (dataset.train, dataset.split(dataset.tested))
        trained, tested = (_values(split, factor) for split in splits)
        if name not in missing and trained - tested:
            values = [f"'{run.recipe.value_text(factor, value)}'" for value in sorted(trained - tested)]
            found.append(
                f"none of the {SPLITS[dataset.tested]} has the {name} {shortened(values)}, so the "
                "measures say nothing about it; with --fold 1/5, 2/5, … every point is tested on once"
            )
    return found


def _values(rows: Split, column: int) -> set[int]:
    values = set() if rows.labels is None else set(rows.labels[:, column].unique().tolist())
    return {value for value in values if value >= 0}


@torch.no_grad()
def draw(run: Run, model: Any, rows: Split, split: str, measures: Mapping[str, Any]) -> None:
    """Draw every figure that suits the data into the run's folder; the curves of training come there last.

    Args:
        run: the run.
        model: as trained.
        rows: data to reconstruct.
        split: what they are called.
        measures: of these rows. The confusion is drawn of labels that were trained on, or else of those that
            clusters agree with best by their ``ari``, which many values do not raise.
    """
    records = [json.loads(line) for line in (run.folder / METRICS).read_text().splitlines()]
    shown = records if run.recipe.factorial else [{**one, "kl_r": None, "kl_global": None} for one in records]
    drawn = {TRAINING: figures.training_curves(shown, run.recipe.factor_names)}
    drawn |= run.recipe.draw_figures(model, rows, split, records)
    if confused := _confused(measures):
        drawn["confusion"] = figures.confusion(confused)
    folder = run.folder / FIGURES
    with TemporaryDirectory(dir=run.folder) as temporary:
        for name, figure in drawn.items():
            figures.save(figure, Path(temporary) / f"{name}.png")
        folder.mkdir(exist_ok=True)
        # This one last, so that where it is, the others are.
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.stem == TRAINING):
            path.replace(folder / path.name)


def _confused(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    if classified := measures.get("classification"):
        return dict(classified)
    clustered = measures.get("clustering", {})
    best = sorted(clustered, key=lambda name: -clustered[name]["ari"])[:CONFUSED]
    return {name: clustered[name] for name in best}
