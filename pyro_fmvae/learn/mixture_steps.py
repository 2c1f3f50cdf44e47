"""Steps of a mixture of table rows towards its conjugate posterior, and the bound that they raise."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.packed_numbers import Seen
from pyro_fmvae.models.table_sites import WEIGHTS, child_of

Naturals = Mapping[str, Tensor]
"""Site → natural parameters, or sums of the sufficient statistics that are added to them."""


@torch.no_grad()
def updated(
    model: ObservedMixture, before: Naturals, observations: Seen, gamma: Tensor, scale: float = 1.0
) -> dict[str, Tensor]:
    """Natural parameters with the statistics of rows added to them, given responsibilities.

    For full covariances, missing numbers are filled in as the present posterior expects them.

    Args:
        model: whose sites these are.
        before: of every site of parameters. From the priors, the result is the conjugate posterior.
        observations: of B rows, :meth:`ObservedMixture.packed` or not; labels may be left out.
        gamma: responsibilities of these rows, [B, K].
        scale: rows that each row stands for.
    """
    after = dict(before)
    for name, natural in before.items():
        child = child_of(name)
        if name == WEIGHTS:
            after[name] = natural + scale * model.prior.weights.told(gamma.double().sum(0))
        elif child in observations:
            after[name] = model.conjugate(child, natural, observations[child], gamma, scale)
    return after


@torch.no_grad()
def ascend(
    model: ObservedMixture, observations: Seen, gamma: Tensor, rate: float = 1.0, learn: bool = True
) -> None:
    """Move λ towards the conjugate posterior λ* given responsibilities, by the rate ρ.

    With ρ = 1 and all rows this is coordinate ascent, and the bound rises.

    Args:
        model: learnt in place.
        observations: of B rows that stand for all N: see :func:`updated`.
        gamma: responsibilities of these rows, [B, K].
        rate: ρ in (0, 1].
        learn: a prior that is learnt follows.
    """
    priors = {name: prior.natural for name, prior in model.natural_priors().items()}
    targets = updated(model, priors, observations, gamma, model.num_data / len(gamma))
    for name, target in targets.items():
        natural = model.posterior_of(name).natural
        natural.copy_(blend(natural, target, rate))
    if learn:
        model.learn_prior()


@torch.no_grad()
def bound_of(model: ObservedMixture, table: Tensor) -> float:
    """The variational bound, in nats for all N rows.

    Args:
        model: as it stands.
        table: of :meth:`ObservedMixture.table`, of B rows that stand for all.
    """
    scale = model.num_data / len(table)
    return (scale * table.logsumexp(-1).sum() - model.divergence()).item()
