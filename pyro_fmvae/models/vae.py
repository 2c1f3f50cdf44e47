"""The variational auto-encoder with a N(0, I) prior: a baseline, and the pretraining of other models."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_fmvae.distributions import Observation
from pyro_fmvae.infer.importance import log_weights, total_correlation
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.shapes import check_dims
from pyro_fmvae.nn.sizes import check_size

LocScale: TypeAlias = tuple[Tensor, Tensor]
"""Location and scale of q(z), each [B, J]."""


class PosteriorFamily(ABC):
    """A family of densities q(z) with a location and a scale in every dimension.

    Attributes:
        bounded: True if KL(q || p) is finite, so that there is a bound on log p(x).
    """

    bounded: bool

    @abstractmethod
    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """q(z) for locations and scales [..., J]: batch shape [...], event shape [J]."""


class GaussianPosterior(PosteriorFamily):
    """N(loc, diag(scale²))."""

    bounded = True

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The normal distribution with independent dimensions."""
        return dist.Normal(loc, scale).to_event(1)


class PointPosterior(PosteriorFamily):
    """The limit of scale 0, z = loc: the reconstruction term is that of an auto-encoder.

    Only that term has a limit. KL(N(m, s²) || N(0, 1)) = (m² + s² - 1 - log s²) / 2 diverges as s goes to 0,
    so it is left out. The prior then has no part in learning, and the loss is *no* bound on log p(x). To
    compare it with bounds, or to draw z from the prior, is meaningless.
    """

    bounded = False

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The point mass at the location; the scale is ignored."""
        return dist.Delta(loc, event_dim=1)


class Decoding(nn.Module):
    """Base of models with an encoder, a decoder, and a distribution of x given the decoder's features."""

    encoder: nn.Module
    decoder: nn.Module
    observation: Observation

    def posterior(self, x: Tensor) -> Any:
        """q(z | x) for a batch ``[B, *event_shape]``."""
        raise NotImplementedError

    def code(self, x: Tensor) -> Tensor:
        """One z [B, J] for each point of a batch: the mean of q(z | x)."""
        mean: Tensor = self.posterior(x).mean
        return mean

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``mean`` and ``scale`` of q(z | x), [B, J]."""
        posterior = self.posterior(x)
        return {"mean": posterior.mean, "scale": posterior.stddev}

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z] at z [..., J]: ``[..., *event_shape]``."""
        return self.observation.mean(self.decoder(z))

    def expected(self, z: Tensor, x: Tensor) -> Tensor:
        """E[x | z], ``[B, *event_shape]``, with what the observation model takes of a batch x as given."""
        mean: Tensor = self.observation.density(self.decoder, z, x).mean
        return torch.cat([mean, x[..., mean.shape[-1] :]], -1)

    def reconstruct(self, x: Tensor) -> Tensor:
        """The decoded mean of q(z | x), ``[B, *event_shape]``."""
        return self.expected(self.posterior(x).mean, x)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """Log-density p(x | z) of data points ``[B, *event_shape]`` at z [B, latent_dim]: [B]."""
        return self.observation.density(self.decoder, z, x).log_prob(self.observation.explained(x))

    @torch.no_grad()
    def start_at(self, x: Tensor) -> None:
        """Initialise the decoder from the mean and spread of colour images or counts, if it has ``start_at``.

        Args:
            x: data points. Mean and standard deviation are taken per colour of images ``[n, H, W, C]``, and
                per column of counts. For data of other shapes, nothing is done.
        """
        start = getattr(self.decoder, "start_at", None)
        if start is not None and x.dim() in (2, 4):
            columns = self.observation.explained(x).flatten(0, -2)
            one = (*[1] * (x.dim() - 2), -1)  # the shape of a data point of one pixel
            mean, std = columns.mean(0).view(one), columns.std(0).view(one)
            start(self.observation.features(mean, std).flatten(1))


class VAE(Decoding):
    """z ~ N(0, I); x ~ p(x | decoder(z)); q(z | x) = N(encoder(x)). Kingma and Welling (2014).

    Args:
        encoder: maps x ``[..., *event_shape]`` to the location and scale of q(z), each [..., latent_dim].
        decoder: maps z [..., latent_dim] to features ``[..., outputs, *event_shape]``.
        observation: distribution of x given the features.
        latent_dim: number of latent dimensions.
        num_data: N, data points in the training set.
        distortion: transform applied to x before the encoder, in training mode only; None for none.
        family: family of q(z); None for a Gaussian.

    Raises:
        ValueError: ``latent_dim`` or ``num_data`` less than 1.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        num_data: int,
        distortion: nn.Module | None = None,
        family: PosteriorFamily | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
        self.distortion = nn.Identity() if distortion is None else distortion
        self.family = family or GaussianPosterior()
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.num_data = check_size("num_data", num_data)

    @property
    def bounded(self) -> bool:
        """True if the loss is a bound on log p(x), which it is not with a :class:`PointPosterior`."""
        return self.family.bounded

    def model(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        kl_weight: float | Tensor = 1.0,
        tc_weight: float | Tensor = 1.0,
        posterior: LocScale | None = None,
    ) -> None:
        """p(x, z).

        Args:
            x: a batch ``[B, *event_shape]``.
            labels: not used.
            kl_weight: weight > 0 of the KL divergence, β of a β-VAE (Higgins et al., 2017), or for annealing.
                Values other than 1 give no bound. A captured step is captured again for each new number, but
                not for a new value of a scalar tensor.
            tc_weight: weight of the total correlation within the KL divergence, β of a β-TCVAE (Chen et al.,
                2018): see :mod:`pyro_fmvae.infer.importance`. Values other than 1 give no bound. Used
                by the guide only.
            posterior: location and scale of q(z) [B, latent_dim], in place of the encoder's. Used by the
                guide only.
        """
        param_statements("decoder", self.decoder)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            with poutine.scale(scale=kl_weight), poutine.mask(mask=self.bounded):
                z = pyro.sample("z", self._prior(x))
            density = self.observation.density(self.decoder, z, x)
            pyro.sample("x", density, obs=self.observation.explained(x))

    def guide(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        kl_weight: float | Tensor = 1.0,
        tc_weight: float | Tensor = 1.0,
        posterior: LocScale | None = None,
    ) -> None:
        """q(z | x); arguments as for :meth:`model`."""
        given = "encoder" if posterior is None else "posterior"
        if posterior is None:
            param_statements("encoder", self.encoder)
            posterior = self.encoder(self.distortion(x) if self.training else x)
        loc, scale = posterior
        check_dims(given, loc, self.latent_dim)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            with poutine.scale(scale=kl_weight):
                z = pyro.sample("z", self.family(loc, scale))
            if self.bounded and (isinstance(tc_weight, Tensor) or tc_weight != 1):
                penalty = (tc_weight - 1) * total_correlation(z, loc, scale, self.num_data)
                pyro.factor("total_correlation", penalty, has_rsample=True)

    def posterior(self, x: Tensor) -> Distribution:
        """q(z | x) for a batch ``[B, *event_shape]``: batch shape [B], event shape [latent_dim]."""
        return self.family(*self.encoder(x))

    def _prior(self, like: Tensor) -> dist.TorchDistribution:
        return dist.Normal(like.new_zeros(self.latent_dim), 1.0).to_event(1)

    def log_prior(self, z: Tensor) -> Tensor:
        """Log-density of N(0, I) at z [..., latent_dim]: [...]."""
        return self._prior(z).log_prob(z)

    def pretraining(self) -> "VAE":
        """The model for pretraining the networks: this one."""
        return self

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Draws of z from the prior: [num_samples, latent_dim]."""
        like = next(self.parameters())
        return torch.randn(num_samples, self.latent_dim, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | z) + log p(z) - log q(z | x) at draws of z from q: [num_samples, B].

        See :func:`pyro_fmvae.infer.importance.log_weights`.

        Raises:
            ValueError: the model is not :attr:`bounded`.
        """
        if not self.bounded:
            raise ValueError("log_weights: expected a posterior with a density, got a point")
        return log_weights(x, self.posterior(x), self.log_prior, self.log_likelihood, num_samples)

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, parameters have only one form."""
