"""Agreement of codes with labels: accuracy of factors trained on them, clustering measures for the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from pyro_fmvae.evaluate.classification import classification_measures

LARGEST: Final = 1000
"""Most cells of a table of clusters."""


class Coding(Protocol):
    """A model that assigns points to components."""

    def predicted_codes(self, x: Tensor) -> Tensor:
        """int64 [B, I], of labelled factors as labels are predicted."""


def label_agreement(
    model: Coding,
    batches: Iterable[tuple[Tensor, ...]],
    label_names: Sequence[str],
    factors: Sequence[int | None],
    num_values: Sequence[int] | None = None,
    clusters: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compare codes with known labels.

    Args:
        model: the model whose codes are compared, those of labelled factors as it predicts labels.
        batches: (x, labels) per batch, labels int64 [B, L], -1 = unknown.
        label_names: names of the L columns.
        factors: for each column, the factor that was trained on it, or None.
        num_values: of each factor, the number of values that its components stand for, k for the value k
            modulo this; None: each for its own.
        clusters: gives the cluster of each point, int64 [B], where clusters are unions of components.

    Returns:
        A dictionary with three entries. ``accuracy`` covers the columns with a factor: name → share of points
        whose code stands for the label; and ``classification``, of the same columns, all of
        :func:`~pyro_fmvae.evaluate.classification_measures`. ``clustering`` covers the others: name → number
        of points ``n``, the ``factor`` that agrees best by its normalised mutual information ``nmi``, its
        adjusted mutual information ``ami`` and Rand index ``ari``, the ``accuracy`` of the best one-to-one
        matching of its components to labels, the ``majority`` accuracy of naming each component after its
        most common label, and what :func:`cluster_confusion` returns; with ``clusters`` also the ``number``,
        ``accuracy``, ``nmi``, ``ami`` and ``ari`` of these clusters. Columns without known labels are left
        out. So are constant columns without a factor, because any clustering would seem to match them.
    """
    found: list[list[Tensor]] = [[], [], []]
    for x, of_points in batches:
        of_batch = (model.predicted_codes(x), of_points, *([] if clusters is None else [clusters(x)]))
        for parts, part in zip(found, of_batch, strict=False):
            parts.append(part.cpu())
    codes, labels = (torch.cat(parts).numpy() for parts in found[:2])
    unions = None if clusters is None else torch.cat(found[2]).numpy()
    classified: dict[str, dict[str, Any]] = {}
    clustering: dict[str, dict[str, Any]] = {}
    for column, (name, factor) in enumerate(zip(label_names, factors, strict=True)):
        known = labels[:, column] >= 0
        if not known.any():
            continue
        truth = labels[known, column]
        if factor is not None:
            called = codes[known, factor]
            called = called if num_values is None else called % num_values[factor]
            classified[name] = classification_measures(truth, called)
            continue
        if (truth == truth[0]).all():
            continue
        each = [_clustering(truth, of_factor) for of_factor in codes[known].T]
        best = max(range(len(each)), key=lambda factor: each[factor]["nmi"])
        clustering[name] = {
            "n": len(truth),
            "factor": best,
            "majority": majority_accuracy(truth, codes[known, best]),
            **each[best],
            **cluster_confusion(truth, codes[known, best]),
        }
        if unions is not None:
            number = len(np.unique(unions[known]))
            clustering[name]["clusters"] = {"number": number, **_clustering(truth, unions[known])}
    accuracy = {name: found["accuracy"] for name, found in classified.items()}
    return {"accuracy": accuracy, "clustering": clustering, "classification": classified}


def _clustering(labels: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Measures of the agreement of clusters with labels, integers [N] each."""
    from sklearn import metrics  # here: scikit-learn takes a while to import

    return {
        "accuracy": matching_accuracy(labels, clusters),
        "nmi": float(metrics.normalized_mutual_info_score(labels, clusters)),
        "ami": float(metrics.adjusted_mutual_info_score(labels, clusters)),
        "ari": float(metrics.adjusted_rand_score(labels, clusters)),
    }


def matching_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of points whose cluster is matched to their label, under the best one-to-one matching.

    The Hungarian method finds the matching.

    Args:
        labels, clusters: integers [N], N >= 1.
    """
    table = _table(labels, clusters)
    rows, columns = scipy.optimize.linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(labels))


def cluster_confusion(labels: np.ndarray, clusters: np.ndarray) -> dict[str, list[Any]]:
    """Count the points of each label in each cluster.

    A cluster is named after the label that the matching of :func:`matching_accuracy` gives it. A cluster
    that this leaves over is named after its most common label.

    Args:
        labels, clusters: integers [N], N >= 1.

    Returns:
        A JSON object:

        * ``values``: the V labels that occur, ascending;
        * ``components``: the C clusters that occur, by the label that they are named after;
        * ``named_after``: these labels, [C];
        * ``confusion``: number of points of each label (rows) by cluster (columns), [V, C].

        Nothing at all if V · C is more than :data:`LARGEST`.
    """
    table = _table(labels, clusters)
    if table.size > LARGEST:
        return {}
    values, components = np.unique(labels), np.unique(clusters)
    named_after = table.argmax(0)
    rows, columns = scipy.optimize.linear_sum_assignment(table, maximize=True)
    named_after[columns] = rows
    order = named_after.argsort(kind="stable")
    return {
        "values": values.tolist(),
        "components": components[order].tolist(),
        "named_after": values[named_after[order]].tolist(),
        "confusion": table[:, order].tolist(),
    }


def majority_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of points whose label is the most common one of their cluster.

    It tends to rise with the number of clusters.

    Args:
        labels, clusters: integers [N], N >= 1.
    """
    return float(_table(labels, clusters).max(0).sum() / len(labels))


def _table(labels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """How many points have each label and each cluster, [labels, clusters]."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(labels, clusters)
