"""Binary sparse coding: x is the sum of some columns of a dictionary and of noise."""

import math
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli
from pyro_fmvae.distributions.superposition import LinearNormal
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.em.binary_em import BinaryEM, BinaryParameters
from pyro_fmvae.nn.sizes import check_size


class BinarySparseCoding(nn.Module):
    """h_i ~ Bernoulli(σ(b_i)), x ~ N(W h, σ² I), and q(h | x) is the fixed point of mean-field updates.

    NaN marks missing elements of the data. Parameters are learnt by :attr:`em` in closed form, or by
    gradients of ``TraceConjugate_ELBO``, which integrates h out instead of drawing it. Gradients treat q as a
    constant, which is exact at the fixed point. Call :meth:`project` after a gradient step to keep weights
    non-negative.

    Args:
        event_shape: shape of a data point, D numbers.
        num_data: N, data points in the training set.
        em: the EM algorithm, which also computes posteriors.

    Attributes:
        weight: W, [D, H].
        logits: b, [H].
        log_scale: log σ, a scalar.
        latent_dim: H, number of units.

    Raises:
        ValueError: ``num_data`` less than 1.
    """

    bounded = True
    """True: the loss is a bound on log p(x)."""

    def __init__(self, event_shape: tuple[int, ...], num_data: int, em: BinaryEM) -> None:
        super().__init__()
        self.event_shape, self.num_data = event_shape, check_size("num_data", num_data)
        self.em, self.latent_dim = em, em.units
        self.weight = nn.Parameter(0.1 * torch.rand(math.prod(event_shape), em.units))
        self.logits = nn.Parameter(torch.full((em.units,), em.start_logit))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def model(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        latents: Tensor | None = None,
        posterior: GroupedBernoulli | None = None,
    ) -> None:
        """p(x, h).

        Args:
            x: a batch ``[B, *event_shape]``, NaN where missing.
            labels: not used.
            latents, posterior: used by the guide only.
        """
        param_statements("dictionary", self)
        prior = self._prior().expand([len(x)])
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            h = pyro.sample("h", prior)
            pyro.sample("x", LinearNormal(h, self.weight, self.log_scale.exp()), obs=x.flatten(1))

    def guide(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        latents: Tensor | None = None,
        posterior: GroupedBernoulli | None = None,
    ) -> None:
        """q(h | x), without gradients.

        Args:
            x, labels: as for :meth:`model`.
            latents: means of h [B, H] to start the updates from; None as for :meth:`posterior`.
            posterior: q(h | x), if it is known already.
        """
        q = self.posterior(x, latents) if posterior is None else posterior
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            pyro.sample("h", q)

    def posterior(self, x: Tensor, latents: Tensor | None = None) -> GroupedBernoulli:
        """q(h | x) for a batch ``[B, *event_shape]``: batch shape [B], event shape [H].

        Units are updated in order until no mean changes by more than 1e-6, or for 100 sweeps. Updates start
        from ``latents``, means of h [B, H], or as in :meth:`BinaryEM.search` if they are None. Both arguments
        are cast to the type of the weights.
        """
        rows, given = x.flatten(1).to(self.weight.dtype), self.given()
        if latents is None:
            q = self.em.search(rows, given)
        else:
            q = self.em.posterior(rows, given, latents.to(rows.dtype).unsqueeze(0))
        return GroupedBernoulli(q.probs[0], self.latent_dim, validate_args=False)

    def code(self, x: Tensor) -> Tensor:
        """1 where a unit is more likely on than off, 0 elsewhere: [B, H]."""
        mean = self.posterior(x).mean
        return (mean > 0.5).to(mean)

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``mean`` [B, H], the probabilities of being on."""
        return {"mean": self.posterior(x).mean}

    def reconstruct(self, x: Tensor) -> Tensor:
        """Units at their posterior means: ``[B, *event_shape]``."""
        return self.decode(self.posterior(x).mean)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | h] = W h for h [..., H]: ``[..., *event_shape]``."""
        return (z @ self.weight.T).unflatten(-1, self.event_shape)

    @property
    def dictionary(self) -> Tensor:
        """Contribution of each unit to x, ``[H, *event_shape]``."""
        return self.weight.T.unflatten(-1, self.event_shape)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """Log-density p(x | h) of the observed elements of ``[B, *event_shape]`` at h [B, H]: [B]."""
        return LinearNormal(z, self.weight, self.log_scale.exp()).log_prob(x.flatten(1))

    @torch.no_grad()
    def sample_latent(self, num_samples: int) -> Tensor:
        """Draws of h from the prior: [num_samples, H]."""
        return self._prior().sample((num_samples,))

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | h) + log p(h) - log q(h | x) at draws of h from q: [num_samples, B].

        See :func:`pyro_fmvae.infer.importance.log_weights`.
        """
        return log_weights(x, self.posterior(x), self._prior().log_prob, self.log_likelihood, num_samples)

    def given(self) -> BinaryParameters:
        """The parameters, with a leading dimension of one start."""
        precision = (-2 * self.log_scale).exp()
        return BinaryParameters(self.weight[None], self.logits[None], precision[None])

    @torch.no_grad()
    def take(self, parameters: BinaryParameters, start: int) -> None:
        """Copy the parameters of one of R starts to the module."""
        self.weight.copy_(parameters.weight[start])
        self.logits.copy_(parameters.logits[start])
        self.log_scale.copy_(-0.5 * parameters.noise_precision[start].log())

    @torch.no_grad()
    def project(self) -> None:
        """Set negative weights to 0 if ``em`` constrains them."""
        if self.em.nonnegative:
            self.weight.clamp_(min=0.0)

    def start_at(self, x: Tensor) -> None:
        """Initialise from data: nothing to do, :attr:`em` initialises itself."""

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, parameters have only one form."""

    def _prior(self) -> dist.TorchDistribution:
        return dist.Bernoulli(logits=self.logits).to_event(1)
