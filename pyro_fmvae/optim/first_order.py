"""Torch optimisers refuse natural parameters, whose gradients are natural gradients already."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyro_fmvae.distributions import NaturalParameter


def refuse_natural_parameters(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """A hook before the step of every torch optimiser, those that Pyro's wrap included.

    Raises:
        TypeError: a ``NaturalParameter`` with a gradient is among its parameters; none of them has moved.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, NaturalParameter) and p.grad is not None:
                raise TypeError(
                    f"{type(optimizer).__name__} was given a NaturalParameter of shape {list(p.shape)}, whose "
                    "gradient is the natural gradient already: train the program by SVI(model, guide, "
                    "NaturalGradient(rate), loss), or NaturalGradient(rate, partial(torch.optim.Adam, "
                    "lr=1e-3)) if it has other parameters, or give the guide standard parameters by "
                    "to_standard(posterior)"
                )


register_optimizer_step_pre_hook(refuse_natural_parameters)
