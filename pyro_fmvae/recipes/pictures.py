"""Figures that several recipes draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.recipes.recipe import Recipe

TRAINING = "training"
"""The figure that every run has, and no other command draws."""
RECONSTRUCTED, SAMPLED, COLUMNS = 20, 64, 8
OF_FACTORS = {"kl_r", "kl_global"}  # measures that are zero without factors


def training_curves(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Curves of a training of a model without factors."""
    return figures.training_curves(
        [{key: value for key, value in record.items() if key not in OF_FACTORS} for record in records]
    )


def reconstructions(recipe: Recipe[Any], model: Any, rows: Split) -> Figure:
    """Images above their decoded codes."""
    examples = rows.select(torch.arange(min(RECONSTRUCTED, len(rows))))
    device = next(model.parameters()).device
    ((x, *_),) = Batches(examples, len(examples), shuffle=False, device=device)
    pairs = as_pixels(recipe.preprocessing, torch.stack([x, recipe.decode(model, recipe.code(model, x))]))
    return figures.reconstructions(*pairs)


def samples(recipe: Recipe[Any], model: Any) -> Figure:
    """Decoded draws from the prior of a model without factors."""
    z, _ = recipe.sample(model, torch.empty(SAMPLED, 0, dtype=torch.int64))
    return figures.sample_grid(as_pixels(recipe.preprocessing, recipe.decode(model, z)), COLUMNS, COLUMNS)


def as_pixels(preprocessing: Preprocessing, x: Tensor) -> Tensor:
    """Pixels in [0, 1] of images as a model sees them; real numbers, from the least to the greatest."""
    x = preprocessing.undo(x).cpu()
    if preprocessing.kind is not Kind.REAL:
        return x
    known = x[~x.isnan()]
    low, high = known.min(), known.max()
    return ((x - low) / (high - low).clamp(min=1e-12)).nan_to_num(0.5)
