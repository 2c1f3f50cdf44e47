"""Variational sparse coding: a VAE whose codes are exactly zero in most places. Tonolini et al. (2019)."""

import math
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from pyro_fmvae.distributions import Observation, SpikeAndSlab, SpikeDraws
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.parameters import param_statements
from pyro_fmvae.models.shapes import check_dims
from pyro_fmvae.models.sparse_priors import SparsePrior
from pyro_fmvae.models.vae import VAE
from pyro_fmvae.nn.sizes import check_size


class VariationalSparseCoding(nn.Module):
    """z ~ a sparse prior; x ~ p(x | decoder(z)); q(z | x) is a spike and a slab in every dimension.

    In training mode draws of z are relaxed, and the loss has a term that is no part of the bound (of
    ``Role.FACTOR``): N·J·KL(Bern(γ̄) || Bern(α)), which pulls the mean spike probability γ̄ of the prior
    towards α. Beside a mean over data points it counts once per batch. In ``eval()`` mode draws are exact,
    without warm-up, and the loss is the bound alone: evaluate there, under ``torch.no_grad()``.

    Args:
        encoder: maps x ``[..., *event_shape]`` to location, scale and logits of q(z), each [..., latent_dim]:
            one with a :class:`~pyro_fmvae.nn.SpikeHead`.
        decoder: maps z [..., latent_dim] to features ``[..., outputs, *event_shape]``.
        observation: what the features mean.
        latent_dim: J, number of latent dimensions.
        num_data: N, data points in the training set.
        prior: p(z).
        draws: how z is drawn in training mode.
        sparsity: α in (0, 1); None leaves the penalty out.
        distortion: what makes of x that which the encoder sees in training mode; None leaves x as it is.

    Raises:
        ValueError: ``sparsity`` out of range, or ``latent_dim`` or ``num_data`` less than 1.
    """

    bounded = True
    """Whether the loss in ``eval()`` mode is a bound on log p(x), as it is here: see :attr:`VAE.bounded`."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        num_data: int,
        prior: SparsePrior,
        draws: SpikeDraws,
        sparsity: float | None = None,
        distortion: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if sparsity is not None and not 0 < sparsity < 1:
            raise ValueError(f"sparsity: expected a number in (0, 1), or None, got {sparsity}")
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
        self.distortion = nn.Identity() if distortion is None else distortion
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.num_data = check_size("num_data", num_data)
        self.prior, self.draws, self.sparsity = prior, draws, sparsity

    def model(self, x: Tensor, labels: Tensor | None = None, kl_weight: float | Tensor = 1.0) -> None:
        """p(x, z), and in training mode the penalty.

        Args:
            x: a batch ``[B, *event_shape]``.
            labels: not used.
            kl_weight: weight > 0 of the KL divergence, for annealing; other than 1 it gives no bound. A
                scalar tensor spares a captured step from being captured again for each value.
        """
        param_statements("decoder", self.decoder)
        param_statements("prior", self.prior)
        p = self.prior(self.encoder, x)
        if self.training and self.sparsity is not None:
            pyro.factor("sparsity", -self.num_data * self.sparsity_penalty(p, self.sparsity))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            with poutine.scale(scale=kl_weight):
                z = pyro.sample("z", p)
            pyro.sample("x", self.observation(self.decoder(z)), obs=x)

    def guide(self, x: Tensor, labels: Tensor | None = None, kl_weight: float | Tensor = 1.0) -> None:
        """q(z | x); arguments as for :meth:`model`."""
        param_statements("encoder", self.encoder)
        loc, scale, logits = self.encoder(self.distortion(x) if self.training else x)
        check_dims("encoder", loc, self.latent_dim)
        q = SpikeAndSlab(loc, scale, logits, self.draws if self.training else None)
        with (
            pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1),
            poutine.scale(scale=kl_weight),
        ):
            pyro.sample("z", q.to_event(1))

    def sparsity_penalty(self, p: TorchDistribution, alpha: float) -> Tensor:
        """J·KL(Bern(γ̄) || Bern(α)) of what the prior gave, a scalar in nats."""
        on = self.prior.mean_spike(p)
        edge = torch.finfo(on.dtype).eps  # of where all spikes are on, or off, as far as float32 can tell
        on = on.clamp(edge, 1 - edge)
        divergence = on * (on.log() - math.log(alpha)) + (1 - on) * ((-on).log1p() - math.log1p(-alpha))
        return self.latent_dim * divergence

    def posterior(self, x: Tensor) -> SpikeAndSlab:
        """q(z | x) of a batch ``[B, *event_shape]``, latent by latent: batch shape [B, latent_dim].

        Its draws are exact, in training mode too.
        """
        return SpikeAndSlab(*self.encoder(x))

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """Log-density p(x | z) of data points ``[B, *event_shape]`` at z [B, latent_dim]: [B]."""
        return self.observation(self.decoder(z)).log_prob(x)

    def start_at(self, x: Tensor) -> None:
        """Let decoder and prior start from data ``[n, *event_shape]``: see :meth:`VAE.start_at`."""
        networks = self.encoder, self.decoder, self.observation
        VAE(*networks, self.latent_dim, self.num_data).start_at(x)
        self.prior.start_at(x)

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Exact draws of z from the prior: [num_samples, latent_dim]."""
        return self.prior.density(self.encoder).sample((num_samples,))

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Values of log p(x | z) + log p(z) - log q(z | x) at exact draws of z from q: [num_samples, B].

        With the exact density of the prior, never the bound that the ELBO has of its divergence: their mean
        estimates a bound at least as high as the ELBO, the log of the mean of their exponentials the
        importance-weighted one (Burda et al., 2016).
        """
        q, p = self.posterior(x).to_event(1), self.prior.density(self.encoder)
        return log_weights(x, q, p.log_prob, self.log_likelihood, num_samples)

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, its parameters have but one form."""
