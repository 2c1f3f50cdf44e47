"""Everything that `pyro-fmvae train` can be told."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import torch

from pyro_fmvae.em.binary_mean_field import LARGEST_GROUP
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.models import Hyperprior
from pyro_fmvae.optim import RobbinsMonro

PHASES = ("pretrain", "prior", "joint", "refine")
SHARES_OF_TIME = (0.15, 0.02, 0.55, 0.28)  # of the phases; those that are left out give theirs to the others
LONG_MINUTES, LONG_ITERATIONS = 5, 10_000  # of a training in which steps are compiled by default
LARGEST = 2**31 - 1  # of any number of things
LISTS = ("factors", "hidden", "label_names", "slope", "warm_up")
ModelName = Literal["fmvae", "vae", "vsc", "bsc", "max-sparse", "linear-sparse"]
PosteriorName = Literal["encoder", "free", "hybrid", "point"]
SparsePriorName = Literal["mixture", "select", "fixed"]
SpikesName = Literal["shifted", "concrete", "straight-through"]
SpikeLinkName = Literal["logistic", "exponential"]
MStepName = Literal["closed", "gradient"]
FACTORIAL: tuple[ModelName, ...] = ("fmvae",)  # models with factors, which have components and labels
SLABS: tuple[ModelName, ...] = ("max-sparse", "linear-sparse")  # spike-and-slab sparse coding
CODERS: tuple[ModelName, ...] = ("bsc", *SLABS)  # models without networks, learnt by EM


def _option(default: Any, text: str, *models: ModelName) -> Any:
    """An option; with names of models, one of theirs alone."""
    metadata = {"help": f"{text} (of {', '.join(models)})" if models else text, "models": models}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainConfig:
    """The options of ``pyro-fmvae train``; None: :mod:`pyro_fmvae.defaults` chooses by the data.

    Raises:
        ValueError: a number out of range.
    """

    model: ModelName = _option(  # noqa: RUF009
        "fmvae",
        "model to train: factorial mixture, plain VAE, variational sparse coding; binary sparse coding, or "
        "spike-and-slab sparse coding with a max or a linear rule",
    )
    data: str = _option(
        "smiley", "name of a data set, or path of an .npz or .csv file or of a folder of images"
    )
    data_root: str | None = _option(None, "folder in which published data sets are kept")
    binarization: Literal["dynamic", "threshold"] = _option(
        "dynamic", "how the greys of mnist and omniglot become binary"
    )
    factors: tuple[int, ...] | None = _option(None, "number of components of each factor, such as 2,2,64")
    factor_dim: int | None = _option(None, "dimensions of each factor")
    latent_dim: int | None = _option(
        None, "dimensions of z, or units of a sparse code", "vae", "vsc", *CODERS
    )
    labels: float | None = _option(None, "share of the training points whose labels are used, in [0, 1]")
    label_names: tuple[str, ...] | None = _option(
        None, "labels to use, in the order of the factors: hat,eyes"
    )
    hold_out: float | None = _option(None, "share of the labels' combinations kept apart for testing")
    image_size: int = _option(64, "side that the pictures of a folder or of celeba are resized to")
    network: Literal["mlp", "conv", "conv28", "conv64"] | None = _option(
        None, "mlp; conv, for images of any size; conv28 and conv64: the paper's two sizes alone"
    )
    width: float | None = _option(None, "factor on the channels of convolutions")
    hidden: tuple[int, ...] | None = _option(None, "sizes of the mlp's hidden layers, such as 400,400")
    min_scale: float | None = _option(None, "least standard deviation of the Gaussian observation")
    max_scale: float | None = _option(None, "greatest one")
    batch_size: int | None = _option(None, "points per batch")
    pretrained: str | None = _option(None, "run whose encoder and decoder this one starts from")
    pretrain_iterations: int | None = _option(None, "iterations of the networks alone, under a N(0, I) prior")
    prior_iterations: int | None = _option(None, "iterations of the prior alone")
    joint_iterations: int | None = _option(None, "iterations of everything together")
    refine_iterations: int | None = _option(None, "iterations with label_weight 0, after the joint ones")
    max_minutes: float | None = _option(None, "train by the clock instead: minutes for all phases")
    learning_rate: float = _option(1e-3, "Adam's, for the networks")
    final_learning_rate: float | None = _option(None, "what it falls to in the last half of the joint phase")
    joint_learning_rate: float | None = _option(
        None, "learning rate at the start of the joint phase; default: learning_rate"
    )
    weight_decay: float = _option(0.0, "AdamW's, for the networks")
    prior_learning_rate: float = _option(1e-2, "Adam's, for labelled factors while label_weight > 0")
    label_weight: float | None = _option(None, "weight of the classification of labelled points")
    kl_weight: float | None = _option(None, "weight of KL[z] at the start of the joint phase; it moves to 1")
    independence_weight: float | None = _option(
        None, "weight of a penalty on labels that other factors tell of"
    )
    free_from: float | None = _option(None, "share of the joint phase before unlabelled factors are decoded")
    beta: float = _option(1.0, "weight of KL[z] at the end of the joint phase: a beta-VAE", "vae")
    total_correlation: float = _option(
        1.0, "weight of the total correlation within KL[z]: a beta-TCVAE", "vae"
    )
    posterior: PosteriorName = _option(  # noqa: RUF009
        "encoder", "q(z): from the encoder, free for each point, both in turn, or a point", "vae"
    )
    free_steps: int = _option(10, "steps on q(z) of a batch, where it is free or hybrid", "vae")
    free_learning_rate: float = _option(0.1, "Adam's for these steps", "vae")
    sparse_prior: SparsePriorName = _option(  # noqa: RUF009
        "mixture", "prior: mixture over pseudo-inputs, the same with a selection network, or fixed", "vsc"
    )
    pseudo_inputs: int | None = _option(None, "pseudo-inputs of the prior", "vsc")
    sparsity: float | None = _option(None, "wanted share of latents that are on, in (0, 1)", "vsc")
    spikes: SpikesName = _option(  # noqa: RUF009
        "shifted", "how spikes are drawn in training: by a steep sigmoid, Concrete, straight-through", "vsc"
    )
    slope: tuple[float, ...] = _option(
        (50.0, 200.0), "of that sigmoid, at the start and at the end of training: 50,200", "vsc"
    )
    spike_link: SpikeLinkName = _option(  # noqa: RUF009
        "logistic", "what makes a spike's probability of an output v: a sigmoid, or min(1, exp v)", "vsc"
    )
    sharpness: float | None = _option(
        None, "s, to replace pseudo-inputs' spike probabilities p by sigmoid(s (p - 1/2))", "vsc"
    )
    warm_up: tuple[float, ...] | None = _option(
        None, "shares of the training between which slabs come to carry information: 0,0.1", "vsc"
    )
    starts: int | None = _option(
        None, "random starts learnt side by side, of which the best is kept", *CODERS
    )
    sweeps: int | None = _option(None, "sweeps of the fixed point, or of Gibbs draws, in an E-step", *CODERS)
    temperature: float | None = _option(None, "of the E-steps at first; it falls to 1", *CODERS)
    em_forgetting: float = _option(
        0.6, "kappa of the step size (1 + tau)^-kappa of statistics, where batches are not all data", *CODERS
    )
    group_size: int = _option(1, "units per group of the posterior; more than 1 by enumeration", "bsc")
    nonnegative: bool | None = _option(None, "keep all weights >= 0", "bsc")
    m_step: MStepName = _option("closed", "M-steps in closed form, or steps of Adam on the bound", "bsc")  # noqa: RUF009
    reseed_every: int | None = _option(
        None, "iterations between two times that the least useful unit is moved; 0: never", "bsc"
    )
    preselect: int | None = _option(None, "units that are drawn for each point; 0: all", *SLABS)
    shared: bool = _option(True, "one spike probability and one slab for all units", *SLABS)
    patch_size: int | None = _option(None, "side of the patches that images are cut into", *CODERS)
    patches: int = _option(20_000, "how many patches", *CODERS)
    whiten: bool = _option(True, "decorrelate the pixels of patches", *CODERS)
    on_off: bool | None = _option(None, "split patches into what is brighter and what is darker", *CODERS)
    pretrain_kl_weight: float = _option(1.0, "weight of the KL divergence in pretraining, once it has grown")
    kl_annealing: float = _option(0.0, "share of pretraining in which the KL weight grows from 0 to 1")
    prior_restarts: int = _option(
        1, "k-means starts of the prior, of which the one of greatest bound is kept"
    )
    restart_every: int = _option(
        0, "joint and refine iterations between comparisons of the prior with new starts; 0: never", "fmvae"
    )
    distortion: float = _option(
        0.0, "strength of random warps of the images that the encoder sees in training"
    )
    augmentation: float = _option(0.0, "strength of random warps of half of the training images")
    augment_until: float = _option(0.5, "share of the joint phase after which images are warped no more")
    delay: float = _option(2000.0, "tau_0 of the natural gradient's step size (tau_0 + tau)^-kappa")
    forgetting: float = _option(0.7, "kappa of the same, in (1/2, 1]")
    first_step: float | None = _option(0.01, "its first step; null: what tau_0 and kappa give")
    recompute: bool = _option(False, "recompute responsibilities at the updated encoder, as the paper does")
    eager: bool = _option(False, "take every step through Pyro, instead of replaying a captured one")
    compile: bool | None = _option(None, "compile captured steps; default: on the CPU, in long trainings")
    autocast: bool = _option(False, "run the networks in bfloat16")
    c0: float = _option(1.0, "Dirichlet concentration of the mixing weights")
    m0: float = _option(0.0, "prior mean of the components' means")
    s0: float = _option(1.0, "pseudo-observations behind it")
    a0: float = _option(0.01, "shape of the Gamma prior over precisions")
    b0: float = _option(0.01, "its rate")
    seed: int = _option(0, "of everything random")
    device: str = _option("auto", "cpu, cuda, ... or auto: a GPU where there is one")

    def __post_init__(self) -> None:
        if self.model not in get_args(ModelName):
            raise ValueError(f"model: expected one of {', '.join(get_args(ModelName))}, got '{self.model}'")
        if self.labels is not None and not 0 <= self.labels <= 1:
            raise ValueError(f"labels: expected a share in [0, 1], got {self.labels}")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise ValueError(f"hold_out: expected a share in [0, 1), got {self.hold_out}")
        if self.label_names is not None and not self.label_names:
            raise ValueError("label_names: expected at least one name; to use no labels, give --labels 0")
        positive = ("width", "min_scale", "max_scale", "joint_learning_rate", "beta", "free_learning_rate")
        for name in (*positive, "sharpness"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a number > 0, got {value}")
        for name in ("factors", "hidden"):
            sizes = getattr(self, name)
            if sizes is not None and not (sizes and min(sizes) >= 1 and max(sizes) <= LARGEST):
                raise ValueError(f"{name}: expected sizes >= 1, such as 2,2,64, got {sizes}")
        iterations = [f"{name}_iterations" for name in PHASES]
        least = {
            **dict.fromkeys(("factor_dim", "latent_dim", "batch_size", "prior_restarts"), 1),
            **dict.fromkeys(("free_steps", "pseudo_inputs", "starts", "sweeps", "group_size"), 1),
            **dict.fromkeys(("restart_every", "reseed_every", "preselect"), 0),
            **dict.fromkeys(("patch_size", "patches"), 2),
            "seed": 0,
            **dict.fromkeys(iterations, 0),
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and not smallest <= value <= LARGEST:
                raise ValueError(f"{name}: expected a number in {smallest}..{LARGEST}, got {value}")
        if self.sparsity is not None and not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity: expected a share in (0, 1), got {self.sparsity}")
        if self.warm_up is not None and not (
            len(self.warm_up) == 2 and 0 <= self.warm_up[0] <= self.warm_up[1] <= 1
        ):
            raise ValueError(f"warm_up: expected two shares in ascending order, got {self.warm_up}")
        if len(self.slope) != 2 or not all(0 < value < math.inf for value in self.slope):
            raise ValueError(f"slope: expected two numbers > 0, such as 50,200, got {self.slope}")
        for name in ("total_correlation", "temperature"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ValueError(f"{name}: expected a number >= 1, got {value}")
        if self.group_size > LARGEST_GROUP:
            raise ValueError(f"group_size: expected at most {LARGEST_GROUP}, got {self.group_size}")
        for name in ("distortion", "augmentation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number >= 0, got {getattr(self, name)}")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise ValueError(f"max_minutes: expected a number > 0, got {self.max_minutes}")
        if self.eager and self.compile:
            raise ValueError("compile: eager steps cannot be compiled")
        if self.delay == math.inf:
            raise ValueError("delay: expected a finite number, got inf")
        _ = self.hyperprior, self.learning(), self.rate, self.em_rate  # raise what is wrong with theirs

    @property
    def hyperprior(self) -> Hyperprior:
        """c0, m0, s0, a0, b0."""
        return Hyperprior(self.c0, self.m0, self.s0, self.a0, self.b0)

    @property
    def rate(self) -> RobbinsMonro:
        """Step sizes of the natural gradient."""
        return RobbinsMonro(self.delay, self.forgetting, self.first_step)

    @property
    def em_rate(self) -> RobbinsMonro:
        """Step sizes of stepwise EM."""
        try:
            return RobbinsMonro(delay=1.0, forgetting=self.em_forgetting)
        except ValueError as error:
            raise ValueError(f"em_{error}") from None

    def learning(self) -> Learning:
        """What the phases of training share."""
        return Learning(
            learning_rate=self.learning_rate,
            final_learning_rate=self.final_learning_rate,
            weight_decay=self.weight_decay,
            prior_learning_rate=self.prior_learning_rate,
            rate=self.rate,
            label_weight=self.label_weight or 0.0,
            kl_weight=1.0 if self.kl_weight is None else self.kl_weight,
            independence_weight=self.independence_weight or 0.0,
            free_from=self.free_from or 0.0,
            kl_annealing=self.kl_annealing,
            pretrain_kl_weight=self.pretrain_kl_weight,
            augment_until=self.augment_until,
            restarts=self.prior_restarts,
            restart_every=self.restart_every,
            recompute=self.recompute,
            eager=self.eager,
            autocast=torch.bfloat16 if self.autocast else None,
        )

    @property
    def long(self) -> bool:
        """Whether training takes long enough for compiling its steps to pay."""
        if self.max_minutes is not None:
            return self.max_minutes >= LONG_MINUTES
        return sum(getattr(self, f"{name}_iterations") or 0 for name in PHASES) >= LONG_ITERATIONS

    def budgets(self) -> tuple[Budget, ...]:
        """One budget per phase of :data:`PHASES`, for a resolved configuration."""
        iterations = [getattr(self, f"{name}_iterations") for name in PHASES]
        if self.max_minutes is None:
            return tuple(Budget(iterations=number) for number in iterations)
        shares = [share if number else 0.0 for share, number in zip(SHARES_OF_TIME, iterations, strict=True)]
        total = sum(shares) or 1.0
        return tuple(Budget(minutes=self.max_minutes * share / total) for share in shares)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The inverse of :meth:`to_dict`."""
        known = {f.name for f in fields(cls)}
        lists = {name: tuple(values[name]) for name in LISTS if values.get(name) is not None}
        return cls(**{**{name: value for name, value in values.items() if name in known}, **lists})
