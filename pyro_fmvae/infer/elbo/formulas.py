"""The shorthands' own formulas in plain programs: E[log p] by component, at enumerated assignments."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import Label
from pyro_fmvae.infer.elbo.distribution_checks import check_components
from pyro_fmvae.infer.elbo.enumerated import enum_dim, values_of
from pyro_fmvae.infer.elbo.site_terms import expectation
from pyro_fmvae.infer.elbo.structure import Site


def by_formula(
    site: Site,
    q: Distribution,
    sites: Mapping[str, Site],
    owners: Mapping[int, str],
    parent_of: Callable[[Site], Distribution],
) -> Tensor | None:
    """E_q[log p] of a shorthand: [enumerated dimensions..., batch shape].

    Args:
        site: of the model.
        q: distribution of its value.
        sites: of the model, by name.
        owners: identity of a site's value → its name.
        parent_of: the distribution that a parent's site has.

    Returns:
        None where there is no formula, or where its parents are not the very values of sites.

    Raises:
        ValueError: a parent that does not have one value for each component.
    """
    fn = site["fn"]
    names = {argument: owners.get(id(getattr(fn, argument))) for argument in fn.parents}
    if None in names.values() or isinstance(fn, Label):
        return None
    parents = {argument: sites[name] for argument, name in names.items() if name is not None}
    chosen = parents.pop("assignment", site)
    posteriors: dict[str, Any] = {"assignment": chosen["fn"]}
    for argument, parent in parents.items():
        if chosen is not site:
            check_components(site, argument, parent, chosen["name"], values_of(chosen))
        posteriors[argument] = parent_of(parent)
    table = expectation(site, q, posteriors).to(getattr(fn, fn.parents[0]).dtype)
    table = _at(table, chosen, fn.batch_shape)
    return table.expand(torch.broadcast_shapes(table.shape, fn.batch_shape))


def _at(table: Tensor, chosen: Site, batch_shape: torch.Size) -> Tensor:
    """A table [..., K] at a discrete site's values, with K in the dimension that they are enumerated in."""
    dim = enum_dim(chosen)
    if dim is None:
        index = chosen["value"].expand(batch_shape).unsqueeze(-1)
        return table.expand(*batch_shape, table.shape[-1]).gather(-1, index).squeeze(-1)
    between = -dim - table.dim()
    return table.movedim(-1, 0)[(slice(None), *(None,) * between)]
