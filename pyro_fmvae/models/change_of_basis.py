"""Another basis of the latent space, absorbed into the networks around it."""

import torch
from torch import Tensor, nn

from pyro_fmvae.nn.conv import ConvDecoder
from pyro_fmvae.nn.heads import NormalHead
from pyro_fmvae.nn.mlp import MLPDecoder


@torch.no_grad()
def change_basis(
    encoder: nn.Module, decoder: nn.Module, to: Tensor, back: Tensor, centre: Tensor, variance: Tensor
) -> None:
    """Let networks encode as y = T (z - c) what they have encoded as z, in place.

    The last layer of the encoder and the first linear map of the decoder take the change over. Means and
    reconstructions are the same to rounding. q(y | x) has to be diagonal again. Its precisions are the
    diagonal of T⁻ᵀ diag(1 / v) T⁻¹: of all diagonal Gaussians, that one has the least KL divergence from
    N(y, T diag(v) Tᵀ). The variances of T diag(v) Tᵀ themselves would be far too large where T mixes a
    dimension that the decoder reads precisely with one that it hardly reads. Their logarithms are linear in
    the features of the last layer to first order around the variances ``variance``; where q(z | x) is
    isotropic and T a rotation, they are exact.

    Args:
        encoder: its ``head`` is a :class:`~pyro_fmvae.nn.NormalHead`.
        decoder: a perceptron or convolutions.
        to: T, [J, J].
        back: its inverse.
        centre: c, [J].
        variance: mean variances of q(z | x), [J].

    Raises:
        TypeError: networks of another kind.
    """
    head = getattr(encoder, "head", None)
    if not isinstance(head, NormalHead) or not isinstance(decoder, MLPDecoder | ConvDecoder):
        raise TypeError(
            "networks: expected an encoder with a NormalHead and an MLPDecoder or a ConvDecoder, got "
            f"{type(encoder).__name__} and {type(decoder).__name__}"
        )
    last, first = head.linear, decoder.first
    to, back, centre, variance = (
        part.to(last.weight.device).double() for part in (to, back, centre, variance)
    )
    dims = len(to)
    (w_loc, w_log), (b_loc, b_log) = (part.double().split(dims) for part in (last.weight, last.bias))
    precisions = back.square().mT / variance
    total = precisions.sum(-1)
    shares = precisions / total.unsqueeze(-1)
    start = -total.log() - shares @ variance.log()
    last.weight.copy_(torch.cat([to @ w_loc, shares @ w_log]))
    last.bias.copy_(torch.cat([to @ (b_loc - centre), shares @ b_log + start]))
    w = first.weight[:, :dims].double().clone()
    first.weight[:, :dims] = (w @ back).to(first.weight)
    assert first.bias is not None
    first.bias.add_((w @ centre).to(first.bias))
