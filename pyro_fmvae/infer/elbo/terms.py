"""The summands of the loss, and the parts of the bound that they belong to."""

from dataclasses import dataclass
from enum import Enum

import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.structure import Site


class Role(Enum):
    """The part of equation 4 that a site's loss belongs to, or a term that is added to the bound."""

    RECONSTRUCTION = "reconstruction"
    KL_Z = "kl_z"
    KL_R = "kl_r"
    KL_GLOBAL = "kl_global"
    LABEL = "label"
    DEPENDENCE = "dependence"
    FACTOR = "factor"


@dataclass(frozen=True)
class Term:
    """One summand of the loss.

    Attributes:
        name: the site that it belongs to.
        role: its part of the bound.
        value: in nats, a scalar.
        natural: whether it is the KL divergence of a natural posterior.
    """

    name: str
    role: Role
    value: Tensor
    natural: bool = False


def role_of(site: Site, otherwise: Role) -> Role:
    """``Role.FACTOR`` for a site of ``pyro.factor``, in a model or in a guide; another role otherwise."""
    return Role.FACTOR if isinstance(unwrap(site["fn"]), dist.Unit) else otherwise


def total(tensor: Tensor, site: Site) -> Tensor:
    """Scaled and masked as a site is, and summed."""
    return scale_and_mask(tensor, site["scale"], site["mask"]).sum()


def sum_terms(terms: list[Term]) -> Tensor:
    """The sum of the terms' values (0 if there are none), in the widest type among them."""
    return sum((term.value for term in terms[1:]), terms[0].value) if terms else torch.zeros(())
