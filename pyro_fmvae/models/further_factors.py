"""A factorial mixture VAE that goes on from one with fewer factors."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.nn import NormalHead

RIDGE: Final = 1e-2
"""Penalty of the regression of labels, as a share of the features' mean square."""
REACH: Final = 3.0
"""Distance of the values' centres from 0."""


@torch.no_grad()
def take_over(model: FactorialMixtureVAE, other: FactorialMixtureVAE, places: Sequence[int]) -> None:
    """Take over the networks and λ of a model with fewer factors.

    The encoder gives the factors of both the same q(z), and the decoder does not look at the further ones, so
    that the model reconstructs as the other one does. What the encoder gives further factors, and their λ,
    stay as they are.

    Args:
        model: with networks of the same kind and hidden sizes; changed in place.
        other: the model to go on from.
        places: which factor of ``model`` each factor of ``other`` becomes, different ones.

    Raises:
        ValueError: networks whose sizes differ in something else than the number of factors.
    """
    dims = torch.arange(model.latent_dim).unflatten(0, (-1, model.dim))[list(places)].flatten()
    state, theirs = model.state_dict(), other.state_dict()
    for name in filter(lambda name: name.startswith(("encoder.", "decoder.")), state):
        if name not in theirs:
            raise ValueError(f"other: expected the networks of the model, but it lacks {name}")
        decoding = name.startswith("decoder.")
        fresh = torch.zeros_like if decoding else torch.clone
        beside = getattr(model.decoder, "batches", 0) if decoding else 0
        state[name].copy_(_spread(name, fresh(state[name]), theirs[name], dims, model.latent_dim, beside))
    known = {
        factor: (group.weights.natural_value()[number], group.loc_precision.natural_value()[number])
        for group in other.factor_groups()
        for number, factor in enumerate(group.factors)
    }
    of_model = dict(zip(places, (known[factor] for factor in range(len(places))), strict=True))
    for group in model.factor_groups():
        own = zip(group.weights.natural_value(), group.loc_precision.natural_value(), strict=True)
        pairs = [of_model.get(factor, one) for factor, one in zip(group.factors, own, strict=True)]
        group.set_natural(*(torch.stack(part) for part in zip(*pairs, strict=True)))


def _spread(name: str, fresh: Tensor, old: Tensor, dims: Tensor, latent_dim: int, beside: int) -> Tensor:
    """A parameter with the other model's numbers at its latent dimensions, and fresh ones elsewhere.

    Numbers ``beside`` the latent dimensions, which come last, both models have.
    """
    differing = [axis for axis in range(fresh.dim()) if fresh.shape[axis] != old.shape[axis]]
    if not differing and fresh.shape == old.shape:
        return old
    if len(differing) == 1 and fresh.dim() == old.dim():
        (axis,) = differing
        parts = (fresh.shape[axis] - beside) // latent_dim  # means and log variances follow one another
        last = parts * latent_dim + torch.arange(beside)
        sizes = fresh.shape[axis] - beside, old.shape[axis] - beside
        if sizes == (parts * latent_dim, parts * len(dims)):
            places = torch.cat([*(part * latent_dim + dims for part in range(parts)), last])
            return fresh.index_copy(axis, places.to(old.device), old)
    raise ValueError(f"other: {name} is {tuple(old.shape)} there, {tuple(fresh.shape)} here")


@torch.no_grad()
def regress_blocks(model: FactorialMixtureVAE, x: Tensor, labels: Tensor, factors: Sequence[int]) -> None:
    """Let the encoder place labelled points at a centre for each value of their label, by ridge regression.

    Only the encoder's last layer changes, at the dimensions of these factors: means are linear in its
    features, and standard deviations are constant, half of the residuals' of the regression at most.

    Args:
        model: whose encoder ends in a :class:`~pyro_fmvae.nn.NormalHead`; changed in place.
        x: points ``[B, *event_shape]``.
        labels: integers [B, labelled factors], -1 = unknown.
        factors: labelled factors, of whose labels some are known.

    Raises:
        ValueError: an encoder that ends otherwise.
    """
    head = getattr(model.encoder, "head", None)
    if not isinstance(head, NormalHead):
        raise ValueError("run: further labels need an encoder with a single last layer")
    features = _features(model, head, x)
    ones = torch.cat([features, features.new_ones(len(x), 1)], -1).double()
    for factor in factors:
        column = labels[:, model.labelled.index(factor)]
        rows = column >= 0
        design = ones[rows]
        target = _centres(model.num_components[factor], model.dim).to(design)[column[rows]]
        penalty = RIDGE * design.square().mean() * torch.eye(design.shape[1]).to(design)
        weights = torch.linalg.solve(design.mT @ design + penalty * len(design), design.mT @ target)
        spread = (design @ weights - target).square().mean().sqrt().clamp(1e-2, 1.0)
        dims = slice(factor * model.dim, (factor + 1) * model.dim)
        mean, log_variance = head.linear.weight.unflatten(0, (2, -1))
        mean_bias, variance_bias = head.linear.bias.unflatten(0, (2, -1))
        mean[dims], mean_bias[dims] = weights[:-1].mT.to(mean), weights[-1].to(mean_bias)
        log_variance[dims], variance_bias[dims] = 0.0, 2 * (spread / 2).log().to(variance_bias)


def _features(model: FactorialMixtureVAE, head: NormalHead, x: Tensor) -> Tensor:
    """Features of points that the encoder's last layer sees, [B, F]."""
    inputs: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        model.encoder(x)
    finally:
        handle.remove()
    return inputs[0].flatten(1)


def _centres(size: int, dim: int) -> Tensor:
    """Centres of the values of a label, at equal distances where there are enough dimensions: [size, dim]."""
    directions = torch.randn(max(size, dim), dim, generator=torch.Generator().manual_seed(0))
    if size <= dim:
        directions = torch.linalg.qr(directions).Q
    return REACH * directions[:size] / directions[:size].norm(dim=1, keepdim=True)
