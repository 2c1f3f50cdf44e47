"""Torch optimisers refuse natural parameters, whose gradients are natural gradients already."""

from typing import Any

from torch.optim import Optimizer

from pyro_fmvae.distributions import NaturalParameter


def refuse_natural_parameters(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """A hook before the step of every torch optimiser, those that Pyro's wrap included.

    Raises:
        TypeError: a ``NaturalParameter`` with a gradient is among its parameters; none of them has moved.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, NaturalParameter) and p.grad is not None:
                kind, shape = type(optimizer).__name__, list(p.shape)
                raise TypeError(
                    f"{kind} was given a NaturalParameter of shape {shape}, whose gradient is a natural "
                    "gradient already: train the program by SVI(model, guide, NaturalGradient(rate), loss), "
                    "with NaturalGradient(rate, partial(torch.optim.Adam, lr=1e-3)) if it has other "
                    "parameters too, or give the guide standard parameters (to_standard)"
                )
