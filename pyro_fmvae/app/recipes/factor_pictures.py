"""A factorial mixture VAE as figures of factors take it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.pictures import TRAINING, reconstructions
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.data import Kind, Preprocessing, Split
from pyro_fmvae.figures.attribute_grid import default_choice
from pyro_fmvae.figures.columns import MOST_COLUMNS
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.models import FactorialMixtureVAE

MOST_PAIRS, PAIR_DRAWS = 6, 10
_UNITS = {Kind.TABLE: "standardised value", Kind.COUNTS: "count", Kind.BINARY: "probability"}


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
    drawn = {TRAINING: figures.training_curves(records, factors.names)}
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
    elif recipe.preprocessing.decoded_shape[0] <= MOST_COLUMNS:
        numbered = [f"column {number + 1}" for number in range(recipe.preprocessing.decoded_shape[0])]
        columns = recipe.preprocessing.decoded_columns or numbered
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
