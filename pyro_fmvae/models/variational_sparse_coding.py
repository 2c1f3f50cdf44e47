"""Variational sparse coding: a VAE whose codes have mostly exact zeros. Tonolini et al. (2019)."""

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
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.shapes import check_dims
from pyro_fmvae.models.sparse_priors import SparsePrior
from pyro_fmvae.models.vae import Decoding
from pyro_fmvae.nn.sizes import check_size


class VariationalSparseCoding(Decoding):
    """z ~ a sparse prior; x ~ p(x | decoder(z)); q(z | x) is a spike and a slab in every dimension.

    In training mode draws of z are relaxed, and the loss has a term of ``Role.FACTOR`` that is not part of
    the bound: N·J·KL(Bern(γ̄) || Bern(α)), which pulls the mean spike probability γ̄ of the prior towards α.
    Relative to the mean loss per data point it counts once per batch. In ``eval()`` mode draws are exact,
    without warm-up, and the loss is the bound alone. Evaluate in that mode, under ``torch.no_grad()``.

    Args:
        encoder: maps x ``[..., *event_shape]`` to location, scale and logits of q(z), each [..., latent_dim],
            such as an encoder with a :class:`~pyro_fmvae.nn.SpikeHead`.
        decoder: maps z [..., latent_dim] to features ``[..., outputs, *event_shape]``.
        observation: distribution of x given the features.
        latent_dim: J, number of latent dimensions.
        num_data: N, data points in the training set.
        prior: p(z).
        draws: relaxation of the draws of z in training mode.
        sparsity: α in (0, 1); None for no penalty.
        distortion: transform applied to x before the encoder, in training mode only; None for none.

    Raises:
        ValueError: ``sparsity`` out of range, or ``latent_dim`` or ``num_data`` less than 1.
    """

    bounded = True
    """True: the loss in ``eval()`` mode is a bound on log p(x). See :attr:`VAE.bounded`."""

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
        """p(x, z), with the sparsity penalty in training mode.

        Args:
            x: a batch ``[B, *event_shape]``.
            labels: not used.
            kl_weight: weight > 0 of the KL divergence, for annealing. Values other than 1 give no bound. A
                captured step is captured again for each new number, but not for a new value of a scalar
                tensor.
        """
        param_statements("decoder", self.decoder)
        param_statements("prior", self.prior)
        p = self.prior(self.encoder, x)
        if self.training and self.sparsity is not None:
            pyro.factor("sparsity", -self.num_data * self.sparsity_penalty(p, self.sparsity))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            with poutine.scale(scale=kl_weight):
                z = pyro.sample("z", p)
            density = self.observation.density(self.decoder, z, x)
            pyro.sample("x", density, obs=self.observation.explained(x))

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
        """J·KL(Bern(γ̄) || Bern(α)) for a density that :attr:`prior` returned, a scalar in nats."""
        on = self.prior.mean_spike(p)
        edge = torch.finfo(on.dtype).eps  # float32 may round to all spikes on, or all off
        on = on.clamp(edge, 1 - edge)
        divergence = on * (on.log() - math.log(alpha)) + (1 - on) * ((-on).log1p() - math.log1p(-alpha))
        return self.latent_dim * divergence

    def posterior(self, x: Tensor) -> SpikeAndSlab:
        """q(z | x) for a batch ``[B, *event_shape]``, with independent latents: batch shape [B, latent_dim].

        Its draws are exact, also in training mode.
        """
        return SpikeAndSlab(*self.encoder(x))

    def code(self, x: Tensor) -> Tensor:
        """The slab's mean where the spike is more likely on than off, exactly 0 elsewhere: [B, J]."""
        return self.posterior(x).code

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``mean``; ``probs`` of spikes; ``loc`` and ``scale`` of slabs: [B, latent_dim]."""
        return self.posterior(x).arrays()

    def start_at(self, x: Tensor) -> None:
        """Initialise decoder and prior from data ``[n, *event_shape]``: see :meth:`Decoding.start_at`."""
        super().start_at(x)
        self.prior.start_at(x)

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Draw z exactly from the prior: [num_samples, latent_dim]."""
        return self.prior.density(self.encoder).sample((num_samples,))

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | z) + log p(z) - log q(z | x) at exact draws of z from q: [num_samples, B].

        The density of the prior is exact, while the ELBO bounds its divergence. The mean of log-weights
        therefore estimates a bound at least as high as the ELBO, and the log of their mean weight estimates
        the importance-weighted bound (Burda et al., 2016).
        """
        q, p = self.posterior(x).to_event(1), self.prior.density(self.encoder)
        return log_weights(x, q, p.log_prob, self.log_likelihood, num_samples)

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, parameters have only one form."""
