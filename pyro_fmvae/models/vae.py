"""The variational auto-encoder with a N(0, I) prior: a baseline, and the first phase of others' training."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

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
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, observation: Observation, latent_dim: int, num_data: int
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
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
        loc, scale = self.encoder(x)
        with (
            pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1),
            poutine.scale(scale=kl_weight),
        ):
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))
