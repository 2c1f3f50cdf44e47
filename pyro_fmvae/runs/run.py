"""A run: a folder with configuration, records, checkpoint and figures, and the model that it stands for."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from pyro_fmvae import checkpoint
from pyro_fmvae.data import Dataset, Preprocessing, choose_labels, hold_out, load
from pyro_fmvae.data.learnable import check_learnable
from pyro_fmvae.recipes.options import HELD_OUT, TrainConfig
from pyro_fmvae.recipes.recipe import Recipe
from pyro_fmvae.recipes.registry import recipe_of, resolved
from pyro_fmvae.runs.config_file import CONFIG, check_new, described, read_description, write_description
from pyro_fmvae.runs.model_file import is_model_file, read_model

METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint"
FIGURES = "figures"
REPORT = "report.json"  # the closing table


@dataclass(frozen=True)
class Run:
    """A run as its folder describes it, without its data.

    Attributes:
        folder: where it is kept; of an exported model, its file.
        recipe: of its model, with resolved options.
        fingerprint: of the rows that were split at random; empty where splits are fixed, and in older runs.
        given: names of the options that were given; empty in older runs.
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
        kept = config.given if given is None else [name for name in config.given if name in given]
        if config.own_data:
            names = dataset.label_names if config.label_names is None else config.label_names
            check_learnable(dataset, names if getattr(config, "labels", None) else ())
        return cls(folder, resolved(config, dataset, kept), dataset.fingerprint, tuple(kept))

    def write(self, numbered: bool = False, held: Path | None = None) -> "Run":
        """Make the folder and write the configuration into it.

        Args:
            numbered: make the first of ``folder-001``, ``folder-002``, ... that does not exist.
            held: a file with the run's data, to move into the folder.

        Returns:
            The run in the folder that was made.

        Raises:
            ValueError: the folder exists already.
        """
        for number in count(1):
            folder = Path(f"{self.folder}-{number:03d}") if numbered else self.folder
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
            if not numbered:
                check_new(folder)
        run = replace(self, folder=folder)
        if held is not None:
            moved = shutil.move(held, folder.resolve() / held.name)
            run = run.with_options(data=str(moved))
        write_description(folder, run.recipe, run.fingerprint, run.given)
        return run

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

    @property
    def num_data(self) -> int:
        """N, points in the training set."""
        return self.recipe.num_data

    @property
    def preprocessing(self) -> Preprocessing:
        """Transform of raw data into the model's input."""
        return self.recipe.preprocessing

    @property
    def label_names(self) -> tuple[str, ...]:
        """One per label column of the data set, those that are trained on first."""
        return self.recipe.label_names

    @property
    def value_names(self) -> tuple[tuple[str, ...], ...]:
        """Per label column, names of its values; empty where they are numbers."""
        return self.recipe.value_names

    @property
    def factorial(self) -> bool:
        """True if its model has factors, with components and codes."""
        return self.recipe.factorial

    @property
    def labelled(self) -> tuple[int, ...]:
        """Factors that labels were trained on: the leading ones."""
        return self.recipe.labelled

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Name of each factor: its label, or its number, as in codes."""
        return self.recipe.factor_names

    def factors_of(self, label_names: Sequence[str]) -> list[int | None]:
        """The factor that was trained on each of these labels, None where there is none."""
        return self.recipe.factors_of(label_names)

    @property
    def image(self) -> bool:
        """True if a data point is an image."""
        return self.recipe.image

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
        dataset = load_data(config, Path(root) if root else None, self.preprocessing.event_shape)
        if (number := len(dataset.train)) != self.num_data:
            raise ValueError(f"data: {self.num_data} training points were expected, there are {number} now")
        if dataset.label_names != self.label_names:
            before, now = (", ".join(names) or "none" for names in (self.label_names, dataset.label_names))
            raise ValueError(
                f"data: the labels of '{config.data}' were {before} when the run was started; they "
                f"are {now} now"
            )
        if dataset.preprocessing != self.preprocessing:
            raise ValueError(
                f"data: '{config.data}' is not what it was when the run was started, or an older version "
                "started it: train it anew, or give a file to evaluate or encode by --data"
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
        values = zip(self.label_names, self.value_names, dataset.value_names, strict=False)
        for label, known, found in values:
            if known != found:
                expected, got = (", ".join(names) or "numbers" for names in (known, found))
                raise ValueError(f"data: the values of '{label}' were {expected}; they are {got} now")

    def build_model(self) -> Any:
        """The untrained model."""
        return self.recipe.build()

    def load_model(self, device: torch.device) -> Any:
        """The model as it was at the last checkpoint; of a finished run its best one.

        Raises:
            FileNotFoundError, ValueError: there is no checkpoint, or it is damaged.
        """
        exported = is_model_file(self.folder)
        state = read_model(self.folder) if exported else checkpoint.load(self.folder / CHECKPOINT)[0]
        with fitting(self):
            model = self.build_model()
            model.match(state["model"])
            check_state(model, state["model"])
            model.load_state_dict(state["model"])
        return model.to(device).eval()


def saved(folder: Path) -> bool:
    """Return True if a run got as far as its first checkpoint, even if that is lost by now."""
    if any((folder / CHECKPOINT / name).exists() for name in (checkpoint.TENSORS, checkpoint.READABLE)):
        return True
    metrics = folder / METRICS
    return metrics.exists() and len(metrics.read_bytes().splitlines()) > 1  # one comes before it


def load_data(config: TrainConfig, root: Path | None, shape: tuple[int, ...] | None = None) -> Dataset:
    """The data set that a configuration asks for: its labels in order, combinations held out.

    Args:
        config: the configuration.
        root: folder of published data sets.
        shape: of the images of a folder, where it is known.

    Raises:
        FileNotFoundError, ValueError: there are no such data, or the options don't fit them.
    """
    sparse = recipe_of(config).reading(config, config.data)
    dataset = load(
        config.data,
        root,
        binarization=config.binarization,
        image_size=config.image_size,
        sparse=sparse,
        shape=shape,
        splitting=config.splitting,
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
    if not config.own_data or data.exists():
        return config
    moved = Path(root or data.parent, data.name)
    if not moved.exists():
        raise ValueError(
            f"data: {moved} does not exist; --data-root says in which folder '{data.name}' is now"
        )
    return replace(config, data=str(moved.resolve()))


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


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one.

    Raises:
        ValueError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"device: '{name}' cannot be used here ({str(error).splitlines()[0]})") from None
    return device
