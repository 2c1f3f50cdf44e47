"""A factorial mixture VAE as figures of factors take it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.recipes.recipe import Recipe


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
        value_names: for each of those, the names of its components, or nothing.
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
    names = [recipe.label_names[i] for i in recipe.labelled]
    values = [recipe.value_names[i] for i in recipe.labelled] if recipe.value_names else []
    return factors_of(model, names, values, recipe.preprocessing)


def _same(x: Tensor) -> Tensor:
    return x
