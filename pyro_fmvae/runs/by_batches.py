"""A run's model applied to many rows, batch by batch: what the commands and Python have in common."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.data.resolution import rounded_units
from pyro_fmvae.evaluate import rows_without_bound
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.ranks import Ranks, by_rows
from pyro_fmvae.recipes.recipe import Recipe

EVALUATION_BATCH = 500
COMPARED = 5000
"""Training points that outlier scores are compared with."""


def in_order(rows: Split, device: torch.device, most: int | None = None) -> Batches:
    """Batches of the rows in their order, or of the first ``most`` of them, for evaluation."""
    if most is not None:
        rows = rows.select(torch.arange(min(most, len(rows))))
    return Batches(rows, EVALUATION_BATCH, shuffle=False, device=device)


@contextmanager
def naming_far_rows(
    model: Any,
    rows: Split,
    device: torch.device,
    seed: int = 0,
    argument: str = "data",
    ranks: Ranks | None = None,
) -> Iterator[None]:
    """Name the rows that have no finite bound if the computation inside fails because of them.

    Raises:
        ValueError: there are such rows; it begins with the name of the ``argument`` that they came from.
    """
    try:
        yield
    except ValueError:
        far = rows_without_bound(model, in_order(rows, device), seed, ranks)
        if not len(far):
            raise
        rows_are = f"row {far[0]} is" if len(far) == 1 else f"row {far[0]} and {len(far) - 1} others are"
        raise ValueError(
            f"{argument}: {rows_are} so far from what the model was trained on that there is no finite "
            "bound; score counts such rows as inf"
        ) from None


def encoded_parts(
    recipe: Recipe[Any], model: Any, batches: Batches, ranks: Ranks | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Encode batch after batch: the arrays of :meth:`Recipe.encode` on the CPU, each [B, ...].

    Where the networks have not learnt all labels, ``predicted`` [B, I] is beside them: the codes, but of
    these labels what is predicted without the networks.

    Where ranks share the rows, every rank gets all of them, and has to go through all parts.
    """

    def encode(x: Tensor) -> dict[str, Tensor]:
        unlearnt = recipe.spread and model.predictors
        return recipe.encode(model, x) | ({"predicted": model.predicted_codes(x)} if unlearnt else {})

    for x, *_ in batches:
        with torch.no_grad():
            encoded = by_rows(ranks or Ranks(), encode, x)
        yield {name: tensor.cpu().numpy() for name, tensor in encoded.items()}


def joined(parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of the same names, one after another: each [N, ...]."""
    arrays: dict[str, list[np.ndarray]] = {}
    for part in parts:
        for name, array in part.items():
            arrays.setdefault(name, []).append(array)
    return {name: np.concatenate(found) for name, found in arrays.items()}


def encode_rows(recipe: Recipe[Any], model: Any, batches: Batches) -> dict[str, np.ndarray]:
    """Encode every row, in row order: the arrays of :func:`encoded_parts`, each [N, ...]."""
    return joined(encoded_parts(recipe, model, batches))


@torch.no_grad()
def decode_rows(recipe: Recipe[Any], model: Any, z: Tensor) -> Tensor:
    """E[x | z] of every row of z [n, J], as the model sees x, on the CPU: ``[n, *event_shape]``."""
    return torch.cat([recipe.decode(model, part).cpu() for part in z.split(EVALUATION_BATCH)])


@torch.no_grad()
def draw_rows(
    recipe: Recipe[Any], model: Any, codes: Tensor, seed: int
) -> tuple[Tensor, dict[str, np.ndarray]]:
    """Draw from the prior, and decode. The generators are left as they were.

    Args:
        recipe: of the model.
        model: as trained.
        codes: component of each factor, int64 [n, I], -1 where it is to be drawn; [n, 0] without factors.
        seed: of the draws.

    Returns:
        E[x | z] as the model sees x, on the CPU, ``[n, *event_shape]``; and ``z`` [n, J] with whatever else
        :meth:`Recipe.sample` gives, by name.

    Raises:
        ValueError: the model has no density of z.
    """
    if not model.bounded:
        raise ValueError("run: an auto-encoder (--posterior point) has no density of z to draw from")
    with seeded(seed):
        z, arrays = recipe.sample(model, codes)
    return decode_rows(recipe, model, z), {"z": z.cpu().numpy(), **arrays}


def in_units(preprocessing: Preprocessing, mean: Tensor) -> np.ndarray:
    """Decoded means, on the CPU, in the units of the data, as :class:`Preprocessing` takes them.

    Means of greys and colours are clamped to [0, 1], and those of columns to the bounds of the preprocessing;
    tables are float64, without digits that float32 does not hold
    (:func:`~pyro_fmvae.data.resolution.rounded_units`).
    """
    if preprocessing.kind is Kind.TABLE:
        rounded = rounded_units(preprocessing, mean)
        return np.clip(rounded, preprocessing.lower, preprocessing.upper) if preprocessing.lower else rounded
    units = preprocessing.undo(mean)
    clamped: np.ndarray = (units.clamp(0, 1) if preprocessing.signed else units).numpy()
    return clamped


@torch.no_grad()
def map_rows(function: Callable[[Tensor], Tensor], batches: Batches, ranks: Ranks | None = None) -> Tensor:
    """A function of each batch [B, ...], the results one after another on the CPU: [N, ...].

    Where ranks share the rows, every rank gets all of them.
    """
    return torch.cat([by_rows(ranks or Ranks(), function, x).cpu() for x, *_ in batches])
