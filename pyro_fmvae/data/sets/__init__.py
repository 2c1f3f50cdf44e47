"""Data sets that are published or generated."""

from pyro_fmvae.data.sets import (
    bars,
    celeba,
    fashion_mnist,
    mnist,
    mnist_static,
    omniglot,
    scenes,
    smileys,
    sprites,
)

__all__ = [
    "bars",
    "celeba",
    "fashion_mnist",
    "mnist",
    "mnist_static",
    "omniglot",
    "scenes",
    "smileys",
    "sprites",
]
