"""Masks inside of distributions."""

from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from torch.distributions import Independent

from pyro_fmvae.distributions.columns import Columns


def is_masked(fn: Any) -> bool:
    """True if a distribution, or one inside of it, is masked."""
    if isinstance(fn, Columns):
        return any(map(is_masked, fn.parts))
    return isinstance(fn, MaskedDistribution) or (hasattr(fn, "base_dist") and is_masked(fn.base_dist))


def check_mask_of_states(emissions: Any) -> None:
    """Refuse emissions, of a batch shape [..., K], whose mask differs between the K states."""
    fn, dim = emissions, len(emissions.batch_shape) - 1
    while isinstance(fn, Independent | MaskedDistribution):
        if isinstance(fn, MaskedDistribution):
            mask = torch.as_tensor(fn._mask).expand(fn.batch_shape)
            if (mask != mask.narrow(dim, 0, 1)).any():
                raise ValueError(
                    "emissions: expected a mask that is the same for all states, whose dimension is the last "
                    f"one of {list(emissions.batch_shape)}; write mask(present.unsqueeze(-1))"
                )
        fn = fn.base_dist
    for part in fn.parts if isinstance(fn, Columns) else ():
        check_mask_of_states(part)
