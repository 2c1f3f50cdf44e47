"""Student-t variables with equal degrees of freedom: predictive densities of Normal-Gamma components."""

import math

from pyro.distributions import Independent
from torch import Tensor
from torch.distributions.utils import lazy_property


class IndependentStudentT(Independent):
    """Independent Student-t variables with equal degrees of freedom, as one event: few logarithms a point."""

    @lazy_property
    def _constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """1 / (scale √df) [..., D]; (df + 1) / 2 and the sum of the log-normalisers [...]."""
        base = self.base_dist
        half, power = base.df / 2, (base.df + 1) / 2
        log_normaliser = power.lgamma() - half.lgamma() - 0.5 * (math.pi * base.df).log() - base.scale.log()
        return (base.scale * base.df.sqrt()).reciprocal(), power[..., 0], log_normaliser.sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of values [..., D], Σ_d log p(value_d), [...]."""
        if self.base_dist._validate_args:
            self.base_dist._validate_sample(value)
        inverse, power, log_normaliser = self._constants
        distance = (value - self.base_dist.loc) * inverse
        logs = sum_of_logs(1 + (distance * distance).double())
        return log_normaliser - power * logs.to(distance.dtype)


def sum_of_logs(b: Tensor) -> Tensor:
    """Σ_d log b_d of b [..., D] > 0, by one logarithm for each four numbers between 1e-77 and 1e77.

    Float64 logarithms are the most expensive part of E[t] otherwise.
    """
    quarter = b.shape[-1] // 4
    first, second, third, fourth, rest = b.split([quarter] * 4 + [b.shape[-1] - 4 * quarter], -1)
    return (first * second * third * fourth).log().sum(-1) + rest.log().sum(-1)
