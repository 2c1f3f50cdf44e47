"""Optimisers: natural gradients beside a torch optimiser, and their step sizes."""

from pyro_fmvae.optim.natural_gradient import NaturalGradient
from pyro_fmvae.optim.schedule import RobbinsMonro

__all__ = ["NaturalGradient", "RobbinsMonro"]
