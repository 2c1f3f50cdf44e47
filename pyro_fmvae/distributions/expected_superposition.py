"""E_q[log p(x | causes)] in closed form, where the mean of x is linear in the causes."""

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob, unwrap
from pyro_fmvae.distributions.superposition import LinearNormal, normal_log_prob


@register_expected_log_prob(dist.Delta, LinearNormal)
def expected_linear_normal(q: dist.Delta, p: LinearNormal, posteriors: Posteriors) -> Tensor:
    """E[log N(x; W s, σ² I)] [...]: it depends on s through its mean and variance alone.

    Missing elements of x (NaN) are left out. Causes are independent, or independent in groups whose
    ``superposed_variance(W)`` gives the variance of W s.

    Args:
        q: x, observed.
        p: the model's distribution.
        posteriors: that of ``causes``, with batch shape [...].

    Raises:
        NotImplementedError: a posterior whose dimensions may depend on each other in another way.
    """
    causes: Any = unwrap(posteriors["causes"])
    weight = p.weight
    if hasattr(causes, "superposed_variance"):
        variance = causes.superposed_variance(weight)
    elif _independent(posteriors["causes"]):
        variance = causes.variance @ weight.square().T
    else:
        raise NotImplementedError(
            f"causes: no closed form of the variance of W s under {type(causes).__name__}; expected "
            "independent dimensions, or a method superposed_variance"
        )
    return normal_log_prob(q.v, causes.mean @ weight.T, variance, p.scale)


def _independent(fn: Distribution) -> bool:
    """True if the last dimension of the event holds independent numbers."""
    return isinstance(fn, torch.distributions.Independent) and fn.base_dist.event_shape == ()
