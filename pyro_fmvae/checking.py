"""Whether the options of `pyro-fmvae train` go together, and with the data."""

from collections.abc import Sequence
from dataclasses import fields

import torch

from pyro_fmvae.config import CODERS, PHASES, SLABS, TrainConfig
from pyro_fmvae.data import Dataset, Kind, hide_labels
from pyro_fmvae.data.dataset import SPLITS
from pyro_fmvae.data.own.folder import SPARSE, sparse
from pyro_fmvae.data.registry import SCENES
from pyro_fmvae.learn.em_phases import check_spread
from pyro_fmvae.nn import is_image


def check_model(config: TrainConfig) -> None:
    """That no option is given that the model does not have.

    Raises:
        ValueError: one is; it names the option and its models.
    """
    others = of_other_models(config)
    for option in fields(config):
        if option.name in others and getattr(config, option.name) != option.default:
            *first, last = option.metadata["models"]
            listed = f"{', '.join(first)} and {last}" if first else last
            raise ValueError(f"{option.name}: an option of {listed}, not of {config.model}")


def of_other_models(config: TrainConfig) -> set[str]:
    """Names of the options that the configuration's model does not have."""
    options = ((option.name, option.metadata["models"]) for option in fields(config))
    return {name for name, models in options if models and config.model not in models}


def check(config: TrainConfig, dataset: Dataset) -> None:
    """That a resolved configuration fits the data, and that its options go together.

    Raises:
        ValueError: it does not; it names the option and what was expected.
    """
    assert config.factors is not None
    if all(getattr(config, f"{name}_iterations") == 0 for name in PHASES):
        raise ValueError("iterations: expected at least one phase with more than 0")
    joint = max(config.joint_iterations or 0, config.refine_iterations or 0)
    if config.restart_every and not joint:
        raise ValueError("restart_every: expected joint or refine iterations, in which the prior starts anew")
    if config.max_minutes is None and 0 < joint <= config.restart_every:
        raise ValueError(
            f"restart_every: expected less than the {joint:,} iterations of the joint or refine phase, in "
            f"which the prior starts anew, got {config.restart_every:,}"
        )
    for network, shape in (("conv28", (28, 28)), ("conv64", (64, 64, 3))):
        if config.model not in CODERS and config.network == network and dataset.event_shape != shape:
            wanted = "x".join(map(str, shape))
            raise ValueError(
                f"network: {network} takes {wanted} images, the data are of shape {dataset.event_shape}"
            )
    if config.model not in CODERS and config.network == "conv" and not is_image(dataset.event_shape):
        raise ValueError(
            f"network: conv takes images of 1, 3 or 4 channels, the data are of shape {dataset.event_shape}"
        )
    if config.model in CODERS:
        _check_coder(config, dataset)
    if config.model == "vsc" and (config.pretrain_kl_weight != 1 or config.kl_annealing):
        raise ValueError("pretrain_kl_weight, kl_annealing: options of fmvae and vae, not of vsc")
    if config.posterior == "free":
        for name in ("pretrain_iterations", "distortion", "augmentation"):
            if getattr(config, name):
                raise ValueError(f"{name}: expected 0 with free posteriors, which have no encoder")
    _check_without_effect(config)
    images = dataset.preprocessing.kind is not Kind.TABLE and len(dataset.event_shape) >= 2
    for name in ("distortion", "augmentation"):
        if getattr(config, name) and not images:
            raise ValueError(f"{name}: expected images, the data are of shape {dataset.event_shape}")
        if getattr(config, name) and dataset.event_shape[0] != dataset.event_shape[1]:
            raise ValueError(f"{name}: expected square images, the data are of shape {dataset.event_shape}")
    if config.labels:
        _check_labels(config, dataset)


def _check_without_effect(config: TrainConfig) -> None:
    """That no option is given that another one leaves without any."""
    free, divergence = ("free_steps", "free_learning_rate"), ("beta", "total_correlation", "kl_weight")
    of_others: dict[str, tuple[bool, tuple[str, ...]]] = {
        "--posterior free or hybrid": (config.posterior in ("encoder", "point"), free),
        "posteriors that are no points": (
            config.posterior == "point",
            (*divergence, "pretrain_kl_weight", "kl_annealing"),
        ),
        "priors with pseudo-inputs": (config.sparse_prior == "fixed", ("pseudo_inputs", "sharpness")),
        "--spikes shifted": (config.spikes != "shifted", ("slope",)),
    }
    for others, (without, names) in of_others.items():
        _refuse(config, names if without else (), others)


def _refuse(config: TrainConfig, names: tuple[str, ...], others: str) -> None:
    """Raise ValueError if one of these options, which need others, is given."""
    plain = {option.name: option.default for option in fields(config)} | {"kl_weight": 1.0}
    for name in names:
        if getattr(config, name) != plain[name]:
            raise ValueError(f"{name}: an option of {others}, without effect here")


def _check_coder(config: TrainConfig, dataset: Dataset) -> None:
    """That there is something to learn, that no option is given that needs networks, none without effect."""
    assert config.batch_size is not None
    check_spread(dataset.train.observations)
    for name in ("pretrained", "distortion", "augmentation", "pretrain_iterations"):
        if getattr(config, name):
            raise ValueError(f"{name}: a {config.model} has no networks and no pretraining")
    if config.model in SLABS and config.latent_dim == 1:
        raise ValueError("latent_dim: expected 2 units at least, got 1")
    if config.patch_size is None and config.data != SCENES:
        _refuse(config, ("patches", "whiten"), "--patch-size")
    if config.batch_size >= len(dataset.train) or config.m_step == "gradient":
        _refuse(config, ("em_forgetting",), "batches in closed form")
    if config.m_step == "gradient":
        for name, without in (("starts", 1), ("reseed_every", 0), ("temperature", 1)):
            if getattr(config, name) != without:
                raise ValueError(f"{name}: an option of closed M-steps, not of --m-step gradient")


def check_numbered(dataset: Dataset, names: Sequence[str]) -> None:
    """That the values of these labels are numbered, so that factors may have a component for each.

    Raises:
        ValueError: large values that leave out most numbers below them, such as years.
    """
    splits = [dataset.split(name) for name in SPLITS if getattr(dataset, name) is not None]
    for name in names:
        column = dataset.label_names.index(name)
        if dataset.label_sizes[column] <= SPARSE:
            continue
        values = torch.cat([split.labels[:, column] for split in splits if split.labels is not None]).unique()
        count = int((values >= 0).sum())
        if sparse(int(values[-1]), count):
            raise ValueError(
                f"labels: '{name}' has {count} values, the largest {values[-1]}; number them from 0"
            )


def _check_labels(config: TrainConfig, dataset: Dataset) -> None:
    """That each label has a factor with enough components, and a training point whose label is used."""
    assert config.factors is not None and config.labels is not None
    names = dataset.label_names if config.label_names is None else config.label_names
    if not names:
        raise ValueError(f"labels: the data set '{dataset.name}' has no labels to train on")
    if len(config.factors) < len(names):
        raise ValueError(
            f"factors: expected at least one for each of the {len(names)} labels "
            f"({', '.join(names)}), got {len(config.factors)}"
        )
    if config.restart_every and len(config.factors) == len(names):
        raise ValueError(
            "restart_every: expected a factor without labels; those with labels do not start anew"
        )
    for name, size, components in zip(names, dataset.label_sizes, config.factors, strict=False):
        if size > components:
            raise ValueError(
                f"factors: label '{name}' has values up to {size - 1}, so its factor needs {size} "
                f"components, not {components}"
            )
    points = len(dataset.train)
    kept = round(config.labels * points)
    if not kept:
        raise ValueError(
            f"labels: expected at least one of the {points:,} training points, got a share of {config.labels}"
        )
    known = hide_labels(dataset.train, config.labels, config.seed) >= 0
    for name in names:
        if not known[:, dataset.label_names.index(name)].any():
            raise ValueError(
                f"labels: of the {kept:,} training points that keep them, none has a known '{name}'"
            )
