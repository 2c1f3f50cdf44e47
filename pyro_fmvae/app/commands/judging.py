"""The command ``judge``: let a classifier stand in for people and judge generated and edited images."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command, add_seed, check_seed
from pyro_fmvae.app.commands.data_rows import add_rows, known_values, rows_of, tell_left_out
from pyro_fmvae.app.commands.factor_settings import open_factorial
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Dataset, Split, whole
from pyro_fmvae.evaluate import (
    Generation,
    Judge,
    judged_edits,
    judged_generation,
    load_judge,
    save_judge,
    train_judge,
)
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.files import checkpoint

FOLDER = "judge"
SHEET, KEY = "sheet.png", "key.csv"
JUDGE_SEED = 0  # one judge per data set, whatever the run's seed
SHEET_COLUMNS = 9


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`judge`."""
    add_rows(parser)
    parser.add_argument("--samples", type=int, default=500, help="images to generate")
    parser.add_argument("--edits", type=int, default=500, help="real images to edit, at most")
    parser.add_argument("--sheet", type=int, default=54, help="images on the sheet for people; 0: no sheet")
    add_seed(parser)


def judge(
    run: str,
    data: str | None,
    data_root: str | None,
    split: str | None,
    samples: int,
    edits: int,
    sheet: int,
    seed: int,
    device: str,
) -> int:
    """Print a judge's verdict on a run as one JSON object on one line; write a sheet of images for people.

    Raises:
        ValueError: a run without images or labelled factors, data without its labels, or a bad number.
    """
    for name, value in (("samples", samples), ("edits", edits)):
        if value < 1:
            raise ValueError(f"{name}: expected a number >= 1, got {value}")
    if sheet < 0:
        raise ValueError(f"sheet: expected a number >= 0, got {sheet}")
    check_seed(seed)
    opened = open_factorial(run, "judge")
    if not opened.image:
        raise ValueError(f"run: a judge looks at images, {opened.folder} was trained on none")
    if not opened.labelled:
        raise ValueError(f"run: {opened.folder} has no labelled factors, so nothing can be intended")
    opened.check_folder("the judge and its sheet")
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, names = rows_of(opened, data, data_root, split)
    dataset = opened.load_data(data_root)
    sizes = dict(zip(dataset.label_names, dataset.label_sizes, strict=True))
    rows, left_out = known_values(rows, names, sizes)
    for name, counts in left_out.items():
        tell_left_out(name, counts, [str(value) for value in range(sizes[name])])
    x, labels = whole(_with_properties(rows, names, opened.label_names), place)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:edits].to(place)
    expert = _judge_of(opened, dataset, place)
    generation = judged_generation(model, expert, samples, seed)
    edited = judged_edits(model, expert, x[chosen], labels[chosen], seed)
    properties, intended = opened.label_names, opened.label_names[: len(opened.labelled)]
    result: dict[str, Any] = {
        "judge": _named(properties, expert.accuracy(x, labels)),
        "generated": _named(intended, generation.accuracy),
        "reconstructed": _named(properties, edited.reconstructed),
    }
    measures = ("flipped", "kept", "kept_least", "kept_of_original")
    by_measure = {measure: _named(intended, getattr(edited, measure)) for measure in measures}
    result["edited"] = {
        name: {measure: by_measure[measure][name] for measure in measures} for name in intended
    }
    result |= {"samples": samples, "edits": len(chosen)}
    if sheet:
        _write_sheet(opened, judged_generation(model, expert, sheet, seed))
    print(json.dumps(result))
    return 0


def _with_properties(rows: Split, names: tuple[str, ...], properties: tuple[str, ...]) -> Split:
    """Give the rows a label column for each property, -1 (unknown) for properties they have no labels of."""
    if rows.labels is None or not set(names) & set(properties):
        raise ValueError(f"data: expected labels for {', '.join(properties)}, there are none")
    unknown = torch.full((len(rows),), -1)
    columns = [rows.labels[:, names.index(name)] if name in names else unknown for name in properties]
    return Split(rows.x, torch.stack(columns, -1), rows.resample, rows.signed)


def _judge_of(run: Run, dataset: Dataset, device: torch.device) -> Judge:
    """Load the judge from the run's folder; if there is none, train it and save it there."""
    folder = run.folder / FOLDER
    sizes = tuple(max(size, 1) for size in dataset.label_sizes)
    if not (folder / checkpoint.TENSORS).exists():
        expert = train_judge(dataset.train, sizes, seed=JUDGE_SEED, device=device)
        save_judge(expert, folder)
        return expert
    expert = load_judge(folder, device)
    if (expert.image_shape, expert.label_sizes) != (dataset.event_shape, sizes):
        raise ValueError(f"judge: that in {folder} was trained on other data; delete the folder")
    return expert


def _named(names: tuple[str, ...], values: Tensor) -> dict[str, float | None]:
    """Map names to values, null where there is nothing to measure."""
    return {
        name: None if math.isnan(value) else value for name, value in zip(names, values.tolist(), strict=True)
    }


def _write_sheet(run: Run, generation: Generation) -> None:
    """Write generated images without text, and in a second file their intended and judged properties."""
    folder = run.folder / FOLDER
    images = run.preprocessing.undo(generation.images).cpu().numpy()
    figures.save(figures.blind_sheet(images, columns=SHEET_COLUMNS), folder / SHEET)
    names, text = run.label_names[: len(run.labelled)], run.recipe.value_text

    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["image", *names, *(f"judged {name}" for name in names)])
            pairs = zip(generation.intended.tolist(), generation.judged.tolist(), strict=True)
            for number, (intended, judged) in enumerate(pairs, 1):
                writer.writerow(
                    [number, *(text(*pair) for values in (intended, judged) for pair in enumerate(values))]
                )

    checkpoint.write_atomically(folder / KEY, write)


COMMAND = Command(
    "judge",
    "let a classifier judge what a run generates and edits",
    "Judge generated and edited images of a run with labelled factors.",
    add_arguments,
    judge,
)
