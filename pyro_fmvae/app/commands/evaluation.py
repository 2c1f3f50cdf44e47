"""The command ``evaluate``: print the measures of a run."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, add_seed, check_seed
from pyro_fmvae.app.commands.data_rows import add_rows, rows_of
from pyro_fmvae.app.commands.factor_settings import open_factorial
from pyro_fmvae.app.runs.by_batches import domination, in_order, naming_far_rows
from pyro_fmvae.app.runs.label_measures import agreement, references
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Batches, Kind, Split
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.evaluate import (
    Leakage,
    bound,
    dci,
    encode_split,
    factor_accuracy,
    leakage,
    mutual_information,
    neighbour_probe,
    tighter_bounds,
)
from pyro_fmvae.evaluate.amortisation import amortisation_gap
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.learn.cluster_tree import Clusters
from pyro_fmvae.models import FactorialMixtureVAE

PROBE_ROWS = 5000  # training rows that probes are fitted to
DRAWS = 100_000
"""Draws, for all points together, that equation 11 is averaged over at most: more cost time and tell nothing.

With 10,000 binarised digits, the standard error of such an average is near 0.01 nats.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`evaluate`."""
    add_rows(parser)
    add_seed(parser)
    parser.add_argument(
        "--num-samples", type=int, default=0, help="draws of z per point, which add two tighter bounds"
    )
    parser.add_argument(
        "--points", type=int | None, help="evaluate only this many points, the first ones; default: all"
    )
    text = "add the bound after this many steps on each point's own posterior, and its gap to the encoder's"
    parser.add_argument("--free-steps", type=int, default=0, help=text)
    text = "add leakage, disentanglement, and the information of each factor about each label"
    parser.add_argument("--probes", type=bool, default=False, nargs="?", const=True, help=text)


def evaluate(
    run: str,
    data: str | None,
    data_root: str | None,
    split: str | None,
    num_samples: int,
    points: int | None,
    free_steps: int,
    probes: bool,
    seed: int,
    device: str,
) -> int:
    """Print the measures of a run as one JSON object on one line.

    Bounds are in nats per data point.

    Raises:
        ValueError: bad data, a bad number, or a measure that the run's model does not have.
    """
    if num_samples < 0:
        raise ValueError(f"num_samples: expected a number >= 0, got {num_samples}")
    if free_steps < 0:
        raise ValueError(f"free_steps: expected a number >= 0, got {free_steps}")
    if points is not None and points < 1:
        raise ValueError(f"points: expected a number >= 1, got {points}")
    check_seed(seed)
    from pyro_fmvae.app.runs import estimator_run  # here, as --help has no use for scikit-learn

    if (found := estimator_run.opened(run, device)) is not None:
        asked = {"split": split, "num_samples": num_samples, "points": points, "free_steps": free_steps}
        for name, value in (asked | {"probes": probes}).items():
            if value:
                raise ValueError(f"{name}: expected none, a run of {found.name} has no such measures")
        print(json.dumps(found.measures(*found.load(data))))
        return 0
    left_out = dict[str, dict[str, int]]()
    opened = open_factorial(run, "--probes") if probes else Run.open(Path(run))
    if probes and opened.recipe.tables:
        raise ValueError(f"run: --probes needs latents, but this run's model ({opened.recipe.name}) has none")
    place = resolve_device(device)
    model = opened.load_model(place)
    rows, label_names = rows_of(opened, data, data_root, split, left_out=left_out)
    if points is not None:
        rows = rows.select(torch.arange(min(points, len(rows))))
    if free_steps and len(rows) < 2:
        raise ValueError(f"free_steps: expected two points at least, for a standard error, got {len(rows)}")
    batches = in_order(rows, place)
    if num_samples and not model.bounded:
        raise ValueError(
            "num_samples: expected a model with a bound, but an auto-encoder (--posterior point) has none"
        )
    if free_steps and (opened.recipe.indexed or not (opened.recipe.gaussian_codes and model.bounded)):
        raise ValueError(
            "free_steps: expected a model whose encoder gives Gaussian posteriors, but that of this run "
            f"({opened.recipe.name}) does not"
        )
    with naming_far_rows(model, rows, place, seed):
        result = _bounds(model, batches, num_samples, free_steps, seed)
    if opened.recipe.preprocessing.kind is Kind.TABLE and (sentence := domination(model, rows, place)):
        print(sentence, file=sys.stderr)
    own = data is None or data == opened.config.data
    trained_on = Path(opened.config.data).resolve()
    if data is not None and data not in LOADERS and Path(data).resolve() == trained_on:
        print(f"{data} has the training points, too; without --data they are left out", file=sys.stderr)
    result["used_components"] = opened.recipe.used_components(model)
    if (clusters := Clusters.of_model(model)) is not None:
        result["clusters"] = clusters.number
    if opened.recipe.factorial and rows.labels is not None:
        result |= agreement(opened, model, rows, label_names, place)
    result |= opened.recipe.measures(model, batches, (split or "test") if own else None)
    if result.get("classification"):
        result["classification"] = _beside_references(
            opened, model, rows, label_names, result["classification"], data_root, place
        )
    if left_out:
        result["left_out"] = left_out
    missing = [
        opened.recipe.label_names[i]
        for i in opened.recipe.labelled
        if opened.recipe.label_names[i] not in label_names
    ]
    if missing:
        listed = f"its labels are {', '.join(label_names)}" if label_names else "it has no labels"
        print(f"{data} tells nothing about {', '.join(missing)}: {listed}", file=sys.stderr)
    if probes:
        train = opened.load_data(data_root).train
        result |= probe(opened, model, train, rows, label_names, seed, place)
    print(json.dumps(result))
    return 0


def _beside_references(
    run: Run,
    model: Any,
    rows: Split,
    label_names: tuple[str, ...],
    classified: dict[str, dict[str, Any]],
    data_root: str | None,
    device: torch.device,
) -> dict[str, dict[str, Any]]:
    """Add references to a ``classification`` if the training data are still there."""
    try:
        train = run.load_data(data_root).train
    except (FileNotFoundError, ValueError) as error:
        print(f"no majority and no logistic_regression without the training data: {error}", file=sys.stderr)
        return classified
    found = references(run, model, train, rows, label_names, device)
    return {name: measures | found[name] for name, measures in classified.items()}


def _bounds(model: Any, batches: Batches, num_samples: int, free_steps: int, seed: int) -> dict[str, Any]:
    """Compute the bound and its parts, tighter bounds if draws are asked for, and the amortisation gap."""
    draws = max(1, min(num_samples, DRAWS // batches.num_data))
    result: dict[str, Any] = bound(model, batches, seed, draws)
    if not model.bounded:
        result |= {"elbo": None, "kl_z": None}
    if num_samples:
        result |= tighter_bounds(model, batches, num_samples, seed)
    if free_steps:
        found = amortisation_gap(model, batches, free_steps, seed=seed)
        result |= {name: value for name, value in found.items() if name != "n"}
    return result


def probe(
    run: Run,
    model: FactorialMixtureVAE,
    train: Split,
    rows: Split,
    label_names: tuple[str, ...],
    seed: int,
    device: torch.device,
) -> dict[str, Any]:
    """Measure leakage, disentanglement and mutual information.

    Args:
        run: the model's run, which names the labels of the training rows.
        model: the trained model.
        train: training rows, which probes are fitted to.
        rows: rows that probes are scored on.
        label_names: of the labels of `rows`; labels that the run does not know are left out.
        seed: of the choice of training rows, of draws, and of the forest.
        device: the model's device.

    Returns:
        A JSON object.

    Raises:
        ValueError: training rows or `rows` lack labels, or have none in common.
    """
    names = tuple(name for name in run.recipe.label_names if name in label_names)
    if train.labels is None or rows.labels is None or not names:
        raise ValueError("probes: expected labels in the training data and in the data at hand")
    ours = Split(
        train.x, train.labels[:, _places(names, run.recipe.label_names)], train.resample, train.signed
    )
    theirs = Split(rows.x, rows.labels[:, _places(names, label_names)], rows.resample, rows.signed)
    assert theirs.labels is not None
    if not any(len(column[column >= 0].unique()) > 1 for column in theirs.labels.T):
        raise ValueError(
            f"probes: expected two known values of {' or '.join(names)} in the data at hand; where labelled "
            "rows are all in training, give --split train, or train with --test 0.2"
        )
    fitted = encode_split(model, ours, PROBE_ROWS, seed=seed, device=device)
    scored = encode_split(model, theirs, device=device)
    draws = (
        encode_split(model, ours, PROBE_ROWS, drawn=True, seed=seed, device=device),
        encode_split(model, theirs, drawn=True, seed=seed, device=device),
    )
    own = run.recipe.factors_of(names)
    forest = dci(fitted, scored, seed)
    information = mutual_information(scored.codes, scored.labels)
    return {
        "leakage": _leakage(names, leakage(fitted, scored, own)),
        "leakage_nonlinear": _leakage(names, leakage(fitted, scored, own, neighbour_probe)),
        "leakage_of_draws": _leakage(names, leakage(*draws, own, neighbour_probe)),
        "disentanglement": {
            "mig": information.mig,
            "dci": {
                "disentanglement": forest.disentanglement,
                "completeness": forest.completeness,
                "informativeness": forest.informativeness,
            },
        },
        "information": _table(run.recipe.factor_names, names, information.nats),
        "factor_accuracy": _table(run.recipe.factor_names, names, factor_accuracy(fitted, scored)),
    }


def _places(names: tuple[str, ...], among: tuple[str, ...]) -> list[int]:
    return [among.index(name) for name in names]


def _leakage(names: tuple[str, ...], found: Leakage) -> dict[str, dict[str, Any]]:
    """Tabulate accuracies by property, without properties that no probe could learn."""
    columns = {
        "own": found.own,
        "leaked": found.leaked,
        "leaked_skill": found.leaked_skill,
        "majority": found.majority,
    }
    return {
        name: {column: _number(values[j]) for column, values in columns.items()}
        | {"block": int(found.block[j])}
        for j, name in enumerate(names)
        if not np.isnan(found.majority[j])
    }


def _table(
    factors: tuple[str, ...], names: tuple[str, ...], values: np.ndarray
) -> dict[str, dict[str, float | None]]:
    return {
        factor: {name: _number(value) for name, value in zip(names, row, strict=True)}
        for factor, row in zip(factors, values, strict=True)
    }


def _number(value: float) -> float | None:
    """Convert to a JSON number; NaN becomes null."""
    return None if np.isnan(value) else float(value)


COMMAND = Command(
    "evaluate", "print measures of a run as one JSON object", "Evaluate a run.", add_arguments, evaluate
)
