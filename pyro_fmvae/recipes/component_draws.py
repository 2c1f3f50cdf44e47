"""Where the draws of a component lie in z."""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.evaluate.edits import component_normals
from pyro_fmvae.recipes.fmvae import FMVAE
from pyro_fmvae.recipes.recipe import Recipe
from pyro_fmvae.recipes.table_mixture import Mixture


class Within(NamedTuple):
    """Draws of a component: loc + scale · u at some dimensions of z, with standardised u."""

    dims: Tensor
    """The dimensions of z that the component tells of, int64 [D]."""
    loc: Tensor
    """[D]."""
    scale: Tensor
    """[D, D], lower triangular."""


@singledispatch
def within(recipe: Recipe[Any], model: Any, code: Sequence[int], factor: int) -> Within:
    """Find where the draws of a factor's component lie.

    Args:
        recipe: of the model.
        model: as trained.
        code: component of each factor.
        factor: whose component.

    Raises:
        ValueError: a model without factors.
    """
    raise ValueError(f"factor: a {recipe.name} has no factors")


@within.register
@torch.no_grad()
def _(recipe: FMVAE, model: Any, code: Sequence[int], factor: int) -> Within:
    """The block of the factor, with the parameters at their posterior means."""
    loc, variance = (part[code[factor]] for part in component_normals(model, factor))
    dims = torch.arange(factor * model.dim, (factor + 1) * model.dim)
    return Within(dims, loc, torch.diag(variance.sqrt()))


@within.register
@torch.no_grad()
def _(recipe: Mixture, model: Any, code: Sequence[int], factor: int) -> Within:
    """The columns of numbers of a row, of which the component tells that is the last entry of a code."""
    component = code[-1]
    numbers = torch.tensor(model.sites.numbers, dtype=torch.int64)
    loc = model.locations()[component, numbers]
    if not len(numbers):
        return Within(numbers, loc, torch.zeros(0, 0))
    predictive = model.predictive(torch.tensor([component], device=loc.device))
    full = model.sites.full
    scale = predictive.scale_tril[0] if full else torch.diag(predictive.base_dist.scale[0])
    return Within(numbers, loc, scale.to(loc))
