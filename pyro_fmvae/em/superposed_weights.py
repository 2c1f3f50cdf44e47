"""Least-squares weights W of x ≈ W s, given the moments of the causes s."""

import torch
from torch import Tensor

COORDINATE_SWEEPS = 3


def apply_moment(second: Tensor, weight: Tensor) -> Tensor:
    """Rows of W times Σ⟨ss'⟩, [R, D, H].

    Args:
        second: Σ⟨ss'⟩, shared by all elements of x [R, 1, H, H], or one for each [R, D, H, H].
        weight: W, [R, D, H].
    """
    if second.shape[1] == 1:
        return weight @ second[:, 0]
    return (second @ weight.unsqueeze(-1)).squeeze(-1)


def best_weight(product: Tensor, second: Tensor, weight: Tensor, ridge: float, nonnegative: bool) -> Tensor:
    """W of the least squared error Σ E|x - W s|², in closed form (Σ x⟨s⟩')(Σ⟨ss'⟩)⁻¹, [R, D, H].

    The change of W is solved for, with a ridge, so that the error never rises and causes that are never
    active keep their weights.

    Args:
        product: Σ x⟨s⟩', [R, D, H].
        second: Σ⟨ss'⟩ as in :func:`apply_moment`.
        weight: the present W, [R, D, H].
        ridge: on the diagonal of Σ⟨ss'⟩, relative to its trace.
        nonnegative: minimise over W >= 0 by a few sweeps of coordinate descent, which are exact in the limit.
            Each row starts from the better of the present W and the positive part of the solution.
    """
    trace = second.diagonal(dim1=-2, dim2=-1).sum(-1)
    raised = ridge * trace + torch.finfo(second.dtype).tiny
    eye = torch.eye(second.shape[-1], dtype=second.dtype, device=second.device)
    factor = torch.linalg.cholesky(second + raised[..., None, None] * eye)
    slope = product - apply_moment(second, weight)
    if second.shape[1] == 1:
        change = torch.cholesky_solve(slope.mT, factor[:, 0]).mT
    else:
        change = torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
    found = weight + change
    if not nonnegative:
        return found
    found, weight = found.clamp_min(0.0), weight.clamp_min(0.0)
    better = _fit(found, product, second) > _fit(weight, product, second)
    found = torch.where(better.unsqueeze(-1), found, weight)
    curvature = second.diagonal(dim1=-2, dim2=-1) + raised.unsqueeze(-1)
    for _ in range(COORDINATE_SWEEPS):
        for i in range(found.shape[-1]):
            slope = product[..., i] - (second[:, :, i] * found).sum(-1)
            found[..., i] = (found[..., i] + slope / curvature[..., i]).clamp_min(0.0)
    return found


def _fit(weight: Tensor, product: Tensor, second: Tensor) -> Tensor:
    """Reduction of the squared error by each row of W, [R, D]."""
    return (weight * (2 * product - apply_moment(second, weight))).sum(-1)
