"""What `pyro-fmvae train` does unless it is told: defaults that depend on the data."""

import math
from dataclasses import fields, replace
from typing import Any

from pyro_fmvae.config import FACTORIAL, PHASES, TrainConfig
from pyro_fmvae.data import Dataset, Kind

_COMMON: dict[str, Any] = {
    "labels": 0.0,
    "network": "mlp",
    "hidden": (200,),
    "width": 1.0,
    "batch_size": 64,
    "label_weight": 100.0,
    "kl_weight": 1.0,
    "independence_weight": 0.0,
    "free_from": 0.0,
    "hold_out": 0.0,
    "min_scale": 0.001,
    "max_scale": 0.4,
    "iterations": (1500, 200, 3000, 1000),
}
HELD_OUT = {"sprites": 0.2}
"""Share of the combinations of labels that is held out unless it is given, by the name of the data."""

_SMILEY: dict[str, Any] = {
    "factors": (2, 2, 2, 2),
    "factor_dim": 8,
    "labels": 0.1,
    "hidden": (400,),
    "batch_size": 128,
    "independence_weight": 3.0,
    "iterations": (1000, 100, 2500, 1500),
}
_SPRITES: dict[str, Any] = {
    "factors": (6, 6, 6, 6, 3, 3, 16),
    "factor_dim": 8,
    "labels": 0.05,
    "hold_out": HELD_OUT["sprites"],
    "network": "conv64",
    "width": 0.25,
    "min_scale": 0.1,
    "label_weight": 1000.0,
    "kl_weight": 20.0,
    "independence_weight": 60.0,
    "free_from": 1.0,
    "iterations": (0, 100, 6500, 500),
}
_DIGITS: dict[str, Any] = {  # 28x28, the paper's pair
    "factors": (64,),
    "factor_dim": 64,
    "network": "conv28",
    "hidden": (400,),
    "iterations": (5000, 500, 20000, 2000),
}
_COLOUR: dict[str, Any] = {  # 64x64x3, the paper's pair, narrowed so that two cores will do
    "factors": (64,),
    "factor_dim": 32,
    "network": "conv64",
    "width": 0.25,
    "kl_weight": 20.0,
    "iterations": (2000, 300, 8000, 1500),
}
_CELEBA: dict[str, Any] = {  # Section 4.2 of the paper
    "factors": (64, 64),
    "factor_dim": 64,
    "width": 1.0,
    "label_weight": 1000.0,
    "iterations": (10_000, 20_000, 300_000, 20_000),
}
_IMAGES: dict[str, Any] = {"factors": (16,), "factor_dim": 16}
_OF_FACTORS: dict[str, Any] = {  # what a model without factors has no use for: phases, labels
    "labels": 0.0,
    "label_weight": 0.0,
    "independence_weight": 0.0,
    "free_from": 0.0,
    "prior_iterations": 0,
    "refine_iterations": 0,
}
_SPARSE: dict[str, Any] = {"pseudo_inputs": 10, "sparsity": 0.2, "warm_up": (0.33, 0.45)}
_SPARSE_SMILEY: dict[str, Any] = {"latent_dim": 40, "iterations": (2000, 0, 4000, 0)}


def resolve(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """Fill in every default that depends on the data.

    Raises:
        ValueError: options that don't fit the data: labels without labels, a label >= K_i, the wrong network;
            or the model: labels of one without factors, options of another one.
    """
    _check_model(config)
    if config.model not in FACTORIAL:
        if config.labels:
            raise ValueError(f"labels: a {config.model} has no factors to learn them; give --labels 0")
        config = replace(config, **_OF_FACTORS)
    given_free_from = config.free_from
    defaults = _COMMON | _defaults(config, dataset)
    if config.model == "vsc":
        defaults |= _SPARSE | (_SPARSE_SMILEY if config.data == "smiley" else {})
    iterations = defaults.pop("iterations")
    defaults |= {f"{name}_iterations": number for name, number in zip(PHASES, iterations, strict=True)}
    if config.model not in FACTORIAL:
        defaults["kl_weight"] = config.beta
    if config.pretrained is not None or config.posterior == "free":
        defaults["pretrain_iterations"] = 0
    missing: dict[str, Any] = {name: v for name, v in defaults.items() if getattr(config, name) is None}
    config = replace(config, **missing)
    if not config.labels:
        config = replace(config, label_weight=0.0)
    if not config.label_weight:
        config = replace(config, refine_iterations=0)
    if config.labels and config.free_from == 1 and not config.refine_iterations:
        if given_free_from == 1:
            raise ValueError("free_from: expected a number below 1, since no refine phase opens the factors")
        config = replace(config, free_from=0.0)
    _check(config, dataset)
    return config


def _defaults(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """Those that differ from the common ones."""
    decaying = {"final_learning_rate": 0.1 * (config.joint_learning_rate or config.learning_rate)}
    if config.data == "smiley":
        return _SMILEY
    if config.data == "sprites":
        return _SPRITES | decaying
    shape = dataset.event_shape
    if shape == (28, 28):
        defaults = _DIGITS | decaying
    elif shape == (64, 64, 3):
        defaults = _COLOUR | decaying | (_CELEBA if config.data == "celeba" else {})
    elif dataset.preprocessing.kind is not Kind.TABLE and len(shape) >= 2:
        defaults = _IMAGES
    else:
        defaults = {"factors": (8,), "factor_dim": min(8, math.prod(shape))}
    if dataset.preprocessing.kind is Kind.TABLE:
        defaults = defaults | {"min_scale": 0.05, "max_scale": 2.0}
    if config.labels:
        defaults = defaults | {"factors": (*_label_sizes(config, dataset), *defaults["factors"])}
    return defaults


def _label_sizes(config: TrainConfig, dataset: Dataset) -> tuple[int, ...]:
    """Components that the factors of the labels need at least."""
    chosen = len(dataset.label_names if config.label_names is None else config.label_names)
    return tuple(max(size, 1) for size in dataset.label_sizes[:chosen])


def _check_model(config: TrainConfig) -> None:
    """That no option is given that the model does not have."""
    for option in fields(config):
        models = option.metadata["models"]
        if models and config.model not in models and getattr(config, option.name) != option.default:
            raise ValueError(f"{option.name}: an option of {' and '.join(models)}, not of {config.model}")


def _check(config: TrainConfig, dataset: Dataset) -> None:
    assert config.factors is not None
    if all(getattr(config, f"{name}_iterations") == 0 for name in PHASES):
        raise ValueError("iterations: expected at least one phase with more than 0")
    for network, shape in (("conv28", (28, 28)), ("conv64", (64, 64, 3))):
        if config.network == network and dataset.event_shape != shape:
            wanted = "x".join(map(str, shape))
            raise ValueError(
                f"network: {network} takes {wanted} images, the data are of shape {dataset.event_shape}"
            )
    if config.model == "vsc" and (config.pretrain_kl_weight != 1 or config.kl_annealing):
        raise ValueError("pretrain_kl_weight, kl_annealing: options of fmvae and vae, not of vsc")
    if config.posterior == "free":
        for name in ("pretrain_iterations", "distortion", "augmentation"):
            if getattr(config, name):
                raise ValueError(f"{name}: expected 0 with free posteriors, which have no encoder")
    images = dataset.preprocessing.kind is not Kind.TABLE and len(dataset.event_shape) >= 2
    for name in ("distortion", "augmentation"):
        if getattr(config, name) and not images:
            raise ValueError(f"{name}: expected images, the data are of shape {dataset.event_shape}")
    if config.labels:
        _check_labels(config, dataset)


def _check_labels(config: TrainConfig, dataset: Dataset) -> None:
    assert config.factors is not None
    names = dataset.label_names if config.label_names is None else config.label_names
    if not names:
        raise ValueError(f"labels: the data set '{dataset.name}' has no labels to train on")
    if len(config.factors) < len(names):
        raise ValueError(
            f"factors: expected at least one for each of the {len(names)} labels "
            f"({', '.join(names)}), got {len(config.factors)}"
        )
    for name, size, components in zip(names, dataset.label_sizes, config.factors, strict=False):
        if size > components:
            raise ValueError(
                f"factors: label '{name}' has values up to {size - 1}, so its factor needs {size} "
                f"components, not {components}"
            )
