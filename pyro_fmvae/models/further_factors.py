"""A factorial mixture VAE that goes on from one with fewer factors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE


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
            raise ValueError(f"other: expected the networks of the model, it lacks {name}")
        fresh = torch.zeros_like if name.startswith("decoder.") else torch.clone
        state[name].copy_(_spread(name, fresh(state[name]), theirs[name], dims, model.latent_dim))
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


def _spread(name: str, fresh: Tensor, old: Tensor, dims: Tensor, latent_dim: int) -> Tensor:
    """A parameter with the other model's numbers at its latent dimensions, and fresh ones elsewhere."""
    differing = [axis for axis in range(fresh.dim()) if fresh.shape[axis] != old.shape[axis]]
    if not differing and fresh.shape == old.shape:
        return old
    if len(differing) == 1 and fresh.dim() == old.dim():
        (axis,) = differing
        parts = fresh.shape[axis] // latent_dim  # means and log variances follow one another
        if (fresh.shape[axis], old.shape[axis]) == (parts * latent_dim, parts * len(dims)):
            places = torch.cat([part * latent_dim + dims for part in range(parts)]).to(old.device)
            return fresh.index_copy(axis, places, old)
    raise ValueError(f"other: {name} is {tuple(old.shape)} there, {tuple(fresh.shape)} here")
