"""Training from Python: the command ``train`` as a function, of data in memory or on disk."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyro_fmvae.app.commands import training
from pyro_fmvae.app.commands.command import UsageError
from pyro_fmvae.app.commands.parser import Parser
from pyro_fmvae.app.commands.training import configuration, inherited, typed_options
from pyro_fmvae.app.recipes.options import as_typed, flag
from pyro_fmvae.app.recipes.registry import DEFAULT, RECIPES, options_of
from pyro_fmvae.app.runs.trained import TrainedRun, load
from pyro_fmvae.data.own.in_memory import write_data


def train(
    data: Any = None, labels: Any = None, out: str | os.PathLike[str] | None = None, **options: Any
) -> TrainedRun:
    """Train a model, as the command ``train`` does, with its progress bar and closing table.

    Data from memory are kept in the run's folder, as ``data.npz`` or ``data.csv``, so that the run can be
    resumed and evaluated like any other.

    Args:
        data: an array or a tensor [n, H, W], [n, H, W, 3] or [n, D], as a ``.npz`` file would hold it; a data
            frame, whose columns are features; or the name or the path of data. None: generated smileys, as on
            the command line.
        labels: of data in memory, the values of each label, all of which are trained on: an array or a series
            [n], an array [n, L], or a data frame, of integers or words; -1, NaN, None and '' are unknown. Of
            a data frame also the name of one of its columns, or a list of names. Of data with a name or a
            path, what ``--labels`` takes: how many labels are used.
        out: folder of the run, which must not exist; None: a new one in ``runs/``.
        **options: of the command line, with underscores: ``max_minutes=2``, ``factors=(2, 3)``,
            ``model="vae"``, ``resume="runs/data-001"``.

    Returns:
        The trained run: see :func:`~pyro_fmvae.load`.

    Raises:
        ValueError: bad data, labels or options, with the messages of the command line.
        KeyboardInterrupt: training was stopped by Ctrl-C; it can be resumed.
    """
    with TemporaryDirectory() as temporary:
        held = None
        given = {"data": data, "labels": labels, "out": out}
        if not (data is None or isinstance(data, str | os.PathLike)):
            held = write_data(Path(temporary), data, labels)
            given |= {"data": held, "labels": _share(labels, options.get("model", DEFAULT))}
        typed = {name: value for name, value in given.items() if value is not None} | options
        arguments = [f"{flag(name)}={as_typed(value)}" for name, value in typed.items()]
        try:
            folder, status = _carry_out(arguments, held)
        except UsageError as error:
            raise ValueError(str(error)) from None
        except ValueError as error:
            if held is None:
                raise
            raise ValueError(str(error).replace(f"{held}: ", "data: ").replace(str(held), "data")) from None
    if status:
        raise KeyboardInterrupt(f"stopped; continue with resume={str(folder)!r}")
    return load(folder, options.get("device", "auto"))


def _share(labels: Any, model: str) -> int | None:
    """Share of the points whose labels are used: all, if there are labels and the model learns from them."""
    return 1 if labels is not None and model in RECIPES and "labels" in options_of(model) else None


def _carry_out(arguments: list[str], held: Path | None) -> tuple[Path, int]:
    """Start or resume the run that the arguments of ``train`` ask for: its folder, and the exit status.

    Raises:
        UsageError, ValueError: bad arguments.
    """
    command = training.command(arguments)
    parser = Parser()
    command.add_arguments(parser)
    given = vars(parser.parse_args(arguments))
    if given["resume"] is not None:
        return Path(given["resume"]), command.run(**given)
    out = given.pop("out")
    typed = typed_options(arguments)
    config = configuration(given.pop("model"), typed, given)
    run, status = training.start(config, out, inherited(typed, given), held)
    return run.folder, status
