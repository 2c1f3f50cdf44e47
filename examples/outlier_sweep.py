"""Letters as outliers among digits, and the reverse: the area under the ROC curve of each score.

    python examples/outlier_sweep.py --data-root DIR --out outlier-rows
    python examples/outlier_sweep.py --data-root DIR --out outlier-rows --rows mnist-VAE-seed0
    python examples/outlier_sweep.py --out outlier-rows --report

Models are trained on MNIST or Omniglot, 28x28 greys binarised at one half, and then score 2,000 held-out
images of each. The prior is N(0, I), or two factors of 16 components. All rows of a seed and a data set start
from the same pretrained networks and take the same number of steps. An area of 1 is perfect and 0.5 is
chance; below that, the score finds the other data set less surprising. Finished rows are not run again. The
script ends with a table of all finished rows.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sweep import Row, Sweep, main, options, scaled, where

DATA = ("mnist", "omniglot")
SEEDS = (0, 1)
KINDS = ("kl", "reconstruction", "elbo", "iwae")
DIM = 32  # of z
NETWORKS = {"binarization": "threshold", "network": "mlp", "hidden": (400,), "batch_size": 128}
PRETRAINING = {"model": "vae", "factor_dim": DIM, "pretrain_iterations": 2000, "joint_iterations": 0}
JOINT = {"joint_iterations": 4000, "final_learning_rate": 1e-4}
PRIORS = {
    "VAE": {"model": "vae", "factor_dim": DIM},
    "mixture": {"factors": (16, 16), "factor_dim": DIM // 2, "prior_iterations": 500},
}
POINTS = 2000


class Scores(Sweep):
    """Rows evaluated by ``pyro-fmvae score`` on data like the training data and on others."""

    def evaluations(self, row: Row, folder: Path) -> dict[str, list[str]]:
        """Commands that write the arrays of scores into the run's folder."""
        return {
            name: ["score", str(folder), *options({**given, "out": _scores(folder, name)})]
            for name, given in row.evaluate.items()
        }

    def result(self, row: Row, folder: Path) -> dict[str, Any]:
        """Summaries of the scores, and the area under the ROC curve of each."""
        printed = super().result(row, folder)
        with np.load(_scores(folder, "usual")) as usual, np.load(_scores(folder, "unusual")) as unusual:
            truth = np.repeat([0, 1], [len(usual["elbo"]), len(unusual["elbo"])])
            areas = {
                kind: float(roc_auc_score(truth, np.concatenate([usual[kind], unusual[kind]])))
                for kind in KINDS
            }
        return {**printed, "areas": areas}


def _scores(folder: Path, name: str) -> Path:
    return folder / f"scores-{name}.npz"


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """All rows, seed by seed."""
    given = where(chosen)
    for seed in SEEDS:
        for data, other in (DATA, DATA[::-1]):
            common = {"data": data, **given, **NETWORKS, "seed": seed}
            start = f"{data}-pretrained-seed{seed}"
            yield Row(start, scaled({**common, **PRETRAINING}, chosen.scale))
            score = {**given, "split": chosen.split, "points": POINTS}
            evaluate = {"usual": {"data": data, **score}, "unusual": {"data": other, **score}}
            for name, prior in PRIORS.items():
                train = scaled({**common, **prior, **JOINT}, chosen.scale)
                about = {"data": data, "other": other, "prior": name, "split": chosen.split}
                yield Row(f"{data}-{name}-seed{seed}", train, evaluate, start, about)


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """One line per row."""
    columns = ("trained on", "outliers", "model", "seed", *KINDS)
    lines = [columns, ("---",) * len(columns)]
    for record in records:
        areas = (f"{record['result']['areas'][kind]:.3f}" for kind in KINDS)
        about = (record[name] for name in ("data", "other", "prior"))
        lines.append((*about, str(record["seed"]), *areas))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main(__doc__, "outlier-rows", rows, report, Scores)
