"""The factorial mixture prior VAE. Paquet, Ghaisas and Tieleman (2018)."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_fmvae.distributions import Observation
from pyro_fmvae.infer.elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.factor_group import NO_PLATE, Hyperprior
from pyro_fmvae.models.factorial_prior import FactorialPrior
from pyro_fmvae.models.label_predictor import LabelPredictor, predictors_of
from pyro_fmvae.models.shapes import check_integers, of_components
from pyro_fmvae.models.vae import VAE, Decoding, LocScale


class FactorialMixtureVAE(Decoding, FactorialPrior):
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
        per_view: indices of the factors whose assignments differ from view to view. The views of a point
            share those of all other factors.
        per_value: C, components for each value of a label. Component k of a labelled factor stands for the
            value k modulo K / C, and a label clamps to all components of its value.

    Attributes:
        predictors: of labels that the networks have not learnt, by the number of their column, for
            :meth:`predicted_codes`; none at first.
        code_mixture: an ``ObservedMixture`` of z, whose components make up clusters; None at first.

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
        per_view: Sequence[int] = (),
        per_value: int = 1,
    ) -> None:
        super().__init__(num_components, dim, num_data, labelled, hyperprior, per_view, per_value)
        self.encoder, self.decoder, self.observation = encoder, decoder, observation
        self.distortion = nn.Identity() if distortion is None else distortion
        self.predictors = nn.ModuleDict()
        self.code_mixture: nn.Module | None = None
        self.gate: Tensor
        self.register_buffer("gate", torch.ones(self.latent_dim), persistent=False)

    def model(self, x: Tensor, labels: Tensor | None = None, posterior: LocScale | None = None) -> None:
        """The generative model, equations 1 and 2.

        Of a point with several views, each view has a z of its own, and one assignment is the parent of all.

        Args:
            x: a batch ``[B, *event_shape]``, or ``[B, V, *event_shape]`` of V views of each point.
            labels: integers [B, number of labelled factors], -1 = unknown; None if all are unknown.
            posterior: location and scale of q(z) [B, I·D] or [B, V, I·D], used by the guide in place of the
                encoder's.

        Raises:
            ValueError: labels of another shape or type.
        """
        data, views = self._plates(x)
        labels = check_integers("labels", labels, (len(x), len(self.labelled)))
        param_statements("decoder", self.decoder)
        z = self.layout.join([group.model(data, labels, views) for group in self.factor_groups()])
        if 0 < len(self.labelled) < len(self.num_components):
            z = z * self.gate
        data_by_view = x if views is NO_PLATE else x.movedim(1, 0).unsqueeze(1)
        with data, views:
            density = self.observation.density(self.decoder, z, data_by_view)
            pyro.sample("x", density, obs=self.observation.explained(data_by_view))

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
        data, views = self._plates(x)
        for group in self.factor_groups():
            own_loc, own_scale = (self.layout.take(part, group.factors) for part in (loc, scale))
            if views is not NO_PLATE:
                own_loc, own_scale = own_loc.movedim(-2, 0), own_scale.movedim(-2, 0)
            group.guide(data, own_loc, own_scale, views)

    def prior_model(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The model without the site x, to learn λ from encodings alone; arguments as for :meth:`model`."""
        data, views = self._plates(x)
        labels = check_integers("labels", labels, (len(x), len(self.labelled)))
        for group in self.factor_groups():
            group.model(data, labels, views)

    def prior_guide(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The guide with the encoder held fixed."""
        with torch.no_grad():
            encoded = self._encode(x)
        self.guide(x, labels, encoded)

    def _plates(self, x: Tensor) -> tuple[pyro.plate, AbstractContextManager[Any]]:
        """The plate of the data, and that of the views of a point if ``x`` has several."""
        data = pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1)
        several = x.dim() > self.observation.event_dim + 1
        return data, pyro.plate("views", x.shape[1], dim=-3) if several else NO_PLATE

    def _encode(self, x: Tensor) -> LocScale:
        """Location and scale of q(z), from a distorted x in training mode."""
        return self.encoder(self.distortion(x) if self.training else x)

    def pretraining(self) -> VAE:
        """The plain VAE with the same networks, for pretraining them before the prior is fitted."""
        parts = self.encoder, self.decoder, self.observation
        vae = VAE(*parts, self.latent_dim, self.num_data, self.distortion)
        vae.training = self.training  # of this module alone: the networks keep their modes
        return vae

    @torch.no_grad()
    def responsibilities(self, x: Tensor) -> list[Tensor]:
        """γ_i of every factor by equation 5, without labels: I tensors [B, K_i]; use ``eval()`` mode.

        Of several views ``x[B, V, *event_shape]`` it is that of all of them together, or, of the factors in
        ``per_view``, of each: [V, B, K_i].
        """
        by_site = TraceConjugate_ELBO().responsibilities(self.prior_model, self.prior_guide, x)
        of_groups = [
            of_factor
            for group in self.factor_groups()
            for of_factor in by_site[f"assignment{group.suffix}"].unbind(-3)
        ]
        return self.layout.in_order(of_groups)

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``codes`` [B, I]; ``mean``, ``scale`` [B, I·D]; per factor i ``responsibilities_i`` [B, K_i]."""
        return of_components(self.responsibilities(x), super().encode(x))

    def codes(self, x: Tensor) -> Tensor:
        """The product-quantised code of each point, argmax_k γ_ik: int64 [B, I]; use ``eval()`` mode."""
        return torch.stack([gamma.argmax(-1) for gamma in self.responsibilities(x)], -1)

    @torch.no_grad()
    def predicted_codes(self, x: Tensor) -> Tensor:
        """:meth:`codes`, but of each label with a predictor the value that this predicts: int64 [B, I]."""
        codes, numbers = self.codes(x), x.flatten(1).double()
        for column, predictor in self.predictors.items():
            assert isinstance(predictor, LabelPredictor)
            own = numbers.new_zeros(len(x), len(predictor.tilt))  # which has no weight
            codes[:, self.labelled[int(column)]] = predictor(numbers, own).argmax(-1)
        return codes

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: the form of posteriors, and shapes of predictors."""
        super().match(state_dict)
        self.predictors = nn.ModuleDict(predictors_of(state_dict, "predictors.")).to(self.gate.device)

    def posterior(self, x: Tensor) -> Distribution:
        """q(z | x) for a batch ``[B, *event_shape]``: batch shape [B], event shape [I·D]."""
        return self.pretraining().posterior(x)

    @torch.no_grad()
    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Log-weights log p(x | z) + log p(z) - log q(z | x) at draws of z from q: [num_samples, B].

        Their mean is the collapsed bound on log p(x): see :mod:`pyro_fmvae.infer.importance`.
        """
        return log_weights(x, self.posterior(x), self.log_density(), self.log_likelihood, num_samples)
