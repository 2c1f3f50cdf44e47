"""Shares of the values that a labelled factor predicts, beside the shares among its labels."""

from typing import NamedTuple

import torch
from torch import Tensor

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
