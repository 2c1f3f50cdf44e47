"""Spike-and-slab sparse coding: x is the maximum or sum of weighted causes, most of them exactly 0."""

import math
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.distributions.superposition import Superposition
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.em.spike_and_slab_em import START_SLAB, SpikeAndSlabEM
from pyro_fmvae.models.em.spike_and_slab_gibbs import SpikeAndSlabParameters
from pyro_fmvae.nn.sizes import check_size

HOTTEST, COOLING = 3.0, 0.6  # first temperature of a burn-in, and the share of the burn-in that cools it to 1
DOUBT = 1e-3  # pseudo-count of draws with a unit on, and of draws with it off
FEWEST = 3  # draws with a unit on that are needed to estimate a location and a variance


class SpikeAndSlabSparseCoding(nn.Module):
    """s_h is 0 or N(μ, ψ), and x_d ~ N(max_h W_dh s_h, σ²) or x ~ N(W s, σ² I), by the rule of ``em``.

    NaN marks missing elements of the data. Parameters are learnt by :attr:`em`. The guide is a factorised
    distribution with the moments of Gibbs draws from the posterior. It is coarser than those draws: where the
    posterior itself matters, use :meth:`gibbs`.

    Args:
        event_shape: shape of a data point, D numbers.
        num_data: N, data points in the training set.
        em: the EM algorithm, with the rule that combines causes to data.
        burn_in: number of annealed Gibbs sweeps at the start, from all units off, >= 1.
        draws: number of Gibbs sweeps after them, each of which gives a draw, >= 1.

    Attributes:
        weight: W, [D, H].
        logits: logit of π, [1 or H].
        loc: μ, [1 or H].
        log_variance: log ψ, [1 or H].
        log_scale: log σ, a scalar.
        latent_dim: H, number of units.

    Raises:
        ValueError: ``num_data``, ``burn_in`` or ``draws`` less than 1.
    """

    bounded = True
    """True: the loss is a bound on log p(x)."""

    def __init__(
        self,
        event_shape: tuple[int, ...],
        num_data: int,
        em: SpikeAndSlabEM,
        burn_in: int = 20,
        draws: int = 30,
    ) -> None:
        super().__init__()
        self.burn_in, self.draws = check_size("burn_in", burn_in), check_size("draws", draws)
        self.event_shape, self.num_data = event_shape, check_size("num_data", num_data)
        self.em, self.latent_dim = em, em.units
        slab = torch.ones(1 if em.shared else em.units)
        self.weight = nn.Parameter(0.1 * torch.rand(math.prod(event_shape), em.units))
        self.logits = nn.Parameter(slab * math.log(em.start_probability / (1 - em.start_probability)))
        self.loc = nn.Parameter(slab)
        self.log_variance = nn.Parameter(slab * math.log(START_SLAB))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def model(self, x: Tensor, labels: Tensor | None = None) -> None:
        """p(x, s).

        Args:
            x: a batch ``[B, *event_shape]``, NaN where missing.
            labels: not used.
        """
        param_statements("dictionary", self)
        prior = self._prior().expand([len(x), self.latent_dim]).to_event(1)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            s = pyro.sample("s", prior)
            pyro.sample("x", self._likelihood(s), obs=x.flatten(1))

    def guide(self, x: Tensor, labels: Tensor | None = None) -> None:
        """q(s | x), without gradients; arguments as for :meth:`model`."""
        q = self.posterior(x).to_event(1)
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            pyro.sample("s", q)

    @torch.no_grad()
    def gibbs(self, x: Tensor, draws: int | None = None, burn_in: int | None = None) -> Tensor:
        """Draw from p(s | x) by Gibbs sampling with torch's generator, one chain for each point.

        A chain starts with all units off. Its temperature falls from 3 to 1 over the first 60 % of the
        burn-in.

        Args:
            x: a batch ``[B, *event_shape]``.
            draws: number of draws K >= 1; None for :attr:`draws`.
            burn_in: number of sweeps before them; None for :attr:`burn_in`.

        Returns:
            Draws of s, [K, B, H].

        Raises:
            ValueError: ``draws`` less than 1.
        """
        draws = self.draws if draws is None else check_size("draws", draws)
        burn_in = self.burn_in if burn_in is None else burn_in
        parameters, y = self.given(), x.flatten(1)
        state = self.em.start_latents(parameters, len(x))
        for sweep in range(burn_in):
            temperature = 1 + (HOTTEST - 1) * max(1 - sweep / (COOLING * burn_in), 0.0)
            state = self.em.gibbs(y, parameters, state, temperature=temperature)[:, 0]
        return self.em.gibbs(y, parameters, state, draws, draws)[0].to(self.weight.dtype)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> SpikeAndSlab:
        """q(s | x) for a batch ``[B, *event_shape]``, with independent latents: batch shape [B, H].

        Let a unit be on in n of K draws by :meth:`gibbs`. Then γ = (n + ε) / (K + 2ε) with ε = 0.001. (With a
        larger ε, spurious activations of unused units cost more than the divergence gains.) If
        n >= 3, the slab has the mean and variance of those n draws; the variance is at least that of
        p(s_h | x) if the unit alone explained all pixels. Otherwise the slab is the prior's.
        """
        draws = self.gibbs(x)
        on = draws != 0
        count = on.sum(0).to(draws.dtype)
        mean = draws.sum(0) / count.clamp(min=1)
        spread = torch.where(on, draws - mean, 0.0).square().sum(0) / (count - 1).clamp(min=1)
        prior = self._prior()
        precision = prior.scale.square().reciprocal() + (
            self.weight.square().sum(0) * (-2 * self.log_scale).exp()
        )
        known = count >= FEWEST
        loc = torch.where(known, mean, prior.loc)
        scale = torch.where(known, spread.maximum(precision.reciprocal()).sqrt(), prior.scale)
        return SpikeAndSlab(loc, scale, ((count + DOUBT) / (len(draws) + 2 * DOUBT)).logit())

    def code(self, x: Tensor) -> Tensor:
        """The slab's mean where the spike is more likely on than off, exactly 0 elsewhere: [B, H]."""
        return self.posterior(x).code

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``mean``; ``probs`` of spikes; ``loc`` and ``scale`` of slabs: [B, H]."""
        return self.posterior(x).arrays()

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """E[f(s) | x] over draws by :meth:`gibbs`, where f is the maximum or sum: ``[B, *event_shape]``."""
        return self.decode(self.gibbs(x)).mean(0)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | s] for s [..., H]: ``[..., *event_shape]``."""
        return self._likelihood(z).mean.unflatten(-1, self.event_shape)

    @property
    def dictionary(self) -> Tensor:
        """Contribution of each unit to x if its latent is 1, ``[H, *event_shape]``."""
        return self.weight.T.unflatten(-1, self.event_shape)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """Log-density p(x | s) of the observed elements of ``[B, *event_shape]`` at s [B, H]: [B]."""
        return self._likelihood(z).log_prob(x.flatten(1))

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Exact draws of s from the prior: [num_samples, H]."""
        return self._prior().sample((num_samples,))

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | s) + log p(s) - log q(s | x) at draws of s from q: [num_samples, B].

        See :func:`pyro_fmvae.infer.importance.log_weights`.
        """
        q, prior = self.posterior(x).to_event(1), self._prior().to_event(1)
        return log_weights(x, q, prior.log_prob, self.log_likelihood, num_samples)

    def given(self) -> SpikeAndSlabParameters:
        """The parameters in float64, with a leading dimension of one start."""
        weight, logits, loc, log_variance, log_scale = (
            t.detach().double()
            for t in (self.weight, self.logits, self.loc, self.log_variance, self.log_scale)
        )
        return SpikeAndSlabParameters(
            weight[None],
            logits.sigmoid()[None],
            loc[None],
            log_variance.exp()[None],
            (2 * log_scale).exp()[None],
        )

    @torch.no_grad()
    def take(self, parameters: SpikeAndSlabParameters, start: int) -> None:
        """Copy the parameters of one of R starts to the module."""
        self.weight.copy_(parameters.weight[start])
        self.logits.copy_(parameters.probs[start].logit())
        self.loc.copy_(parameters.loc[start])
        self.log_variance.copy_(parameters.variance[start].log())
        self.log_scale.copy_(0.5 * parameters.noise_variance[start].log())

    def start_at(self, x: Tensor) -> None:
        """Initialise from data: nothing to do, :attr:`em` initialises itself."""

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, parameters have only one form."""

    def _prior(self) -> SpikeAndSlab:
        shape = (self.latent_dim,)
        return SpikeAndSlab(self.loc, (0.5 * self.log_variance).exp(), self.logits).expand(shape)

    def _likelihood(self, s: Tensor) -> Superposition:
        return self.em.rule.likelihood(s, self.weight, self.log_scale.exp())
