"""Quality of predicted classes: accuracy with its interval, balanced accuracy, macro F1 and confusion."""

from typing import Any, Final, NamedTuple

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from pyro_fmvae.evaluate.probes import linear_probe

CONFIDENCE: Final = 0.95


def classification_measures(truth: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Compare predicted classes with true ones.

    Averages over classes are over those that occur among the true ones.

    Args:
        truth, predicted: integers [n], n >= 1.

    Returns:
        A JSON object:

        * ``n``: number of points;
        * ``accuracy``: share of correct predictions, and its Wilson ``interval`` (Wilson, 1927), in which the
          accuracy on all such points lies with 95 % confidence;
        * ``balanced_accuracy``: mean over the classes of the share of their points that is recognised;
        * ``macro_f1``: mean over the classes of 2 PR / (P + R), P being the precision and R the recall;
        * ``values``: the classes that are true or predicted anywhere, ascending;
        * ``confusion``: number of points of each true value (rows) by predicted value (columns).
    """
    from sklearn.metrics import f1_score, recall_score  # here: scikit-learn takes a while to import

    correct, classes = int((truth == predicted).sum()), np.unique(truth)
    averaged: dict[str, Any] = {"labels": classes, "average": "macro", "zero_division": 0}
    values = np.union1d(classes, predicted)
    confusion = np.zeros((len(values), len(values)), dtype=np.int64)
    np.add.at(confusion, (values.searchsorted(truth), values.searchsorted(predicted)), 1)
    return {
        "n": len(truth),
        "accuracy": correct / len(truth),
        "interval": wilson_interval(correct, len(truth)),
        "balanced_accuracy": float(recall_score(truth, predicted, **averaged)),
        "macro_f1": float(f1_score(truth, predicted, **averaged)),
        "values": values.tolist(),
        "confusion": confusion.tolist(),
    }


def wilson_interval(successes: int, n: int) -> list[float]:
    """Interval of a probability with 95 % confidence (Wilson, 1927): its lower and upper end.

    Args:
        successes: number of successes, 0 to `n`.
        n: number of trials, at least 1.
    """
    interval = scipy.stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return [float(interval.low), float(interval.high)]


def reference_accuracies(
    codes: np.ndarray, truth: np.ndarray, test_codes: np.ndarray, test_truth: np.ndarray
) -> dict[str, float | None]:
    """Accuracies that any classifier should reach.

    Args:
        codes: latent vectors of training points, [m, J].
        truth: their classes, integers [m], m >= 1.
        test_codes: latent vectors of the points to classify, [n, J].
        test_truth: their classes, integers [n], n >= 1.

    Returns:
        ``majority``, of always naming the commonest class of the training points (the smallest of equals),
        and ``logistic_regression``, of multinomial logistic regression on the latent vectors, fitted to the
        training points (see :func:`~pyro_fmvae.evaluate.linear_probe`); None if they have one class only.
    """
    classes, counts = np.unique(truth, return_counts=True)
    majority = float((test_truth == classes[counts.argmax()]).mean())
    if len(classes) < 2:
        return {"majority": majority, "logistic_regression": None}
    fitted = linear_probe().fit(codes, truth)
    return {"majority": majority, "logistic_regression": float(fitted.score(test_codes, test_truth))}


LEAST_EXCESS = 0.2
STANDARD_ERRORS = 3.0


class Overcall(NamedTuple):
    """A value that is predicted more often than the labels suggest."""

    value: int
    """Its number."""
    predicted: float
    """Its share among the predictions."""
    labelled: float
    """Its share among the labels."""


def overcalled(predicted: Tensor, labels: Tensor) -> Overcall | None:
    """Find the value that is predicted too often for labels and predictions to be of like points.

    A factor that has collapsed predicts one value almost everywhere. A value counts if its share among the
    predictions exceeds its share among the labels by more than 0.2, and by more than three standard errors of
    the difference between two shares.

    Args:
        predicted: values that are predicted for unlabelled points, int64 [n].
        labels: values of labelled points, int64 [m].

    Returns:
        The value of the greatest excess; None if none counts, or without points of either kind.
    """
    if not len(predicted) or not len(labels):
        return None
    size = int(torch.cat([predicted, labels]).max()) + 1
    counts = torch.stack([torch.bincount(values, minlength=size) for values in (predicted, labels)]).double()
    totals = counts.sum(1, keepdim=True)
    shares, pooled = counts / totals, counts.sum(0) / totals.sum()
    excess = shares[0] - shares[1]
    error = (pooled * (1 - pooled) * (1 / totals).sum()).sqrt()
    value = int(excess.argmax())
    if excess[value] <= max(LEAST_EXCESS, STANDARD_ERRORS * float(error[value])):
        return None
    return Overcall(value, *shares[:, value].tolist())
