"""Start a run, or continue one."""

import os
import shutil
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, Literal, Optional

from jsonargparse import ArgumentParser

from pyro_fmvae.app.commands.command import Command, UsageError
from pyro_fmvae.app.commands.parser import PROGRAM, Parser
from pyro_fmvae.app.recipes.registry import (
    DEFAULT,
    SMALL_TABLES,
    all_options,
    choose_model,
    configure,
    kinds,
    options_of,
    own_first,
    recipe_of,
    titles,
)
from pyro_fmvae.app.runs.launching import first_alone, first_before_others, is_restart_of
from pyro_fmvae.app.runs.run import DERIVED, saved
from pyro_fmvae.app.runs.training import CHANGEABLE, train
from pyro_fmvae.app.runs.training import resume as resume_run
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.files.untrusted import check_type
from pyro_fmvae.learn.options import EstimatorOptions, TrainConfig, flag, unset

# Options of a new run, from what a command line and a configuration file give.


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
    given = {name: one for name, one in options.items() if name in typed or one != unset(known[name])}
    return choose_model(options["data"], given)


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


FILES: Final = {
    "out": ("runs/mine", "folder of the run; default: a new one in runs/"),
    "resume": ("runs/mine", "continue an interrupted run"),
    "config": ("mine.yaml", "YAML or JSON file with any of these options"),
}
"""Arguments that are no options of a model: an example, and a text for the help."""
COLUMNS, INDENT = 100, 30  # of the short help


def command(arguments: Sequence[str] = ()) -> Command:
    """The command, whose help shows the options of one model.

    Args:
        arguments: of the command line. The model is the one that they name, or else that of their
            configuration file, or ``fmvae``.
    """
    model = _model_of(arguments)
    others = ", ".join(name for name in kinds() if name != model)
    title = f"Train a model, here {model}: {titles()[model]}."
    return Command(
        name="train",
        help="train a model; without options, on generated smileys",
        description=f"{title} For the options of another model, give --model NAME --help-all, where NAME is "
        f"{others}. Many defaults depend on the data.",
        add_arguments=partial(add_arguments, model=model),
        run=partial(run, typed=typed_options(arguments)),
        brief=brief(model, title),
        shared=True,
    )


def _model_of(arguments: Sequence[str]) -> str:
    words = [word for text in arguments for word in text.split("=", 1)]
    named = [value for flag, value in pairwise(words) if flag == "--model" and value in kinds()]
    files = [value for flag, value in pairwise(words) if flag == "--config"]
    if named or not files:
        return named[-1] if named else DEFAULT
    parser = Parser()
    add_arguments(parser, DEFAULT)
    try:
        model: str | None = parser.parse_path(files[-1]).model
    except (UsageError, OSError, ValueError, TypeError):
        return DEFAULT  # parsing the arguments says what is wrong with the file
    return model or DEFAULT


def brief(model: str, title: str) -> str:
    """The options that matter first, as lines of at most `COLUMNS` characters: those that have an example.

    Args:
        model: whose options.
        title: first line.
    """
    shown: dict[str, tuple[str, str]] = {}
    for name, one in options_of(model).items():
        if one.metadata["example"]:
            default = "" if unset(one) is None else f" (default: {unset(one)})"
            shown[name] = (one.metadata["example"], one.metadata["help"] + default)
    (option,) = (one.metadata for one in fields(TrainConfig) if one.name == "model")
    shown["model"] = (option["example"], f"{option['help']}: {', '.join(kinds())}")
    lines = [f"usage: {PROGRAM} train [options]", "", title, ""]
    for name, (example, text) in (shown | FILES).items():
        label = f"  {flag(name)} {example}"
        lines += wrap(text, COLUMNS, initial_indent=label.ljust(INDENT), subsequent_indent=" " * INDENT)
    closing = (
        f"Without options, it trains on generated smileys. {PROGRAM} train --help-all shows every option, by "
        "group; with --model NAME, those of another model."
    )
    return "\n".join([*lines, "", *wrap(closing, COLUMNS), ""])


def add_arguments(parser: ArgumentParser, model: str) -> None:
    """Add the options of all models; only those of ``model`` are in the help."""
    parser.add_argument("--config", action="config", help=FILES["config"][1])
    models = "; ".join(f"{name}: {title}" for name, title in titles().items())
    names = Literal[tuple(kinds())]  # type: ignore[valid-type]
    text = f"model to train ({models}); by default {DEFAULT}, or by the data: of small tables {SMALL_TABLES}"
    parser.add_argument("--model", type=Optional[names], help=text)  # noqa: UP045  # names is a variable
    shared, own = {one.name for one in fields(TrainConfig)}, options_of(model)
    groups = {
        True: parser.add_argument_group("options of all models"),
        False: parser.add_argument_group(f"options of {model}"),
    }
    for name, option in (all_options() | own).items():
        kind = option.metadata["parse"] or option.type
        bare: dict[str, Any] = {"nargs": "?", "const": True} if kind in (bool, bool | None) else {}
        text = option.metadata["help"] if name in own else SUPPRESS
        groups[name in shared].add_argument(
            "--" + name.replace("_", "-"), type=kind, default=unset(option), help=text, **bare
        )
    parser.add_argument("--" + DERIVED, type=dict | None, help=SUPPRESS)  # of a run's config.json; not read
    parser.add_argument("--out", type=str | None, help=FILES["out"][1])
    parser.add_argument("--resume", type=str | None, metavar="RUN", help=FILES["resume"][1])


def run(model: str | None, out: str | None, resume: str | None, typed: Set[str], **given: Any) -> int:
    """Start a run, or continue the one in ``resume``.

    Args:
        model: name of the model; None: chosen by the data.
        out: folder of a new run.
        resume: folder of an interrupted run.
        typed: names of the options on the command line itself, not in a configuration file.
        **given: options of all models; and, of the ``config.json`` of another run, what is no option.
    """
    if out is not None and is_restart_of(Path(out)):
        if saved(Path(out)):
            return resume_run(out, **{name: given[name] for name in CHANGEABLE})
        # It was killed before there was anything to go on from.
        first_before_others(lambda: shutil.rmtree(out, ignore_errors=True))
    if resume is not None:
        options = {name: given[name] for name in all_options()}
        _check_unchanged({"model": model, **options}, out)
        return resume_run(resume, **{name: options[name] for name in CHANGEABLE})
    config = configuration(model, typed, given)
    if isinstance(config, EstimatorOptions):
        from pyro_fmvae.app.runs import estimator_run  # here, as --help has no use for scikit-learn

        with first_alone() as takes_part:
            return estimator_run.train(config, out) if takes_part else 0
    with first_alone() if recipe_of(config).tables else nullcontext(True) as takes_part:
        return train(config, None, out, inherited(typed, given))[1] if takes_part else 0


def _check_unchanged(given: Mapping[str, Any], out: str | None) -> None:
    """Raise UsageError if an option is given that is a part of what the resumed run is."""
    defaults = {"model": None, **{name: unset(option) for name, option in all_options().items()}}
    free = [name for name in given if name not in CHANGEABLE]
    changed = [f"--{name.replace('_', '-')}" for name in free if given[name] != defaults[name]]
    if out is not None:
        changed.append("--out")
    if changed:
        raise UsageError(f"--resume continues a run as it was started: {', '.join(changed)} can't be changed")
