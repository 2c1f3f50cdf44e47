"""Exact posterior of binary sparse coding by enumeration of all states."""

from torch import Tensor

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli, binary_states
from pyro_fmvae.em.binary_mean_field import check_shapes, log_partition

MOST_UNITS = 16


def enumerate_states(
    x: Tensor, weight: Tensor, logits: Tensor, noise_precision: Tensor
) -> tuple[Tensor, GroupedBernoulli]:
    """Evidence log p(x) and posterior p(h | x) of R models of binary sparse coding.

    Takes memory for R B 2^H numbers, and for R B H² more where elements are missing; no tensor has both 2^H
    and D.

    Args:
        x: [B, D], NaN where missing.
        weight, logits, noise_precision: W [R, D, H], b [R, H] and β [R].

    Returns:
        log p(x) in nats [R, B], with gradients, and the posterior as one group of all units, batch shape
        [R, B].

    Raises:
        ValueError: more than 16 units, or shapes that do not fit.
    """
    check_shapes(x, weight, logits, noise_precision)
    units = weight.shape[-1]
    if units > MOST_UNITS:
        raise ValueError(f"weight: expected at most {MOST_UNITS} units to enumerate, got {units}")
    missing, precision = x.isnan(), noise_precision[:, None, None]
    known = x.masked_fill(missing, 0.0)
    states = binary_states(units, weight)
    if missing.any():
        products = (weight.unsqueeze(-1) * weight.unsqueeze(-2)).flatten(2)
        gram = (~missing).to(weight.dtype) @ products  # [R, B, H²]
        squares = gram @ (states.unsqueeze(-1) * states.unsqueeze(-2)).flatten(1).mT
    else:
        squares = ((states @ (weight.mT @ weight)) * states).sum(-1).unsqueeze(1)
    linear = (logits.unsqueeze(1) + precision * (known @ weight)) @ states.mT
    constant = -0.5 * noise_precision.unsqueeze(-1) * known.square().sum(-1)
    log_joint = linear - 0.5 * precision * squares
    evidence = constant + log_joint.logsumexp(-1) - log_partition(x, logits, noise_precision)
    probs = log_joint.softmax(-1).unsqueeze(-2)
    return evidence, GroupedBernoulli(probs, validate_args=False)
