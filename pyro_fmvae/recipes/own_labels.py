"""Defaults of a factorial mixture VAE for a person's own data that labels are trained on."""

from typing import Any

from torch import Tensor

from pyro_fmvae.data import Dataset
from pyro_fmvae.learn.label_spreading import spread_labels

CLASSIFICATION = 50.0
"""Δ times the share of points whose label is known, in nats per point and label."""
PRECISION = 0.95
"""Share of hidden labels that have to be told right before images without one are labelled."""
SPREAD = (
    "share of hidden labels that have to be told right, so that labels spread to other points for training; "
    "0: never; default: 0, with images of your own 0.95"
)


def own_labelled(dataset: Dataset, labels: Tensor | None, spread: float | None) -> dict[str, Any]:
    """Find the defaults; the page on the model has the reason of each.

    Args:
        dataset: the person's own data.
        labels: in use, of all training points, int64 [N, L'], -1 = unknown; None without any.
        spread: of the options, None if it was not given.

    Returns:
        Values by name of the option.
    """
    image = dataset.preprocessing.image
    spread = (PRECISION if image else 0.0) if spread is None else spread
    found: dict[str, Any] = {"refine_iterations": 0, "augment_until": 1.0, "spread": spread}
    if labels is not None and (labels >= 0).any():
        known = spread_labels(dataset.train, labels, spread) >= 0
        found["label_weight"] = CLASSIFICATION / known.double().mean().item()
    if image:
        found |= {"min_scale": 0.1, "augmentation": 0.5}
    return found
