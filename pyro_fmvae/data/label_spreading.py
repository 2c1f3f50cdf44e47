"""Labels of points without one, by those of their near neighbours, as far as hidden labels bear them out."""

from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.decomposition import PCA
from sklearn.neighbors import kneighbors_graph
from sklearn.semi_supervised import LabelSpreading
from torch import Tensor

from pyro_fmvae.data.dataset import Split

NEIGHBOURS = 7
MOST_POINTS = 5000
"""Training points from which on labels are not spread: their neighbours take too long to find."""
MOST_NUMBERS = 64
"""Numbers of a point, of more than which as many principal components are compared."""
FOLDS = 5
"""Parts of the known labels that are hidden in turn."""
_GRAPHS: Final = WeakKeyDictionary[Split, csr_matrix]()
"""The graph of neighbours of each split in use: finding it takes nearly all of the time."""


def spread_labels(split: Split, labels: Tensor, precision: float) -> Tensor:
    """Label points by their near neighbours, each column for itself.

    Labels spread over the graph of the seven nearest neighbours (Zhou et al., 2004, "Learning with local and
    global consistency"), and each point gets a probability. To find the least probability that can be
    trusted, a fifth of the known labels at a time is hidden and told by the others. Of the hidden labels with
    at least that probability, a share of ``precision`` must be told right; one more right and one more wrong
    one are counted, so that a few known labels prove nothing. Where neighbours have other labels, as pictures
    of one face with different expressions have, nothing is spread. Nor is it where half of the points have a
    label: a few wrong ones would cost more than the others bring.

    Args:
        split: N points.
        labels: int64 [N, L], -1 = unknown.
        precision: share of the hidden labels, in (0, 1], that have to be right; 0 spreads none.

    Returns:
        Labels [N, L]: those that were known, and those that were spread. Of more than 5,000 points, of fewer
        than eight, and of points with missing numbers, those that were known.
    """
    if not precision or not NEIGHBOURS < len(split) <= MOST_POINTS or split.observations.isnan().any():
        return labels
    columns = [_spread(_graph(split), column.numpy(), precision) for column in labels.cpu().T]
    return torch.from_numpy(np.stack(columns, -1)).to(labels)


def _graph(split: Split) -> csr_matrix:
    """Nearest neighbours of each point, [N, N], found once per split."""
    if split not in _GRAPHS:
        x = split.observations.flatten(1).double().numpy()
        if x.shape[1] > MOST_NUMBERS:
            x = PCA(min(MOST_NUMBERS, len(x)), random_state=0).fit_transform(x)
        _GRAPHS[split] = kneighbors_graph(x, NEIGHBOURS, include_self=True)
    return _GRAPHS[split]


def _spread(graph: csr_matrix, labels: np.ndarray, precision: float) -> np.ndarray:
    """Spread one column of labels [N] over the graph of neighbours [N, N]."""
    known = np.flatnonzero(labels >= 0)
    if len(np.unique(labels[known])) < 2 or 2 * len(known) >= len(labels):
        return labels
    part = np.empty(len(known), int)
    part[np.argsort(labels[known], kind="stable")] = np.arange(len(known)) % FOLDS
    right, sure = np.empty(len(known), bool), np.empty(len(known))
    for number in range(FOLDS):
        hidden = known[part == number]
        seen = labels.copy()
        seen[hidden] = -1
        said, probability = _propagate(graph, seen)
        right[part == number], sure[part == number] = (said == labels)[hidden], probability[hidden]
    order = np.argsort(-sure, kind="stable")
    enough = np.flatnonzero((np.cumsum(right[order]) + 1) / (np.arange(len(known)) + 3) >= precision)
    if not len(enough):
        return labels
    said, probability = _propagate(graph, labels)
    taken = (labels < 0) & (probability > 0) & (probability >= sure[order[enough[-1]]])
    return np.where(taken, said, labels)


def _propagate(graph: csr_matrix, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The label of each point that is likeliest by its neighbours, and its probability, each [N]."""
    fitted = LabelSpreading(kernel=lambda *_: graph).fit(np.zeros((len(labels), 1)), labels)
    return fitted.transduction_, fitted.label_distributions_.max(-1)
