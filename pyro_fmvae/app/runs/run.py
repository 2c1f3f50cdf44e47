"""A run: a folder with configuration, records, checkpoint and figures, and the model that it stands for."""

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.registry import read_config, recipe_of, resolved
from pyro_fmvae.app.recipes.settings import HELD_OUT, is_own, splitting_of, table_options
from pyro_fmvae.app.runs.closing_table import METRICS, undamaged
from pyro_fmvae.app.runs.factor_names import NAMES, parse_names, read_names
from pyro_fmvae.data import Dataset, Preprocessing, SparseOptions, choose_labels, hold_out, load
from pyro_fmvae.data.learnable import check_learnable
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.untrusted import check_printable, check_type, read_json
from pyro_fmvae.learn.options import ESTIMATORS, TrainConfig
from pyro_fmvae.models import ObservedMixture

# The machine that a run is trained on.


def machine() -> str:
    """The kind of machine that this is, in words, without its name."""
    cores = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} CPU cores"
    return f"{cores}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else cores


# The file ``config.json`` in a run's folder: options, what the data gave, and where it was trained.


CONFIG = "config.json"
DERIVED = "derived"  # its key for what is no option
COMPONENT_NAMES = "component_names"  # among these, in an exported model: what names.json has in a folder


Description: TypeAlias = tuple[Recipe[Any], str, tuple[str, ...]]
"""The recipe, the fingerprint of the rows, and the names of the options that were given."""


def check_new(folder: str | Path) -> None:
    """Raise ValueError if there is something in the place of a new run's folder, or it could not be made."""
    check_parents(Path(folder))
    if os.path.lexists(folder):
        raise ValueError(f"out: {folder} exists already, and runs are never overwritten")


def check_parents(target: Path, argument: str = "out") -> None:
    """Raise ValueError if a parent of what is going to be written is no folder."""
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{argument}: {parent} is no folder")


def new_folder(folder: Path, numbered: bool) -> Path:
    """Make the folder of a run: see :meth:`Run.write`."""
    for number in count(1):
        made = Path(f"{folder}-{number:03d}") if numbered else folder
        with suppress(FileExistsError):
            made.mkdir(parents=True)
            break
        if not numbered:
            check_new(made)
    return made


def write_description(folder: Path, recipe: Recipe[Any], fingerprint: str, given: Sequence[str]) -> None:
    """Write ``config.json`` atomically; in it, paths below the user's home are relative to the folder.

    Args:
        folder: of the run.
        recipe: of its model, with resolved options and full paths.
        fingerprint, given: as :class:`~pyro_fmvae.app.runs.run.Run` has them.
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
    values = read_values(folder)
    if isinstance(values, dict) and values.get("model") in [*ESTIMATORS]:
        raise ValueError(
            f"run: {folder} is of --model {values['model']}, for which there are the commands "
            "train, evaluate, encode and report alone"
        )
    recipe, fingerprint, given = described(values, folder, folder / CONFIG)
    with undamaged(folder / NAMES):
        names = read_names(folder, recipe.num_values)
    return replace(recipe, given_names=names), fingerprint, given


def read_values(folder: Path) -> Any:
    """Read ``config.json`` as it is.

    Raises:
        ValueError: the folder is no run, or the file is no JSON.
    """
    try:
        with undamaged(folder / CONFIG):
            return read_json(folder / CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"run: {folder} is no run (there is no {CONFIG} in it)") from None


def described(values: Any, folder: Path, source: Path) -> Description:
    """Read the contents of ``config.json``, with full paths.

    Args:
        values: the contents.
        folder: that relative paths start from.
        source: the file that they are from, for messages.

    Raises:
        ValueError: they are damaged.
    """
    with undamaged(source):
        derived = values[DERIVED]
        config = _with_data(with_full_paths(read_config(values), folder), folder)
        recipe = recipe_of(config)(
            config,
            Preprocessing.from_dict(derived["preprocessing"]),
            derived["num_data"],
            tuple(derived["label_names"]),
            tuple(tuple(names) for names in derived["value_names"]),
        )
        fingerprint, given = derived["fingerprint"], tuple(derived["given"])
        _check(recipe, fingerprint, given)
        check_type("machine", derived.get("machine", ""), str)
        check_type("versions", derived.get("versions", {}), dict[str, str])
        names = parse_names(derived.get(COMPONENT_NAMES, {}), recipe.num_values)
        return replace(recipe, given_names=names), fingerprint, given


def without_places(config: TrainConfig) -> TrainConfig:
    """A configuration that names no place: of the path of a person's own data the last part is left."""
    changes: dict[str, Any] = dict.fromkeys(_paths(config))
    if is_own(config):
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
    if not is_own(config) or os.path.exists(config.data) or not os.path.isfile(held):
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
    names = [one.name for one in fields(config) if one.metadata["path"]]
    names += ["data"] if is_own(config) else []
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


# A trained model in one file that travels: safetensors, with options and card in its header.

ENDING: Final = ".fmvae"


def is_model_file(path: Path) -> bool:
    """Return True for what may be such a file, by its ending."""
    return path.suffix == ENDING and path.is_file()


def read_model(path: Path) -> dict[str, Any]:
    """Read an exported model: ``config``, ``card`` and ``model``, its tensors on the CPU.

    Raises:
        ValueError: the file is damaged, is no such file, or is larger than the memory that it may take.
    """
    state, _ = checkpoint.load_file(path)
    kinds = {"config": dict, "card": str, "model": dict}
    whole = isinstance(state, dict) and all(isinstance(state.get(name), kind) for name, kind in kinds.items())
    if not whole:
        raise ValueError(f"{path}: not an exported model (a checkpoint of a run, perhaps: give its folder)")
    return state


CHECKPOINT = "checkpoint"
FIGURES = "figures"


@dataclass(frozen=True)
class Run:
    """A run as its folder describes it, without its data.

    Attributes:
        folder: of the run; of an exported model, its file.
        recipe: of its model, with resolved options.
        fingerprint: of the rows that were split at random; empty where splits are fixed.
        given: names of the options that were given.
    """

    folder: Path
    recipe: Recipe[Any]
    fingerprint: str = ""
    given: tuple[str, ...] = ()

    @classmethod
    def new(
        cls, folder: Path, config: TrainConfig, dataset: Dataset, given: Collection[str] | None = None
    ) -> "Run":
        """A run that is not on disk yet, its options resolved.

        Args:
            folder, config, dataset: where it is going to be, options as given, and the data.
            given: names of the options that count as given; None: those that are not as by default.

        Raises:
            ValueError: options that don't fit the data, or data from which nothing can be learnt.
        """
        options = config.given if given is None else [name for name in config.given if name in given]
        if is_own(config):
            names = dataset.label_names if config.label_names is None else config.label_names
            check_learnable(dataset, names if getattr(config, "labels", None) else ())
        return cls(folder, resolved(config, dataset, options), dataset.fingerprint, tuple(options))

    def write(self, numbered: bool = False, data: InMemory | None = None) -> "Run":
        """Make the folder and write the configuration into it.

        Args:
            numbered: make the first of ``folder-001``, ``folder-002``, ... that does not exist.
            data: of the run, for the folder to keep.

        Returns:
            The run in the folder that was made.

        Raises:
            ValueError: the folder exists already.
        """
        folder = new_folder(self.folder, numbered)
        run = replace(self, folder=folder)
        if data is not None:
            run = run.with_options(data=str(data.write(folder.resolve())))
        write_description(folder, run.recipe, run.fingerprint, run.given)
        return run

    @property
    def derived(self) -> Any:
        """Facts that ``config.json`` holds beside options, by name."""
        return read_values(self.folder)[DERIVED]

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Read the configuration of a run, or of an exported model, whose file stands for the folder.

        Raises:
            ValueError: the folder is no run, or its configuration is damaged.
        """
        if is_model_file(folder):
            return cls(folder, *described(read_model(folder)["config"], folder.parent, folder))
        return cls(folder, *read_description(folder))

    def check_folder(self, needed: str) -> None:
        """Raise ValueError, saying what is needed, if the run is an exported model."""
        if is_model_file(self.folder):
            raise ValueError(
                f"run: {self.folder} is an exported model, without {needed}; give the folder of its run"
            )

    @property
    def config(self) -> TrainConfig:
        """Resolved options."""
        config: TrainConfig = self.recipe.config
        return config

    def with_options(self, **changes: Any) -> "Run":
        """A run with some options changed; defaults are not resolved again."""
        return replace(self, recipe=replace(self.recipe, config=replace(self.config, **changes)))

    def load_data(self, data_root: str | None = None) -> Dataset:
        """The data set that it was trained on.

        Args:
            data_root: folder of published data sets, or the one that the run's own data lie in now.

        Raises:
            ValueError: it does not exist, or has changed since.
        """
        root = data_root or self.config.data_root
        config = _found(self.config, root)
        dataset = load_data(config, Path(root) if root else None, self.recipe.preprocessing.event_shape)
        if (number := len(dataset.train)) != self.recipe.num_data:
            raise ValueError(
                f"data: {self.recipe.num_data} training points were expected, but there are {number} now"
            )
        if dataset.label_names != self.recipe.label_names:
            before, now = (
                ", ".join(names) or "none" for names in (self.recipe.label_names, dataset.label_names)
            )
            raise ValueError(
                f"data: the labels of '{config.data}' were {before} when the run was started; they "
                f"are {now} now"
            )
        if dataset.preprocessing != self.recipe.preprocessing:
            raise ValueError(
                f"data: '{config.data}' has changed since this run was started; train again, or pass the new "
                "file with --data"
            )
        if self.fingerprint and dataset.fingerprint != self.fingerprint:
            raise ValueError(
                f"data: '{config.data}' has other rows than when the run was started, or the same in another "
                "order or type, or held out by other labels: its splits would not be the same"
            )
        self._check_values(dataset)
        return dataset

    def _check_values(self, dataset: Dataset) -> None:
        """Raise ValueError if a label's values have other names than in the run, where both say which."""
        values = zip(self.recipe.label_names, self.recipe.value_names, dataset.value_names, strict=False)
        for label, known, found in values:
            if known != found:
                expected, got = (", ".join(names) or "numbers" for names in (known, found))
                raise ValueError(f"data: the values of '{label}' were {expected}; they are {got} now")

    def load_model(self, device: torch.device) -> Any:
        """The model as it was at the last checkpoint; of a finished run its best one.

        Raises:
            FileNotFoundError, ValueError: there is no checkpoint, or it is damaged.
        """
        exported = is_model_file(self.folder)
        state = read_model(self.folder) if exported else checkpoint.load(self.folder / CHECKPOINT)[0]
        with fitting(self):
            model = self.recipe.build()
            match(model, state["model"])
            check_state(model, state["model"])
            model.load_state_dict(state["model"])
        return model.to(device).eval()


def saved(folder: Path) -> bool:
    """Return True if a run got as far as its first checkpoint, even if that is lost by now."""
    if any((folder / CHECKPOINT / name).exists() for name in (checkpoint.TENSORS, checkpoint.READABLE)):
        return True
    metrics = folder / METRICS
    return metrics.exists() and len(metrics.read_bytes().splitlines()) > 1  # one comes before it


def load_data(
    config: TrainConfig, root: Path | None, shape: tuple[int, ...] | None = None, data: InMemory | None = None
) -> Dataset:
    """The data set that a configuration asks for: its labels in order, combinations held out.

    Args:
        config: the configuration.
        root: folder of published data sets.
        shape: of the images of a folder, where it is known.
        data: in memory, in place of those that the configuration names.

    Raises:
        FileNotFoundError, ValueError: there are no such data, or the options don't fit them.
    """
    sparse = recipe_of(config).reading(config, config.data) or SparseOptions()
    sparse = replace(sparse, table=table_options(config))
    dataset = load(
        data or config.data,
        root,
        binarization=config.binarization,
        image_size=config.image_size,
        sparse=sparse,
        shape=shape,
        splitting=splitting_of(config),
        in_memory=config.in_memory,
    )
    if config.label_names is not None:
        dataset = choose_labels(dataset, config.label_names)
    share = HELD_OUT.get(config.data, 0.0) if config.hold_out is None else config.hold_out
    return hold_out(dataset, share, seed=0) if share else dataset


def _found(config: TrainConfig, root: str | None) -> TrainConfig:
    """A configuration whose own data exist: where they were, or under their name in another folder.

    Raises:
        ValueError: they do not.
    """
    data = Path(config.data)
    if not is_own(config) or data.exists():
        return config
    moved = Path(root or data.parent, data.name)
    if not moved.exists():
        raise ValueError(
            f"data: {moved} does not exist; give the folder that now holds '{data.name}' with --data-root"
        )
    return replace(config, data=str(moved.resolve()))


def match(model: Any, state: Mapping[str, Tensor]) -> None:
    """Prepare a model for loading a state dictionary, with a mixture of codes if that has one."""
    model.match(state)
    if (weights := state.get("code_mixture.posteriors.weights.natural")) is not None:
        mixture = ObservedMixture([0] * model.latent_dim, len(weights), model.num_data, full=True)
        model.code_mixture = mixture.to(next(model.parameters()).device)


def check_state(model: torch.nn.Module, state: Any) -> None:
    """Check that a state dictionary is one of a model: torch would convert numbers of any kind.

    Raises:
        ValueError: it has other names, shapes or kinds of numbers.
    """
    ours, missing = model.state_dict(), "nothing"
    for name in {**ours, **state}:
        expected, found = (_kind(part[name]) if name in part else missing for part in (ours, state))
        if found != expected:
            raise ValueError(f"{name}: expected {expected}, got {found}")


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    single = value.dtype in (torch.float32, torch.float64)  # the default may be either
    return f"{'float32' if single else str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


@contextmanager
def fitting(run: Run) -> Iterator[None]:
    """Say it in one line if a checkpoint turns out to be that of another model."""
    try:
        yield
    except Exception as error:  # torch and Pyro raise many kinds on a state of another form
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        model = run.folder if is_model_file(run.folder) else run.folder / CHECKPOINT
        raise ValueError(f"run: {model} does not fit {CONFIG} ({reason})") from error


# Which model a finished run stands for.
