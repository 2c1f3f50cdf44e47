"""Characters of thirty alphabets without labels: clusters with and without warps.

    python examples/omniglot_clusters.py --data-root DIR --out character-rows
    python examples/omniglot_clusters.py --data-root DIR --out character-rows --rows views-seed0
    python examples/omniglot_clusters.py --out character-rows --report

One factor of 64 components and 16 dimensions with perceptrons of 500 units. Rows ``warps`` have encoders that
see warped characters; rows ``views`` see each character twice, with a warp of its own each time, for half as
many joint iterations; rows ``plain`` have no warps. The decoder always explains characters as they are.
Measures compare clusters with the character and with the alphabet that each image is of. Finished rows are
not run again. The script ends with a table of all finished rows.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep import Row, main, scaled, where

SEEDS = range(2)
NETWORKS = {"data": "omniglot", "network": "mlp", "hidden": (500, 500), "factor_dim": 16, "batch_size": 128}
PRETRAINING = {"model": "vae", "pretrain_iterations": 4000, "pretrain_kl_weight": 0.1, "joint_iterations": 0}
MIXTURE = {"factors": (64,), "prior_iterations": 300, "prior_restarts": 6, "restart_every": 2000}
JOINT = 12_000
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"distortion": 0.0, "joint_iterations": JOINT},
    "warps": {"distortion": 1.0, "joint_iterations": JOINT},
    "views": {"distortion": 1.0, "joint_iterations": JOINT // 2, "views": 2},
}
LABELS = "character", "alphabet"
MEASURES = "ami", "ari"


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """Seed by seed; rows with warps start from networks that were pretrained with warps."""
    given = where(chosen)
    evaluate = {"result": {"split": chosen.split}}
    for seed in SEEDS:
        for kind, options in KINDS.items():
            common = {**NETWORKS, **given, "seed": seed, "distortion": options["distortion"]}
            start = f"pretrained-{'warps' if options['distortion'] else 'plain'}-seed{seed}"
            if kind != "views":
                yield Row(start, scaled({**common, **PRETRAINING}, chosen.scale))
            train = scaled({**common, **MIXTURE, **options}, chosen.scale)
            yield Row(f"{kind}-seed{seed}", train, evaluate, start, {"kind": kind, "split": chosen.split})


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """Means over seeds for each kind of row."""
    lines = [
        "| rows | seeds | ELBO | " + " | ".join(f"{m}, {label}" for label in LABELS for m in MEASURES) + " |"
    ]
    lines.append("| --- " * (3 + len(LABELS) * len(MEASURES)) + "|")
    for kind in KINDS:
        found = [record["result"]["result"] for record in records if record["kind"] == kind]
        if found:
            agreed = [[r["clustering"][label][m] for r in found] for label in LABELS for m in MEASURES]
            cells = " | ".join(f"{statistics.mean(values):.3f}" for values in agreed)
            bound = statistics.mean(r["elbo"] for r in found)
            lines.append(f"| {kind} | {len(found)} | {bound:.2f} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, "character-rows", rows, report)
