"""Defaults of a factorial mixture VAE for a person's own data that labels are trained on."""

import math
from typing import Any

from pyro_fmvae.data import Dataset, hide_labels

CLASSIFICATION = 50.0
"""Δ times the share of points whose label is known, in nats per point and label."""
MANY_NUMBERS = 1000
"""Numbers in an image, channels counted, from which on KL[z] weighs little beside the reconstruction."""


def own_labelled(dataset: Dataset, amount: float, seed: int, columns: int) -> dict[str, Any]:
    """Find the defaults; the page on the model has the reason of each.

    Args:
        dataset: the person's own data.
        amount: of labels that are used: see :func:`~pyro_fmvae.data.hide_labels`.
        seed: of their choice.
        columns: number of label columns that are trained on, the leading ones.

    Returns:
        Values by name of the option.
    """
    found: dict[str, Any] = {"refine_iterations": 0, "augment_until": 1.0}
    if dataset.train.labels is not None:
        used = hide_labels(dataset.train, amount, seed)[:, :columns] >= 0
        if used.any():
            found["label_weight"] = CLASSIFICATION / used.double().mean().item()
    if dataset.preprocessing.image:
        found |= {"min_scale": 0.1, "augmentation": 0.5}
        if math.prod(dataset.event_shape) >= MANY_NUMBERS:
            found["kl_weight"] = 20.0
    return found
