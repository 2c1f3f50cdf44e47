"""Importance weights of draws from a posterior approximation, for tighter bounds on log p(x)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal


@torch.no_grad()
def log_weights(
    x: Tensor,
    q: Distribution,
    log_prior: Callable[[Tensor], Tensor],
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    num_samples: int,
) -> Tensor:
    """Values of log p(x | z) + log p(z) - log q(z | x) at draws of z from q: [num_samples, B].

    Their mean estimates the bound itself, the log of the mean of their exponentials the importance-weighted
    one (Burda et al., 2016). One draw for all points is taken at a time, from torch's generator.

    Args:
        x: a batch ``[B, *event_shape]``.
        q: q(z | x) with batch shape [B]; all dimensions of one z are an event.
        log_prior: maps z ``[B, *q.event_shape]`` to log p(z), [B].
        log_likelihood: maps x and z to log p(x | z), [B].
        num_samples: S >= 1.

    Raises:
        ValueError: S < 1, or a q whose batch shape is not [B].
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    if q.batch_shape != x.shape[:1]:
        raise ValueError(f"q: expected batch shape {tuple(x.shape[:1])}, got {tuple(q.batch_shape)}")
    weights = []
    for _ in range(num_samples):
        z = _exact_draw(q)
        weights.append(log_likelihood(x, z) + log_prior(z) - q.log_prob(z))
    return torch.stack(weights)


def _exact_draw(q: Distribution) -> Tensor:
    """A draw, NaN where parameters are NaN; ``sample`` of a normal distribution would raise an error."""
    return q.rsample() if isinstance(getattr(q, "base_dist", q), Normal) else q.sample()
