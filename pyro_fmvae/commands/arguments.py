"""What several commands take, checked: seeds, codes, names of files, and the rows that a command is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pyro_fmvae.building import Model
from pyro_fmvae.config import CODERS, LARGEST
from pyro_fmvae.data import Batches, Split, load
from pyro_fmvae.data.own.files import READERS, load_file
from pyro_fmvae.data.own.folder import SUFFIXES
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.defaults import named
from pyro_fmvae.evaluate import rows_without_bound
from pyro_fmvae.runs.run import Run, sparse_options

EVALUATION_BATCH = 500


def rows_of(
    run: Run, data: str | None, data_root: str | None, split: str, by_name: bool = True
) -> tuple[Split, tuple[str, ...]]:
    """The rows that a command is about, under the run's own preprocessing, and the names of their labels.

    Names are as in the file where it does not matter which label is which, that is, not ``by_name``.
    """
    data = None if data is None else named(data, run.config.model)
    if data is None or data == run.config.data in LOADERS:
        dataset = run.load_data(data_root)
        return dataset.split(split), dataset.label_names
    if data not in LOADERS and (Path(data).is_dir() or Path(data).suffix.lower() in READERS):
        rows, names = load_file(data, run.preprocessing, run.label_names, run.value_names)
        return rows, _names(run, data, names) if by_name else names
    options: dict[str, Any] = {"binarization": run.config.binarization, "image_size": run.config.image_size}
    if run.config.model in CODERS:
        patches = run.preprocessing.patches
        options["sparse"] = replace(sparse_options(run.config, data), transform=patches)
    root = data_root or run.config.data_root
    dataset = load(data, Path(root) if root else None, **options)
    ours, theirs = run.preprocessing, dataset.preprocessing
    if (ours.kind, ours.event_shape) != (theirs.kind, theirs.event_shape):
        raise ValueError(
            f"data: the run was trained on {ours.kind.value} data of shape {ours.event_shape}, "
            f"'{data}' is {theirs.kind.value} data of shape {theirs.event_shape}"
        )
    return dataset.split(split), dataset.label_names


def _names(run: Run, data: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a file's label columns: where it gives none, those of the run's data, in their order."""
    if not names or not run.label_names:
        return names
    numbered = names == tuple(f"label{column}" for column in range(len(names)))
    if not numbered or set(names) == set(run.label_names):
        return names
    if len(names) != len(run.label_names):
        count = len(run.label_names)
        raise ValueError(f"labels: {data} has {len(names)} columns of labels, the run's data have {count}")
    if run.config.label_names is not None and len(names) > 1:  # what order they had before is not known
        raise ValueError(
            f"labels: the run's labels were put in another order by label_names, so {data} has to say, in an "
            f"array 'label_names', which of its columns is which of {', '.join(run.label_names)}"
        )
    return run.label_names


def in_order(rows: Split, device: torch.device) -> Batches:
    """Rows one after another, in batches that are only looked at."""
    return Batches(rows, EVALUATION_BATCH, shuffle=False, device=device)


@contextmanager
def naming_far_rows(model: Model, rows: Split, device: torch.device, seed: int = 0) -> Iterator[None]:
    """Say which rows are to blame if what is computed of them fails, as they have no finite bound."""
    try:
        yield
    except ValueError:
        far = rows_without_bound(model, in_order(rows, device), seed)
        if not len(far):
            raise
        rows_are = f"row {far[0]} is" if len(far) == 1 else f"row {far[0]} and {len(far) - 1} others are"
        raise ValueError(
            f"data: {rows_are} so far from what the model was trained on that there is no finite bound; "
            "score counts such rows as inf"
        ) from None


def parse_codes(codes: str | None, factors: tuple[int, ...]) -> torch.Tensor:
    """Component of each factor, int64 [1, I], -1 where it is to be drawn.

    Args:
        codes: such as ``0,1,*,*``; None draws all.
        factors: K_i of each factor.

    Raises:
        ValueError: the wrong number of codes, or one that is neither * nor a component.
    """
    parts = ["*"] * len(factors) if codes is None else [part.strip() for part in codes.split(",")]
    if len(parts) != len(factors):
        raise ValueError(f"codes: expected {len(factors)} of them, one per factor, got '{codes}'")
    numbers = []
    for factor, (part, components) in enumerate(zip(parts, factors, strict=True)):
        if part != "*" and not (part.isdecimal() and int(part) < components):
            raise ValueError(f"codes: expected * or 0..{components - 1} for factor {factor}, got '{part}'")
        numbers.append(-1 if part == "*" else int(part))
    return torch.tensor([numbers])


def open_factorial(folder: str, purpose: str) -> Run:
    """The run in a folder, if its model has factors.

    Args:
        folder: of a run.
        purpose: what factors are needed for, such as ``edit``.

    Raises:
        ValueError: it is no run, or its model has no factors.
    """
    run = Run.open(Path(folder))
    if not run.factorial:
        raise ValueError(
            f"run: {purpose} needs factors, {run.folder} is a {run.config.model}, which has none"
        )
    return run


def check_seed(seed: int) -> None:
    """Raise ValueError unless random generators take it."""
    if not 0 <= seed <= LARGEST:
        raise ValueError(f"seed: expected a number in 0..{LARGEST}, got {seed}")


def check_ending(target: Path, endings: tuple[str, ...], argument: str = "out") -> None:
    """Raise ValueError unless a file of that name, with one of these endings, can be written."""
    if target.suffix not in endings:
        raise ValueError(f"{argument}: expected a name that ends in {' or '.join(endings)}, got '{target}'")
    if target.is_dir():
        raise ValueError(f"{argument}: {target} is a folder")
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{argument}: {parent} is no folder")


def check_different(**files: str | None) -> None:
    """Raise ValueError unless files that are given, by argument, are different ones."""
    paths = [Path(name).resolve() for name in files.values() if name is not None]
    if len(set(paths)) < len(paths):
        raise ValueError(f"{', '.join(files)}: expected different files")


def check_spares_data(run: Run, target: Path, argument: str = "out") -> None:
    """Raise ValueError if a file of that name would replace the run's data, or an image in their folder."""
    if run.config.data in LOADERS:
        return
    data, resolved = Path(run.config.data).resolve(), target.resolve()
    image = data in resolved.parents and resolved.suffix.lower() in SUFFIXES and resolved.exists()
    if image or resolved == data:
        raise ValueError(f"{argument}: {target} holds data that the run was trained on")


def parse_factors(text: str, run: Run) -> list[int]:
    """Different factors, given by number, as in codes, or by the name of the label that each was trained on.

    Args:
        text: such as ``hair,body`` or ``0,3``.
        run: whose factors.

    Raises:
        ValueError: no such factor, or one that is given twice.
    """
    factors = [_factor("factors", part.strip(), run) for part in text.split(",")]
    if len(set(factors)) != len(factors):
        raise ValueError(f"factors: expected different ones, got '{text}'")
    return factors


def parse_settings(text: str, run: Run, argument: str = "settings") -> dict[int, int]:
    """Components that factors are set to: factor → component.

    Args:
        text: such as ``hat=1,hair=blond,6=3``: factors as in :func:`parse_factors`, and a component by its
            number or, where the factor was trained on a label, by the name of the label's value.
        run: whose factors.
        argument: what messages call the text.

    Raises:
        ValueError: no such factor or component, or a factor that is set twice.
    """
    settings: dict[int, int] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{argument}: expected such as hat=1,6=3, got '{text}'")
        factor = _factor(argument, name, run)
        if factor in settings:
            raise ValueError(f"{argument}: expected different factors, got '{text}'")
        settings[factor] = _component(argument, factor, value, run)
    return settings


def _factor(argument: str, text: str, run: Run) -> int:
    assert run.config.factors is not None
    count = len(run.config.factors)
    names = [run.label_names[factor] for factor in run.labelled]
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    listed = f" or one of {', '.join(names)}" if names else ""
    raise ValueError(f"{argument}: expected a factor, 0..{count - 1}{listed}, got '{text}'")


def _component(argument: str, factor: int, text: str, run: Run) -> int:
    assert run.config.factors is not None
    size = run.config.factors[factor]
    names = run.value_names[factor] if factor in run.labelled and run.value_names else ()
    if text in names[:size]:
        return names.index(text)
    if text.isdecimal() and int(text) < size:
        return int(text)
    listed = f" or one of {', '.join(names[:size])}" if names else ""
    raise ValueError(f"{argument}: expected 0..{size - 1}{listed} for factor {factor}, got '{text}'")
