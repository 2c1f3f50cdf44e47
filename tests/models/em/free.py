"""Free Gaussians of small programs, found from a fixed seed."""

import torch

from pyro_fmvae.models.em import FreeGaussian
from pyro_fmvae.models.vae import PointPosterior
from tests.models.small import small_model


def start(size, dims):
    return torch.randn(size, dims), 0.3 + torch.rand(size, dims)


def found(program, x, at, steps=5, rate=0.1, calls=1, options=None, kind=FreeGaussian, **how):
    """Result of the last of some calls."""
    torch.manual_seed(1)
    free = kind(program, steps, rate, **how)
    for _ in range(calls):
        result = free(x, *at, **(options or {}))
    return result


def programs():
    points = small_model((1, 1)).pretraining()
    points.family = PointPosterior()
    return {
        "vae": small_model((1, 1)).pretraining(),
        "points": points,
        "mixture": small_model((2, 2)),
        "ragged mixture": small_model((2, 3), labelled=(0,)),
    }
