"""All models of the command line, by name."""

from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from pyro_fmvae.app.recipes.bsc import BSC
from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.settings import checked, table_options, with_columns
from pyro_fmvae.app.recipes.slab_sparse_coding import LinearSparse, MaxSparse
from pyro_fmvae.app.recipes.table_mixture import Mixture
from pyro_fmvae.app.recipes.vae import PlainVAE
from pyro_fmvae.app.recipes.vsc import VSC
from pyro_fmvae.data import Dataset
from pyro_fmvae.data.own.files import READERS, read
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.own.on_disk import open_file
from pyro_fmvae.data.own.pictures import files_below
from pyro_fmvae.data.registry import GENERATED, LOADERS
from pyro_fmvae.learn.options import (
    ESTIMATORS,
    SEQUENCES,
    TOPICS,
    EstimatorOptions,
    TrainConfig,
    completed,
    refuse,
    unset,
)

RECIPES: Final[dict[str, type[Recipe[Any]]]] = {
    recipe.name: recipe for recipe in (FMVAE, PlainVAE, VSC, BSC, MaxSparse, LinearSparse, Mixture)
}
"""Recipe of each ``--model``."""
DEFAULT: Final = FMVAE.name
"""The model that is trained unless another one is asked for, or :func:`choose_model` takes another one."""
SMALL_TABLES: Final = Mixture.name
"""The model of small tables, by default."""
MOST_ROWS, MOST_COLUMNS = 20_000, 100  # of a table that is learnt without networks by default
MOST_MIXED_ROWS = 1_000_000  # of one with words or gaps
OF_TABLES: Final = ("label", "kind", "columns", "header", "ignore")
"""Options that say what the columns of a table are."""
_OF_GRADIENTS = {"learning_rate", "final_learning_rate", "joint_learning_rate", "weight_decay", "autocast"}
"""Options that all models share, and that have no effect on those that are learnt in closed form."""
_OF_NETWORKS = _OF_GRADIENTS | {"eager", "compile"}
"""Options that all models share, and that ask for a model with networks."""


def kinds() -> dict[str, type[TrainConfig]]:
    """Options of each ``--model``."""
    return {**{name: recipe.options for name, recipe in RECIPES.items()}, **ESTIMATORS}


def titles() -> dict[str, str]:
    """Each ``--model`` in words."""
    of_estimators = {SEQUENCES: "states of a table's rows in time", TOPICS: "topics of a folder of texts"}
    return {**{name: recipe.title for name, recipe in RECIPES.items()}, **of_estimators}


def recipe_of(config: TrainConfig) -> type[Recipe[Any]]:
    """The recipe of the model that a configuration is of."""
    return recipe_named(config.model)


def recipe_named(model: str) -> type[Recipe[Any]]:
    """The recipe of a model.

    Raises:
        ValueError: there is no such model, or it is an estimator.
    """
    if model in ESTIMATORS:
        raise ValueError(
            f"model: {model} is for the commands train, evaluate, encode and report; in Python take "
            f"pyro_fmvae.sklearn.{'TopicModel' if model == TOPICS else 'HiddenMarkovModel'}"
        )
    if model not in RECIPES:
        raise ValueError(f"model: expected one of {', '.join(kinds())}, got '{model}'")
    return RECIPES[model]


def choose_model(data: str | InMemory, given: Mapping[str, Any] | None = None) -> str:
    """The model of data, where none is asked for: a mixture of the rows of a small table, else networks.

    Args:
        data: name or path, or what Python holds.
        given: options that are given. One that only networks have asks for networks, and so do several
            factors.

    Raises:
        FileNotFoundError, ValueError: a malformed table, or options out of range.
    """
    given = given or {}
    said = {name: given[name] for name in OF_TABLES if name in given}
    kinds = dict(data.kinds) if isinstance(data, InMemory) else {}
    table = table_options(with_columns(configure(SMALL_TABLES, **said), kinds))
    factors = given.get("factors")
    path = data if isinstance(data, InMemory) else Path(data)
    if {"time", "series"} & set(given):
        return SEQUENCES
    if data not in LOADERS and find_texts(path):
        return TOPICS
    others = set(given) - set(options_of(SMALL_TABLES)) | set(given) & _OF_NETWORKS
    if isinstance(path, Path) and (
        data in LOADERS or path.suffix.lower() not in READERS or not path.exists()
    ):
        return DEFAULT
    if others or (factors is not None and len(factors) > 1):
        return DEFAULT
    opened = open_file(path) if isinstance(path, Path) else None
    raw = read(path, missing=True, asked=table) if opened is None else None
    x: Any = raw.x if raw is not None else opened.x if opened is not None else None
    columns = x.ndim == 2 and x.dtype not in (np.bool_, np.uint8)
    small = len(x) <= MOST_ROWS and x.shape[1] <= MOST_COLUMNS
    if raw is not None and raw.plan and len(x) <= MOST_MIXED_ROWS:
        small |= bool(raw.levels or raw.ignored or np.isnan(raw.x).any())
    return SMALL_TABLES if columns and small else DEFAULT


def find_texts(path: Path | InMemory) -> list[str]:
    """Sorted names of the texts in a folder and below it; none if there are other files, too."""
    if isinstance(path, InMemory) or not path.is_dir():
        return []
    names = sorted(file.as_posix() for file in files_below(path))
    return names if all(name.lower().endswith(".txt") for name in names) else []


def configure(model: str = DEFAULT, data: str = "smiley", **given: Any) -> TrainConfig:
    """Options of a training, as its command line would have them.

    Args:
        model: name of the model.
        data: name or path of the data.
        **given: other options, by name. An option that it lacks may be given as it is by default, or as 0.

    Raises:
        ValueError: there is no such model or option, an option is one of another model, or out of range.
    """
    kind = ESTIMATORS[model] if model in ESTIMATORS else recipe_named(model).options
    own = options_of(model)
    for name, value in given.items():
        if name not in own:
            _check_absent(name, value, model)
    values = {name: value for name, value in given.items() if name in own}
    return checked(kind, {"model": model, "data": data, **values})


def _check_absent(name: str, value: Any, model: str) -> None:
    """Raise ValueError unless the value of an option that the model lacks asks for nothing."""
    option = all_options().get(name)
    if option is None:
        raise ValueError(f"{name}: there is no such option")
    if value == unset(option) or (value == 0 and not isinstance(value, bool)):
        return
    *first, last = models_with(name)
    listed = f"{', '.join(first)} and {last}" if first else last
    raise ValueError(f"{name}: an option of {listed}, not of {model}")


def data_name(model: str, data: str) -> str:
    """The name of a data set: ``bars`` stands for the one that the model could have generated.

    Raises:
        ValueError: ``bars``, of a model that generates none.
    """
    if data != GENERATED:
        return data
    bars = RECIPES[model].bars
    if bars is None:
        listed = ", ".join(recipe.bars for recipe in RECIPES.values() if recipe.bars is not None)
        raise ValueError(f"data: '{data}' is generated by the model; of {model} it is one of {listed}")
    return bars


def own_first(data: str, data_root: str | None) -> str:
    """Prefer a person's own folder to the published data set of its name.

    Args:
        data: name or path, as given.
        data_root: folder of published data sets. Where it is given, so is the name of one of them.

    Returns:
        ``./data`` if the current folder has a folder of the name of a data set; else ``data``.
    """
    published = data in LOADERS or data == GENERATED
    return f"./{data}" if published and data_root is None and Path(data).is_dir() else data


def options_of(model: str) -> dict[str, "Field[Any]"]:
    """The options of a model, by name, but for ``model`` itself."""
    kind = kinds()[model]
    found = {one.name: one for one in fields(kind) if one.name != "model"}
    if issubclass(kind, EstimatorOptions):
        for name in {one.name for one in fields(TrainConfig)} - {"model", "data", *kind.used}:
            del found[name]
    return found


def all_options() -> dict[str, "Field[Any]"]:
    """The options of all models, by name."""
    return {name: option for model in kinds() for name, option in options_of(model).items()}


def models_with(option: str) -> list[str]:
    """Names of the models that have an option."""
    return [model for model in kinds() if option in options_of(model)]


def resolved(config: TrainConfig, dataset: Dataset, given: Collection[str] | None = None) -> Recipe[Any]:
    """The recipe of a new run, its options resolved.

    Args:
        config: options as given.
        dataset: the run's data.
        given: names of the options that count as given; None: those that are not as by default.

    Raises:
        ValueError: options that do not fit the data or each other, or that have no effect.
    """
    kind = recipe_of(config)
    config = completed(config, {"in_memory": isinstance(dataset.train.x, Tensor)})
    names = dataset.label_names, dataset.value_names
    recipe = kind(kind.resolve(config, dataset), dataset.preprocessing, len(dataset.train), *names)
    if recipe.closed_form:
        asked = _OF_GRADIENTS & set(config.given if given is None else given)
        wanting = tuple(sorted(name for name in asked if getattr(config, name)))  # 0 asks for nothing
        refuse(config, wanting, "training by gradients")
    return recipe


def read_config(values: Mapping[str, Any]) -> TrainConfig:
    """Options of a training from those of its ``config.json``; options of other models are ignored.

    Raises:
        KeyError: there is no model, or an option whose default depends on the data is missing.
        ValueError: there is no such model, or an option is out of range.
    """
    kind = recipe_named(values["model"]).options
    if missing := sorted(
        one.name for one in fields(kind) if one.metadata["by_data"] and one.name not in values
    ):
        raise KeyError(f"without {', '.join(missing)}")
    given = {one.name: values[one.name] for one in fields(kind) if one.name in values}
    return checked(
        kind, {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    )
