"""Digits without labels and with 100 of them: accuracy of clusters, and of a classifier.

    python examples/mnist_clusters.py --data-root DIR --out cluster-rows
    python examples/mnist_clusters.py --data-root DIR --out cluster-rows --rows K10-seed0,labels-seed0
    python examples/mnist_clusters.py --out cluster-rows --report --figure digits.png

One factor of 10 dimensions with perceptrons of 500 units. In training the encoder sees warped digits, and the
decoder explains the undistorted ones. Pretraining gives KL[z] a small weight. The best of 12 starts of the
mixture, by its bound, is kept.

Rows K10 and K20 have no labels. The labelled rows start from the networks of K10 and have ten components and
100 labels of 50,000 images, redrawn for each seed. K10-restarts restarts the mixture every 3,000 iterations
of the joint phase. K10-long is the run with the best bound, with more iterations. K10-plain has no warps.

Rows with ``views`` in their names see each image twice, with a warp of its own before the encoder each time:
two latent vectors, one assignment. Others start from the networks of K10-views and have weaker warps:
K10-views-weaker without labels, labels-views with 10 labels (one for each digit), 100 or 1,000;
labels-views-20 has two components for each digit. All are evaluated on one view, the image as it is.

Accuracy without labels is that of the best one-to-one matching of components to digits; ``majority`` names
each component after its most common digit. A run is chosen by its bound alone: that of the program of views
where it has views, of equation 11 elsewhere. Finished rows are not run again. The script ends with a summary
of all finished rows.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import digits_figure
from sweep import Row, main, scaled, where

SEEDS = range(10)
PLAIN_SEED = 0
FIVE_SEEDS = range(5)  # of rows with 10 or 1,000 labels
FEW_SEEDS = range(3)  # of K20-views
LONG_SEED = 2  # the greatest bound of K10 with seeds 0 to 5
LABELLED = 0.002  # of 50,000 images: 100
NETWORKS = {"data": "mnist", "network": "mlp", "hidden": (500, 500), "factor_dim": 10, "batch_size": 128}
WARPED, PLAIN = {"distortion": 1.0}, {"distortion": 0.0}
PRETRAINING = {"pretrain_iterations": 5000, "pretrain_kl_weight": 0.1, "joint_iterations": 0}
PRIOR = {"prior_iterations": 300, "prior_restarts": 12}
JOINT = {"joint_iterations": 30_000}
RESTARTS = {"restart_every": 3000}
VIEWS = {"views": 2, "joint_iterations": 15_000, **RESTARTS}  # as many encoded images as in JOINT
LONG = {"joint_iterations": 100_000}
WITH_LABELS = {
    "labels": LABELLED,
    "label_weight": 1000.0,
    "joint_iterations": 20_000,
    "refine_iterations": 1000,
}
WEAKER_VIEWS = {"views": 2, "joint_iterations": 10_000, "distortion": 0.5}
MORE_LABELS = {**WITH_LABELS, "labels": 0.02}
ONE_LABEL_A_DIGIT = {**WITH_LABELS, "labels": "one-per-value"}
NUMBERS = {  # of labels, by kind of row
    "labels": 100,
    "labels-views-10": 10,
    "labels-views": 100,
    "labels-views-20": 100,
    "labels-views-1000": 1000,
}
KINDS = (
    *("K10", "K10-restarts", "K10-views", "K10-views-weaker", "K10-long", "K10-plain", "K20", "K20-views"),
    *("labels", "labels-views-10", "labels-views", "labels-views-20", "labels-views-1000"),
)
CONFUSED = "K10-views-weaker"  # rows of which the figure has the clusters of the greatest bound
SERIES = {  # rows of the figure
    "one view": ("K10", "labels"),
    "several views": ("K10-views-weaker", "labels-views-10", "labels-views", "labels-views-1000"),
}


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """Seed by seed, so that what is there is complete up to some seed."""
    given = where(chosen)
    evaluate = {"result": {"split": chosen.split}}
    for seed in SEEDS:
        common = {**NETWORKS, **given, **WARPED, "seed": seed}
        start = f"pretrained-seed{seed}"
        yield Row(start, scaled({**common, "model": "vae", **PRETRAINING}, chosen.scale))
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("K10", start, {"factors": (10,), **PRIOR, **JOINT}),
            ("K10-restarts", start, {"factors": (10,), **PRIOR, **JOINT, **RESTARTS}),
            ("labels", f"K10-seed{seed}", {"factors": (10,), **PRIOR, **WITH_LABELS}),
            ("K20", start, {"factors": (20,), **PRIOR, **JOINT}),
        ]
        ten, twenty = {"factors": (10,), **PRIOR}, {"factors": (20,), **PRIOR}
        after = f"K10-views-seed{seed}"
        kinds += [
            ("K10-views", start, {**ten, **VIEWS}),
            ("K10-views-weaker", after, {**ten, **WEAKER_VIEWS}),
            ("labels-views", after, {**ten, **WITH_LABELS, **WEAKER_VIEWS}),
            ("labels-views-20", after, {**twenty, **WITH_LABELS, **WEAKER_VIEWS, "per_value": 2}),
        ]
        if seed in FIVE_SEEDS:
            kinds += [
                ("labels-views-10", after, {**ten, **ONE_LABEL_A_DIGIT, **WEAKER_VIEWS}),
                ("labels-views-1000", after, {**ten, **MORE_LABELS, **WEAKER_VIEWS}),
            ]
        if seed in FEW_SEEDS:
            kinds.append(("K20-views", start, {**twenty, **VIEWS}))
        if seed == LONG_SEED:
            kinds.append(("K10-long", start, {"factors": (10,), **PRIOR, **LONG}))
        if seed == PLAIN_SEED:
            start = f"pretrained-plain-seed{seed}"
            yield Row(start, scaled({**common, **PLAIN, "model": "vae", **PRETRAINING}, chosen.scale))
            kinds.append(("K10-plain", start, {"factors": (10,), **PLAIN, **PRIOR, **JOINT}))
        for name, after, train in kinds:
            train = scaled({**common, **train}, chosen.scale)
            about = {"kind": name, "split": chosen.split}
            if name in NUMBERS:
                about["labels"] = NUMBERS[name]
            yield Row(f"{name}-seed{seed}", train, evaluate, after, about)


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """Median and range over the seeds, and the run of greatest bound; the figure of :mod:`digits_figure`."""
    lines = [
        "| rows | seeds | measure | median | least | greatest | of the greatest bound |",
        "| --- " * 7 + "|",
    ]
    for kind in KINDS:
        found = [r["result"]["result"] for r in records if r["kind"] == kind]
        if not found:
            continue
        best = max(found, key=_bound)
        for measure in ("accuracy", "majority", "nmi"):
            values = [value for result in found if (value := _measure(result, measure)) is not None]
            if values:
                cells = statistics.median(values), min(values), max(values), _measure(best, measure)
                texts = " | ".join(f"{cell:.4f}" for cell in cells)
                lines.append(f"| {kind} | {len(values)} | {measure} | {texts} |")
    if picture is not None and records:
        counted = [r["result"]["result"] for r in records if r["kind"] == CONFUSED]
        counted = [result for result in counted if "confusion" in result["clustering"]["digit"]]
        best = max(counted, key=_bound)["clustering"]["digit"] if counted else None
        digits_figure.draw(_accuracies(records), best, records[0]["split"], picture)
    return "\n".join(lines)


def _accuracies(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """Accuracies of the seeds of each series, by the number of labels."""
    found: dict[str, dict[int, list[float]]] = {}
    for record in records:
        for name, kinds in SERIES.items():
            if record["kind"] in kinds:
                accuracy = _measure(record["result"]["result"], "accuracy")
                assert accuracy is not None
                number = NUMBERS.get(record["kind"], 0)
                found.setdefault(name, {}).setdefault(number, []).append(accuracy)
    return found


def _bound(result: Mapping[str, Any]) -> float:
    """The bound that a run is chosen by."""
    bound: float = result.get("views", result)["elbo"]
    return bound


def _measure(result: Mapping[str, Any], name: str) -> float | None:
    if "digit" in result["accuracy"]:
        return result["accuracy"]["digit"] if name == "accuracy" else None
    return result["clustering"]["digit"][name]


if __name__ == "__main__":
    main(__doc__, "cluster-rows", rows, report)
