"""Options of a new run, from what a command line and a configuration file give."""

import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.recipes.options import TrainConfig
from pyro_fmvae.recipes.registry import (
    DEFAULT,
    all_options,
    choose_model,
    configure,
    options_of,
    own_first,
)
from pyro_fmvae.runs.config_file import DERIVED
from pyro_fmvae.untrusted import check_type


def typed_options(arguments: Sequence[str]) -> Set[str]:
    """Names of the options on a command line itself."""
    flags = (text.partition("=")[0] for text in arguments if text.startswith("--"))
    return {flag.removeprefix("--").replace("-", "_") for flag in flags}


def configuration(model: str | None, typed: Set[str], given: Mapping[str, Any]) -> TrainConfig:
    """The options of a new run.

    Args:
        model: name of the model; None: chosen by the data.
        typed: names of the options on the command line itself, not in a configuration file.
        given: options of all models; and, of the ``config.json`` of another run, what is no option.

    Raises:
        ValueError: an option of another model, or one out of range.
    """
    options = {name: given[name] for name in all_options()}
    if given.get(DERIVED) is not None:
        options |= _paths_of_run(options, typed, given.get("config") or [None])
    if "data" in typed:
        options["data"] = own_first(options["data"], options["data_root"])
    if model is None:
        model = _by_data(options, typed)
    if given.get(DERIVED) is not None:  # an earlier run's, which may list options of all models
        options = {name: options[name] for name in options if name in options_of(model) or name in typed}
    if "max_minutes" in typed and "time_limit" not in typed:  # of a file, such as an earlier run's
        options["time_limit"] = None
    return configure(model, **options)


def _paths_of_run(
    options: Mapping[str, Any], typed: Set[str], files: Sequence[os.PathLike[str] | None]
) -> dict[str, str]:
    """Full paths of the options that a run's ``config.json`` gives relative to its folder.

    Args:
        options: of all models.
        typed: names of those on the command line itself.
        files: configuration files, of which the last counts.
    """
    folder = Path.cwd() if files[-1] is None else Path(files[-1]).resolve().parent
    names = [name for name, option in all_options().items() if option.metadata["path"]]
    names += [] if options["data"] in LOADERS else ["data"]
    given = {name: options[name] for name in names if name not in typed and isinstance(options[name], str)}
    return {name: str((folder / path).resolve()) for name, path in given.items()}


def _by_data(options: Mapping[str, Any], typed: Set[str]) -> str:
    """The model of the data, where none is given."""
    check_type("data", options["data"], str)
    own = options_of(DEFAULT)
    known = {**all_options(), **own}
    given = {name for name, value in options.items() if name in typed or value != known[name].default}
    return choose_model(options["data"], given, options.get("factors"), options.get("ignore") or ())


def inherited(typed: Set[str], given: Mapping[str, Any]) -> Set[str] | None:
    """Names of the options given to this run, or to the earlier run whose configuration it takes over.

    Args:
        typed, given: as in :func:`configuration`.

    Returns:
        The names; None if no configuration of an earlier run was given.

    Raises:
        ValueError: that configuration has something else than names there.
    """
    derived = given.get(DERIVED)
    if derived is None:
        return None
    names = derived.get("given", [])
    check_type("given", tuple(names) if isinstance(names, list) else names, tuple[str, ...])
    return {*names, *typed}
