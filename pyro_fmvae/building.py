"""The untrained model of a configuration: networks by their name, and the model that they are given to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

from torch import nn

from pyro_fmvae.capture import CapturedFreeGaussian
from pyro_fmvae.config import CODERS, ModelName, TrainConfig
from pyro_fmvae.data import Preprocessing
from pyro_fmvae.distributions import (
    BernoulliObservation,
    Concrete,
    GaussianObservation,
    Observation,
    ShiftedSigmoid,
    SpikeDraws,
    StraightThrough,
)
from pyro_fmvae.em.binary_em import BinaryEM
from pyro_fmvae.em.free_gaussian import FreeGaussian
from pyro_fmvae.em.spike_and_slab_em import SpikeAndSlabEM
from pyro_fmvae.em.spike_and_slab_rules import LinearRule, MaxRule, Rule
from pyro_fmvae.models import (
    VAE,
    BinarySparseCoding,
    FactorialMixtureVAE,
    FixedSparsePrior,
    MixtureSparsePrior,
    PseudoInputs,
    SelectionSparsePrior,
    SparsePrior,
    SpikeAndSlabSparseCoding,
    VariationalSparseCoding,
)
from pyro_fmvae.models.free_encoder import FreeEncoder
from pyro_fmvae.models.posterior_family import PointPosterior
from pyro_fmvae.nn import (
    ConvDecoder,
    ConvEncoder,
    ExponentialLink,
    MLPDecoder,
    MLPEncoder,
    NormalHead,
    RandomWarp,
    SpikeHead,
)

SparseCoder: TypeAlias = BinarySparseCoding | SpikeAndSlabSparseCoding
"""Models without networks, which are learnt by EM."""
Model: TypeAlias = FactorialMixtureVAE | VAE | VariationalSparseCoding | SparseCoder
"""What a run can be a run of."""


@dataclass(frozen=True)
class Parts:
    """What a model is made of, whichever it is.

    Attributes:
        encoder, decoder: networks.
        observation: what the decoder's features mean.
        num_data: N, points in the training set.
        distortion: what makes of x that which the encoder sees in training, or None.
        labelled: factors that labels belong to.
        preprocessing: of the data.
    """

    encoder: nn.Module
    decoder: nn.Module
    observation: Observation
    num_data: int
    distortion: nn.Module | None
    labelled: Sequence[int]
    preprocessing: Preprocessing

    @property
    def networks(self) -> tuple[nn.Module, nn.Module, Observation]:
        """The first arguments of every model."""
        return self.encoder, self.decoder, self.observation


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
    if config.model in CODERS:
        return _coder(config, preprocessing, num_data)
    observation = _observation(config, preprocessing)
    encoder, decoder = _networks(config, preprocessing.event_shape, observation.outputs)
    distortion = warp(config.distortion, preprocessing)
    parts = Parts(encoder, decoder, observation, num_data, distortion, labelled, preprocessing)
    return _MODELS[config.model](config, parts)


def warp(strength: float, preprocessing: Preprocessing, interpolate: bool = True) -> nn.Module | None:
    """Random warps of images of that kind; None where the strength is 0."""
    if not strength:
        return None
    background = -1.0 if preprocessing.signed else 0.0
    return RandomWarp(strength, len(preprocessing.event_shape) == 3, background, interpolate)


def latent_dim(config: TrainConfig) -> int:
    """Dimensions of z: those of all factors. A model without factors has as many unless told."""
    if config.latent_dim is not None:
        return config.latent_dim
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
    latent, head = latent_dim(config), _head(config)
    if config.network != "mlp":
        return (
            ConvEncoder(shape, latent, config.width, head),
            ConvDecoder(latent, shape, outputs, config.width),
        )
    return (
        MLPEncoder(shape, latent, config.hidden, head),
        MLPDecoder(latent, shape, outputs, config.hidden[::-1]),
    )


def _head(config: TrainConfig) -> Callable[[int, int], nn.Module]:
    """What the encoder ends with."""
    if config.model != "vsc":
        return NormalHead
    return partial(SpikeHead, link=ExponentialLink()) if config.spike_link == "exponential" else SpikeHead


def _fmvae(config: TrainConfig, parts: Parts) -> FactorialMixtureVAE:
    assert config.factors is not None and config.factor_dim is not None
    sizes = config.factors, config.factor_dim
    return FactorialMixtureVAE(
        *parts.networks, *sizes, parts.num_data, parts.labelled, config.hyperprior, parts.distortion
    )


def _vae(config: TrainConfig, parts: Parts) -> VAE:
    encoder, dim = parts.encoder, latent_dim(config)
    if config.posterior == "free":
        encoder = FreeEncoder(
            parts.decoder,
            parts.observation,
            dim,
            search=FreeGaussian if config.eager else CapturedFreeGaussian,
        )
    family = PointPosterior() if config.posterior == "point" else None
    rest = dim, parts.num_data, parts.distortion, family
    return VAE(encoder, parts.decoder, parts.observation, *rest)


def _vsc(config: TrainConfig, parts: Parts) -> VariationalSparseCoding:
    prior, draws = _sparse_prior(config, parts.preprocessing), _draws(config)
    size = latent_dim(config), parts.num_data
    return VariationalSparseCoding(*parts.networks, *size, prior, draws, config.sparsity, parts.distortion)


def _draws(config: TrainConfig) -> SpikeDraws:
    """How spikes are drawn in training."""
    if config.spikes == "shifted":
        return ShiftedSigmoid(*config.slope)
    return Concrete() if config.spikes == "concrete" else StraightThrough()


def _sparse_prior(config: TrainConfig, preprocessing: Preprocessing) -> SparsePrior:
    """Pseudo-inputs lie where data do: pixels between their bounds, columns anywhere."""
    assert config.sparsity is not None
    if config.sparse_prior == "fixed":
        return FixedSparsePrior(latent_dim(config), config.sparsity)
    assert config.pseudo_inputs is not None
    bounds = (0.0, 1.0) if preprocessing.binary else (-1.0, 1.0) if preprocessing.signed else None
    shape = preprocessing.event_shape
    pseudo_inputs = PseudoInputs(config.pseudo_inputs, shape, bounds)
    if config.sparse_prior == "mixture":
        return MixtureSparsePrior(pseudo_inputs, config.sharpness)
    selection = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), config.pseudo_inputs))
    return SelectionSparsePrior(pseudo_inputs, selection, config.sharpness)


def _coder(config: TrainConfig, preprocessing: Preprocessing, num_data: int) -> SparseCoder:
    shape = preprocessing.event_shape
    if config.model == "bsc":
        return BinarySparseCoding(shape, num_data, binary_em(config))
    return SpikeAndSlabSparseCoding(shape, num_data, spike_and_slab_em(config, config.preselect))


def binary_em(config: TrainConfig) -> BinaryEM:
    """How a binary sparse code is learnt."""
    assert config.sweeps is not None and config.nonnegative is not None
    how = config.sweeps, config.group_size, config.nonnegative
    return BinaryEM(latent_dim(config), *how)


def spike_and_slab_em(config: TrainConfig, preselect: int | None) -> SpikeAndSlabEM:
    """How a spike-and-slab code is learnt, so many units being drawn for each point; 0 or None: all."""
    assert config.sweeps is not None
    few = preselect if preselect and preselect < latent_dim(config) else None
    kept = max(config.sweeps // 2, 1)
    return SpikeAndSlabEM(_RULES[config.model](), latent_dim(config), few, config.sweeps, kept, config.shared)


_RULES: dict[ModelName, Callable[[], Rule]] = {"max-sparse": MaxRule, "linear-sparse": LinearRule}
_MODELS: dict[ModelName, Callable[[TrainConfig, Parts], Model]] = {"fmvae": _fmvae, "vae": _vae, "vsc": _vsc}
