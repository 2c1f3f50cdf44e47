"""Optimisers: natural gradients beside a torch optimiser, and their step sizes."""

from pyro_fmvae.optim.first_order import refuse_natural_parameters
from pyro_fmvae.optim.natural_gradient import NaturalGradient
from pyro_fmvae.optim.schedule import RobbinsMonro

__all__ = ["NaturalGradient", "RobbinsMonro", "refuse_natural_parameters"]
