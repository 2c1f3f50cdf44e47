"""All models of the command line, by name."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from pyro_fmvae.data import Dataset
from pyro_fmvae.recipes.bsc import BSC
from pyro_fmvae.recipes.fmvae import FMVAE
from pyro_fmvae.recipes.options import TrainConfig
from pyro_fmvae.recipes.recipe import Recipe
from pyro_fmvae.recipes.slabs import LinearSparse, MaxSparse
from pyro_fmvae.recipes.vae import PlainVAE
from pyro_fmvae.recipes.vsc import VSC

RECIPES: Final[dict[str, type[Recipe[Any]]]] = {
    recipe.name: recipe for recipe in (FMVAE, PlainVAE, VSC, BSC, MaxSparse, LinearSparse)
}
"""Recipe of each ``--model``."""
DEFAULT: Final = FMVAE.name
"""The model that is trained unless another one is asked for."""


def recipe_of(config: TrainConfig) -> type[Recipe[Any]]:
    """The recipe of the model that a configuration is of."""
    return RECIPES[config.model]


def recipe_named(model: str) -> type[Recipe[Any]]:
    """The recipe of a model.

    Raises:
        ValueError: there is no such model.
    """
    if model not in RECIPES:
        raise ValueError(f"model: expected one of {', '.join(RECIPES)}, got '{model}'")
    return RECIPES[model]


def configure(model: str = DEFAULT, **given: Any) -> TrainConfig:
    """Options of a training, as its command line would have them.

    Args:
        model: name of the model.
        **given: its options, by name. An option that it lacks may be given as it is by default, or as 0.

    Raises:
        ValueError: there is no such model or option, an option is one of another model, or out of range.
    """
    kind = recipe_named(model).options
    own = options_of(model)
    for name, value in given.items():
        if name not in own:
            _check_absent(name, value, model)
    return kind(model, **{name: value for name, value in given.items() if name in own})


def _check_absent(name: str, value: Any, model: str) -> None:
    """Raise ValueError unless the value of an option that the model lacks asks for nothing."""
    option = all_options().get(name)
    if option is None:
        raise ValueError(f"{name}: there is no such option")
    if value == option.default or (value == 0 and not isinstance(value, bool)):
        return
    *first, last = models_with(name)
    listed = f"{', '.join(first)} and {last}" if first else last
    raise ValueError(f"{name}: an option of {listed}, not of {model}")


def options_of(model: str) -> dict[str, "Field[Any]"]:
    """The options of a model, by name, but for ``model`` itself."""
    return {one.name: one for one in fields(RECIPES[model].options) if one.default is not MISSING}


def all_options() -> dict[str, "Field[Any]"]:
    """The options of all models, by name."""
    return {name: option for model in RECIPES for name, option in options_of(model).items()}


def models_with(option: str) -> list[str]:
    """Names of the models that have an option."""
    return [model for model in RECIPES if option in options_of(model)]


def resolved(config: TrainConfig, dataset: Dataset) -> Recipe[Any]:
    """The recipe of a new run, its options resolved.

    Raises:
        ValueError: options that do not fit the data or each other.
    """
    kind = recipe_of(config)
    names = dataset.label_names, dataset.value_names
    return kind(kind.resolve(config, dataset), dataset.preprocessing, len(dataset.train), *names)


def read_config(values: Mapping[str, Any]) -> TrainConfig:
    """Options of a training from those of its ``config.json``; options of other models are ignored.

    Raises:
        KeyError: there is no model, or an option is missing.
        ValueError: there is no such model, or an option is out of range.
    """
    return recipe_named(values["model"]).options.from_dict(values)
