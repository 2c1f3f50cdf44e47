"""Training from Python, of data in memory or on disk."""

import os
from typing import Any

import numpy as np

from pyro_fmvae.app.recipes.registry import all_options, choose_model, configure, options_of, own_first
from pyro_fmvae.app.runs import training
from pyro_fmvae.app.runs.trained import TrainedRun, load
from pyro_fmvae.data.own.in_memory import InMemory


def train(
    data: Any = None, labels: Any = None, out: str | os.PathLike[str] | None = None, **options: Any
) -> TrainedRun:
    """Train a model, as the command ``train`` does, with its progress bar and closing table.

    Data from memory are saved in the run's folder, as ``data.npz`` or, of a data frame, ``data.csv``, so that
    the run can be resumed and evaluated like any other.

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
        ValueError: bad data, labels or options; the message names the option.
        KeyboardInterrupt: training was stopped by Ctrl-C; it can be resumed.
    """
    given = {name: _value(name, value) for name, value in options.items()}
    folder = given.pop("resume", None)
    if folder is not None:
        others = {"data": data, "labels": labels, "out": out} | given
        if changed := [
            name for name in others if name not in training.CHANGEABLE and others[name] is not None
        ]:
            raise ValueError(f"resume: continues a run as it was started; leave out {', '.join(changed)}")
        status = training.resume(folder, **given)
    else:
        model, held = given.pop("model", None), None
        if not (data is None or isinstance(data, str | os.PathLike)):
            if labels is None and "label" in given:
                labels = list(given.pop("label"))
            held = InMemory.of(data, labels)
        elif data is not None:
            given["data"] = own_first(os.fspath(data), given.get("data_root"))
        name = str(held.file) if held else given.pop("data", "smiley")
        if held is not None and held.x is None:
            given["header"] = "yes"
        if model is None:
            model = choose_model(held or name, given)
        if labels is not None and (held is None or "labels" in options_of(model)):
            given["labels"] = _value("labels", labels) if held is None else 1.0
        run, status = training.train(
            configure(model, name, **given), held, None if out is None else os.fspath(out)
        )
        folder = run.folder
    if status:
        raise KeyboardInterrupt(f"stopped; continue with resume={str(folder)!r}")
    return load(folder, given.get("device", "auto"))


def _value(name: str, value: Any) -> Any:
    """The value of an option: lists are tuples, and may be text or dictionaries; paths are text.

    NumPy's numbers are Python's.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        value = [f"{key}={one}" for key, one in value.items()]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    option = all_options().get(name)
    if option is None or value is None or option.metadata["parse"] is None:
        return value
    try:
        return option.metadata["parse"](value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
