"""Models with networks: their common options, checks, encoder, decoder and observation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn

from pyro_fmvae.app.recipes.network_defaults import network_defaults
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.settings import counts_of
from pyro_fmvae.data import Dataset, Preprocessing, RandomPhoto, SparseOptions
from pyro_fmvae.distributions import (
    BernoulliObservation,
    GaussianObservation,
    NegativeBinomialObservation,
    Observation,
    PoissonObservation,
    TableObservation,
)
from pyro_fmvae.files.memory import describe, limit
from pyro_fmvae.learn.options import CountableOptions, FMVAEOptions, NetworkOptions, refuse
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
            (columns,), batches = preprocessing.decoded_shape, len(counts.batches)
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
        return _OF_COUNTS[config.likelihood](*preprocessing.decoded_shape)
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
        """Networks and lengths by the kind of data."""
        return network_defaults(config, dataset)

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
