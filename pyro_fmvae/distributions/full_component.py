"""Mixture components with full covariances. Bishop (2006), Section 10.2."""

import math

import torch
from pyro.distributions import MultivariateNormal, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions.mixture import MixtureComponent
from pyro_fmvae.distributions.normal_wishart import NORMAL_WISHART
from pyro_fmvae.distributions.packed_matrices import diagonal


class FullComponent(MixtureComponent):
    """A point's own Gaussian component with a full covariance: z | r=k ~ N(μ_k, Λ_k⁻¹).

    Args:
        loc_precision: μ above the lower triangular T with Λ = TᵀT, the very value of a Normal-Wishart site,
            [..., K, D+1, D].
        assignment: component indices, the very value of an :class:`Assignment` site, [...].

    Raises:
        ValueError: shapes that don't fit.
    """

    parents, family, parameter_dim = ("loc_precision", "assignment"), NORMAL_WISHART, 2
    support = constraints.real_vector
    has_rsample = True

    loc_precision: Tensor

    def __init__(self, loc_precision: Tensor, assignment: Tensor, validate_args: bool | None = None) -> None:
        if loc_precision.dim() < 3 or loc_precision.shape[-2] != loc_precision.shape[-1] + 1:
            shape = list(loc_precision.shape)
            raise ValueError(f"loc_precision: expected shape [..., K, D+1, D], got {shape}")
        super().__init__(loc_precision, assignment, loc_precision.shape[-1:], validate_args)

    def given(self, parameter: Tensor) -> TorchDistribution:
        """N(μ, (TᵀT)⁻¹) of (μ, T) [..., D+1, D]."""
        loc, factor = parameter[..., 0, :], parameter[..., 1:, :]
        identity = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
        scale_tril = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of z [..., D], computed without the inverse of T."""
        if self._validate_args:
            self._validate_sample(value)
        selected = self._selected()
        loc, factor = selected[..., 0, :], selected[..., 1:, :]
        white = (factor @ (value - loc).unsqueeze(-1)).squeeze(-1)
        own = diagonal(factor).log() - 0.5 * math.log(2 * math.pi)
        log_prob = (own - 0.5 * white.square()).sum(-1)
        return log_prob.expand(broadcast_shape(self.batch_shape, value.shape[:-1]))
