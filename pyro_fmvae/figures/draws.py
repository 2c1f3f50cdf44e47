"""Draws of z for figures, from the components in use or from given ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_fmvae.figures.factors import Factors


def draw_codes(factors: Factors, count: int, held: Mapping[int, int] | None = None) -> Tensor:
    """Draw components for draws of z: int64 [count, I].

    Args:
        factors: factors of the model.
        count: number of draws.
        held: factor → its fixed component. The components of other factors are drawn from those in use, in
            proportion to their shares.

    Raises:
        ValueError: ``held`` has a factor or a component out of range.
    """
    held = held or {}
    check_held(factors, held)
    columns = []
    for factor, share in enumerate(factors.shares):
        weights = (share * factors.used(factor)).expand(count, -1)
        columns.append(weights.multinomial(1))  # for held factors, too: the other draws stay the same
        if factor in held:
            columns[-1] = torch.full((count, 1), held[factor])
    return torch.cat(columns, 1)


def check_held(factors: Factors, held: Mapping[int, int]) -> None:
    """Raise ValueError unless each key is a factor and each value one of its components."""
    for factor, component in held.items():
        factors.check_factor("held", factor)
        if not 0 <= component < factors.sizes[factor]:
            raise ValueError(
                f"held: expected a component in 0..{factors.sizes[factor] - 1} for "
                f"{factors.names[factor]}, got {component}"
            )


@torch.no_grad()
def draw_latent(factors: Factors, codes: Tensor) -> Tensor:
    """Draw z [n, I·D] for codes [n, I].

    Raises:
        ValueError: a sampler that returns another shape.
    """
    z = factors.sample_latent(len(codes), codes)
    expected = [len(codes), sum(mean.shape[1] for mean in factors.means)]
    if list(z.shape) != expected:
        raise ValueError(f"sample_latent: expected z of shape {expected}, got {list(z.shape)}")
    return z


def draw_blocks(factors: Factors, factor: int, components: Tensor, count: int) -> Tensor:
    """Draw one factor's block from each of its components: [len(components), count, D].

    Args:
        factors: factors of the model.
        factor: index of the factor.
        components: int64 [m].
        count: number of draws from each.
    """
    dim = factors.means[factor].shape[1]
    codes = torch.zeros(len(components) * count, len(factors.sizes), dtype=torch.int64)
    codes[:, factor] = components.repeat_interleave(count)
    block = draw_latent(factors, codes)[:, factor * dim : (factor + 1) * dim]
    return block.unflatten(0, (len(components), count))
