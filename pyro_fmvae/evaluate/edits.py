"""Edits: move an encoded point to other components of some factors, and keep everything else.

Only the blocks of the changed factors are replaced. A :class:`Placement` computes their new values:
:func:`to_location` discards the old block, :func:`transport` keeps how it differs from its component.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_fmvae.models import FactorialMixtureVAE, ObservedMixture
from pyro_fmvae.models.shapes import check_codes, check_integers


class Normals(NamedTuple):
    """Components of one factor as normals, with the parameters at their means under q(μ, α)."""

    loc: Tensor
    """m, posterior mean of μ, [..., D]."""
    variance: Tensor
    """b/a, the inverse of the posterior mean of the precision, [..., D]."""

    def take(self, components: Tensor) -> Normals:
        """Select the components with indices int64 [n] from [K, D]: [n, D]."""
        return Normals(self.loc[components], self.variance[components])


class Placement(Protocol):
    """A rule for the new value of an edited block."""

    def __call__(self, block: Tensor, old: Normals, new: Normals) -> Tensor:
        """Return the new block [n, D], from the old block and its old and new component, each [n, D]."""


def to_location(block: Tensor, old: Normals, new: Normals) -> Tensor:
    """Put a block at the mean of its new component: z' = m_new."""
    return new.loc.expand_as(block)


def transport(block: Tensor, old: Normals, new: Normals) -> Tensor:
    """Keep the standardised residual: z' = m_new + (z - m_old)·√(var_new / var_old).

    This is the optimal transport from one diagonal normal to the other.
    """
    return new.loc + (block - old.loc) * (new.variance / old.variance).sqrt()


@torch.no_grad()
def component_normals(model: FactorialMixtureVAE, factor: int) -> Normals:
    """The components of a factor, [K_i, D].

    Raises:
        ValueError: ``factor`` out of range.
    """
    for group in model.factor_groups():
        if factor in group.factors:
            place = group.factors.index(factor)
            posterior: Any = group.loc_precision()
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
    """Move latent vectors to other components of some factors.

    Args:
        model: a trained model.
        z: latent vectors [n, I·D].
        changes: factor → its new component, a number or int64 [n].
        codes: the present components of z, int64 [n, I], such as ``model.codes(x)``; none is -1.
        placement: rule for the new value of a changed block.

    Returns:
        z with the blocks of these factors replaced, [n, I·D].

    Raises:
        ValueError: a factor or component out of range, or tensors of other shapes.
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


@singledispatch
def edit(model: Any, x: Tensor, changes: Mapping[int, int]) -> Tensor:
    """Points some factors of which have other components; of a mixture of rows see :func:`edit_rows`.

    Args:
        model: a trained model.
        x: a batch ``[B, *event_shape]``.
        changes: factor → its new component.

    Returns:
        E[x | z] at the edited means of q(z | x), ``[B, *event_shape]``.
    """
    return model.expected(edit_latent(model, model.code(x), changes, model.codes(x)), x)


@edit.register(ObservedMixture)
@torch.no_grad()
def edit_rows(model: ObservedMixture, x: Tensor, changes: Mapping[int, int]) -> Tensor:
    """Move rows to the components that changed entries of their codes make likely.

    Numbers keep how they differ from the mean of their component, whitened by its Cholesky factor. Categories
    become the most probable ones of the new component.

    Args:
        model: a trained model.
        x: rows [B, D], NaN where missing.
        changes: entry of the code → its new value.

    Returns:
        Rows [B, D] with nothing missing; those whose codes have all these values already stay as they are.

    Raises:
        ValueError: an entry or a value out of range.
    """
    sizes = model.num_components
    rows, codes = model.filled(x), torch.full((len(x), len(sizes)), -1, device=x.device)
    for entry, value in changes.items():
        if not 0 <= entry < len(sizes) or not 0 <= value < sizes[entry]:
            raise ValueError(f"changes: expected values below {sizes}, got {value} of entry {entry}")
        codes[:, entry] = value
    present, locations = model.codes(x), model.locations()
    old, stays = present[:, -1], ((codes < 0) | (codes == present)).all(-1)
    new = torch.where(codes[:, -1] >= 0, codes[:, -1], model.given_labels(codes).argmax(-1))
    changed, numbers = locations[new], model.sites.numbers
    if numbers:
        predictive = model.predictive()
        spread = predictive.scale_tril if model.sites.full else torch.diag_embed(predictive.base_dist.scale)
        gap = (rows - locations[old])[:, numbers].double().unsqueeze(-1)
        white = torch.linalg.solve_triangular(spread[old], gap, upper=False)
        changed[:, numbers] += (spread[new] @ white).squeeze(-1).to(rows)
    return torch.where((stays | (old == new)).unsqueeze(-1), rows, changed)
