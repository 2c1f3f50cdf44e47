"""The order in which the components of a mixture join into clusters."""

import math
from collections.abc import Sequence

import numpy as np

from pyro_fmvae.figures.page import (
    FAINT,
    INK,
    MARGIN,
    NOTE,
    QUIET,
    Figure,
    Page,
    plain_axes,
    shorten,
    text_width,
)
from pyro_fmvae.figures.tiles import Array, as_array

_ROW = 24  # height of a component
_TREE = 420  # width
_LONGEST_NAME = 240
_TITLE = 34
_TICKS = 44


def dendrogram(tree: Array, clusters: Sequence[int], names: Sequence[str], depth: float) -> Figure:
    """A row for each component, and a bracket at the depth of the valley between two clusters that join.

    Joins within a cluster are dark, those of different clusters pale. A dashed line is where they part.

    Args:
        tree: joins as :func:`scipy.cluster.hierarchy.linkage` has them, heights in [0, 1], [K - 1, 4].
        clusters: the cluster of each component, [K].
        names: of the components, [K].
        depth: of the valleys that separate clusters.

    Raises:
        ValueError: another shape, or numbers of components that differ.
    """
    count = len(names)
    joins = as_array("tree", tree) if count > 1 else np.zeros((0, 4))
    if joins.shape != (count - 1, 4) or len(clusters) != count:
        raise ValueError(
            f"tree, clusters: expected {count - 1} joins and {count} clusters of {count} components, got "
            f"{len(joins)} and {len(clusters)}"
        )
    members, ends = [[number] for number in range(count)], [0.0] * count
    for one, other, height, _ in joins:
        members.append(members[int(one)] + members[int(other)])
        ends.append(float(height))
    order = members[-1]
    labels = [shorten(f"{names[k]}, cluster {clusters[k]}", _LONGEST_NAME, 8) for k in order]
    indent = MARGIN + 8 + math.ceil(max(text_width(label, 8) for label in labels))
    page = Page(indent + _TREE + MARGIN, MARGIN + _TITLE + _ROW * count + _TICKS + NOTE + MARGIN)
    page.text(MARGIN, MARGIN + 14, "Joins of components", 10, weight="bold", va="baseline")
    axes = page.axes(indent, MARGIN + _TITLE, _TREE, _ROW * count)
    axes.set(xlim=(-0.02, 1.02), ylim=(count - 0.5, -0.5), yticks=[])
    places = [float(order.index(number)) for number in range(count)]
    for (one, other, height, _), both in zip(joins, members[count:], strict=True):
        pair = [int(one), int(other)]
        low, high = (places[each] for each in pair)
        colour = INK if len({clusters[k] for k in both}) == 1 else FAINT
        axes.plot([ends[pair[0]], height, height, ends[pair[1]]], [low, low, high, high], color=colour)
        places.append((low + high) / 2)
    axes.axvline(depth, color=QUIET, linestyle="--", linewidth=0.8)
    plain_axes(axes, None)
    for row, label in enumerate(labels):
        page.text(indent - 8, MARGIN + _TITLE + (row + 0.5) * _ROW, label, 8, ha="right")
    note = "Depth of the valley of the density between two clusters, as a share of the lower peak."
    page.notes([shorten(note, page.width - 2 * MARGIN, 8)], MARGIN + _TITLE + _ROW * count + _TICKS)
    return page.figure
