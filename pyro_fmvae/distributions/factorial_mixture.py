"""The prior over z with its assignments summed out, in one distribution. Paquet et al. (2018), eqs 9-10."""

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import Dirichlet, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_fmvae.distributions.dirichlet import DIRICHLET
from pyro_fmvae.distributions.normal_gamma import NORMAL_GAMMA, NormalGamma


class FactorialMixture(TorchDistribution):
    """A product of I independent mixtures of K components each, over z of event shape (I, D).

    Args:
        weights: mixing proportions, on the simplex, [..., I, K].
        components: batch shape [..., I, K], event shape (D,).

    Raises:
        ValueError: shapes that don't fit, or (with validation on) weights off the simplex.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "weights": constraints.independent(constraints.simplex, 1)
    }
    support = constraints.independent(constraints.real, 2)

    def __init__(self, weights: Tensor, components: Distribution, validate_args: bool | None = None) -> None:
        if weights.dim() < 2 or components.batch_shape != weights.shape or len(components.event_shape) != 1:
            raise ValueError(
                f"components: expected batch shape {list(weights.shape)} (that of weights, [..., I, K]) and "
                f"event shape [D], got {list(components.batch_shape)} and {list(components.event_shape)}"
            )
        self.weights, self.components = weights, components
        event = torch.Size((weights.shape[-2], components.event_shape[0]))
        super().__init__(weights.shape[:-2], event, validate_args=validate_args)

    @classmethod
    def predictive(
        cls, weights: Dirichlet, loc_precision: NormalGamma, dtype: torch.dtype | None = None
    ) -> "FactorialMixture":
        """The posterior predictive of z: π and (μ, α) integrated out (equation 10).

        Args:
            weights: q(π), event shape (K,), batch shape [..., I] or, as its plates leave it, [..., I, 1].
            loc_precision: q(μ, α), batch shape [..., I, K], event shape (2, D).
            dtype: of the mixture's parameters; torch's default dtype if None.

        Returns:
            Mixing proportions c / Σc; components Student-t with 2a degrees of freedom, location m and
            *squared* scale ((s+1)/s)(b/a) in each dimension.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        proportions = DIRICHLET.predictive((weights.concentration,), dtype).probs
        if proportions.dim() > len(loc_precision.batch_shape):
            proportions = proportions.squeeze(-2)
        return cls(proportions, NORMAL_GAMMA.predictive(loc_precision.standard, dtype))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "FactorialMixture":
        """Expand to ``batch_shape``."""
        new = self._get_checked_instance(FactorialMixture, _instance)
        shape = torch.Size((*batch_shape, *self.weights.shape[-2:]))
        new.weights, new.components = self.weights.expand(shape), self.components.expand(shape)
        super(FactorialMixture, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def component_logits(self, value: Tensor) -> Tensor:
        """For z [..., I, D]: log π_ik + log p(z_i | k), [..., I, K]."""
        return self.weights.log() + self.components.log_prob(value.unsqueeze(-2))

    def log_prob(self, value: Tensor) -> Tensor:
        """Σ_i logsumexp_k { log π_ik + log p(z_i | k) } for z [..., I, D]."""
        if self._validate_args:
            self._validate_sample(value)
        return self.component_logits(value).logsumexp(-1).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws [*sample_shape, ..., I, D]."""
        weights = torch.distributions.Categorical(self.weights, validate_args=False)
        return self._draws(weights.sample(torch.Size(sample_shape)))

    def sample_given(self, codes: Tensor) -> Tensor:
        """Draws z [..., I, D] from the components of the given indices [..., I] (all K are drawn).

        Raises:
            ValueError: indices that are not integers from 0 to K - 1.
        """
        count = self.weights.shape[-1]
        if codes.is_floating_point() or not ((codes >= 0) & (codes < count)).all():
            raise ValueError(f"codes: expected integers from 0 to {count - 1}, got {codes.unique().tolist()}")
        return self._draws(codes)

    def _draws(self, codes: Tensor) -> Tensor:
        with torch.no_grad():
            shape = torch.Size((*codes.shape[:-1], *self.weights.shape[-2:]))
            draws = self.components.expand(shape).sample()
            return draws.take_along_dim(codes[..., None, None], -2).squeeze(-2)
