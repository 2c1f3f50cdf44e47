"""Figures that several recipes draw."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, SOURCES, smiley_sources
from pyro_fmvae.evaluate.sources import (
    active_latents,
    activity,
    block_concentration,
    correlation_matrix,
    per_block,
)
from pyro_fmvae.figures.attribute_grid import default_choice
from pyro_fmvae.figures.columns import MOST_COLUMNS
from pyro_fmvae.figures.components import percent
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.options import TrainConfig
from pyro_fmvae.models import FactorialMixtureVAE

if TYPE_CHECKING:
    from pyro_fmvae.learn.cluster_tree import Clusters

# Measures of latent codes: how many latents are active, and which known sources they have found.

USED = 0.01  # share of points in which a latent has to be on to count as active
ENCODED, ENCODING_BATCH = 2000, 500
EXAMPLES, SWEPT = 6, 2
MOST_PAIRS, PAIR_DRAWS = 6, 10
_UNITS = {Kind.TABLE: "standardised value", Kind.COUNTS: "count", Kind.BINARY: "probability"}


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


RECONSTRUCTED, SAMPLED, COLUMNS = 20, 64, 8


def cluster_figure(clusters: "Clusters", counts: Tensor) -> dict[str, Figure]:
    """How components of so many rows [K] join into clusters; nothing of one component or of too many."""
    if not 1 < len(counts) <= MOST_COLUMNS:
        return {}
    names = [f"component {k}: {percent(share)}" for k, share in enumerate((counts / counts.sum()).tolist())]
    of_components = clusters.of_components.tolist()
    return {"clusters": figures.dendrogram(clusters.tree, of_components, names, clusters.depth)}


def reconstructions(recipe: Recipe[Any], model: Any, rows: Split) -> Figure:
    """Images above their decoded codes."""
    examples = rows.select(torch.arange(min(RECONSTRUCTED, len(rows))))
    device = next(model.parameters()).device
    ((x, *_),) = Batches(examples, len(examples), shuffle=False, device=device)
    pairs = as_pixels(recipe.preprocessing, torch.stack([x, model.decode(model.code(x))]))
    return figures.reconstructions(*pairs)


def samples(recipe: Recipe[Any], model: Any) -> Figure:
    """Decoded draws from the prior of a model without factors."""
    x = model.decode(model.sample_latent(SAMPLED))
    return figures.sample_grid(as_pixels(recipe.preprocessing, x), COLUMNS, COLUMNS)


def as_pixels(preprocessing: Preprocessing, x: Tensor) -> Tensor:
    """Pixels in [0, 1] of images as a model sees them; real numbers, from the least to the greatest."""
    x = preprocessing.undo(x).cpu()
    if preprocessing.kind is not Kind.REAL:
        return x
    known = x[~x.isnan()]
    low, high = known.min(), known.max()
    return ((x - low) / (high - low).clamp(min=1e-12)).nan_to_num(0.5)


@torch.no_grad()
def codes_of(model: Any, batches: Batches) -> Tensor:
    """The code of every row, in order, on the CPU: [n, J]."""
    return torch.cat([model.code(x).cpu() for x, *_ in batches])


def first_codes(model: Any, rows: Split) -> Tensor:
    """Codes of the first points, at most 2,000: [n, J]."""
    device = next(model.parameters()).device
    return codes_of(model, Batches(_first(rows, ENCODED), ENCODING_BATCH, shuffle=False, device=device))


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
        titles = [recipe.value_text(0, value) for value in found.classes.tolist()]
        return {"activity": figures.class_activity(found.share_by_class, titles, high=1.0)}
    shares, titles = [], []
    for column, name in enumerate(recipe.label_names):
        found = activity(values, labels[:, column].numpy())
        shares += list(found.share_by_class)
        titles += [f"{name} {recipe.value_text(column, v)}" for v in found.classes.tolist()]
    return {"activity": figures.class_activity(np.stack(shares), titles, high=1.0)}


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
        return recipe.preprocessing.undo(model.decode(z.to(device))).cpu()

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


def factors_of(
    model: FactorialMixtureVAE,
    names: Sequence[str] = (),
    value_names: Sequence[Sequence[str]] = (),
    preprocessing: Preprocessing | None = None,
) -> figures.Factors:
    """A model as figures of factors take it.

    Args:
        model: trained.
        names: of the leading factors, those with labels; the others have their number, as in codes.
        value_names: for each of the leading factors, the names of its components, or nothing.
        preprocessing: of the data. Pixels of pictures are in [0, 1] then, whatever the model's are; tables
            stay as the model sees them, standardised.
    """
    image = preprocessing is not None and preprocessing.kind is not Kind.TABLE
    undo = preprocessing.undo if preprocessing is not None and image else _same
    unit = 0.5 if preprocessing is not None and preprocessing.signed else 1.0
    observation, decoder = model.observation, model.decoder
    count = len(model.num_components)
    means: dict[int, Tensor] = {}
    shares: dict[int, Tensor] = {}
    for group in model.factor_groups():
        means |= dict(zip(group.factors, group.locations(), strict=True))
        shares |= dict(zip(group.factors, group.counts().clamp(min=0), strict=True))
    return figures.Factors(
        decode=lambda z: undo(observation.mean(decoder(z))),
        sample_latent=model.sample_latent,
        means=[means[factor] for factor in range(count)],
        shares=[shares[factor] for factor in range(count)],
        names=(*names, *(f"factor {factor}" for factor in range(len(names), count))),
        std=lambda z: unit * observation.std(decoder(z)),
        draw=lambda z: undo(observation(decoder(z)).sample()),
        labelled=len(names),
        value_names=value_names,
    )


def factors_of_run(recipe: Recipe[Any], model: FactorialMixtureVAE) -> figures.Factors:
    """A run's model as figures of factors take it, with names of labels and values, and the data's pixels."""
    names = recipe.factor_names
    values = [recipe.component_names(factor) for factor in range(len(recipe.factors))]
    return replace(factors_of(model, names, values, recipe.preprocessing), labelled=len(recipe.labelled))


def factor_figures(
    recipe: Recipe[Any], model: FactorialMixtureVAE, rows: Split, records: Sequence[Mapping[str, Any]]
) -> dict[str, Figure]:
    """Figures of a finished run, by name: see :meth:`Recipe.draw_figures`."""
    factors = factors_of_run(recipe, model)
    drawn = {}
    if found := [record for record in records if record.get("bits")]:
        drawn["spectrum"] = _spectrum(factors, found[-1], recipe.image)
    if recipe.image:
        drawn["factors"] = figures.attribute_rows(factors)
        drawn["components"] = figures.component_grid(factors)
        drawn["reconstructions"] = reconstructions(recipe, model, rows)
        drawn["samples"] = figures.sample_grid(factors.decode_all(model.sample_latent(64)), 8, 8)
        drawn["spread"] = figures.spread(factors)
        drawn |= _pairs(factors)
        if factors.labelled and default_choice(factors):
            drawn["attributes"] = figures.attribute_grid(factors)
    elif recipe.preprocessing.decoded.event_shape[0] <= MOST_COLUMNS:
        numbered = [f"column {number + 1}" for number in range(recipe.preprocessing.decoded.event_shape[0])]
        columns = recipe.preprocessing.decoded.column_names or numbered
        drawn["columns"] = figures.column_means(factors, columns, _UNITS[recipe.preprocessing.kind])
    return drawn


def _spectrum(factors: figures.Factors, found: Mapping[str, Any], image: bool) -> Figure:
    """Bits of directions, with what the factors that started from them move now."""
    starts = {number: factor for number, factor in enumerate(found["starts"]) if factor is not None}
    names = {number: factors.names[factor] for number, factor in starts.items()}
    moved = {number: figures.moved_pictures(factors, factor) for number, factor in starts.items() if image}
    return figures.spectrum(found["bits"], found["clustered"], names, moved)


def _pairs(factors: figures.Factors) -> dict[str, Figure]:
    """Grids of pairs of factors without labels that are in use, at most 6; all others are held."""
    typical = {factor: int(factors.order(factor)[0]) for factor in range(len(factors.sizes))}
    free = [i for i in range(factors.labelled, len(factors.sizes)) if int(factors.used(i).sum()) > 1]
    pairs = list(combinations(free, 2))[:MOST_PAIRS]
    drawn = {}
    for i, j in pairs:
        held = {factor: k for factor, k in typical.items() if factor not in (i, j)}
        drawn[f"pairs-{i}-{j}"] = figures.pair_grid(factors, i, j, draws=PAIR_DRAWS, held=held)
    return drawn


def _same(x: Tensor) -> Tensor:
    return x
