"""The variational auto-encoder with a N(0, I) prior: a baseline, and the first phase of others' training."""

from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from pyro_fmvae.distributions import Observation
from pyro_fmvae.infer.parameters import param_statements


class VAE(nn.Module):
    """z ~ N(0, I); x ~ p(x | decoder(z)); q(z | x) = N(encoder(x)). Kingma and Welling (2014).

    Args:
        encoder: maps x ``[..., *event_shape]`` to the location and scale of q(z), each [..., latent_dim].
        decoder: maps z [..., latent_dim] to features ``[..., outputs, *event_shape]``.
        observation: what the features mean.
        latent_dim: number of latent dimensions.
        num_data: N, data points in the training set.
        distortion: what makes of x that which the encoder sees in training mode; None leaves x as it is.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        num_data: int,
        distortion: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
        self.distortion = distortion or nn.Identity()
        self.latent_dim, self.num_data = latent_dim, num_data

    def model(self, x: Tensor, labels: Tensor | None = None, kl_weight: float | Tensor = 1.0) -> None:
        """p(x, z).

        Args:
            x: a batch ``[B, *event_shape]``.
            labels: not used.
            kl_weight: weight > 0 of the KL divergence, for annealing; other than 1 it gives no bound. A
                scalar tensor spares a captured step from being captured again for each value.
        """
        param_statements("decoder", self.decoder)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            with poutine.scale(scale=kl_weight):
                z = pyro.sample("z", dist.Normal(x.new_zeros(self.latent_dim), 1.0).to_event(1))
            pyro.sample("x", self.observation(self.decoder(z)), obs=x)

    def guide(self, x: Tensor, labels: Tensor | None = None, kl_weight: float | Tensor = 1.0) -> None:
        """q(z | x); arguments as for :meth:`model`."""
        param_statements("encoder", self.encoder)
        loc, scale = self.encoder(self.distortion(x) if self.training else x)
        with (
            pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1),
            poutine.scale(scale=kl_weight),
        ):
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))

    @torch.no_grad()
    def start_at(self, x: Tensor) -> None:
        """Let the decoder start from the mean and spread of data, if it is one that can (``start_at``).

        Args:
            x: data points ``[n, H, W, C]``; mean and standard deviation are taken per colour.
        """
        start = getattr(self.decoder, "start_at", None)
        if start is not None:
            colours = x.flatten(0, -2)
            mean, std = colours.mean(0), colours.std(0)
            start(self.observation.features(mean[None, None], std[None, None])[:, 0, 0])

    def pretraining(self) -> "VAE":
        """What the networks are pretrained in: this model itself."""
        return self

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Draws of z from the prior: [num_samples, latent_dim]."""
        like = next(self.parameters())
        return torch.randn(num_samples, self.latent_dim, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Values of log p(x | z) + log p(z) - log q(z | x) at draws of z from q: [num_samples, B].

        Their mean estimates the bound itself, the log of the mean of their exponentials the
        importance-weighted one (Burda et al., 2016).
        """
        loc, scale = self.encoder(x)
        q = Normal(loc, scale, validate_args=False)
        prior = Normal(torch.zeros_like(loc), torch.ones_like(scale), validate_args=False)
        weights = []
        for _ in range(num_samples):
            z = q.sample()
            log_likelihood = self.observation(self.decoder(z)).log_prob(x)
            weights.append(log_likelihood + (prior.log_prob(z) - q.log_prob(z)).sum(-1))
        return torch.stack(weights)

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, its parameters have but one form."""
