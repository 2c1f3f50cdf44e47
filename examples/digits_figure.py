"""The figure of examples/mnist_clusters.py: accuracy against labels, beside published ones, and confusion."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

PUBLISHED = (
    ("VaDE", 0, 0.9446, 0),  # Jiang et al., 2017
    ("IIC", 0, 0.984, 0),  # Ji et al., 2019
    ("M1+M2", 100, 0.9667, 7),  # Kingma et al., 2014
    ("SDGM", 100, 0.9868, 0),  # Maaløe et al., 2016
    ("Ladder", 100, 0.9894, -3),  # Rasmus et al., 2015
    ("ADGM", 100, 0.9904, 4),  # Maaløe et al., 2016
    ("M1+M2", 1000, 0.9760, 0),
    ("Ladder", 1000, 0.9916, 0),
)
"""Name, number of labels, accuracy on test images, and how far its name is moved up, in points."""
DEVIATIONS = {"IIC": 0.0065}  # published ones
TICKS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
COLOURS = {"one view": "#7a9cc6", "several views": "#c8553d"}
BEST = 0.999  # drawn at most: the axis is logarithmic in the error
NONE = 1.0  # place of no labels on the logarithmic axis
SHIFTS = {"one view": 0.86, "several views": 1.0, "published": 1.16}  # so that they do not overlap

Accuracies = Mapping[str, Mapping[int, Sequence[float]]]
"""Rows in one colour → number of labels → accuracies of the seeds."""
SPLITS = {"train": "training", "valid": "validation", "test": "test"}


def draw(accuracies: Accuracies, clusters: Mapping[str, Any] | None, split: str, path: Path) -> None:
    """Draw accuracies, a dot for each seed and a line through the means; and digits by cluster.

    Args:
        accuracies: with entries of :data:`COLOURS`.
        clusters: of one run, what ``pyro_fmvae.evaluate.cluster_confusion`` returns; None: not drawn.
        split: whose images ours are of.
        path: path of the PNG.
    """
    number = 1 if clusters is None else 2
    shown = Figure(figsize=(6 * number, 4.8), layout="constrained")
    panels = shown.subplots(1, number, squeeze=False)[0]
    _draw_accuracies(panels[0], accuracies)
    if clusters is not None:
        _draw_clusters(panels[1], clusters)
    note = (
        f"Ours: {SPLITS[split]} images. Diamonds: published, of test images; IIC with its standard deviation."
    )
    shown.supxlabel(note, fontsize=8, color="0.35")
    shown.savefig(path, dpi=150)


def _draw_accuracies(axes: Axes, accuracies: Accuracies) -> None:
    for name, by_number in accuracies.items():
        colour = COLOURS[name]
        places = [SHIFTS[name] * max(number, NONE) for number in sorted(by_number)]
        for place, (_, values) in zip(places, sorted(by_number.items()), strict=True):
            axes.plot(
                [place] * len(values), list(map(_error, values)), "o", ms=4, mew=0, alpha=0.5, color=colour
            )
        means = [_error(statistics.mean(by_number[number])) for number in sorted(by_number)]
        axes.plot(places, means, "o-", ms=8, mfc="none", label=f"ours, {name}", color=colour)
    for name, number, accuracy, up in PUBLISHED:
        place, deviation = SHIFTS["published"] * max(number, NONE), DEVIATIONS.get(name, 0.0)
        axes.errorbar(place, _error(accuracy), deviation, fmt="kD", ms=4, lw=1)
        offset: dict[str, Any] = {"xytext": (6, up), "textcoords": "offset points"}
        axes.annotate(name, (place, _error(accuracy)), va="center", fontsize=8, **offset)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(0.6, 3500),
        xlabel="labels of 50,000 training images",
        ylabel="accuracy",
    )
    axes.set_xticks([NONE, 10, 100, 1000], ["none", "10", "100", "1,000"])
    axes.set_yticks([1 - a for a in TICKS], [f"{100 * a:g} %" for a in TICKS])
    axes.invert_yaxis()
    axes.minorticks_off()
    axes.grid(lw=0.4, alpha=0.7)
    axes.legend(frameon=False)


def _draw_clusters(axes: Axes, clusters: Mapping[str, Any]) -> None:
    counts = np.array(clusters["confusion"])
    axes.imshow(
        np.ma.masked_equal(counts, 0), cmap="Blues", norm=LogNorm(1, 30 * counts.max()), aspect="auto"
    )
    for row, column in np.argwhere(counts):
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(clusters["named_after"])), clusters["named_after"])
    axes.set_yticks(range(len(clusters["values"])), clusters["values"])
    axes.set(title="without labels, the run of the greatest bound", ylabel="digit")
    axes.set_xlabel("component, by the digit that it is matched with")


def _error(accuracy: float) -> float:
    return 1 - min(accuracy, BEST)
