"""Edits: other components for some factors of an encoded point, everything else kept.

The blocks of the changed factors are replaced, and no other number of z is touched. What to put there is said
by a :class:`Placement`: :func:`to_location` forgets the point, :func:`transport` keeps how it differs from
others of its component.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_fmvae.distributions import NormalGamma
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.models.shapes import check_codes, check_integers


class Normals(NamedTuple):
    """Components of one factor as normals: q(μ, α) at its means."""

    loc: Tensor
    """m, posterior mean of μ, [..., D]."""
    variance: Tensor
    """b/a, the inverse of the posterior mean of the precision, [..., D]."""

    def take(self, components: Tensor) -> Normals:
        """Those of the given indices int64 [n], out of [K, D]: [n, D]."""
        return Normals(self.loc[components], self.variance[components])


class Placement(Protocol):
    """Where an edit puts a block."""

    def __call__(self, block: Tensor, old: Normals, new: Normals) -> Tensor:
        """The new block [n, D], for the block [n, D] and its component before and after, each [n, D]."""


def to_location(block: Tensor, old: Normals, new: Normals) -> Tensor:
    """The middle of the new component: z' = m_new."""
    return new.loc.expand_as(block)


def transport(block: Tensor, old: Normals, new: Normals) -> Tensor:
    """The standardised residual is kept: z' = m_new + (z - m_old)·√(var_new / var_old).

    It is the optimal transport of one diagonal normal to the other.
    """
    return new.loc + (block - old.loc) * (new.variance / old.variance).sqrt()


@torch.no_grad()
def component_normals(model: FactorialMixtureVAE, factor: int) -> Normals:
    """The components of a factor, [K_i, D].

    Raises:
        ValueError: there is no such factor.
    """
    for group in model.factor_groups():
        if factor in group.factors:
            place = group.factors.index(factor)
            posterior = group.loc_precision()
            assert isinstance(posterior, NormalGamma)
            variance = posterior.rate / posterior.concentration.unsqueeze(-1)
            return Normals(posterior.loc[place], variance[place])
    raise ValueError(f"factor: expected one of 0..{len(model.num_components) - 1}, got {factor}")


@torch.no_grad()
def edit_latent(
    model: FactorialMixtureVAE,
    z: Tensor,
    changes: Mapping[int, Tensor | int],
    codes: Tensor,
    placement: Placement = transport,
) -> Tensor:
    """Give some factors other components.

    Args:
        model: trained.
        z: [n, I·D].
        changes: factor → its new component, a number or int64 [n].
        codes: the components that z has now, int64 [n, I], such as ``model.codes(x)``; none is -1.
        placement: what to put in the place of a changed block.

    Returns:
        z with the blocks of these factors replaced, [n, I·D].

    Raises:
        ValueError: a factor or component that does not exist, or shapes that don't fit.
    """
    factors = len(model.num_components)
    if z.dim() != 2 or z.shape[1] != factors * model.dim:
        raise ValueError(f"z: expected [n, {factors * model.dim}], got {list(z.shape)}")
    check_codes("codes", codes, len(z), model.num_components)
    codes = codes.long()
    if (codes < 0).any():
        raise ValueError("codes: expected the components that z has, got -1")
    blocks = z.unflatten(-1, (factors, model.dim)).clone()
    for factor, wanted in changes.items():
        normals = component_normals(model, factor)
        target = torch.as_tensor(wanted, device=z.device)
        check_integers(f"changes[{factor}]", target, (len(z),) if target.dim() else ())
        target = target.long().expand(len(z))
        if ((target < 0) | (target >= len(normals.loc))).any():
            raise ValueError(f"changes: expected components 0..{len(normals.loc) - 1} of factor {factor}")
        old, new = normals.take(codes[:, factor]), normals.take(target)
        blocks[:, factor] = placement(blocks[:, factor], old, new).to(z.dtype)
    return blocks.flatten(-2)
