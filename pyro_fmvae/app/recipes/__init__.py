"""One recipe for each model of the command line: options, defaults, checks, phases, reports, figures."""

from pyro_fmvae.app.recipes.pictures import codes_of, factors_of, true_sources
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.registry import DEFAULT, RECIPES, configure, recipe_of
from pyro_fmvae.learn.options import TrainConfig

__all__ = [
    "DEFAULT",
    "RECIPES",
    "Recipe",
    "TrainConfig",
    "codes_of",
    "configure",
    "factors_of",
    "recipe_of",
    "true_sources",
]
