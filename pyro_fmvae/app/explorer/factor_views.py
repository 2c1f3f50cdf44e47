"""The components of each factor side by side, with everything else fixed."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.generation import Draws, draw, movable, within
from pyro_fmvae.app.runs.by_batches import decode_rows
from pyro_fmvae.app.runs.pages.prototypes import Prototype, of_factor
from pyro_fmvae.figures.components import percent

# The components of a factor: their shares, their most typical training points, and draws.

DRAWN: Final = 6
"""Draws of a component."""


def clusters(explored: Exploration, factor: int) -> list[Prototype]:
    """List the components of a factor, from the most to the least used: see :func:`of_factor`.

    Raises:
        ValueError: no training points.
    """
    return of_factor(explored.run, explored.encoded, factor)


def notes_of(explored: Exploration, factor: int, components: Sequence[Prototype]) -> list[str]:
    """A line for each of a factor's components: name, share of points, cluster of the most typical one."""
    last = factor == len(explored.run.recipe.factors) - 1
    joined = explored.encoded.get("cluster") if last else None
    return [
        f"{one.name}: {100 * one.share:.1f} %"
        + ("" if joined is None else f", cluster {joined[one.rows[0]]}")
        for one in components
    ]


def draws_of(explored: Exploration, factor: int, component: int, seed: int = 0) -> Tensor:
    """Draws of a component, as the model sees x, ``[DRAWN, *event_shape]``; other factors are drawn anew."""
    codes = [-1] * len(explored.run.recipe.factors)
    codes[factor] = component
    return draw(explored, DRAWN, codes, seed).x


SHOWN: Final = 12
"""Components of a factor, the most used ones."""


class FactorView(NamedTuple):
    """One point with each component of a factor in turn."""

    components: list[int]
    """By number, in ascending order."""
    x: Tensor
    """As the model sees x, ``[n, *event_shape]``."""
    notes: list[str]
    """Property and value, and the component's share of the training points if these are there."""


def example(explored: Exploration, seed: int = 0) -> Draws:
    """The point that the components of all factors are shown on.

    Args:
        explored: the run.
        seed: 0 for the mean of the most used component of every factor; others for a draw.
    """
    count = len(explored.run.recipe.factors)
    codes = [max(_shares(explored, factor), key=lambda one: one[1] or 0.0)[0] for factor in range(count)]
    drawn = draw(explored, 1, [-1] * len(codes) if seed else codes, seed)
    if seed:
        return drawn
    z = torch.from_numpy(drawn.z)
    for factor in movable(explored):
        z = _at_mean(explored, z, codes, factor)
    return Draws(decode_rows(explored.trained.model, z), z.cpu().numpy(), drawn.codes)


def factor_view(explored: Exploration, point: Draws, factor: int) -> FactorView:
    """Move the factor's block of a point to the mean of each component; the other blocks stay.

    Args:
        explored: the run.
        point: one, such as :func:`example` gives.
        factor: by number, one of those that are :func:`movable`.
    """
    recipe, code, z = explored.run.recipe, point.codes[0].tolist(), torch.from_numpy(point.z)
    shares, names = _shares(explored, factor), dict((k, name) for name, k in explored.choices(factor))
    moved = []
    for component, _ in shares:
        moved.append(_at_mean(explored, z, [*code[:factor], component, *code[factor + 1 :]], factor))
    notes = [
        f"{explored.run.recipe.factor_names[factor]}: {names[k % recipe.num_values[factor]]}"
        + ("" if share is None else f" ({percent(share)})".replace(" %", "\N{NO-BREAK SPACE}%"))
        for k, share in shares
    ]
    x = decode_rows(explored.trained.model, torch.cat(moved))
    return FactorView([k for k, _ in shares], x, notes)


def _shares(explored: Exploration, factor: int) -> Sequence[tuple[int, float | None]]:
    """The most used components and their shares; without training points the first ones, without shares."""
    if explored.rows is None:
        return [(k, None) for k in range(explored.run.recipe.factors[factor])][:SHOWN]
    return sorted((one.component, one.share) for one in clusters(explored, factor)[:SHOWN])


@torch.no_grad()
def _at_mean(explored: Exploration, z: Tensor, code: list[int], factor: int) -> Tensor:
    """Z [1, J] with the block of a factor at the mean of its component in a code."""
    block = within(explored.run.recipe, explored.trained.model, code, factor)
    moved = z.to(block.loc).clone()
    moved[0, block.dims] = block.loc
    return moved
