"""Joins of components are drawn where their valleys are."""

import numpy as np
import pytest
from matplotlib.lines import Line2D

from pyro_fmvae.figures import dendrogram
from pyro_fmvae.figures.page import FAINT, INK
from tests.figures.generator import overlaps, texts

TREE = np.array([[0, 2, 0.1, 2], [1, 3, 0.4, 2], [4, 5, 0.9, 4]])
NAMES = [f"component {number}: 25 %" for number in range(4)]


def test_brackets_have_the_depths_and_rows_of_what_they_join():
    figure = dendrogram(TREE, [0, 1, 0, 1], NAMES, 0.5)
    brackets = [line for line in figure.axes[0].findobj(Line2D) if len(line.get_xdata()) == 4]
    assert [list(line.get_xdata()) for line in brackets] == [
        [0, 0.1, 0.1, 0],
        [0, 0.4, 0.4, 0],
        [0.1, 0.9, 0.9, 0.4],
    ]
    assert [list(line.get_ydata()) for line in brackets] == [[0, 0, 1, 1], [2, 2, 3, 3], [0.5, 0.5, 2.5, 2.5]]
    assert [line.get_color() for line in brackets] == [INK, INK, FAINT]
    assert [list(line.get_xdata()) for line in figure.axes[0].lines if line.get_linestyle() == "--"] == [
        [0.5, 0.5]
    ]
    shown = [text for text in texts(figure) if text.startswith("component")]
    assert shown == [
        f"{NAMES[k]}, cluster {cluster}" for k, cluster in zip((0, 2, 1, 3), (0, 0, 1, 1), strict=True)
    ]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_no_text_overlaps(count):
    tree = np.array(
        [
            [min(number, count - number) if not number else count + number - 1, number + 1, 0.5, number + 2]
            for number in range(count - 1)
        ]
    )
    assert (
        overlaps(
            dendrogram(
                tree.reshape(-1, 4), list(range(count)), ["a name that goes on and on and on"] * count, 0.5
            )
        )
        == []
    )


def test_errors():
    with pytest.raises(
        ValueError, match="tree, clusters: expected 3 joins and 4 clusters of 4 components, got 2 and 4"
    ):
        dendrogram(TREE[:2], [0, 1, 0, 1], NAMES, 0.5)
