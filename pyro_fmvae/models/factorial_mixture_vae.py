"""The factorial mixture prior VAE. Paquet, Ghaisas and Tieleman (2018)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from pyro_fmvae.distributions import Observation
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.parameters import param_statements
from pyro_fmvae.models.factor_group import FactorGroup, Hyperprior, make_groups
from pyro_fmvae.models.factor_layout import FactorLayout
from pyro_fmvae.models.posterior_family import LocScale
from pyro_fmvae.models.shapes import check_codes, check_integers, check_shape
from pyro_fmvae.models.vae import VAE
from pyro_fmvae.nn.sizes import check_size, check_sizes


class FactorialMixtureVAE(nn.Module):
    """A VAE whose latent vector is a Cartesian product of factors, each with its own Gaussian mixture prior.

        π_i ~ Dirichlet(c0),  (μ, α)_ik ~ NormalGamma(m0, s0, a0, b0),  r_i ~ Categorical(π_i),
        z_i | r_i = k ~ N(μ_ik, 1/α_ik),  x ~ p(x | decoder(z_1, ..., z_I))

    :meth:`model` and :meth:`guide` are a Pyro program for ``TraceConjugate_ELBO``. Factors with equal K and
    equal labelling form a group, with one set of vectorised sites. With several groups, the names of sites
    have the suffix ``_0``, ``_1``, ...

    Args:
        encoder: maps x ``[..., *event_shape]`` to the location and scale of q(z), each [..., I·D].
        decoder: maps z [..., I·D] to features ``[..., outputs, *event_shape]``.
        observation: distribution of x given the features.
        num_components: K_i of each of the I factors.
        dim: D, dimensions of each factor.
        num_data: N, data points in the training set.
        labelled: indices of the factors with labels, in the order of the labels' columns.
        hyperprior: c0, m0, s0, a0, b0.
        distortion: transform applied to x before the encoder, in training mode only, such as
            :class:`~pyro_fmvae.nn.RandomWarp`; None for none. The decoder still explains x itself.

    Raises:
        ValueError: an argument out of range.
    """

    bounded = True
    """True: the loss is a bound on log p(x). See :attr:`VAE.bounded`."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        observation: Observation,
        num_components: Sequence[int],
        dim: int,
        num_data: int,
        labelled: Sequence[int] = (),
        hyperprior: Hyperprior | None = None,
        distortion: nn.Module | None = None,
    ) -> None:
        super().__init__()
        sizes = check_sizes("num_components", num_components)
        if len(set(labelled)) != len(labelled) or not set(labelled) <= set(range(len(sizes))):
            known = f"different factors out of 0..{len(sizes) - 1}"
            raise ValueError(f"labelled: expected {known}, got {tuple(labelled)}")
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
        self.distortion = nn.Identity() if distortion is None else distortion
        self.num_components, self.labelled = sizes, tuple(labelled)
        self.dim, self.num_data = check_size("dim", dim), check_size("num_data", num_data)
        self.latent_dim = len(sizes) * self.dim
        self.groups = nn.ModuleList(make_groups(sizes, dim, self.labelled, hyperprior))
        self.layout = FactorLayout([group.factors for group in self.factor_groups()], self.dim)
        self.gate: Tensor
        self.register_buffer("gate", torch.ones(self.latent_dim), persistent=False)

    def factor_groups(self) -> list[FactorGroup]:
        """Groups of factors that are vectorised together."""
        return [group for group in self.groups if isinstance(group, FactorGroup)]

    def model(self, x: Tensor, labels: Tensor | None = None, posterior: LocScale | None = None) -> None:
        """The generative model, equations 1 and 2.

        Args:
            x: a batch ``[B, *event_shape]``.
            labels: integers [B, number of labelled factors], -1 = unknown; None if all are unknown.
            posterior: location and scale of q(z) [B, I·D], used by the guide in place of the encoder's.

        Raises:
            ValueError: labels of another shape or type.
        """
        labels = check_integers("labels", labels, (len(x), len(self.labelled)))
        param_statements("decoder", self.decoder)
        data = pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1)
        z = self.layout.join([group.model(data, labels) for group in self.factor_groups()])
        if 0 < len(self.labelled) < len(self.num_components):
            z = z * self.gate
        with data:
            pyro.sample("x", self.observation(self.decoder(z)), obs=x)

    def gate_free(self, share: float) -> None:
        """Scale the blocks of unlabelled factors at the input of the decoder in :meth:`model`.

        A decoder that first learns to reconstruct from labelled factors alone uses the others only for what
        labels do not explain. Without labelled factors nothing is gated. The gate is not part of the state:
        a learning phase that needs it closed closes it during each step.

        Args:
            share: factor of the blocks, from 0 (closed) to 1 (open).
        """
        if not self.labelled:
            return
        labelled = [factor in self.labelled for factor in range(len(self.num_components))]
        open_ = torch.tensor(labelled, device=self.gate.device).repeat_interleave(self.dim)
        self.gate.copy_(torch.where(open_, 1.0, share))

    def guide(self, x: Tensor, labels: Tensor | None = None, posterior: LocScale | None = None) -> None:
        """The posterior approximation without its assignments, equation 3; arguments as for :meth:`model`."""
        given = "encoder" if posterior is None else "posterior"
        if posterior is None:
            param_statements("encoder", self.encoder)
            posterior = self._encode(x)
        param_statements("prior", self.groups)
        loc, scale = (self.layout.split(given, part) for part in posterior)
        data = pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1)
        for group in self.factor_groups():
            group.guide(data, *(self.layout.take(part, group.factors) for part in (loc, scale)))

    def prior_model(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The model without the site x, to learn λ from encodings alone; arguments as for :meth:`model`."""
        labels = check_integers("labels", labels, (len(x), len(self.labelled)))
        data = pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1)
        for group in self.factor_groups():
            group.model(data, labels)

    def prior_guide(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The guide with the encoder held fixed."""
        with torch.no_grad():
            encoded = self._encode(x)
        self.guide(x, labels, encoded)

    def _encode(self, x: Tensor) -> LocScale:
        """Location and scale of q(z), from a distorted x in training mode."""
        return self.encoder(self.distortion(x) if self.training else x)

    def _moments(self, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | x), each [I, M, D], from its location and scale [M, I·D]."""
        mean, variance = self.layout.split("loc", loc), self.layout.split("scale", scale).square()
        check_shape("scale", scale, "loc", loc)
        return mean, variance

    def start_at(self, x: Tensor) -> None:
        """Initialise the decoder from the mean and spread of data: see :meth:`VAE.start_at`."""
        self.pretraining().start_at(x)

    def pretraining(self) -> VAE:
        """The plain VAE with the same networks, for pretraining them before the prior is fitted."""
        parts = self.encoder, self.decoder, self.observation
        vae = VAE(*parts, self.latent_dim, self.num_data, self.distortion)
        vae.training = self.training  # of this module alone: the networks keep their modes
        return vae

    @torch.no_grad()
    def responsibilities(self, x: Tensor) -> list[Tensor]:
        """γ_i of every factor by equation 5, without labels: I tensors [B, K_i]; use ``eval()`` mode."""
        by_site = TraceConjugate_ELBO().responsibilities(self.prior_model, self.prior_guide, x)
        of_groups = [g for group in self.factor_groups() for g in by_site[f"assignment{group.suffix}"]]
        return self.layout.in_order(of_groups)

    def codes(self, x: Tensor) -> Tensor:
        """The product-quantised code of each point, argmax_k γ_ik: int64 [B, I]; use ``eval()`` mode."""
        return torch.stack([gamma.argmax(-1) for gamma in self.responsibilities(x)], -1)

    @torch.no_grad()
    def sample_codes(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw the component of each factor, equation 9: int64 [num_samples, I].

        Args:
            num_samples: number of draws.
            codes: int64 [num_samples, I], fixed components, or -1 to draw one; None draws all.

        Raises:
            ValueError: ``codes`` of another shape, or with values outside -1 to K_i - 1.
        """
        codes = check_codes("codes", codes, num_samples, self.num_components)
        weights = [group.predictive().weights for group in self.factor_groups()]
        drawn = [Categorical(w, validate_args=False).sample((num_samples or 1,)) for w in weights]
        all_drawn = torch.cat(drawn, -1)[:num_samples, self.layout.places]
        given = all_drawn if codes is None else codes.to(all_drawn.device)
        return torch.where(given >= 0, given, all_drawn)

    @torch.no_grad()
    def sample_latent(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw z from the posterior predictive, equations 9 and 10: [num_samples, I·D].

        Arguments and errors are those of :meth:`sample_codes`.
        """
        codes = self.sample_codes(num_samples, codes)
        of_groups = [(group.predictive(), codes[:, list(group.factors)]) for group in self.factor_groups()]
        return self.layout.join([prior.sample_given(given).movedim(-2, 0) for prior, given in of_groups])

    def log_prior(self, z: Tensor) -> Tensor:
        """Log of the posterior predictive density of z [B, I·D], equation 10 with π and r summed out: [B].

        The computation is in float64: the normaliser of a Student-t with thousands of degrees of freedom is a
        difference of log Γ, which float32 gets wrong in the third decimal in every dimension.
        """
        blocks = self.layout.split("z", z.double())
        log_probs = [
            group.predictive(torch.float64).log_prob(self.layout.take(blocks, group.factors).movedim(0, -2))
            for group in self.factor_groups()
        ]
        return torch.stack(log_probs).sum(0).to(z.dtype)

    def posterior(self, x: Tensor) -> Distribution:
        """q(z | x) for a batch ``[B, *event_shape]``: batch shape [B], event shape [I·D]."""
        return self.pretraining().posterior(x)

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | z) + log p(z) - log q(z | x) at draws of z from q: [num_samples, B].

        Their mean is the collapsed bound on log p(x): see :mod:`pyro_fmvae.infer.importance`.
        """
        log_likelihood = self.pretraining().log_likelihood
        return log_weights(x, self.posterior(x), self.log_prior, log_likelihood, num_samples)

    def used_components(self) -> list[int]:
        """Number of components per factor with more than a twentieth of an equal share of the data."""
        used = [number for group in self.factor_groups() for number in group.used(self.num_data)]
        return self.layout.in_order(used)

    @torch.no_grad()
    def seed(
        self, loc: Tensor, scale: Tensor, labels: Tensor | None, generator: torch.Generator, restarts: int = 1
    ) -> None:
        """Initialise λ from encoded data: clusters by label for labelled factors, by k-means for the others.

        Args:
            loc, scale: location and scale of q(z | x) for M points of the training set, [M, I·D].
            labels: integers [M, number of labelled factors], -1 = unknown, or None.
            generator: random generator on the CPU.
            restarts: number of k-means starts of each factor without labels. With more than one, each start
                is improved by coordinate ascent (:mod:`pyro_fmvae.infer.seeding`), and the best bound is
                kept.

        Raises:
            ValueError: ``restarts`` < 1, or encodings or labels of another shape, type or range.
        """
        mean, variance = self._moments(loc, scale)
        sizes = [self.num_components[factor] for factor in self.labelled]
        labels = check_codes("labels", labels, len(loc), sizes, "column")
        for group in self.factor_groups():
            group.seed(mean, variance, labels, self.num_data, generator, restarts)

    @torch.no_grad()
    def restart(
        self, loc: Tensor, scale: Tensor, generator: torch.Generator, restarts: int = 1
    ) -> dict[int, float]:
        """Reinitialise λ of each factor without labels, in place, if a new start reaches a greater bound.

        Arguments are those of :meth:`seed`. Both the present λ and the new starts are improved by coordinate
        ascent before they are compared.

        Returns:
            Reinitialised factor → gain over the improved present λ in nats per point.

        Raises:
            ValueError: as for :meth:`seed`.
            TypeError: λ of a factor without labels is in standard parameters.
        """
        data = *self._moments(loc, scale), self.num_data
        unlabelled = [group for group in self.factor_groups() if not group.columns]
        gains = [group.restart(*data, generator, restarts) for group in unlabelled]
        return {factor: gain for of_group in gains for factor, gain in of_group.items()}

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Give every posterior the parameterisation that it has in a state dictionary, before loading it."""
        for number, group in enumerate(self.factor_groups()):
            if f"groups.{number}.weights.natural" in state_dict:
                group.use_natural()
            else:
                group.use_standard()
