"""The components of a factor: their shares, their most typical training points, and draws."""

from typing import Final

from torch import Tensor

from pyro_fmvae.explorer.exploration import Exploration
from pyro_fmvae.explorer.generation import draw
from pyro_fmvae.runs.pages.prototypes import Prototype, of_factor

DRAWN: Final = 6
"""Draws of a component."""


def clusters(explored: Exploration, factor: int) -> list[Prototype]:
    """List the components of a factor, from the most to the least used: see :func:`of_factor`.

    Raises:
        ValueError: no training points.
    """
    return of_factor(explored.run, explored.encoded, factor)


def draws_of(explored: Exploration, factor: int, component: int, seed: int = 0) -> Tensor:
    """Draws of a component, as the model sees x, ``[DRAWN, *event_shape]``; other factors are drawn anew."""
    codes = [-1] * len(explored.run.recipe.factors)
    codes[factor] = component
    return draw(explored, DRAWN, codes, seed).x
