"""Data sets that are published or generated."""

from pyro_fmvae.data.sets import celeba, smileys

__all__ = ["celeba", "smileys"]
