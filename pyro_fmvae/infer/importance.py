"""Importance weights of draws from a posterior approximation, for tighter bounds on log p(x)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.utils.checkpoint import checkpoint

# The total correlation of the aggregate posterior, estimated from a batch; a β-TCVAE weights it.
#
# Averaged over the data, KL(q(z | x) || p(z)) is the mutual information of x and z, plus the total
# correlation KL(q(z) || Π_j q(z_j)), plus the divergence of each q(z_j) from its prior, where q(z) is the
# average of q(z | x) over all N points (Chen et al., 2018, equation 2).

_LARGEST = 2**24  # numbers in a table of densities, above which it is made in parts


def total_correlation(z: Tensor, loc: Tensor, scale: Tensor, num_data: int) -> Tensor:
    """The total correlation, as a sum over the points of a batch: log q(z) - Σ_j log q(z_j), [B].

    Their mean estimates it, with

        q(z) ≈ q(z | x_i) / N + (N - 1) / N · mean over k ≠ i of q(z | x_k)

    for z drawn from q(z | x_i), and the same for each q(z_j). Over random batches both are unbiased, their
    logarithms are not; with all N points in the batch both are exact. A batch of a single one of several
    points tells nothing of the others, and gives 0.

    Args:
        z: draws from q(z | x_i), [B, J].
        loc, scale: of q(z | x_i) = N(loc_i, diag(scale_i²)), [B, J].
        num_data: N >= B.

    Raises:
        ValueError: N < B, or shapes that are not the same [B, J].
    """
    if z.dim() != 2 or not z.shape == loc.shape == scale.shape:
        shapes = ", ".join(str(list(t.shape)) for t in (z, loc, scale))
        raise ValueError(f"z, loc, scale: expected the same shape [B, J], got {shapes}")
    size, dims = z.shape
    if num_data < size:
        raise ValueError(f"num_data: expected a number >= {size}, the size of the batch, got {num_data}")
    log_weights = _log_weights(size, num_data, z)
    rows = max(_LARGEST // (size * dims), 1)
    if rows >= size:
        return _rows(z, log_weights, loc, scale)
    parts = []
    for part in zip(z.split(rows), log_weights.split(rows), strict=True):
        parts.append(checkpoint(_rows, *part, loc, scale, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts)


def _log_weights(size: int, num_data: int, like: Tensor) -> Tensor:
    """Log of the weight of q(z | x_k) in q(z) for z of point i: [B, B]."""
    if size == 1:
        return like.new_zeros(1, 1)
    own = torch.eye(size, dtype=torch.bool, device=like.device)
    others = math.log((num_data - 1) / (num_data * (size - 1)))
    return torch.where(own, like.new_tensor(-math.log(num_data)), others)


def _rows(z: Tensor, log_weights: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The total correlation of some of the points, z [R, J] and log_weights [R, B]."""
    log_probs = Normal(loc, scale, validate_args=False).log_prob(z.unsqueeze(1))  # [R, B, J]
    joint = (log_probs.sum(-1) + log_weights).logsumexp(1)
    marginals = (log_probs + log_weights.unsqueeze(-1)).logsumexp(1)
    return joint - marginals.sum(-1)


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
