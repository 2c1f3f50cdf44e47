"""The file ``config.json`` in a run's folder: options, what the data gave, and where it was trained."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from pyro_fmvae import checkpoint
from pyro_fmvae.data import Preprocessing
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.recipes.options import TrainConfig
from pyro_fmvae.recipes.recipe import Recipe
from pyro_fmvae.recipes.registry import read_config, recipe_of
from pyro_fmvae.runs.given_names import NAMES, parse_names, read_names
from pyro_fmvae.runs.machine import machine
from pyro_fmvae.untrusted import check_printable, check_type, read_json

CONFIG = "config.json"
DERIVED = "derived"  # its key for what is no option
COMPONENT_NAMES = "component_names"  # among these, in an exported model: what names.json has in a folder


Description: TypeAlias = tuple[Recipe[Any], str, tuple[str, ...]]
"""The recipe, the fingerprint of the rows, and the names of the options that were given."""


def check_new(folder: str | Path) -> None:
    """Raise ValueError if there is something in the place of a new run's folder."""
    if os.path.lexists(folder):
        raise ValueError(f"out: {folder} exists already, and runs are never overwritten")


def write_description(folder: Path, recipe: Recipe[Any], fingerprint: str, given: Sequence[str]) -> None:
    """Write ``config.json`` atomically; in it, paths below the user's home are relative to the folder.

    Args:
        folder: of the run.
        recipe: of its model, with resolved options and full paths.
        fingerprint, given: as :class:`~pyro_fmvae.runs.run.Run` has them.
    """
    derived = {
        "num_data": recipe.num_data,
        "preprocessing": recipe.preprocessing.to_dict(),
        "label_names": list(recipe.label_names),
        "value_names": [list(names) for names in recipe.value_names],
        "fingerprint": fingerprint,
        "given": list(given),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyro_fmvae", "torch", "pyro-ppl", "numpy")},
        },
    }
    config = _relative(recipe.config, folder.resolve())
    content = json.dumps({**config.to_dict(), DERIVED: derived}, indent=1) + "\n"
    checkpoint.write_atomically(folder / CONFIG, lambda path: path.write_text(content))


def read_description(folder: Path) -> Description:
    """Read ``config.json``, and the names of components.

    Raises:
        ValueError: the folder is no run, or a file is damaged.
    """
    recipe, fingerprint, given = described(read_values(folder), folder, folder / CONFIG)
    try:
        names = read_names(folder, recipe.num_values)
    except ValueError as error:
        raise ValueError(f"run: {folder / NAMES} is damaged ({error})") from error
    return replace(recipe, given_names=names), fingerprint, given


def read_values(folder: Path) -> Any:
    """Read ``config.json`` as it is.

    Raises:
        ValueError: the folder is no run, or the file is no JSON.
    """
    try:
        return read_json(folder / CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"run: {folder} is no run (there is no {CONFIG} in it)") from None
    except ValueError as error:
        raise ValueError(f"run: {folder / CONFIG} is damaged ({error})") from error


def described(values: Any, folder: Path, source: Path) -> Description:
    """Read the contents of ``config.json``, with full paths.

    Args:
        values: the contents.
        folder: that relative paths start from.
        source: the file that they are from, for messages.

    Raises:
        ValueError: they are damaged.
    """
    try:
        derived = values[DERIVED]
        config = _with_data(with_full_paths(read_config(values), folder), folder)
        recipe = recipe_of(config)(
            config,
            Preprocessing.from_dict(derived["preprocessing"]),
            derived["num_data"],
            tuple(derived["label_names"]),
            tuple(tuple(names) for names in derived.get("value_names", ())),
        )
        fingerprint, given = derived.get("fingerprint", ""), tuple(derived.get("given", ()))
        _check(recipe, fingerprint, given)
        names = parse_names(derived.get(COMPONENT_NAMES, {}), recipe.num_values)
        return replace(recipe, given_names=names), fingerprint, given
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"run: {source} is damaged ({error})") from error


def without_places(config: TrainConfig) -> TrainConfig:
    """A configuration that names no place: of the path of a person's own data the last part is left."""
    changes: dict[str, Any] = dict.fromkeys(_paths(config))
    if config.own_data:
        name = Path(config.data).name
        changes["data"] = f"./{name}" if name in LOADERS else name  # not the published set of that name
    return replace(config, **changes)


def with_full_paths(config: TrainConfig, folder: Path) -> TrainConfig:
    """A configuration whose paths hold in any working directory.

    Args:
        config: whose paths are full, or relative to the folder.
        folder: any.
    """
    full: dict[str, Any] = {name: str((folder / path).resolve()) for name, path in _paths(config).items()}
    return replace(config, **full)


def _with_data(config: TrainConfig, folder: Path) -> TrainConfig:
    """A configuration whose data are those in the run's folder, if they are not where they were."""
    held = folder / Path(config.data).name
    if not config.own_data or os.path.exists(config.data) or not os.path.isfile(held):
        return config
    return replace(config, data=str(held.resolve()))


def _relative(config: TrainConfig, folder: Path) -> TrainConfig:
    """A configuration whose paths below the user's home are relative to the folder, and so do not name it."""
    home = Path.home().resolve()
    relative: dict[str, Any] = {}
    for name, path in _paths(config).items():
        if home in Path(path).parents:
            with suppress(ValueError):  # another drive, on Windows
                relative[name] = os.path.relpath(path, folder)
    return replace(config, **relative)


def _paths(config: TrainConfig) -> dict[str, str]:
    """The options that are paths, by name."""
    names = [one.name for one in fields(config) if one.metadata["path"]]
    names += ["data"] if config.own_data else []
    return {name: path for name in names if (path := getattr(config, name))}


def _check(recipe: Recipe[Any], fingerprint: Any, given: Any) -> None:
    """Raise ValueError if what the file says beside options is of another type."""
    for name, value, hint in (
        ("num_data", recipe.num_data, int),
        ("label_names", recipe.label_names, tuple[str, ...]),
        ("value_names", recipe.value_names, tuple[tuple[str, ...], ...]),
        ("fingerprint", fingerprint, str),
        ("given", given, tuple[str, ...]),
    ):
        check_type(name, value, hint)
    if recipe.num_data < 1:
        raise ValueError(f"num_data: expected at least 1, got {recipe.num_data}")
    check_printable(chain(recipe.label_names, *recipe.value_names), "label_names, value_names")
