"""The command ``score``: write outlier scores of data."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, add_seed, check_seed
from pyro_fmvae.app.commands.data_rows import add_rows, names_of, rows_of
from pyro_fmvae.app.commands.output_files import TABLES, output_file, save_array_parts
from pyro_fmvae.app.commands.row_tables import named_parts, save_table
from pyro_fmvae.app.runs.by_batches import COMPARED, in_order, scored_parts
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.evaluate import NEAREST, Neighbours, outlier_scores, threshold
from pyro_fmvae.evaluate.randomness import resolve_device


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`score`."""
    add_rows(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz, .csv or .parquet")
    text = "share of the training points below the threshold"
    parser.add_argument("--quantile", type=float, default=0.95, help=text)
    parser.add_argument("--num-samples", type=int, default=16, help="draws of z per point")
    parser.add_argument(
        "--points", type=int | None, help="score only this many points, the first ones; default: all"
    )
    text = (
        "number of training points, the first ones, that nearest compares with and that give the thresholds"
    )
    parser.add_argument("--train-points", type=int, default=COMPARED, help=text)
    add_seed(parser)


def score(
    run: str,
    data: str | None,
    data_root: str | None,
    split: str | None,
    out: str,
    quantile: float,
    num_samples: int,
    points: int | None,
    train_points: int,
    seed: int,
    device: str,
) -> int:
    """Write outlier scores of data, in row order; print thresholds and a summary.

    They are one JSON object, but on a terminal a few lines to read. An .npz has the thresholds, too; a table
    (.csv, .parquet) has a row per point.

    Raises:
        ValueError: bad data, a bad number or file name.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile: expected a number in [0, 1], got {quantile}")
    for name, number in (("num_samples", num_samples), ("points", points), ("train_points", train_points)):
        if number is not None and number < 1:
            raise ValueError(f"{name}: expected a number >= 1, got {number}")
    check_seed(seed)
    opened = Run.open(Path(run))
    target = output_file(opened, out, (".npz", *TABLES), data=data)
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, _ = rows_of(opened, data, data_root, split, by_name=False)
    names = names_of(opened, data, rows)
    train = opened.load_data(data_root).train
    compared = in_order(train, place, train_points)
    usual = outlier_scores(model, compared, num_samples, seed)
    parts = scored_parts(opened.recipe, model, rows, place, num_samples, seed, points)
    if opened.recipe.gaussian_codes and model.bounded:
        neighbours = Neighbours(model, compared)
        usual[NEAREST] = neighbours.among_training_points()
        distances = neighbours.distance_parts(in_order(rows, place, points))
        parts = (part | {NEAREST: nearest} for part, nearest in zip(parts, distances, strict=True))
    limits = {kind: threshold(values, quantile) for kind, values in usual.items()}
    tallies = {kind: _Tally(limit) for kind, limit in limits.items()}
    if target.suffix in TABLES:
        save_table(target, named_parts((_marked(part, tallies, " outlying") for part in parts), names))
    else:
        thresholds = {f"{kind}_threshold": limit for kind, limit in limits.items()}
        marked = (_marked(part, tallies, "_outlying") for part in parts)
        save_array_parts(target, named_parts(marked, names) if names.given else marked, thresholds)
    compared_with = len(usual["reconstruction"])
    if sys.stdout.isatty():
        print(f"wrote {target}; threshold: above {quantile:.0%} of {compared_with:,} training points")
        print(*(f"{kind:<15} {tally}" for kind, tally in tallies.items()), sep="\n")
        return 0
    common = {"train_points": compared_with, "quantile": quantile, "num_samples": num_samples}
    summary = {kind: tally.summary() for kind, tally in tallies.items()}
    print(json.dumps({"n": tallies["reconstruction"].n, **common, **summary}))
    return 0


@dataclass
class _Tally:
    """Summary of a score, counted as its values come."""

    threshold: float
    n: int = 0
    outlying: int = 0
    total: float = 0.0

    def add(self, values: np.ndarray) -> np.ndarray:
        """Count values [B]; return which of them lie above the threshold."""
        outlying: np.ndarray = values > self.threshold
        self.n, self.outlying = self.n + len(values), self.outlying + int(outlying.sum())
        self.total += float(values.sum())
        return outlying

    def __str__(self) -> str:
        share = f"{self.outlying:,} of {self.n:,} ({self.outlying / self.n:.1%})"
        return f"{share} above {self.threshold:.4g}, mean {self.total / self.n:.4g}"

    def summary(self) -> dict[str, float | None]:
        """Threshold, share above it, and mean; an infinite one becomes None, since JSON has no infinity."""
        mean = self.total / self.n if math.isfinite(self.total) else None
        return {"threshold": self.threshold, "outlying": self.outlying / self.n, "mean": mean}


def _marked(
    scores: Mapping[str, np.ndarray], tallies: Mapping[str, _Tally], ending: str
) -> dict[str, np.ndarray]:
    """Put beside each score, and count, what lies above its threshold."""
    marked: dict[str, np.ndarray] = {}
    for kind, values in scores.items():
        marked |= {kind: values, f"{kind}{ending}": tallies[kind].add(values)}
    return marked


COMMAND = Command(
    "score",
    "write outlier scores of data",
    "Write outlier scores of data, thresholds, and what lies above them (.npz, .csv, .parquet).",
    add_arguments,
    score,
)
