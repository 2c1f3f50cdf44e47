"""Options of learning: one frozen dataclass a model, which its phases and `pyro-fmvae train` take.

They are data alone: :mod:`pyro_fmvae.app.recipes.settings` says what they come to.
"""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

# Ranges of options: each check raises ValueError, naming the option, for a value outside of it.

LARGEST: Final = 2**31 - 1
"""Largest number of anything that can be counted."""

Check: TypeAlias = Callable[[str, Any], None]
"""Given the name and the value of an option, raises ValueError if the value is out of range."""


def count(least: int, most: int = LARGEST) -> Check:
    """An integer in ``least``..``most``."""

    def check(name: str, value: int) -> None:
        if not (isinstance(value, Integral) and least <= value <= most):
            raise ValueError(f"{name}: expected an integer in {least}..{most}, got {value}")

    return check


def positive(name: str, value: float) -> None:
    """A finite number > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number > 0, got {value}")


def nonnegative(name: str, value: float) -> None:
    """A finite number >= 0."""
    if not (isinstance(value, Real) and 0 <= value < math.inf):
        raise ValueError(f"{name}: expected a number >= 0, got {value}")


def at_least_one(name: str, value: float) -> None:
    """A finite number >= 1."""
    if not 1 <= value < math.inf:
        raise ValueError(f"{name}: expected a number >= 1, got {value}")


def step_size(name: str, value: float) -> None:
    """A number in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name}: expected a number in (0, 1], got {value}")


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


def by_data(
    default: Any, text: str, check: Check | None = None, parse: ListOf | None = None, example: str = ""
) -> Any:
    """Declare an option that data may choose: on a command line it is None until :meth:`Recipe.resolve` does.

    Args:
        default: where data say nothing else; None if they always do.
        text, check, parse, example: as for :func:`option`.
    """
    metadata = {"help": text, "check": check, "parse": parse, "path": False, "by_data": True}
    return field(default=default, metadata=metadata | {"example": example})


def of_model(name: str) -> Any:
    """Declare the name of the model."""
    return field(
        default=name,
        metadata={"help": "model to train", "check": None, "path": False, "by_data": False, "example": "vae"},
    )


def unset(one: "Field[Any]") -> Any:
    """The value of an option that was not given: None where data choose it."""
    return None if one.metadata["by_data"] else one.default


DECAY, DECAY_BELOW = 0.5, 2000
"""Weight decay of perceptrons that learn from fewer points than this, chosen as their sizes are."""


def weight_decay(num_data: int) -> float:
    """Weight decay of perceptrons by the number of training points."""
    return DECAY if num_data < DECAY_BELOW else 0.0


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
SHARE: Final = 0.1
"""Of a person's own rows, for validation and for testing."""
PATIENCE = 500
"""Default of the option for a person's own data."""


def _names(name: str, value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{name}: expected at least one name; to use no labels, give --labels 0")


KINDS: Final = ("number", "category", "date", "id", "text", "ignored")
"""What a column of a table may be said to hold."""


def _kinds(name: str, value: tuple[str, ...]) -> None:
    for one in value:
        column, _, kind = one.rpartition("=")
        if not column or kind not in KINDS:
            raise ValueError(f"{name}: expected NAME=KIND, where KIND is {', '.join(KINDS)}, got {one!r}")


@dataclass(frozen=True)
class TrainConfig:
    """Options that all models share; each model has a subclass that adds its own.

    Raises:
        ValueError: a number out of range.
    """

    model: str = of_model("fmvae")
    data: str = option(
        "smiley",
        "name of a data set, or path of your own: a folder of images, an .npz, .npy, .csv, .parquet, .arrow "
        "or .h5ad file, or a .zarr store",
        example="photos",
    )
    data_root: str | None = option(
        None, "folder of published data sets; default: ~/.cache/pyro_fmvae", path=True
    )
    binarization: Literal["dynamic", "threshold"] = option(
        "dynamic",
        "how the greys of mnist and omniglot become binary: drawn anew in each epoch, or cut at 1/2",
    )
    image_size: int | None = option(
        None, "resize the images of a folder or of celeba to squares with this side", example="32"
    )
    label: tuple[str, ...] | None = option(
        None,
        "columns of a table that are labels, by name; all their values are used unless --labels says less",
        parse=NAMES,
        example="species",
    )
    kind: tuple[str, ...] | None = option(
        None,
        "kinds of columns that the printed plan gets wrong: zip=category,born=date; a kind is number, "
        "category, date, id, text or ignored",
        _kinds,
        NAMES,
    )
    columns: str | None = option(
        None, "YAML file with the kinds of columns, one line NAME: KIND for each", path=True
    )
    header: Literal["yes", "no"] | None = option(
        None, "whether the first row of a table holds names; default: detected"
    )
    label_names: tuple[str, ...] | None = option(
        None,
        "labels to train on, in the order of the factors: hat,eyes; the others only measure the result; "
        "default: all",
        _names,
        NAMES,
    )
    hold_out: float | None = by_data(
        0.0,
        "share of the combinations of labels that training never sees; they become the split unseen",
        share_below_one,
    )
    valid: float = option(SHARE, "share of your own rows used for validation, or 0")
    test: float | None = option(
        None,
        f"share of your own rows used for testing, or 0; default: {SHARE}, leaving rows with rare labels out",
    )
    fold: str | None = option(None, "use this fold for testing: 2/5 is the second fifth of the rows")
    in_memory: bool | None = option(
        None,
        "true: load all rows into memory; false: read them from the file as they are needed; default: "
        ".npy, .parquet, .arrow and .zarr are read as needed, and so are uncompressed .npz and .h5ad files "
        "of 1 GiB or more",
    )
    batch_size: int | None = by_data(None, "points per batch", count(1))
    joint_iterations: int | None = by_data(
        None, "iterations of the phase joint, which trains everything", count(0)
    )
    max_minutes: float | None = option(
        None, "train for this many minutes instead of a number of iterations", positive, example="5"
    )
    time_limit: float | None = option(
        None,
        "minutes after which a training by iterations is cut short; 0: never; default: 5 for your own data "
        "if you give no length",
        nonnegative,
    )
    learning_rate: float = option(1e-3, "learning rate of Adam", check=positive)
    final_learning_rate: float | None = option(
        None, "learning rate at the end of the phase joint; the rate falls in the second half"
    )
    joint_learning_rate: float | None = option(
        None, "learning rate at the start of the phase joint; default: --learning-rate", positive
    )
    weight_decay: float | None = by_data(
        0.0,
        "weight decay of the networks (AdamW); default: 0, or 0.5 if you have few points of your own",
        check=nonnegative,
    )
    patience: int | None = option(
        None,
        "end a phase after this many steps without a better validation bound; 0: never; default: "
        f"{PATIENCE} for your own data, 0 for others",
        count(0),
    )
    eager: bool = option(False, "run every step through Pyro instead of replaying a captured step")
    compile: bool | None = option(
        None,
        "compile captured steps with torch.compile; default: on a CPU with a C++ compiler, if the training "
        "is long enough to gain from it",
    )
    autocast: bool | None = option(
        None,
        "train the networks in bfloat16; default: only for convolutions on your own images, on a CPU with "
        "bfloat16 instructions",
    )
    log: Literal["tensorboard"] | None = option(
        None, "also write the measures of metrics.jsonl for TensorBoard"
    )
    seed: int = option(0, "seed of all random numbers", count(0), example="1")
    device: str = option("auto", "cpu, cuda, ... or auto, which takes a GPU if there is one")

    def __post_init__(self) -> None:
        for one in fields(self):
            check, value = one.metadata["check"], getattr(self, one.name)
            if check is not None and value is not None:
                check(one.name, value)
        if self.max_minutes is not None and self.time_limit:
            raise ValueError("time_limit: an option of training by iterations, without effect on max_minutes")
        final = self.final_learning_rate
        if final is not None and not 0 < final <= self.learning_rate:
            raise ValueError(
                f"final_learning_rate: expected a number in (0, {self.learning_rate}], got {final}"
            )
        if self.eager and self.compile:
            raise ValueError("compile: eager steps cannot be compiled")

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

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that were given, without ``model`` and ``data``, while it is unresolved."""
        own = [one for one in fields(self) if one.name not in ("model", "data")]
        return tuple(one.name for one in own if getattr(self, one.name) != unset(one))

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


Options = TypeVar("Options", bound=TrainConfig)


def completed(config: Options, defaults: Mapping[str, Any]) -> Options:
    """A configuration with defaults in the place of None."""
    missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return replace(config, **missing)


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
    plain = {one.name: unset(one) for one in fields(config)} | dict(otherwise or {})
    for name in names:
        if getattr(config, name) != plain[name]:
            raise ValueError(f"{name}: an option of {needed}, without effect here")


def decaying(config: TrainConfig) -> dict[str, Any]:
    """A default by which the learning rate falls to a tenth."""
    return {"final_learning_rate": 0.1 * (config.joint_learning_rate or config.learning_rate)}


# Options of models with networks.


@dataclass(frozen=True)
class NetworkOptions(TrainConfig):
    """Options that models with an encoder and a decoder share."""

    factors: tuple[int, ...] | None = by_data(
        None, "number of components of each factor, such as 2,2,64", sizes, SIZES, example="2,2,64"
    )
    factor_dim: int | None = by_data(None, "dimensions of each factor", count(1))
    network: Literal["mlp", "conv", "conv28", "conv64"] | None = by_data(
        "mlp",
        "mlp; conv, for images of any size; or conv28 and conv64, for images of exactly 28x28 and 64x64x3",
    )
    width: float | None = by_data(
        1.0, "scale the number of channels of convolutions by this factor", positive
    )
    hidden: tuple[int, ...] | None = by_data(
        None, "sizes of the mlp's hidden layers, such as 400,400", sizes, SIZES
    )
    min_scale: float | None = by_data(
        0.001, "smallest standard deviation of a Gaussian observation", positive
    )
    max_scale: float | None = by_data(0.4, "largest standard deviation of a Gaussian observation", positive)
    pretrained: str | None = option(None, "start from the encoder and decoder of this run", path=True)
    pretrain_iterations: int | None = by_data(
        1500, "iterations of the phase pretrain: the networks alone, under a N(0, I) prior", count(0)
    )
    kl_weight: float | None = by_data(
        1.0, "weight of KL[z] at the start of the phase joint; it moves linearly to 1", check=positive
    )
    distortion: float = option(
        0.0,
        "strength of random warps of the images that the encoder sees (the decoder explains the original)",
        nonnegative,
    )
    augmentation: float | None = option(
        None,
        "strength of random warps of half of the training images; default: 0, or 0.5 for labelled images of "
        "your own",
        nonnegative,
    )
    augment_until: float | None = by_data(
        0.5,
        "share of the phase joint after which --augmentation stops; default: 0.5, or 1 for labelled images "
        "of your own",
        check=share,
    )


@dataclass(frozen=True)
class CountableOptions(NetworkOptions):
    """Options of models that explain counts, too."""

    likelihood: Literal["poisson", "negative-binomial"] | None = option(
        None,
        "likelihood of a table of counts, given the total of each row; default: Bernoulli for binary data, "
        "Gaussian for all others",
    )
    batch_column: str | None = option(
        None, "column with the batch of each row of counts, which encoder and decoder take as an input"
    )
    layer: str | None = option(None, "layer of an .h5ad file with the counts; default: X")


@dataclass(frozen=True)
class LatentOptions(NetworkOptions):
    """Options of models whose z has no factors."""

    factors: tuple[int, ...] | None = by_data(
        None,
        "as for --model fmvae; here their number times --factor-dim is the default of --latent-dim",
        sizes,
        SIZES,
    )
    factor_dim: int | None = by_data(None, "dimensions of each of these factors", count(1))
    latent_dim: int | None = option(
        None, "dimensions of z; default: those of all factors together", count(1), example="20"
    )

    @property
    def size(self) -> int:
        """J, dimensions of z: as many as the factors would have, unless it is given."""
        if self.latent_dim is not None:
            return self.latent_dim
        assert self.factors is not None and self.factor_dim is not None
        return len(self.factors) * self.factor_dim


# Options of each model.

AUTO: Final = (-1,)
"""Sizes of factors that are to be found."""


class SizesOrAuto(ListOf):
    """Converts ``auto``, or text such as ``2,2,64``."""

    def __call__(self, text: Any) -> tuple[Any, ...]:
        return AUTO if text == "auto" else super().__call__(text)


SIZES_OR_AUTO: Final = SizesOrAuto("sizes", int, "2,2,64, or auto")


def sizes_or_auto(name: str, value: tuple[int, ...]) -> None:
    """One or more integers >= 1, or :data:`AUTO`."""
    if value != AUTO:
        sizes(name, value)


SPREAD = (
    "spread labels to other points where classifiers get this share of hidden labels right; 0: never; "
    "default: 0, or 0.95 for images of your own"
)


@dataclass(frozen=True)
class FMVAEOptions(CountableOptions):
    """Options of ``--model fmvae``."""

    model: str = of_model("fmvae")
    views: int = option(
        1,
        "number of randomly changed views of each training image, which share its components; they differ by "
        "--distortion, --view-strength or both",
        count(1, 64),
    )
    view_strength: float = option(
        0.0,
        "strength, up to 1, of random changes to the views that the decoder explains as well: warps and "
        "strokes of grey images, crops, mirror images and colours of colour images",
        share,
    )
    per_view: tuple[int, ...] = option(
        (), "numbers of the factors, from 0, whose components may differ between views: 1,2", parse=NUMBERS
    )
    factors: tuple[int, ...] | None = by_data(
        None,
        "number of components of each factor, such as 2,2,64; auto: find the factors",
        sizes_or_auto,
        SIZES_OR_AUTO,
        example="2,2,64",
    )
    labels: float | Literal["one-per-value"] | None = by_data(
        0.0, "labels used: a share up to 1, a number for each value (20), or one-per-value", example="20"
    )
    prior_iterations: int | None = by_data(
        200, "iterations of the phase prior, which trains the mixtures alone", count(0)
    )
    refine_iterations: int | None = by_data(
        1000, "iterations of the phase refine, which follows joint without the label term", count(0)
    )
    pretrain_kl_weight: float = option(1.0, "weight of the KL divergence in pretraining", check=positive)
    kl_annealing: float = option(0.0, "share of pretraining in which the KL weight grows from 0", check=share)
    prior_learning_rate: float = option(
        1e-2, "learning rate of labelled factors while --label-weight acts", check=positive
    )
    label_weight: float | None = by_data(
        0.0, "Delta, the weight of the classification term of labelled points", check=nonnegative
    )
    label_distance: float | None = by_data(
        0.0,
        "least distance, in standard deviations, between the components of a labelled factor when the phase "
        "joint begins; 0: they start where their points are; default: 0, or 10 for sprites that are not "
        "pretrained",
        nonnegative,
    )
    independence_weight: float | None = by_data(
        0.0, "weight of a penalty on blocks of z that predict labels of other factors", check=nonnegative
    )
    spread: float | None = option(None, SPREAD, share_below_one)
    label_width: float = option(
        0.0,
        "width of an extra convolutional encoder for the labelled factors, beside an mlp; 0: none",
        nonnegative,
    )
    per_value: int = option(1, "components of a labelled factor for each value of its label", count(1))
    free_from: float | None = by_data(
        0.0,
        "share of the phase joint before the decoder sees the factors without labels; with 1, refine alone "
        "learns these",
        check=share,
    )
    prior_restarts: int = option(
        1, "number of k-means starts of the mixtures; the one with the best bound is used", count(1)
    )
    full_starts: bool | None = option(
        None,
        "start factors without labels from a mixture with full covariances instead of k-means, and again in "
        "refine if no labels are trained on; default: only for your own images without labels",
    )
    independent_start: bool | None = option(
        None,
        "after pretraining, start each factor from independent components of the codes; default: if there "
        "are two factors or more and one of them has no labels",
    )
    restart_every: int = option(
        0,
        "compare the mixtures with new starts every so many iterations of joint and refine; 0: never",
        count(0),
    )
    delay: float = option(
        2000.0, "tau_0 of the natural-gradient step size (tau_0 + tau)^-kappa", check=nonnegative
    )
    forgetting: float = option(0.7, "kappa of the natural-gradient step size, in (1/2, 1]", check=exponent)
    first_step: float | None = option(
        0.01, "first natural-gradient step size; null: the one of tau_0 and kappa", check=step_size
    )
    recompute: bool = option(
        False, "compute responsibilities again at the updated encoder, as the paper does"
    )
    c0: float = option(1.0, "Dirichlet concentration of the mixing weights")
    m0: float = option(0.0, "prior mean of the components' means")
    s0: float | None = by_data(1.0, "number of pseudo-observations behind the prior mean", positive)
    a0: float = option(0.01, "shape of the Gamma prior over precisions")
    b0: float = option(0.01, "rate of the Gamma prior over precisions")


@dataclass(frozen=True)
class VAEOptions(LatentOptions, CountableOptions):
    """Options of ``--model vae``."""

    model: str = of_model("vae")
    pretrain_kl_weight: float = option(1.0, "weight of the KL divergence in pretraining", check=positive)
    kl_annealing: float = option(0.0, "share of pretraining in which the KL weight grows from 0", check=share)
    beta: float = option(1.0, "weight of KL[z] at the end of the phase joint (beta-VAE)", positive)
    total_correlation: float = option(
        1.0, "weight of the total correlation within KL[z] (beta-TCVAE)", at_least_one
    )
    posterior: Literal["encoder", "free", "hybrid", "point"] = option(
        "encoder", "q(z): given by the encoder, free for each point, both in turn, or a point"
    )
    free_steps: int = option(
        10, "gradient steps on q(z) of a batch if the posterior is free or hybrid", count(1)
    )
    free_learning_rate: float = option(0.1, "learning rate of these steps", positive)


def _slopes(name: str, value: tuple[float, ...]) -> None:
    if len(value) != 2 or not all(0 < slope < math.inf for slope in value):
        raise ValueError(f"{name}: expected two numbers > 0, such as 50,200, got {value}")


def _span(name: str, value: tuple[float, ...]) -> None:
    if not (len(value) == 2 and 0 <= value[0] <= value[1] <= 1):
        raise ValueError(f"{name}: expected two shares in ascending order, got {value}")


@dataclass(frozen=True)
class VSCOptions(LatentOptions):
    """Options of ``--model vsc``."""

    model: str = of_model("vsc")
    sparse_prior: Literal["mixture", "select", "fixed"] = option(
        "mixture", "prior: a mixture over pseudo-inputs, the same with a selection network, or fixed"
    )
    pseudo_inputs: int | None = option(None, "number of pseudo-inputs of the prior; default: 10", count(1))
    sparsity: float | None = by_data(0.2, "desired share of latents that are on, in (0, 1)", share_between)
    spikes: Literal["shifted", "concrete", "straight-through"] = option(
        "shifted", "relaxation of spikes in training: a steep shifted sigmoid, Concrete, or straight-through"
    )
    slope: tuple[float, ...] = option(
        (50.0, 200.0),
        "slope of the shifted sigmoid at the start and at the end of training: 50,200",
        _slopes,
        ListOf("numbers", float, "50,200"),
    )
    spike_link: Literal["logistic", "exponential"] = option(
        "logistic", "spike probability for an output v of the encoder: sigmoid(v), or min(1, exp v)"
    )
    sharpness: float | None = option(
        None, "s: replace the spike probabilities p of pseudo-inputs by sigmoid(s (p - 1/2))", positive
    )
    warm_up: tuple[float, ...] | None = by_data(
        (0.33, 0.45),
        "two shares of the training between which slabs start to carry information: 0,0.1",
        _span,
        ListOf("shares", float, "0,0.1"),
    )


# Models learnt by EM.


@dataclass(frozen=True)
class CoderOptions(TrainConfig):
    """Options that models learnt by EM share."""

    latent_dim: int | None = by_data(None, "number of units H", count(1), example="100")
    starts: int | None = by_data(
        None, "number of random starts, learnt side by side; the best one is used", count(1)
    )
    sweeps: int | None = by_data(None, "sweeps in an E-step: of the fixed point, or of Gibbs draws", count(1))
    temperature: float | None = by_data(None, "temperature of the first E-steps; it falls to 1", at_least_one)
    em_forgetting: float = option(
        0.6,
        "kappa of the step size (1 + tau)^-kappa of statistics if a batch is not all data",
        exponent,
    )
    patch_size: int | None = option(
        None, "cut images into grey patches with this side; default: whole images", count(2), example="8"
    )
    patches: int = option(20_000, "number of patches", count(2))
    whiten: bool = option(True, "decorrelate the pixels of patches")
    on_off: bool | None = by_data(
        None, "split patches into what is brighter and what is darker than their mean"
    )

    @property
    def units(self) -> int:
        """H, the number of units; the configuration must be resolved."""
        assert self.latent_dim is not None
        return self.latent_dim


LARGEST_GROUP: Final = 10
"""Units of a group, of whose states there are 2 to the power of so many."""


def _group(name: str, value: int) -> None:
    count(1)(name, value)
    if value > LARGEST_GROUP:
        raise ValueError(f"{name}: expected at most {LARGEST_GROUP}, got {value}")


@dataclass(frozen=True)
class BSCOptions(CoderOptions):
    """Options of ``--model bsc``."""

    model: str = of_model("bsc")
    group_size: int = option(1, "units in a group of the posterior, whose states are enumerated", _group)
    nonnegative: bool | None = by_data(None, "keep all weights >= 0")
    m_step: Literal["closed", "gradient"] = option(
        "closed", "M-steps in closed form, or by gradient steps of Adam on the bound"
    )
    reseed_every: int | None = by_data(
        None, "move the least useful unit every so many iterations; 0: never", count(0)
    )


@dataclass(frozen=True)
class SlabOptions(CoderOptions):
    """Options of ``--model max-sparse`` and ``--model linear-sparse``."""

    model: str = of_model("max-sparse")
    refine_iterations: int | None = by_data(None, "iterations over all units after those of joint", count(0))
    preselect: int | None = by_data(None, "number of units that are drawn for each point; 0: all", count(0))
    shared: bool = option(True, "share one spike probability and one slab among all units")


@dataclass(frozen=True)
class MixtureOptions(TrainConfig):
    """Options of ``--model mixture``."""

    model: str = of_model("mixture")
    labels: float | Literal["one-per-value"] | None = by_data(
        0.0, "labels used: a share up to 1, a number for each value (20), or one-per-value", example="20"
    )
    factors: tuple[int, ...] | None = by_data(
        None, "number of components; default: chosen by the evidence", sizes, SIZES, example="3"
    )
    covariance: Literal["diagonal", "full"] | None = by_data(
        None, "covariance of the numbers in a component; default: chosen by the evidence"
    )
    component_variance: float | None = by_data(
        None,
        "variance that the prior expects of a component, as a share of the column's variance; default: the "
        "prior is learnt",
        positive,
    )
    ignore: tuple[str, ...] | None = by_data(
        None, "columns to leave out, by name or by number from 1: id,date; none: leave out none", parse=NAMES
    )
    stacking: bool = option(
        True,
        "predict labels by the mixture, a logistic regression and a random forest, weighted by "
        "cross-validation",
    )
    starts: int | None = by_data(None, "number of k-means starts; the best one is used", count(1))


# Models of pyro_fmvae.sklearn, which learn without phases and recipes.


def _one_size(name: str, value: tuple[int, ...]) -> None:
    if value == AUTO:
        raise ValueError(
            f"{name}: expected one number, such as 3, got auto; leave it out, and states are found"
        )
    sizes(name, value)
    if len(value) > 1:
        raise ValueError(f"{name}: expected one number, such as 3, got {value}")


@dataclass(frozen=True)
class EstimatorOptions(TrainConfig):
    """Options that estimators share; ``used`` are those of all models that have an effect on them."""

    used: ClassVar[tuple[str, ...]]

    factors: tuple[int, ...] | None = option(
        None,
        "number of states or topics; default: states as many as are found, 10 topics",
        _one_size,
        SIZES,
        example="3",
    )


@dataclass(frozen=True)
class SequenceOptions(EstimatorOptions):
    """Options of ``--model hidden-markov``."""

    used = ("test", "kind", "columns", "header", "seed", "device")

    model: str = of_model("hidden-markov")
    time: str | None = option(
        None, "column of a table that orders its rows, by name: numbers or dates", example="day"
    )
    series: str | None = option(
        None, "column that says which sequence a row belongs to, by name", example="shop"
    )
    ignore: tuple[str, ...] | None = option(None, "columns that are left out: id,comment", parse=NAMES)


@dataclass(frozen=True)
class TopicOptions(EstimatorOptions):
    """Options of ``--model topics``."""

    used = ("test", "seed")

    model: str = of_model("topics")


SEQUENCES: Final = "hidden-markov"
TOPICS: Final = "topics"
ESTIMATORS: Final[Mapping[str, type[EstimatorOptions]]] = {SEQUENCES: SequenceOptions, TOPICS: TopicOptions}
"""Options of each ``--model`` that is an estimator."""
