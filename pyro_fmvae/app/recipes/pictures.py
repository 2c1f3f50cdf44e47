"""Figures that several recipes draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.options import TrainConfig
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, smiley_sources
from pyro_fmvae.evaluate.sources import (
    active_latents,
    activity,
    block_concentration,
    correlation_matrix,
    per_block,
)
from pyro_fmvae.figures.page import Figure

# Measures of latent codes: how many latents are active, and which known sources they have found.

USED = 0.01  # share of points in which a latent has to be on to count as active


def true_sources(config: TrainConfig, split: str | None, count: int) -> np.ndarray | None:
    """The sources behind the first points of a split, float64 [count, F]; None unless they are known.

    Those of ``smiley`` are, if no combinations of labels are held out, which takes rows away from splits.

    Args:
        config: resolved, of the run.
        split: name of the split; None: points of other data, whose sources nobody knows.
        count: points.
    """
    if split is None or config.data != "smiley" or config.hold_out:
        return None
    return smiley_sources(split)[:count]


def activity_measures(codes: Tensor) -> dict[str, Any]:
    """Measures of codes [n, J] that have exact zeros.

    Returns:
        ``active_latents``, how many are on in more than a hundredth of the points, and ``share_on``, the mean
        share of latents that are on.
    """
    share = activity(codes.double().numpy()).share
    return {"active_latents": int((share > USED).sum()), "share_on": float(share.mean())}


def source_measures(codes: Tensor, sources: np.ndarray | None) -> dict[str, Any]:
    """Measures of codes against the sources of the data.

    Args:
        codes: [n, J].
        sources: of the same points, float64 [n, F], or None.

    Returns:
        Nothing without sources or with a single point; else ``sources``: how many latents are correlated with
        any source (``active``) and with those of each attribute most, and ``block_concentration``.
    """
    if sources is None or len(sources) < 2:
        return {}
    correlations = correlation_matrix(sources, codes.double().numpy())
    concentration = block_concentration(correlations, FEATURES)
    return {
        "sources": {
            "active": int(active_latents(correlations).sum()),
            **dict(zip(ATTRIBUTES, per_block(correlations, FEATURES).tolist(), strict=True)),
            "block_concentration": None if np.isnan(concentration) else concentration,
        }
    }


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
