"""The report at the end of a training: measures on test data, printed, and the run's figures and page."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pyro_fmvae import figures
from pyro_fmvae.data import Dataset, Split
from pyro_fmvae.evaluate import label_agreement
from pyro_fmvae.recipes.pictures import TRAINING
from pyro_fmvae.runs.by_batches import in_order
from pyro_fmvae.runs.journal import BEYOND, finite_bound
from pyro_fmvae.runs.pages import PAGE, write_page
from pyro_fmvae.runs.run import FIGURES, METRICS, Run
from pyro_fmvae.runs.trainer import Trainer


def report(trainer: Trainer, dataset: Dataset) -> None:
    """Print what was learnt, on test data (validation data if there are none), draw and write the page."""
    run, model = trainer.run, trainer.model.eval()
    tested = "valid" if dataset.test is None else "test"
    names = [tested] if dataset.unseen is None else [tested, "unseen"]
    agreements, measured = {}, {}
    print()
    for name in names:
        everything = dataset.split(name)
        measures, rows = finite_bound(model, everything, trainer.device)
        measured[name] = rows
        batches = in_order(rows, trainer.device)
        text = f"reconstruction {measures['reconstruction']:.2f}"
        if model.bounded:
            assigned = f" - KL[r] {measures['kl_r']:.2f}" if run.factorial else ""
            text = f"ELBO {measures['elbo']:.2f} = {text} - KL[z] {measures['kl_z']:.2f}{assigned}"
        beyond = f" ({len(everything) - len(rows)} left out: {BEYOND})" if len(rows) < len(everything) else ""
        print(f"{len(rows):,} {name} points{beyond}, nats per point: {text}")
        if rows.labels is not None and run.factorial:
            labels = dataset.label_names
            agreements[name] = label_agreement(model, batches, labels, run.factors_of(labels))
    for line in run.recipe.summary(model):
        print(line)
    if agreements:
        _print_agreement(agreements, run.recipe.labels)
    draw(run, model, measured[tested], tested)
    write_page(run, run.folder / PAGE, model, dataset)
    print(
        f"report in {run.folder / PAGE}, figures in {run.folder / FIGURES}, everything else in {run.folder}"
    )


def _print_agreement(agreements: dict[str, dict[str, Any]], share: float) -> None:
    """Tables of the agreement with labels, by split; `unseen` are combinations that training lacked."""
    first, *others = agreements.values()
    tested, *_ = agreements
    width = max([12, *(len(label) + 1 for label in (*first["accuracy"], *first["clustering"]))])
    if first["accuracy"]:
        labelled = f"{share:.0%} of the training points were labelled"
        beside = ", then on unseen combinations" if others else ""
        print(f"\n{'property':<{width + 2}}accuracy on unlabelled {tested} points{beside} ({labelled})")
        for label in first["accuracy"]:
            columns = (
                f"{agreement['accuracy'].get(label, math.nan):.4f}" for agreement in agreements.values()
            )
            print(f"  {label:<{width}}{'  '.join(columns)}")
    if first["clustering"]:
        print(f"\n{'label':<{width + 2}}best factor   matching accuracy   NMI")
        for label, values in first["clustering"].items():
            print(f"  {label:<{width}}{values['factor']:>7}{values['accuracy']:>20.4f}{values['nmi']:>12.4f}")
    print()


@torch.no_grad()
def draw(run: Run, model: Any, rows: Split, split: str) -> None:
    """Draw every figure that suits the data into the run's folder; the curves of training come there last.

    Args:
        run: the run.
        model: as trained.
        rows: data to reconstruct.
        split: what they are called.
    """
    records = [json.loads(line) for line in (run.folder / METRICS).read_text().splitlines()]
    drawn = run.recipe.draw_figures(model, rows, split, records)
    folder = run.folder / FIGURES
    with TemporaryDirectory(dir=run.folder) as temporary:
        for name, figure in drawn.items():
            figures.save(figure, Path(temporary) / f"{name}.png")
        folder.mkdir(exist_ok=True)
        # This one last, so that where it is, the others are.
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.stem == TRAINING):
            path.replace(folder / path.name)
