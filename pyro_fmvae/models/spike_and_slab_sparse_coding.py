"""Spike-and-slab sparse coding: x is the maximum or the sum of what causes give, most of them exactly 0."""

import math
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.distributions.superposition import Superposition
from pyro_fmvae.em.spike_and_slab_em import START_SLAB, SpikeAndSlabEM
from pyro_fmvae.em.spike_and_slab_gibbs import SpikeAndSlabParameters
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.parameters import param_statements
from pyro_fmvae.nn.sizes import check_size

HOTTEST, COOLING = 3.0, 0.6  # temperature at the start of a burn-in, and the share of it after which it is 1
DOUBT = 1e-3  # draws that are added to those with a unit on, and to those with it off
FEWEST = 3  # draws with a unit on, from which a location and a variance are taken


class SpikeAndSlabSparseCoding(nn.Module):
    """s_h is 0 or N(μ, ψ), x_d ~ N(max_h W_dh s_h, σ²) or x ~ N(W s, σ² I), as the rule of ``em`` says.

    Data with NaN are data with missing elements. Parameters are learnt by :attr:`em`. Posteriors are drawn
    from by Gibbs sampling; a factorised distribution with the moments of such draws is the guide. It is
    coarser than they are: pictures that call for the posterior itself are better taken from :meth:`gibbs`.

    Args:
        event_shape: shape of a data point, D numbers.
        num_data: N, data points in the training set.
        em: how it is learnt, and by what rule causes make data.
        burn_in: annealed Gibbs sweeps from all units off that posteriors begin with, >= 1.
        draws: sweeps after them, whose states are the draws, >= 1.

    Attributes:
        weight: W, [D, H].
        logits: logit of π, [1 or H].
        loc: μ, [1 or H].
        log_variance: log ψ, [1 or H].
        log_scale: log σ, a scalar.
        latent_dim: H, the units of ``em``.

    Raises:
        ValueError: ``num_data`` or a number of sweeps less than 1.
    """

    bounded = True
    """Whether its loss is a bound on log p(x)."""

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
        """Draws from p(s | x) by Gibbs sweeps, one chain for each point, from torch's generator.

        A chain starts with all units off, at a temperature of 3 that falls to 1 over the first 60 % of the
        burn-in.

        Args:
            x: a batch ``[B, *event_shape]``.
            draws: K >= 1, None: :attr:`draws`.
            burn_in: sweeps before them, None: :attr:`burn_in`.

        Returns:
            [K, B, H].

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
        """q(s | x) of a batch ``[B, *event_shape]``, latent by latent: batch shape [B, H].

        Of K draws by :meth:`gibbs` let n have a unit on. Then γ = (n + ε) / (K + 2ε) with ε = 0.001 (of many
        units that are never on, one that is costs more than the divergence gains), and the slab has the
        mean and variance of those n, where n >= 3; the variance is no less than that of p(s_h | x) were all
        pixels the unit's own. With fewer it is the prior's.
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

    @torch.no_grad()
    def posterior_mean_image(self, x: Tensor) -> Tensor:
        """E[f(s) | x] over draws by :meth:`gibbs`, f being the maximum or the sum: ``[B, *event_shape]``."""
        return self.decode(self.gibbs(x)).mean(0)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | s] of s [..., H]: ``[..., *event_shape]``."""
        return self._likelihood(z).mean.unflatten(-1, self.event_shape)

    @property
    def dictionary(self) -> Tensor:
        """What each unit gives to x where it is 1, ``[H, *event_shape]``."""
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
        """Values of log p(x | s) + log p(s) - log q(s | x) at draws of s from q: [num_samples, B].

        See :func:`pyro_fmvae.infer.importance.log_weights`.
        """
        q, prior = self.posterior(x).to_event(1), self._prior().to_event(1)
        return log_weights(x, q, prior.log_prob, self.log_likelihood, num_samples)

    def given(self) -> SpikeAndSlabParameters:
        """The parameters as those of a single start, in float64."""
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
        """Copy the parameters of one of R starts into the module."""
        self.weight.copy_(parameters.weight[start])
        self.logits.copy_(parameters.probs[start].logit())
        self.loc.copy_(parameters.loc[start])
        self.log_variance.copy_(parameters.variance[start].log())
        self.log_scale.copy_(0.5 * parameters.noise_variance[start].log())

    def start_at(self, x: Tensor) -> None:
        """Start from data: nothing to do, :attr:`em` has its own start."""

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, its parameters have but one form."""

    def _prior(self) -> SpikeAndSlab:
        shape = (self.latent_dim,)
        return SpikeAndSlab(self.loc, (0.5 * self.log_variance).exp(), self.logits).expand(shape)

    def _likelihood(self, s: Tensor) -> Superposition:
        return self.em.rule.likelihood(s, self.weight, self.log_scale.exp())
