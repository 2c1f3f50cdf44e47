"""Draws from the model, and one of them moved within its component."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.explorer.exploration import Exploration
from pyro_fmvae.recipes.component_draws import Within, within
from pyro_fmvae.recipes.pictures import as_pixels
from pyro_fmvae.runs.by_batches import decode_rows, draw_rows, in_units
from pyro_fmvae.runs.factor_names import values_of

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
        for factor, name in enumerate(run.factor_names)
    }


@torch.no_grad()
def directions(explored: Exploration, drawn: Draws, factor: int) -> list[int]:
    """Directions of a factor's component that change the first draw most, the strongest first.

    Each is moved by a standard deviation to either side, and the decoded differences are compared.
    """
    count = len(_component(explored, drawn, factor).dims)
    steps = torch.cat([torch.eye(count), -torch.eye(count)])
    moved = torch.cat([_moved(explored, drawn, factor, step) for step in steps])
    x = decode_rows(explored.run.recipe, explored.trained.model, moved).flatten(1)
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
    x = decode_rows(explored.run.recipe, explored.trained.model, z)
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
    header, cells = list(explored.run.factor_names), [list(one.values()) for one in names]
    with ZipFile(target, "w") as archive:
        with archive.open("draws.npz", "w") as file:
            x = in_units(explored.run.preprocessing, drawn.x)
            np.savez(file, x=x, z=drawn.z, codes=drawn.codes)
        if explored.run.image:
            for number, pixels in enumerate(to_uint8(as_pixels(explored.run.preprocessing, drawn.x))):
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
