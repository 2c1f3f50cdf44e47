"""Figures of latent codes: the sources that they found, and what active latents do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.pictures import true_sources
from pyro_fmvae.app.recipes.recipe import Recipe, codes_of
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, SOURCES
from pyro_fmvae.evaluate.sources import activity, correlation_matrix
from pyro_fmvae.figures.page import Figure

ENCODED, ENCODING_BATCH = 2000, 500
EXAMPLES, SWEPT = 6, 2


def first_codes(recipe: Recipe[Any], model: Any, rows: Split) -> Tensor:
    """Codes of the first points, at most 2,000: [n, J]."""
    device = next(model.parameters()).device
    return codes_of(
        recipe, model, Batches(_first(rows, ENCODED), ENCODING_BATCH, shuffle=False, device=device)
    )


def correlations(recipe: Recipe[Any], codes: Tensor, split: str) -> dict[str, Figure]:
    """``correlations`` of codes [n, J] with the sources of the same points of a split, if these are known."""
    sources = true_sources(recipe.config, split, len(codes))
    if sources is None:
        return {}
    blocks = dict(zip(ATTRIBUTES, FEATURES, strict=True))
    matrices = {recipe.name: correlation_matrix(sources, codes.double().numpy())}
    return {"correlations": figures.correlation_matrices(matrices, SOURCES, blocks)}


def class_activity(recipe: Recipe[Any], codes: Tensor, rows: Split) -> dict[str, Figure]:
    """``activity``: how often each latent is on, by class.

    Classes are those of the label, or the values of each of several labels. Without known labels: nothing.

    Args:
        recipe: of the run.
        codes: of the first points, [n, J], with exact zeros.
        rows: the points, with labels or not.
    """
    labels = None if rows.labels is None else rows.labels[: len(codes)]
    if labels is None or not (labels >= 0).any():
        return {}
    values = codes.double().numpy()
    if labels.shape[1] == 1:
        found = activity(values, labels[:, 0].numpy())
        titles = [value_name(recipe.value_names, 0, value) for value in found.classes.tolist()]
        return {"activity": figures.class_activity(found.share_by_class, titles, high=1.0)}
    shares, titles = [], []
    for column, name in enumerate(recipe.label_names):
        found = activity(values, labels[:, column].numpy())
        shares += list(found.share_by_class)
        titles += [f"{name} {value_name(recipe.value_names, column, v)}" for v in found.classes.tolist()]
    return {"activity": figures.class_activity(np.stack(shares), titles, high=1.0)}


def value_name(value_names: Sequence[Sequence[str]], column: int, value: int) -> str:
    """Name of a value of a label, or its number."""
    names = value_names[column] if value_names else ()
    return names[value] if names else str(value)


def sparse_pictures(recipe: Recipe[Any], model: Any, rows: Split, codes: Tensor) -> dict[str, Figure]:
    """Images that differ in one latent: drawn anew, turned off, or moved; ``sweeps`` where one is active.

    Args:
        recipe: of the run.
        model: as trained.
        rows: images.
        codes: of the first of them, [n, J], with exact zeros.
    """
    device = next(model.parameters()).device

    def pictured(z: Tensor) -> Tensor:
        return recipe.preprocessing.undo(recipe.decode(model, z.to(device))).cpu()

    (x, *_), *_ = Batches(_first(rows, EXAMPLES), EXAMPLES, shuffle=False)
    examples, images = codes[: len(x)], recipe.preprocessing.undo(x)
    drawn = {
        "conditional-samples": figures.conditional_samples(pictured, images, examples, codes),
        "toggles": figures.spike_toggles(pictured, examples, codes),
    }
    active = examples[(examples != 0).any(1)]
    if len(active):
        drawn["sweeps"] = figures.value_sweeps(pictured, active[:SWEPT], codes)
    return drawn


def _first(rows: Split, most: int) -> Split:
    return rows.select(torch.arange(min(most, len(rows))))
