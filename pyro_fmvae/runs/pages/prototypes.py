"""Training pictures that are typical of the components of factors."""

from typing import Any, Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data import Split
from pyro_fmvae.data.storage import to_uint8
from pyro_fmvae.recipes.pictures import as_pixels
from pyro_fmvae.runs.by_batches import encode_rows, in_order
from pyro_fmvae.runs.factor_names import values_of
from pyro_fmvae.runs.run import Run

POINTS: Final = 5000
"""Training points that are looked at, the first ones."""
PICTURES: Final = 6
"""Pictures of a component."""
COMPONENTS: Final = 12
"""Components shown of a factor, the most used ones."""
FACTORS: Final = 8
"""Factors shown, the first ones."""
SAME = 1e-3  # responsibilities that differ by less are equally good


class Prototype(NamedTuple):
    """A component, and the training pictures that are nearest to it."""

    name: str
    """That of its value, or its number."""
    share: float
    """Share of the points that it is the most probable component of."""
    pictures: np.ndarray
    """uint8 [n, H, W] or [n, H, W, 3], the most typical first."""


def prototypes(run: Run, model: Any, rows: Split) -> list[list[Prototype]]:
    """Find the training pictures that are most typical of each component.

    These are the points of greatest responsibility. Among those that are equal in it, the ones come first
    whose mean in the factor's block of z is nearest to the average of the component's points.

    Args:
        run: of images, with factors.
        model: as trained.
        rows: training points, of which the first `POINTS` are looked at.

    Returns:
        For each of the first `FACTORS` factors, its components from the most to the least used, without
        those of no point, at most `COMPONENTS`.

    Raises:
        ValueError: points without a finite bound.
    """
    device = next(model.parameters()).device
    rows = rows.select(torch.arange(min(POINTS, len(rows))))
    encoded = encode_rows(run.recipe, model, in_order(rows, device))
    shown = range(min(FACTORS, len(run.recipe.factors)))
    return [_of_factor(run, rows, encoded, factor) for factor in shown]


def _of_factor(run: Run, rows: Split, encoded: dict[str, np.ndarray], factor: int) -> list[Prototype]:
    codes = encoded["codes"][:, factor]
    blocks = encoded["mean"].reshape(len(rows), len(run.recipe.factors), -1)[:, factor]
    responsibilities = encoded[f"responsibilities_{factor}"]
    names = values_of(factor, np.arange(run.recipe.factors[factor]), run)
    counts = np.bincount(codes, minlength=len(names))
    found = []
    for component in np.argsort(-counts, kind="stable")[:COMPONENTS]:
        if not counts[component]:
            break
        members = np.flatnonzero(codes == component)
        distances = np.linalg.norm(blocks[members] - blocks[members].mean(0), axis=1)
        doubts = ((1 - responsibilities[members, component]) / SAME).round()
        chosen = members[np.lexsort((distances, doubts))[:PICTURES]]
        pixels = as_pixels(run.preprocessing, rows.select(torch.from_numpy(chosen)).observations)
        share = float(counts[component]) / len(rows)
        found.append(Prototype(str(names[component]), share, to_uint8(pixels)))
    return found
