"""Expected log-densities of Gaussian components as matrix products. Paquet et al. (2018), equation 6."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_fmvae.distributions import packed_matrices as packed


def gaussian_table(mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
    """E[log N(z; μ_k, 1/α_k)] for z of the given mean and variance, by equation 6.

    The expectation is linear in E[t], so the whole table is one matrix product of the data's statistics
    (mean² + variance, mean) with the components' expected ones; no tensor of size B·K·D exists, in either
    direction. The expanded square would lose digits where means are far from the origin, so each factor is
    first moved to the precision-weighted centre c of its components, in float64. What float32 then rounds are
    terms of the size of a/b (m - c)². Gradients with respect to ``stats`` are summed in float64: the b that
    they lead to is the small rest of Σ γ (z - c)²: of clusters 1000 standard deviations from c, a
    millionth of the sum is all that counts.

    In float32, γ is inexact where components overlap far from c. For D = 2, at r standard
    deviations from it, entries are off by about 1e-7 r² nats: γ by 2e-4 at most for r = 100, 0.01 for 1000,
    and 0.08 for 3000; for 10,000, γ means nothing. Standard deviations of components follow γ (off by 6e-6,
    2e-4, 1e-3 and 7 %), but are exact to 1e-7 for clusters that one component has to itself, up to r = 10,000
    at least. Beyond r = 1000, give float64, or allow ``torch.set_float32_matmul_precision("high")``.

    Args:
        mean: of q(z), [..., B, D].
        variance: of q(z), per dimension, [..., B, D].
        stats: E[t] of the components in the layout of ``NormalGammaFamily``, float64 [..., K, 2D+2].

    Returns:
        [..., B, K], in float64 if ``mean`` is or if torch may round float32 products, else in float32. Never
        in autocast's type, nor are its gradients; they can't be differentiated again. The gradient with
        respect to ``stats`` is in float64.

    Raises:
        ValueError: z and the components differ in D.
    """
    if stats.shape[-1] != 2 * mean.shape[-1] + 2:
        raise ValueError(f"loc_precision has {stats.shape[-1] // 2 - 1} dimensions, z has {mean.shape[-1]}")
    return _GaussianTable.apply(mean, variance, stats)


def full_gaussian_table(mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
    """E[log N(z; μ_k, Λ_k⁻¹)] for z of the given mean and variance. Bishop (2006), equation 10.64.

    Linear in E[t], so that autograd gives natural gradients. Summed in float64 throughout, as λ is, so that
    nothing need be moved to a centre. One matrix product takes most of the time: of the packed z zᵀ and
    E[Λ_k], or, with few components, of z and all E[Λ_k] side by side. The largest tensor has
    B·D·min(K, (D+1)/2) numbers.

    Args:
        mean: of q(z), [..., B, D].
        variance: of q(z), per dimension, [..., B, D], or its covariances [..., B, D, D].
        stats: E[t] of the components in the layout of ``NormalWishartFamily``, float64
            [..., K, D(D+3)/2 + 2].

    Returns:
        [..., B, K], in float64 if ``mean`` is, else in float32.

    Raises:
        ValueError: z and the components differ in D.
    """
    dim, count = mean.shape[-1], stats.shape[-2]
    if stats.shape[-1] != 2 + dim * (dim + 3) // 2:
        raise ValueError(f"loc_precision has {packed.dim_of(stats.shape[-1])} dimensions, z has {dim}")
    with torch.autocast(mean.device.type, enabled=False):
        z, spread = mean.to(stats), variance.to(stats)
        log_precision, square, lower, scaled_loc = packed.split(stats)
        across = z.mT.contiguous()  # [..., D, B]: products of the few by the many are the fast ones
        precision = packed.halved(packed.unpack(lower, dim))
        if dim < 2 * count:
            rows, columns = torch.tril_indices(dim, dim, device=z.device)
            squares = lower @ (across.index_select(-2, rows) * across.index_select(-2, columns))
        else:
            side_by_side = precision.movedim(-3, -2).flatten(-2)  # [..., D, K·D]
            squares = ((z @ side_by_side).unflatten(-1, (count, dim)) * z.unsqueeze(-2)).sum(-1).mT
        if variance.dim() > mean.dim():
            traces = precision.flatten(-2) @ spread.flatten(-2).mT
        else:
            traces = packed.diagonal(precision) @ spread.mT
        constant = 0.5 * (log_precision - square - dim * math.log(2 * math.pi)).unsqueeze(-1)
        table = scaled_loc @ across - 0.5 * (squares + traces) + constant
        return table.to(mean.device, torch.promote_types(mean.dtype, torch.float32)).mT.contiguous()


class _GaussianTable(torch.autograd.Function):
    """One node, differentiated by hand: none of the products in autocast's type, and few large temporaries.

    With c the centre,
    E[log N] = E[log N at z=c] + (mean - c)·E[α (μ - c)] - ((mean - c)² + variance)·E[α] / 2.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        dim, device, dtype = mean.shape[-1], mean.device, product_dtype(mean)
        precision, scaled_loc = stats[..., 2:].split(dim, -1)
        total, scaled_total = stats[..., 2:].sum(-2, keepdim=True).split(dim, -1)
        shift = scaled_total / total
        # E[t] is that of (Σ log α, Σ α μ², α, α μ); log N(c; μ, 1/α) takes it times (1/2, -1/2, -c²/2, c).
        half = shift.new_full((*shift.shape[:-1], 1), 0.5)
        at_centre = torch.cat([half, -half, -0.5 * shift.square(), shift], -1)
        with torch.autocast(device.type, enabled=False):
            constant = stats @ at_centre.mT - 0.5 * dim * math.log(2 * math.pi)
            moved = torch.addcmul(scaled_loc, shift, precision, value=-1)
            factors = torch.cat([precision.to(device, dtype), moved.to(device, dtype)], -1)
            centred = mean.to(stats) - shift
            data = torch.cat([-0.5 * (centred.square() + variance.to(stats)), centred], -1)
            ctx.save_for_backward(mean, variance, stats, data, factors, shift)
            return data.to(device, dtype) @ factors.mT + constant.to(device, dtype).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With respect to E[t]: the data's own statistics, (1/2, -1/2, -(mean² + variance)/2, mean)."""
        mean, variance, stats, data, factors, shift = ctx.saved_tensors
        dim = mean.shape[-1]
        to_mean = to_variance = to_stats = None
        with torch.autocast(grad.device.type, enabled=False):
            if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
                to_square, to_centred = (grad @ factors).split(dim, -1)
                centred = data[..., dim:].to(to_centred)
                to_mean = torch.addcmul(to_centred, centred, to_square, value=-1).sum_to_size(mean.shape)
                to_variance = (-0.5 * to_square).sum_to_size(variance.shape)
            if ctx.needs_input_grad[2]:
                weight = grad.to(stats)
                half = 0.5 * weight.sum(-2).unsqueeze(-1)
                square, linear = (weight.mT @ data).split(dim, -1)
                # From about c to about the origin: mean² = (mean - c)² + 2c (mean - c) + c².
                square = square - shift * (linear + shift * half)
                to_stats = torch.cat([half, -half, square, linear + 2 * shift * half], -1)
                to_stats = to_stats.sum_to_size(stats.shape)
        return to_mean, to_variance, to_stats


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Float64 for float64, and wherever TF32 or bfloat16 may stand in for float32 inside a matrix product."""
    if tensor.dtype == torch.float64:
        return torch.float64
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # raised where only some backends were allowed to round
        exact = False
    return torch.float32 if exact or tensor.device.type == "mps" else torch.float64
