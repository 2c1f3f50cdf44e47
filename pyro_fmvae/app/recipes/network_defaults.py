"""Defaults by data of models with networks."""

import math
from typing import Any

import torch

from pyro_fmvae.app.recipes.settings import counts_of, is_own, shared_defaults
from pyro_fmvae.data import Dataset, Kind
from pyro_fmvae.distributions.observation import COLUMN_SCALES
from pyro_fmvae.learn.options import NetworkOptions, decaying, weight_decay
from pyro_fmvae.nn import is_image
from pyro_fmvae.nn.mlp import LAYERS, hidden_sizes

LARGEST_FOR_MLP = 32
"""Pixels on a side of the largest images whose default network is a perceptron.

A step of Adam changes each weight by about the learning rate, so a unit's output by up to the learning rate
times its inputs. With the 10,000 inputs and more of larger images training diverges.
"""

POINTS_PER_COMPONENT = 8
"""Training points of a person's own for each component of a factor, at least, as long as two are left."""
_BFLOAT16 = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public query

_COMMON: dict[str, Any] = {"hidden": LAYERS, "batch_size": 64, "joint_iterations": 3000}
_SMILEY: dict[str, Any] = {
    "factors": (2, 2, 2, 2),
    "factor_dim": 8,
    "hidden": (400,),
    "batch_size": 128,
    "pretrain_iterations": 1000,
    "joint_iterations": 2500,
}
_SPRITES: dict[str, Any] = {
    "factors": (6, 6, 6, 6, 3, 3, 16),
    "factor_dim": 8,
    "network": "conv64",
    "width": 0.25,
    "min_scale": 0.1,
    "pretrain_iterations": 0,
    "joint_iterations": 6500,
}
_DIGITS: dict[str, Any] = {  # 28x28, the paper's pair
    "factors": (64,),
    "factor_dim": 64,
    "network": "conv28",
    "hidden": (400,),
    "pretrain_iterations": 5000,
    "joint_iterations": 20_000,
}
_COLOUR: dict[str, Any] = {  # 64x64x3, the paper's pair, narrowed so that two cores will do
    "factors": (64,),
    "factor_dim": 32,
    "network": "conv64",
    "width": 0.25,
    "pretrain_iterations": 2000,
    "joint_iterations": 8000,
}
_CELEBA: dict[str, Any] = {  # 64x64x3, Section 4.2 of the paper
    "factors": (64, 64),
    "factor_dim": 64,
    "network": "conv64",
    "width": 1.0,
    "pretrain_iterations": 10_000,
    "joint_iterations": 300_000,
}
_IMAGES: dict[str, Any] = {"factors": (16,), "factor_dim": 16}
_LARGE_IMAGES: dict[str, Any] = {**_IMAGES, "network": "conv", "width": 0.25}
_BY_SETTING = {
    "smiley": _SMILEY,
    "sprites": _SPRITES,
    "digits": _DIGITS,
    "colour": _COLOUR,
    "celeba": _CELEBA,
    "images": _IMAGES,
    "large images": _LARGE_IMAGES,
}
_DECAYING = ("sprites", "digits", "colour", "celeba")


def setting(config: NetworkOptions, dataset: Dataset) -> str:
    """The kind of data that defaults go by.

    Returns:
        ``smiley`` or ``sprites``, by name; ``digits`` (28x28), ``colour`` (64x64x3; ``celeba`` where the data
        are called so), other ``images``, ``large images`` of more than 32 pixels on a side, or ``columns``.
    """
    if config.data in ("smiley", "sprites"):
        return config.data
    shape = dataset.event_shape
    if shape == (28, 28):
        return "digits"
    if shape == (64, 64, 3):
        return "celeba" if config.data == "celeba" else "colour"
    if not dataset.preprocessing.image:
        return "columns"
    return "large images" if is_image(shape) and max(shape[:2]) > LARGEST_FOR_MLP else "images"


def computes_in_bfloat16(device: str) -> bool:
    """True for a CPU with instructions for bfloat16. False where torch does not tell, and for a GPU.

    Args:
        device: as the option has it; ``auto`` is a GPU where there is one.
    """
    if (device == "auto" and torch.cuda.is_available()) or device not in ("auto", "cpu"):
        return False
    queries = [getattr(torch.cpu, name, None) for name in _BFLOAT16]
    return any(query() for query in queries if query is not None)


def network_defaults(config: NetworkOptions, dataset: Dataset) -> dict[str, Any]:
    """Defaults by data of :class:`NetworkOptions`, but for ``kl_weight``."""
    kind, table = setting(config, dataset), dataset.preprocessing.kind is Kind.TABLE
    columns = {"factors": (8,), "factor_dim": min(8, math.prod(dataset.event_shape))}
    defaults = shared_defaults(config) | _COMMON | _BY_SETTING.get(kind, columns)
    if kind in _DECAYING:
        defaults |= decaying(config)
    if counts_of(config) is not None:
        defaults |= {"min_scale": None, "max_scale": None}
    if table and kind not in ("smiley", "sprites"):
        defaults |= dict(zip(("min_scale", "max_scale"), COLUMN_SCALES, strict=True))
    if is_own(config):
        most = max(2, len(dataset.train) // POINTS_PER_COMPONENT)
        defaults["factors"] = tuple(min(components, most) for components in defaults["factors"])
    if is_own(config) and kind in ("columns", "images"):
        number = len(dataset.train)
        defaults |= {"hidden": hidden_sizes(number)} if kind == "columns" else {}
        defaults["weight_decay"] = weight_decay(number)
    if is_own(config) and (config.network or defaults["network"]) != "mlp":
        defaults["autocast"] = computes_in_bfloat16(config.device)
    if config.pretrained is not None:
        defaults["pretrain_iterations"] = 0
    return defaults
