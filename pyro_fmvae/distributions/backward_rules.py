"""Functions with a backward of their own, by which natural gradients reach λ.

The rules are explained in :mod:`pyro_fmvae.distributions.exponential_family`.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyro_fmvae.distributions.exponential_family import ExponentialFamily


def expected_stats(natural: Tensor, family: "ExponentialFamily") -> Tensor:
    """E[t] [..., P] of λ [..., P], whose gradient passes to λ unchanged."""
    return _ExpectedStats.apply(natural, family)


def standard_parameters(natural: Tensor, family: "ExponentialFamily") -> tuple[Tensor, ...]:
    """Standard parameters of λ [..., P], whose gradients reach λ through the inverse Fisher matrix."""
    return _Standard.apply(natural, family)


def relative_entropy(
    natural: Tensor, prior: Tensor, stats: Tensor | None, family: "ExponentialFamily"
) -> Tensor:
    """KL(λ || λ₀) [...], which gives λ the gradient λ - λ₀ and λ₀ the ordinary one; E[t] may be given."""
    return _RelativeEntropy.apply(natural, prior, stats, family)


class _ExpectedStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: "ExponentialFamily") -> Tensor:
        return family.mean_stats(natural)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Standard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: "ExponentialFamily") -> tuple[Tensor, ...]:
        standard = tuple(parameter.clone() for parameter in family.unpack(natural))
        ctx.save_for_backward(*standard)
        ctx.family = family
        return standard

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.family.inverse_fisher(ctx.saved_tensors, grads), None


class _RelativeEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, natural: Tensor, prior: Tensor, stats: Tensor | None, family: "ExponentialFamily"
    ) -> Tensor:
        stats = family.mean_stats(natural) if stats is None else stats
        ctx.save_for_backward(natural, prior, stats)
        ctx.family = family
        return family.relative_entropy(natural, prior, stats)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        natural, prior, stats = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        to_prior = None
        if ctx.needs_input_grad[1]:
            to_prior = (grad * (ctx.family.mean_stats(prior) - stats)).sum_to_size(prior.shape)
        return (natural - prior).mul_(grad).sum_to_size(natural.shape), to_prior, None, None


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Tensor | float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: Tensor | float) -> Tensor:
    """Multiply the gradient by ``factor`` on the way back; the values stay as they are.

    Args:
        tensor: of any shape.
        factor: a number or a tensor. Where the tensor lacks its dimensions it is expanded to them, so that
            each part of the gradient is multiplied by its own factor before they are added up.
    """
    if isinstance(factor, Tensor):
        tensor = tensor.expand(torch.broadcast_shapes(tensor.shape, factor.shape))
    return _ScaleGradient.apply(tensor, factor)
