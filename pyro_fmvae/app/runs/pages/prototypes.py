"""Training points that are typical of the components of factors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.app.recipes.pictures import as_pixels
from pyro_fmvae.app.runs.by_batches import encode_rows, in_order
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.data import Split
from pyro_fmvae.data.storage import to_uint8

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run

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
    """A component, and the training points that are most typical of it."""

    component: int
    name: str
    """Name of its value, the one that it was given, or its number."""
    share: float
    """Share of the points that it is the most probable component of."""
    rows: np.ndarray
    """Indices of the points, int64 [n], the most typical first."""


def prototypes(
    run: "Run", model: Any, rows: Split, factors: Sequence[int] | None = None
) -> list[list[tuple[Prototype, np.ndarray]]]:
    """Find the training pictures that are most typical of each component.

    Args:
        run: of images, with factors.
        model: as trained.
        rows: training points, of which the first `POINTS` are looked at.
        factors: by number; the first `FACTORS` of them if left out.

    Returns:
        For each factor its components as :func:`of_factor` gives them, at most
        `COMPONENTS`, with their pictures, uint8 [n, H, W] or [n, H, W, 3].

    Raises:
        ValueError: points without a finite bound.
    """
    device = next(model.parameters()).device
    rows = rows.select(torch.arange(min(POINTS, len(rows))))
    encoded = encode_rows(model, in_order(rows, device))
    shown = range(min(FACTORS, len(run.recipe.factors))) if factors is None else factors
    return [
        [(one, _pictures(run, rows, one)) for one in of_factor(run, encoded, factor)[:COMPONENTS]]
        for factor in shown
    ]


def of_factor(run: "Run", encoded: dict[str, np.ndarray], factor: int) -> list[Prototype]:
    """Find the points that are most typical of each component of a factor.

    These are the points of greatest responsibility. Among those that are equal in it, the ones come first
    whose mean in the factor's block of z is nearest to the average of the component's points; where a code is
    the row itself, z is the row.

    Args:
        run: the points' run.
        encoded: encodings of the points, as :func:`~pyro_fmvae.app.runs.by_batches.encode_rows` gives them.
        factor: by number.

    Returns:
        The components from the most to the least used, without those of no point.
    """
    codes, means = encoded["codes"][:, factor], encoded["mean"]
    if not run.recipe.rows_are_codes:
        means = means.reshape(len(codes), len(run.recipe.factors), -1)[:, factor]
    responsibilities = encoded[f"responsibilities_{factor}"]
    names = values_of(factor, np.arange(run.recipe.factors[factor]), run)
    counts, found = np.bincount(codes, minlength=len(names)), []
    for component in np.argsort(-counts, kind="stable"):
        if not counts[component]:
            break
        members = np.flatnonzero(codes == component)
        distances = np.linalg.norm(means[members] - means[members].mean(0), axis=1)
        doubts = ((1 - responsibilities[members, component]) / SAME).round()
        chosen = members[np.lexsort((distances, doubts))[:PICTURES]]
        share = float(counts[component]) / len(codes)
        found.append(Prototype(int(component), str(names[component]), share, chosen))
    return found


def _pictures(run: "Run", rows: Split, of: Prototype) -> np.ndarray:
    return to_uint8(as_pixels(run.recipe.preprocessing, rows.select(torch.from_numpy(of.rows)).observations))
