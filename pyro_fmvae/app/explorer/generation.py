"""Draws from the model, and one of them moved within its component."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.recipes.pictures import as_pixels
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.table_mixture import Mixture
from pyro_fmvae.app.runs.by_batches import decode_rows, draw_rows
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.data.preprocessing import in_units
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.evaluate.edits import component_normals

# Where the draws of a component lie in z.


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
    """
    raise NotImplementedError


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


SLIDERS = 6
"""Directions within a component that can be moved, those that change most."""
REACH = 3.0
"""Standard deviations to either side."""


@dataclass(frozen=True)
class Draws:
    """Draws from a model."""

    x: Tensor
    """E[x | z] as the model sees x, ``[n, *event_shape]``."""
    z: np.ndarray
    """[n, J]."""
    codes: np.ndarray
    """Component of each factor, [n, I]; [n, 0] without factors."""

    def only(self, number: int) -> "Draws":
        """One of them."""
        one = slice(number, number + 1)
        return Draws(self.x[one], self.z[one], self.codes[one])


def draw(explored: Exploration, n: int, codes: Sequence[int], seed: int) -> Draws:
    """Draw from the model.

    Args:
        explored: the run.
        n: number of draws.
        codes: component of each factor, -1 to draw it.
        seed: of the draws.

    Raises:
        ValueError: a model without a density of z.
    """
    trained = explored.trained
    wanted = torch.tensor([list(codes)], dtype=torch.int64).reshape(1, -1).expand(n, -1)
    x, arrays = draw_rows(explored.run.recipe, trained.model, wanted, seed)
    return Draws(x, arrays["z"], arrays.get("codes", np.zeros((n, 0), np.int64)))


def described(explored: Exploration, codes: np.ndarray) -> dict[str, str]:
    """Name of each factor's component in a code [I], by the factor's name."""
    run = explored.run
    return {
        name: str(values_of(factor, codes[factor : factor + 1], run)[0])
        for factor, name in enumerate(run.recipe.factor_names)
    }


@torch.no_grad()
def directions(explored: Exploration, drawn: Draws, factor: int) -> list[int]:
    """Directions of a factor's component that change the first draw most, the strongest first.

    Each is moved by a standard deviation to either side, and the decoded differences are compared.
    """
    count = len(_component(explored, drawn, factor).dims)
    steps = torch.cat([torch.eye(count), -torch.eye(count)])
    moved = torch.cat([_moved(explored, drawn, factor, step) for step in steps])
    x = decode_rows(explored.trained.model, moved).flatten(1)
    up, down = x.split(count)
    return (up - down).norm(dim=1).argsort(descending=True, stable=True)[:SLIDERS].tolist()


@torch.no_grad()
def place(explored: Exploration, drawn: Draws, factor: int) -> list[float]:
    """Where the first draw lies within its component of a factor, in standard deviations by direction."""
    block = _component(explored, drawn, factor)
    gap = torch.from_numpy(drawn.z[0]).to(block.loc)[block.dims] - block.loc
    at: list[float] = torch.linalg.solve_triangular(block.scale, gap[:, None], upper=False)[:, 0].tolist()
    return at


@torch.no_grad()
def move(explored: Exploration, drawn: Draws, factor: int, by: Mapping[int, float]) -> Draws:
    """Move the first draw within its component of a factor.

    Args:
        explored: the run.
        drawn: its first draw is moved.
        factor: whose block.
        by: direction → standard deviations from the mean; along other directions it stays where it is.
    """
    u = torch.tensor(place(explored, drawn, factor))
    for direction, amount in by.items():
        u[direction] = amount
    z = _moved(explored, drawn, factor, u)
    x = decode_rows(explored.trained.model, z)
    return Draws(x, z.cpu().numpy(), drawn.codes[:1])


def movable(explored: Exploration) -> list[int]:
    """Factors within whose components a draw can be moved; of a mixture of rows, its component alone."""
    count = len(explored.run.recipe.factors)
    return list(range(count))[-1:] if explored.run.recipe.rows_are_codes else list(range(count))


def _component(explored: Exploration, drawn: Draws, factor: int) -> Within:
    return within(explored.run.recipe, explored.trained.model, drawn.codes[0].tolist(), factor)


def _moved(explored: Exploration, drawn: Draws, factor: int, u: Tensor) -> Tensor:
    """Z [1, J] of the first draw with the block of a factor at u, in standard deviations."""
    block = _component(explored, drawn, factor)
    z = torch.from_numpy(drawn.z[:1].copy()).to(block.loc)
    z[0, block.dims] = block.loc + block.scale @ u.to(block.loc)
    return z


def save(explored: Exploration, drawn: Draws, target: Path) -> Path:
    """Write draws with their codes into a .zip.

    It holds ``draws.npz`` with ``x``, ``z`` and ``codes``, as the command ``sample`` writes them;
    ``draws.csv`` with the name of each component, and of a table the columns; and of images a ``.png`` each.

    Args:
        explored: the run.
        drawn: the draws.
        target: the file, in an existing folder.
    """
    names = [described(explored, code) for code in drawn.codes]
    header, cells = list(explored.run.recipe.factor_names), [list(one.values()) for one in names]
    with ZipFile(target, "w") as archive:
        with archive.open("draws.npz", "w") as file:
            x = in_units(explored.run.recipe.preprocessing, drawn.x)
            np.savez(file, x=x, z=drawn.z, codes=drawn.codes)
        if explored.run.recipe.image:
            for number, pixels in enumerate(to_uint8(as_pixels(explored.run.recipe.preprocessing, drawn.x))):
                with archive.open(f"{number}.png", "w") as file:
                    Image.fromarray(pixels).save(file, format="PNG")
        else:
            columns, rows = explored.table(drawn.x)
            header, cells = header + columns, [a + b for a, b in zip(cells, rows, strict=True)]
        lines = io.StringIO(newline="")
        writer = csv.writer(lines)
        writer.writerow(["draw", *header])
        writer.writerows([number, *row] for number, row in enumerate(cells))
        archive.writestr("draws.csv", lines.getvalue())
    return target
