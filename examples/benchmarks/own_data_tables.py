"""The tables of ``own_data.py``, and how far the aims are met."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from own_data_baselines import CLASSIFIERS, CLUSTERERS, DETECTORS, K_MEANS, MAJORITY
from own_data_sets import CLUSTERS, LABELS, OUTLIERS, SETS

OURS, OURS_K = "pyro_fmvae", "pyro_fmvae, K given"
OURS_ALONE = "pyro_fmvae, mixture alone"
BEST = "nearest, or elbo of a table"  # the score that docs/concepts/outliers.md names
SCORES = ("nearest", "elbo", "kl", "reconstruction", "iwae")
FEW = 20  # labels a class
CLOSE = 0.02  # to the best baseline
FAILED = "failed"

Record = Mapping[str, Any]
Figures = Mapping[str, float] | None
"""What a row measured; None if the command failed."""
Line = tuple[str, ...]
"""What a line of a table is about: a set; of labels also a property and the number of labels a class."""
Lines = Mapping[Line, Mapping[str, Sequence[Figures]]]
"""Line → method → figures of each seed."""
AIMS = (
    "clusters: at least the ARI of k-means, on 9 of 10 sets",
    "clusters: at least the ARI of the best baseline, on half of the sets",
    "labels: balanced accuracy not below that of the majority",
    "labels: accuracy within 0.02 of the best baseline",
    f"labels: accuracy above the best baseline with {FEW} labels a class or fewer, on most",
    "outliers: AUROC below that of the best baseline, 0.02 at most on average",
    "validation bound within 0.5 % and 0.5 nats of the run's best, in all runs",
)


def tables(records: Sequence[Record]) -> str:
    """Markdown of the tables that have rows, and of the aims.

    Baselines are shown of the splits and labels that ours have seen as well.
    """
    run = {_drawn(record) for record in records if record["method"] == OURS}
    records = [record for record in records if _drawn(record) in run]
    clusters, labels, outliers = (_lines(records, task) for task in (CLUSTERS, LABELS, OUTLIERS))
    parts = []
    if clusters:
        parts.append(_table("ARI (NMI)", clusters, [*CLUSTERERS, OURS, OURS_K], ("ari", "nmi")))
    if labels:
        heading = "accuracy (balanced accuracy)"
        parts.append(_table(heading, labels, [*CLASSIFIERS, OURS_ALONE, OURS], ("accuracy", "balanced")))
    if outliers:
        parts.append(_table("AUROC", outliers, [*DETECTORS, BEST, *SCORES], ("auroc",)))
    if edits := _edits(records):
        parts.append(edits)
    parts.append(_aims(records))
    return "\n\n".join(parts)


def _lines(records: Iterable[Record], task: str) -> Lines:
    found: dict[Line, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["task"] != task:
            continue
        own, method, figures = record["set"], record["method"], record["figures"]
        if task == LABELS:
            alone = {OURS_ALONE: record["alone"]} if "alone" in record else {}
            for name in record["properties"]:
                for by, measured in ({method: figures} | alone).items():
                    found[own, name, record["setting"]][by].append(measured and measured[name])
        elif task == OUTLIERS and method == OURS:
            for score in SCORES:
                if figures is None or score in figures:
                    found[own,][score].append(figures and {"auroc": figures[score]})
            best = figures and figures.get("nearest", figures["elbo"])
            found[own,][BEST].append(figures and {"auroc": best})
        else:
            found[own,][method].append(figures)
    return {line: found[line] for line in sorted(found, key=_place)}


def _place(line: Line) -> tuple[int, ...]:
    """Sort lines by set and number of labels a class; properties keep their order."""
    own, *_, count = (*line, "0") if len(line) == 1 else line
    names = [one.name for one in SETS]
    return names.index(own) if own in names else len(names), int(count)


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    first, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (first, ["---"] * len(first), *others))


def _table(heading: str, lines: Lines, methods: Sequence[str], figures: Sequence[str]) -> str:
    rows = [[heading, *methods, "seeds"]]
    for line, found in lines.items():
        cells = [_cell(found.get(method, ()), figures) for method in methods]
        rows.append([", ".join(line), *cells, _seeds(len(values) for values in found.values())])
    return _markdown(rows)


def _seeds(counts: Iterable[int]) -> str:
    least, *_, most = sorted([*counts] * 2)
    return f"{most}" if least == most else f"{least}-{most}"


def _cell(values: Sequence[Figures], figures: Sequence[str]) -> str:
    """Means over seeds: the first figure, and others in brackets."""
    if not values:
        return ""
    if None in values:
        return FAILED
    first, *others = (f"{_mean(values, figure):.3f}" for figure in figures)
    return " ".join([first, *(f"({other})" for other in others)])


def _mean(values: Sequence[Figures], figure: str, failed: float = 0.0) -> float:
    """The mean over seeds, to the digits of the tables."""
    return round(float(np.mean([failed if one is None else one[figure] for one in values])), 3)


def _edits(records: Iterable[Record]) -> str:
    """Edited pictures: the mean over seeds of what the judge says."""
    found: dict[Line, list[Record]] = defaultdict(list)
    for record in records:
        for name, measured in (record.get("edits") or {}).items():
            found[record["set"], name].append(measured)
    columns = ("judge", "flipped", "kept")
    rows = [
        [
            ", ".join(line),
            *(_cell(values, [column]) if values[0][column] is not None else "" for column in columns),
        ]
        for line, values in found.items()
    ]
    return _markdown([["edits", *columns], *rows]) if rows else ""


# ---------------------------------------------------------------------- aims


def _aims(records: Sequence[Record]) -> str:
    """How far the aims are met."""
    halves = {"all sets": records}
    for title, choosing in (("chosen by", True), ("reported", False)):
        halves[title] = [record for record in records if record["choosing"] == choosing]
    columns = [_met(half) for half in halves.values()]
    return _markdown([["condition", *halves], *zip(AIMS, *columns, strict=True)])


def _drawn(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("set", "task", "setting", "seed"))


def _met(records: Sequence[Record]) -> list[str]:
    """How far each aim is met."""
    clusters = _compared(_lines(records, CLUSTERS), OURS, list(CLUSTERERS), "ari")
    balanced = _compared(_lines(records, LABELS), OURS, [MAJORITY], "balanced")
    labels = _compared(_lines(records, LABELS), OURS, list(CLASSIFIERS), "accuracy")
    outliers = _compared(_lines(records, OUTLIERS), BEST, list(DETECTORS), "auroc", failed=0.5)
    few = {line: gap for line, gap in labels.items() if int(line[-1]) <= FEW}
    k_means = _compared(_lines(records, CLUSTERS), OURS, [K_MEANS], "ari")
    return [
        _share(k_means, lambda gap: gap >= 0),
        _share(clusters, lambda gap: gap >= 0),
        _share(balanced, lambda gap: gap >= 0),
        _share(labels, lambda gap: gap >= -CLOSE),
        _share(few, lambda gap: gap > 0),
        f"{-np.mean(list(outliers.values())):.3f} on {len(outliers)}" if outliers else "",
        _kept(records),
    ]


def _compared(
    lines: Lines, ours: str, baselines: Sequence[str], figure: str, failed: float = 0.0
) -> dict[Line, float]:
    """By how much ours exceeds the best of the baselines, on the lines that have both."""
    return {
        line: round(
            _mean(found[ours], figure, failed)
            - max(_mean(found[method], figure) for method in baselines if method in found),
            3,
        )
        for line, found in lines.items()
        if ours in found and any(method in found for method in baselines)
    }


def _share(gaps: Mapping[Line, float], passes: Callable[[float], bool]) -> str:
    return f"{sum(map(passes, gaps.values()))} of {len(gaps)}" if gaps else ""


def _kept(records: Iterable[Record]) -> str:
    """Runs whose model is near their best bound on validation data."""
    bounds = [record["bound"] for record in records if record.get("bound")]
    near = [bound["best"] - bound["kept"] <= min(0.5, 0.005 * abs(bound["best"])) for bound in bounds]
    return f"{sum(near)} of {len(near)}" if near else ""
