"""Gains of a falling learning rate, of weight decay and of warps of half of the images, one by one.

    python examples/generalisation.py --data-root DIR --out generalisation-rows
    python examples/generalisation.py --data-root DIR --out generalisation-rows --rows both-seed0
    python examples/generalisation.py --out generalisation-rows --report

One factor of 64 components and 64 dimensions on statically binarised MNIST, with perceptrons of 500 units
instead of the paper's convolutions, which would take an hour per row on a CPU. All rows of a seed start from
the same pretrained networks and take the same number of iterations. Each is evaluated on validation images
and on as many training images. Finished rows are not run again. The script ends with a table of all finished
rows.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep import Row, main, scaled, where

SEEDS = (0, 1)
POINTS = 10_000
NETWORKS = {"data": "mnist-static", "network": "mlp", "hidden": (500, 500), "factor_dim": 64}
PRETRAINING = {"model": "vae", "pretrain_iterations": 5000, "joint_iterations": 0}
TRAINING = {"factors": (64,), "prior_iterations": 500, "joint_iterations": 40_000}
CONSTANT, FALLING = {"final_learning_rate": 1e-3}, {"final_learning_rate": 1e-5}
DECAY, WARPS = {"weight_decay": 0.05}, {"augmentation": 0.33}
KINDS: dict[str, dict[str, Any]] = {
    "constant": CONSTANT,
    "falling": FALLING,
    "decay": {**FALLING, **DECAY},
    "warps": {**FALLING, **WARPS},
    "both": {**FALLING, **DECAY, **WARPS},
}
COLUMNS = (
    *("row", "seed", "rate falls to", "weight decay", "warps", "ELBO, validation", "ELBO, training"),
    *("difference", "in use", "minutes"),
)


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """Seed by seed."""
    given = where(chosen)
    evaluate = {
        "held out": {"split": chosen.split, "points": POINTS, "num_samples": 5},
        "training": {"split": "train", "points": POINTS, "num_samples": 5},
    }
    for seed in SEEDS:
        common, start = {**NETWORKS, **given, "seed": seed}, f"pretrained-seed{seed}"
        yield Row(start, scaled({**common, **PRETRAINING}, chosen.scale))
        for name, learning in KINDS.items():
            train = scaled({**common, **TRAINING, **learning}, chosen.scale)
            about = {"kind": name, "split": chosen.split, "learning": learning}
            yield Row(f"{name}-seed{seed}", train, evaluate, start, about)


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """One line per row, equation 11 in nats per image."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for record in records:
        learning = record["learning"]
        held_out, training = (record["result"][name]["elbo"] for name in ("held out", "training"))
        lines.append(
            (
                record["kind"],
                str(record["seed"]),
                f"{learning['final_learning_rate']:g}",
                f"{learning.get('weight_decay', 0):g}",
                f"{learning.get('augmentation', 0):g}",
                f"{held_out:.2f}",
                f"{training:.2f}",
                f"{training - held_out:.2f}",
                str(record["result"]["held out"]["used_components"][0]),
                f"{record['seconds'] / 60:.0f}",
            )
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main(__doc__, "generalisation-rows", rows, report)
