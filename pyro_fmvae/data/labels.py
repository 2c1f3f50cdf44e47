"""Few labels: hide those of all but a share of the points."""

import torch
from torch import Tensor

from pyro_fmvae.data.dataset import Split


def hide_labels(labels: Split | Tensor, share: float, seed: int) -> Tensor:
    """Labels of a random share of the points, and -1 (unknown) for the others.

    Args:
        labels: int64 [n, L], or a split that has labels.
        share: the share of points, in [0, 1], that keep all their columns: exactly ``round(share * n)``
            points. Labels that were unknown before stay so.
        seed: the choice of points is a function of `n`, `share` and `seed`; a larger share keeps a superset.

    Returns:
        A new tensor, int64 [n, L].

    Raises:
        ValueError: `share` lies outside [0, 1], or the split has no labels.
    """
    known = labels.labels if isinstance(labels, Split) else labels
    if known is None:
        raise ValueError("labels: the split has no labels to hide")
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected a number in [0, 1], got {share}")
    n = len(known)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    kept = order[: round(share * n)].to(known.device)
    hidden = torch.full_like(known, -1)
    hidden[kept] = known[kept]
    return hidden
