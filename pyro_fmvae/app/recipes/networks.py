"""Models with networks: their defaults by data, checks, encoder, decoder and observation."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn

from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.settings import counts_of, is_own, shared_defaults
from pyro_fmvae.data import Dataset, Kind, Preprocessing, RandomPhoto, SparseOptions
from pyro_fmvae.distributions import (
    BernoulliObservation,
    GaussianObservation,
    NegativeBinomialObservation,
    Observation,
    PoissonObservation,
    TableObservation,
)
from pyro_fmvae.distributions.observation import COLUMN_SCALES
from pyro_fmvae.files.memory import describe, limit
from pyro_fmvae.learn.options import (
    CountableOptions,
    FMVAEOptions,
    NetworkOptions,
    decaying,
    refuse,
    weight_decay,
)
from pyro_fmvae.nn import (
    ConvDecoder,
    ConvEncoder,
    CountDecoder,
    CountEncoder,
    MLPDecoder,
    MLPEncoder,
    NormalHead,
    RandomThickness,
    RandomWarp,
    SideBySide,
    TableEncoder,
    is_image,
)
from pyro_fmvae.nn.mlp import LAYERS, hidden_sizes

# Defaults by data.

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


# Size of networks before they are built.

COPIES: Final = 4
"""Numbers that training holds for each parameter: itself, its gradient, and two moments of Adam."""


def check_size(build: Callable[[], Iterable[nn.Module]]) -> None:
    """Check that networks can be trained in the memory that there is, and take none for it.

    Args:
        build: makes the networks, on the default device.

    Raises:
        ValueError: their parameters alone need more than :func:`~pyro_fmvae.files.memory.limit`.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        state = [tensor for network in build() for tensor in network.state_dict().values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in state)
    if COPIES * size > limit():
        raise ValueError(
            f"hidden, width: the networks would take {describe(size)}, and {describe(COPIES * size)} with "
            f"gradients and Adam's moments, of at most {describe(limit())}; choose smaller ones, or another "
            "limit by --max-memory"
        )


DECODER = ("decoder.",)  # prefixes of the names of networks' parameters in every model
ENCODER_AND_DECODER = ("encoder.", *DECODER)
_OF_COUNTS = {"poisson": PoissonObservation, "negative-binomial": NegativeBinomialObservation}


def check_networks(config: NetworkOptions, dataset: Dataset) -> None:
    """Check that networks fit the data.

    Raises:
        ValueError: a network for images of another shape, warps of data that are no images, or options
            without effect on the likelihood.
    """
    if counts_of(config) is not None:
        refuse(config, ("min_scale", "max_scale"), "Gaussian observations")
    elif isinstance(config, CountableOptions):
        refuse(config, ("batch_column", "layer"), "--likelihood")
    for network, shape in (("conv28", (28, 28)), ("conv64", (64, 64, 3))):
        if config.network == network and dataset.event_shape != shape:
            wanted = "x".join(map(str, shape))
            raise ValueError(
                f"network: {network} takes {wanted} images, the data are of shape {dataset.event_shape}"
            )
    if config.network == "conv" and not is_image(dataset.event_shape):
        raise ValueError(
            f"network: conv takes images of 1, 3 or 4 channels, the data are of shape {dataset.event_shape}"
        )
    for name in ("distortion", "augmentation"):
        if getattr(config, name) and not dataset.preprocessing.image:
            raise ValueError(f"{name}: expected images, the data are of shape {dataset.event_shape}")


@dataclass(frozen=True)
class Networks:
    """An encoder and a decoder that fit the data.

    Attributes:
        encoder, decoder: as every model takes them.
        observation: the distribution of x that the decoder's features stand for.
        distortion: transform applied to x before the encoder, in training only, or None.
    """

    encoder: nn.Module
    decoder: nn.Module
    observation: Observation
    distortion: nn.Module | None


def networks(
    config: NetworkOptions,
    preprocessing: Preprocessing,
    latent_dim: int,
    head: Callable[[int, int], nn.Module] = NormalHead,
    own: int = 0,
    own_width: float = 0.0,
) -> Networks:
    """Untrained networks.

    Args:
        config: resolved.
        preprocessing: of the data.
        latent_dim: J, dimensions of z.
        head: makes the encoder's last layer, given its inputs and J.
        own: leading dimensions of z that convolutions encode beside a perceptron for the others.
        own_width: factor on the channels of these convolutions.

    Raises:
        ValueError: they are too large for the memory that there is.
    """
    assert config.hidden is not None and config.width is not None
    observation, shape = _observation(config, preprocessing), preprocessing.event_shape
    outputs, width, hidden, counts = observation.outputs, config.width, config.hidden, preprocessing.counts

    def pair() -> tuple[nn.Module, nn.Module]:
        if counts is not None:
            (columns,), batches = preprocessing.decoded.event_shape, len(counts.batches)
            decoder = CountDecoder(latent_dim, columns, batches, counts.total, outputs > 1, hidden[::-1])
            return CountEncoder(columns, batches, latent_dim, hidden, head), decoder
        if isinstance(observation, TableObservation):
            of_rows = MLPDecoder(latent_dim, (observation.width,), 1, hidden[::-1])
            return TableEncoder(observation.levels, latent_dim, hidden, head), of_rows
        if config.network != "mlp":
            convolutions = ConvEncoder(shape, latent_dim, width, head)
            return convolutions, ConvDecoder(latent_dim, shape, outputs, width)
        encoder: nn.Module = MLPEncoder(shape, latent_dim - own, hidden, head)
        if own and own_width:
            encoder = SideBySide([ConvEncoder(shape, own, own_width, head), encoder])
        return encoder, MLPDecoder(latent_dim, shape, outputs, hidden[::-1])

    check_size(pair)
    return Networks(*pair(), observation, warp(config.distortion, preprocessing))


def _observation(config: NetworkOptions, preprocessing: Preprocessing) -> Observation:
    """The likelihood that was asked for, of counts; Bernoulli for binary data, else Gaussian."""
    if isinstance(config, CountableOptions) and config.likelihood is not None:
        return _OF_COUNTS[config.likelihood](*preprocessing.decoded.event_shape)
    event_dim = len(preprocessing.event_shape)
    if preprocessing.binary:
        return BernoulliObservation(event_dim)
    assert config.min_scale is not None and config.max_scale is not None
    if preprocessing.missing:
        sizes = preprocessing.category_sizes
        return TableObservation(sizes, config.min_scale, config.max_scale)
    return GaussianObservation(event_dim, config.min_scale, config.max_scale)


def warp(strength: float, preprocessing: Preprocessing, interpolate: bool = True) -> nn.Module | None:
    """Random warps of images of that kind (see :class:`RandomWarp`); None where the strength is 0."""
    if not strength:
        return None
    return RandomWarp(strength, len(preprocessing.event_shape) == 3, interpolate)


_Options = TypeVar("_Options", bound=NetworkOptions)


class NetworkRecipe(Recipe[_Options]):
    """The common part of recipes of models with an encoder and a decoder."""

    @classmethod
    def defaults_for(cls, config: _Options, dataset: Dataset) -> dict[str, Any]:
        """Networks and lengths by the kind of data; all of :class:`NetworkOptions` but ``kl_weight``."""
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

    @classmethod
    def check(cls, config: _Options, dataset: Dataset) -> _Options:
        """Networks fit the data."""
        check_networks(config, dataset)
        return super().check(config, dataset)

    @classmethod
    def reading(cls, config: _Options, data: str) -> SparseOptions | None:
        """Counts if they have a likelihood of their own; else pixels in [0, 1] and columns of a table."""
        if counts_of(config) is not None:
            return SparseOptions(counts=counts_of(config))
        return SparseOptions(gaps=True)

    @property
    def against_overfitting(self) -> str:
        """Shorter training, shrinking weights, or smaller networks."""
        size = "--hidden" if self.config.network == "mlp" else "--width"
        return f"fewer iterations, a greater --weight-decay, or a smaller {size}"

    @property
    def start(self) -> tuple[Path, tuple[str, ...]] | None:
        """Encoder and decoder of the run ``pretrained``; the decoder alone where points keep posteriors."""
        if self.config.pretrained is None:
            return None
        return Path(self.config.pretrained), DECODER if self.indexed else ENCODER_AND_DECODER

    def augmentation(self) -> nn.Module | None:
        """Random warps of training images, or None."""
        binary = self.preprocessing.binary
        return warp(self.config.augmentation or 0.0, self.preprocessing, interpolate=not binary)


# Several views of each training image: options, and what makes a view of an image.


def check_views(config: FMVAEOptions, dataset: Dataset, labelled: int) -> None:
    """Check that views fit the data and the other options.

    Args:
        config: resolved.
        dataset: with the training images.
        labelled: number of leading factors that have labels.

    Raises:
        ValueError: views of data that are no images, that nothing tells apart, or with labels of their own.
    """
    if config.views == 1:
        refuse(config, ("view_strength", "per_view"), "--views")
        return
    if not dataset.preprocessing.image:
        raise ValueError(f"views: expected images, the data are of shape {dataset.event_shape}")
    if not (config.view_strength or config.distortion):
        raise ValueError("views: expected a --view-strength or --distortion above 0, by which they differ")
    assert config.factors is not None
    if not set(config.per_view) <= set(range(labelled, len(config.factors))):
        given, last = ",".join(map(str, config.per_view)), len(config.factors) - 1
        raise ValueError(f"per_view: expected factors without labels, of 0..{last}, got {given}")


def view_of(strength: float, preprocessing: Preprocessing) -> nn.Module | None:
    """Make a transform from an image of that kind to a view of it; None: an image is a view of itself.

    Photographs are cropped, mirrored and recoloured; other images are warped, and their strokes become
    thicker or thinner.
    """
    if not strength:
        return None
    if len(preprocessing.event_shape) == 3:
        height, width, _ = preprocessing.event_shape
        return RandomPhoto(strength, height, width, preprocessing.signed)
    smooth = not preprocessing.binary
    moved = warp(strength, preprocessing, interpolate=smooth)
    assert moved is not None
    return nn.Sequential(moved, RandomThickness(strength, smooth))
