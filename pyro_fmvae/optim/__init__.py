"""Optimisers: natural gradients beside a torch optimiser, and their step sizes.

Importing it makes every torch optimiser refuse natural parameters.
"""

from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyro_fmvae.optim.first_order import refuse_natural_parameters
from pyro_fmvae.optim.natural_gradient import NaturalGradient
from pyro_fmvae.optim.schedule import RobbinsMonro

__all__ = ["NaturalGradient", "RobbinsMonro"]

register_optimizer_step_pre_hook(refuse_natural_parameters)
