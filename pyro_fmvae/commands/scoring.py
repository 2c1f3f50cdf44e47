"""The command ``score``: write outlier scores of data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser

from pyro_fmvae.commands.command import Command
from pyro_fmvae.commands.data_rows import add_rows, file_names, rows_of
from pyro_fmvae.commands.output_files import check_different, check_ending, check_spares_data, save_arrays
from pyro_fmvae.commands.row_tables import TABLES, check_installed, point_names, save_table
from pyro_fmvae.commands.seeds import add_seed, check_seed
from pyro_fmvae.evaluate import NEAREST, Neighbours, outlier_scores, threshold
from pyro_fmvae.ranks import world
from pyro_fmvae.runs.by_batches import COMPARED, in_order
from pyro_fmvae.runs.run import Run, resolve_device


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`score`."""
    add_rows(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz, .csv or .parquet")
    text = "share of the training points that a threshold is not to be exceeded by"
    parser.add_argument("--quantile", type=float, default=0.95, help=text)
    parser.add_argument("--num-samples", type=int, default=16, help="draws per point")
    parser.add_argument("--points", type=int | None, help="score the first so many points; default: all")
    text = "compare with the first so many training points, and take thresholds from them"
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
    """Write outlier scores of data, in row order; print thresholds and a summary as one JSON object.

    An .npz has the thresholds, too; a table (.csv, .parquet) has a row per point.

    Raises:
        ValueError: bad data, a bad number or file name.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile: expected a number in [0, 1], got {quantile}")
    for name, number in (("num_samples", num_samples), ("points", points), ("train_points", train_points)):
        if number is not None and number < 1:
            raise ValueError(f"{name}: expected a number >= 1, got {number}")
    check_seed(seed)
    target = Path(out)
    check_ending(target, (".npz", *TABLES))
    check_installed(target)
    check_different(data=data, out=out)
    ranks = world()
    with ranks.agreeing(same_draws=False):
        opened = Run.open(Path(run))
        check_spares_data(opened, target)
        place = resolve_device(device)
        model = opened.load_model(place)
        rows, _ = rows_of(opened, data, data_root, split, by_name=False)
        train = opened.load_data(data_root).train
    scored, compared = in_order(rows, place, points), in_order(train, place, train_points)
    scores = outlier_scores(model, scored, num_samples, seed, ranks=ranks)
    usual = outlier_scores(model, compared, num_samples, seed, ranks=ranks)
    if not ranks.leads:
        return 0
    if opened.recipe.gaussian_codes and model.bounded:
        neighbours = Neighbours(model, compared)
        scores[NEAREST] = neighbours.distances(scored)
        usual[NEAREST] = neighbours.among_training_points()
    limits = {kind: threshold(values, quantile) for kind, values in usual.items()}
    if target.suffix in TABLES:
        names = point_names(scored.num_data, file_names(opened, data))
        save_table(target, names | _columns(scores, limits))
    else:
        save_arrays(target, _arrays(scores, limits))
    print(json.dumps(_summary(scores, limits, len(usual["reconstruction"]), quantile, num_samples)))
    return 0


def _arrays(scores: dict[str, np.ndarray], limits: dict[str, float]) -> dict[str, Any]:
    """Collect each score with its threshold and a mask of what lies above it."""
    arrays: dict[str, Any] = {}
    for kind, values in scores.items():
        arrays |= {
            kind: values,
            f"{kind}_threshold": limits[kind],
            f"{kind}_outlying": values > limits[kind],
        }
    return arrays


def _columns(scores: dict[str, np.ndarray], limits: dict[str, float]) -> dict[str, np.ndarray]:
    """Collect each score with a column of what lies above its threshold."""
    columns: dict[str, np.ndarray] = {}
    for kind, values in scores.items():
        columns |= {kind: values, f"{kind} outlying": values > limits[kind]}
    return columns


def _summary(
    scores: dict[str, np.ndarray],
    limits: dict[str, float],
    train_points: int,
    quantile: float,
    num_samples: int,
) -> dict[str, Any]:
    """Summarise the scores for printing; an infinite mean becomes null, since JSON has no infinity."""
    n = len(next(iter(scores.values())))
    common = {"n": n, "train_points": train_points, "quantile": quantile, "num_samples": num_samples}
    return common | {
        kind: {
            "threshold": limits[kind],
            "outlying": float((values > limits[kind]).mean()),
            "mean": float(values.mean()) if np.isfinite(values).all() else None,
        }
        for kind, values in scores.items()
    }


COMMAND = Command(
    "score",
    "write outlier scores of data",
    "Write outlier scores of data, thresholds, and what lies above them (.npz, .csv, .parquet).",
    add_arguments,
    score,
    shared=True,
)
