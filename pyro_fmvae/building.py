"""The untrained model of a configuration: networks by their name, and the model that they are given to."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import nn

from pyro_fmvae.config import ModelName, TrainConfig
from pyro_fmvae.data import Preprocessing
from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation, Observation
from pyro_fmvae.models import VAE, FactorialMixtureVAE
from pyro_fmvae.nn import (
    ConvDecoder28,
    ConvDecoder64,
    ConvEncoder28,
    ConvEncoder64,
    MLPDecoder,
    MLPEncoder,
    RandomWarp,
)

Model: TypeAlias = FactorialMixtureVAE | VAE
"""What a run can be a run of."""


def build(
    config: TrainConfig, preprocessing: Preprocessing, num_data: int, labelled: Sequence[int] = ()
) -> Model:
    """The untrained model.

    Args:
        config: resolved.
        preprocessing: of the data; says their shape, and whether they are binary.
        num_data: N, points in the training set.
        labelled: factors that labels belong to.
    """
    observation = _observation(config, preprocessing)
    networks = *_networks(config, preprocessing.event_shape, observation.outputs), observation
    distortion = warp(config.distortion, preprocessing)
    return _MODELS[config.model](config, networks, num_data, labelled, distortion)


def warp(strength: float, preprocessing: Preprocessing, interpolate: bool = True) -> nn.Module | None:
    """Random warps of images of that kind; None where the strength is 0."""
    if not strength:
        return None
    background = -1.0 if preprocessing.signed else 0.0
    return RandomWarp(strength, len(preprocessing.event_shape) == 3, background, interpolate)


def latent_dim(config: TrainConfig) -> int:
    """Dimensions of z: those of all factors. A model without factors has as many."""
    assert config.factors is not None and config.factor_dim is not None
    return len(config.factors) * config.factor_dim


def _observation(config: TrainConfig, preprocessing: Preprocessing) -> Observation:
    """Bernoulli for binary data, Gaussian with bounds that suit the scale for others."""
    event_dim = len(preprocessing.event_shape)
    if preprocessing.binary:
        return BernoulliObservation(event_dim)
    assert config.min_scale is not None and config.max_scale is not None
    return GaussianObservation(event_dim, config.min_scale, config.max_scale)


def _networks(config: TrainConfig, shape: tuple[int, ...], outputs: int) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder."""
    assert config.hidden is not None and config.width is not None
    latent = latent_dim(config)
    if config.network == "conv28":
        return ConvEncoder28(latent, config.width), ConvDecoder28(latent, outputs, config.width)
    if config.network == "conv64":
        return ConvEncoder64(latent, config.width), ConvDecoder64(latent, outputs, config.width)
    return (
        MLPEncoder(shape, latent, config.hidden),
        MLPDecoder(latent, shape, outputs, config.hidden[::-1]),
    )


Networks: TypeAlias = tuple[nn.Module, nn.Module, Observation]  # encoder, decoder, what its features mean


def _fmvae(
    config: TrainConfig,
    networks: Networks,
    num_data: int,
    labelled: Sequence[int],
    distortion: nn.Module | None,
) -> FactorialMixtureVAE:
    assert config.factors is not None and config.factor_dim is not None
    sizes = config.factors, config.factor_dim
    return FactorialMixtureVAE(*networks, *sizes, num_data, labelled, config.hyperprior, distortion)


def _vae(
    config: TrainConfig, networks: Networks, num_data: int, _: object, distortion: nn.Module | None
) -> VAE:
    return VAE(*networks, latent_dim(config), num_data, distortion)


_MODELS: dict[ModelName, Callable[..., Model]] = {"fmvae": _fmvae, "vae": _vae}
