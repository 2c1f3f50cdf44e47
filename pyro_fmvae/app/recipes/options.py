"""Options of `pyro-fmvae train` that all models share."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

import torch

from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.data.splitting import SHARE, Splitting
from pyro_fmvae.files.untrusted import check_type
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.phase import Budget

# Ranges of options: each check raises ValueError, naming the option, for a value outside of it.

LARGEST: Final = 2**31 - 1
"""Largest number of anything that can be counted."""

Check: TypeAlias = Callable[[str, Any], None]
"""Given the name and the value of an option, raises ValueError if the value is out of range."""


def count(least: int, most: int = LARGEST) -> Check:
    """An integer in ``least``..``most``."""

    def check(name: str, value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"{name}: expected a number in {least}..{most}, got {value}")

    return check


def positive(name: str, value: float) -> None:
    """A finite number > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number > 0, got {value}")


def nonnegative(name: str, value: float) -> None:
    """A finite number >= 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a number >= 0, got {value}")


def at_least_one(name: str, value: float) -> None:
    """A finite number >= 1."""
    if not 1 <= value < math.inf:
        raise ValueError(f"{name}: expected a number >= 1, got {value}")


def exponent(name: str, value: float) -> None:
    """A number in (1/2, 1], the exponents for which step sizes of Robbins and Monro converge."""
    if not 0.5 < value <= 1:
        raise ValueError(f"{name}: expected a number in (1/2, 1], got {value}")


def share(name: str, value: float) -> None:
    """A number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share in [0, 1], got {value}")


def share_below_one(name: str, value: float) -> None:
    """A number in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: expected a share in [0, 1), got {value}")


def share_between(name: str, value: float) -> None:
    """A number in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: expected a share in (0, 1), got {value}")


def sizes(name: str, value: tuple[int, ...]) -> None:
    """One or more integers >= 1."""
    if not (value and min(value) >= 1 and max(value) <= LARGEST):
        raise ValueError(f"{name}: expected sizes >= 1, such as 2,2,64, got {value}")


# Declaring options as fields of dataclasses, and how the command line writes them.


class NotAList(ArgumentTypeError, ValueError):
    """A text or a value that is not the list that it should be, on a command line or in a file."""


class ListOf:
    """Converts text such as ``2,2,64`` to a tuple.

    Args:
        name: of the elements, for ``--help`` and messages.
        convert: converts one element.
        example: of a list.
    """

    def __init__(self, name: str, convert: Callable[[Any], Any], example: str) -> None:
        self.name, self.convert, self.example = name, convert, example

    def __call__(self, text: Any) -> tuple[Any, ...]:
        """The elements of a text or a list.

        Raises:
            NotAList: an element cannot be converted, or the value is neither a text nor a list.
        """
        parts = text if isinstance(text, list | tuple) else str(text).split(",")
        try:
            return tuple(self.convert(part) for part in parts)
        except (ValueError, TypeError, OverflowError):
            expected = f"expected {self.name} separated by commas, such as {self.example}"
            raise NotAList(f"{expected}, got '{text}'") from None

    def __repr__(self) -> str:
        return self.name  # which --help shows


SIZES = ListOf("sizes", int, "2,2,64")
NUMBERS = ListOf("numbers", int, "1,2")
NAMES = ListOf("names", lambda part: str(part).strip(), "hat,eyes")


def option(
    default: Any,
    text: str,
    check: Check | None = None,
    parse: ListOf | None = None,
    path: bool = False,
    example: str = "",
) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: of the option.
        text: for ``--help-all``.
        check: raises ValueError for values out of range; not asked about None.
        parse: converts text, where the option's type does not say how.
        path: the value is the path of a file or folder.
        example: a value as it is typed. Options with an example are those that matter first: ``--help`` shows
            them alone.
    """
    metadata = {"help": text, "check": check, "parse": parse, "path": path, "by_data": False}
    return field(default=default, metadata=metadata | {"example": example})


def by_data(text: str, check: Check | None = None, parse: ListOf | None = None, example: str = "") -> Any:
    """Declare an option whose default depends on the data: None until :meth:`Recipe.resolve` chooses it."""
    metadata = {"help": text, "check": check, "parse": parse, "path": False, "by_data": True}
    return field(default=None, metadata=metadata | {"example": example})


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def as_typed(value: Any) -> str:
    """The value of an option as the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


PHASES: Mapping[str, float] = {"pretrain": 0.15, "prior": 0.02, "joint": 0.55, "refine": 0.28}
"""Names of phases in their order, and the share of ``max_minutes`` that each takes. A phase that a training
leaves out gives its share to the others."""
OWN_MINUTES = 5.0
"""Time limit of a training on a person's own data, where no length is given."""
HELD_OUT = {"sprites": 0.2}
"""Share of the combinations of labels that is held out by default, by the name of the data."""
OF_ANOTHER_TYPE = {"augmentation", "view", "compile", "autocast"}  # of Learning: set by others, or converted


PATIENCE = 500
"""Default of the option for a person's own data."""


def _names(name: str, value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{name}: expected at least one name; to use no labels, give --labels 0")


@dataclass(frozen=True)
class TrainConfig:
    """Options that all models share; each model has a subclass that adds its own.

    Raises:
        ValueError: a value of another type, or a number out of range.
    """

    model: str = field(
        metadata={"help": "model to train", "check": None, "path": False, "by_data": False, "example": "vae"}
    )
    data: str = option(
        "smiley",
        "name of a data set, path of an .npz, .npy, .csv, .parquet or .arrow file, of a .zarr store or of a "
        "folder of images",
        example="photos",
    )
    data_root: str | None = option(None, "folder in which published data sets are kept", path=True)
    binarization: Literal["dynamic", "threshold"] = option(
        "dynamic", "how the greys of mnist and omniglot become binary"
    )
    image_size: int | None = option(
        None, "side of the squares that the pictures of a folder or of celeba are resized to", example="32"
    )
    label_names: tuple[str, ...] | None = option(
        None, "labels to use, in the order of the factors: hat,eyes", _names, NAMES
    )
    hold_out: float | None = by_data(
        "share of the labels' combinations kept apart for testing", share_below_one
    )
    valid: float = option(SHARE, "share of your own rows that is kept for validation, or 0")
    test: float | None = option(
        None, f"share of them that is kept for testing, or 0; default: {SHARE}, without rare labels"
    )
    fold: str | None = option(None, "test on this fold instead, such as 2/5, the second of five")
    in_memory: bool | None = option(
        None,
        "hold your own rows in memory; default: all but those of .npy, .parquet, .arrow and .zarr, of "
        "uncompressed .npz and of .h5ad files of 1 GiB or more, which are read as they are needed, and of "
        "sparse matrices",
    )
    batch_size: int | None = by_data("points per batch", count(1))
    joint_iterations: int | None = by_data("iterations of everything together", count(0))
    max_minutes: float | None = option(
        None, "train by the clock instead: minutes for all phases", positive, example="5"
    )
    time_limit: float | None = option(
        None, "minutes after which training by iterations is cut short; 0: never", nonnegative
    )
    learning_rate: float = option(1e-3, "Adam's")
    final_learning_rate: float | None = option(
        None, "learning rate at the end of the joint phase; it falls in the last half"
    )
    joint_learning_rate: float | None = option(
        None, "learning rate at the start of the joint phase; default: learning_rate", positive
    )
    weight_decay: float | None = option(
        None, "AdamW's, for the networks; default: 0, more for few points of your own"
    )
    patience: int | None = option(
        None,
        "steps without a better validation bound after which a phase ends; 0: never; default: "
        f"{PATIENCE} with your own data, 0 with published and generated ones",
        count(0),
    )
    eager: bool = option(False, "take every step through Pyro, instead of replaying a captured one")
    compile: bool | None = option(None, "compile captured steps; default: on the CPU, in long trainings")
    autocast: bool | None = option(
        None,
        "train the networks in bfloat16; default: convolutions of your own images, on a CPU that has "
        "instructions for it",
    )
    log: Literal["tensorboard"] | None = option(
        None, "write the measures of metrics.jsonl for TensorBoard, too"
    )
    seed: int = option(0, "of everything random", count(0), example="1")
    device: str = option("auto", "cpu, cuda, ... or auto: a GPU where there is one")

    def __post_init__(self) -> None:
        for one in fields(self):
            check, value = one.metadata["check"], getattr(self, one.name)
            check_type(one.name, value, one.type)
            if check is not None and value is not None:
                check(one.name, value)
        if self.max_minutes is not None and self.time_limit:
            raise ValueError("time_limit: an option of training by iterations, without effect on max_minutes")
        if self.eager and self.compile:
            raise ValueError("compile: eager steps cannot be compiled")
        _ = self.splitting, self.learning()  # raise what is wrong with their parts

    @property
    def splitting(self) -> Splitting:
        """How the rows of a person's own data are split."""
        return Splitting(self.valid, self.test, self.fold)

    def learning(self) -> Learning:
        """Settings that the phases of training share: all attributes that have a name of theirs."""
        names = {one.name for one in fields(Learning)} - OF_ANOTHER_TYPE
        given: dict[str, Any] = {name: getattr(self, name, None) for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        return Learning(**given, autocast=torch.bfloat16 if self.autocast else None)

    @property
    def own_data(self) -> bool:
        """True if the data are a person's own: a path, not the name of a published or generated set."""
        return self.data not in LOADERS

    @property
    def patience_steps(self) -> int:
        """``patience``, or its default for the data; 0: phases are never ended early."""
        if self.patience is None:
            return PATIENCE if self.own_data else 0
        return self.patience

    @property
    def iterations(self) -> dict[str, int | None]:
        """Iterations of each phase that the model has, in order."""
        names = {phase: f"{phase}_iterations" for phase in PHASES}
        return {phase: getattr(self, name) for phase, name in names.items() if hasattr(self, name)}

    @property
    def usual_steps(self) -> int:
        """Iterations of all phases together, were there no clock."""
        return sum(number or 0 for number in self.iterations.values())

    @property
    def timed(self) -> bool:
        """True if a clock may end the training."""
        return bool(self.max_minutes or self.time_limit)

    def budgets(self) -> dict[str, Budget]:
        """Budget of each phase that the model has, for a resolved configuration."""
        given = {phase: number or 0 for phase, number in self.iterations.items()}
        if self.max_minutes is not None:
            shares = {phase: PHASES[phase] if number else 0.0 for phase, number in given.items()}
            minutes = _shared_out(self.max_minutes, shares)
            return {phase: Budget(minutes=part) for phase, part in minutes.items()}
        if not self.time_limit:
            return {phase: Budget(iterations=number) for phase, number in given.items()}
        minutes = _shared_out(self.time_limit, given)
        return {phase: Budget(number, minutes[phase]) for phase, number in given.items()}

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that were given, without ``model`` and ``data``, while it is unresolved."""
        names = [one.name for one in fields(self) if one.name not in ("model", "data")]
        plain = {one.name: one.default for one in fields(self)}
        return tuple(name for name in names if getattr(self, name) != plain[name])

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The inverse of :meth:`to_dict`; keys that are no options are ignored.

        Raises:
            KeyError: an option whose default depends on the data is missing.
            ValueError: a number out of range.
        """
        if missing := sorted(
            one.name for one in fields(cls) if one.metadata["by_data"] and one.name not in values
        ):
            raise KeyError(f"of another version, without {', '.join(missing)}")
        # Of runs from before these options, which kept no labels in training, and all data in memory.
        given: dict[str, Any] = {"test": SHARE, "in_memory": True}
        given |= {one.name: values[one.name] for one in fields(cls) if one.name in values}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **lists})


def _shared_out(minutes: float, shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values()) or 1.0
    return {name: minutes * share / total for name, share in shares.items()}


Options = TypeVar("Options", bound=TrainConfig)


def completed(config: Options, defaults: Mapping[str, Any]) -> Options:
    """A configuration with defaults in the place of None."""
    missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return replace(config, **missing)


def shared_defaults(config: TrainConfig) -> dict[str, Any]:
    """Defaults by data of options that all models share, and that no model chooses by itself."""
    lengths = (config.max_minutes, *config.iterations.values())
    own = config.own_data and all(length is None for length in lengths)
    return {
        "hold_out": HELD_OUT.get(config.data, 0.0),
        "time_limit": OWN_MINUTES if own else None,
        "weight_decay": 0.0,
    }


def check_iterations(config: TrainConfig) -> None:
    """Raise ValueError unless some phase has iterations."""
    if not any(config.iterations.values()):
        raise ValueError("iterations: expected at least one phase with more than 0")


def refuse(
    config: TrainConfig, names: tuple[str, ...], needed: str, otherwise: Mapping[str, Any] | None = None
) -> None:
    """Raise ValueError if one of these options is given, none of which has an effect without another one.

    Args:
        config: resolved.
        names: of the options.
        needed: the option without which they have no effect.
        otherwise: values that stand for "not given", where these are not the defaults.
    """
    plain = {one.name: one.default for one in fields(config)} | dict(otherwise or {})
    for name in names:
        if getattr(config, name) != plain[name]:
            raise ValueError(f"{name}: an option of {needed}, without effect here")


def decaying(config: TrainConfig) -> dict[str, Any]:
    """A default by which the learning rate falls to a tenth."""
    return {"final_learning_rate": 0.1 * (config.joint_learning_rate or config.learning_rate)}
