"""Searches for free Gaussians from fixed seeds, for the tests of eager and of captured ones."""

import torch

from pyro_fmvae.em.free_gaussian import FreeGaussian
from pyro_fmvae.models.posterior_family import PointPosterior
from tests.models.small import small_model


def start(size, dims):
    """Random m and s."""
    return torch.randn(size, dims), 0.3 + torch.rand(size, dims)


def found(program, x, at, steps=5, rate=0.1, calls=1, options=None, kind=FreeGaussian, **how):
    """What the last of some calls finds, from a fixed seed."""
    torch.manual_seed(1)
    free = kind(program, steps, rate, **how)
    for _ in range(calls):
        result = free(x, *at, **(options or {}))
    return result


def small_vae():
    """A plain VAE with four latent dimensions."""
    return small_model((1, 1)).pretraining()


def programs():
    """Programs with free Gaussians, by name."""
    points = small_vae()
    points.family = PointPosterior()
    return {
        "vae": small_vae(),
        "points": points,
        "mixture": small_model((2, 2)),
        "ragged mixture": small_model((2, 3), labelled=(0,)),
    }
