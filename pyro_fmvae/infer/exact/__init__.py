"""Exact posteriors: complete conditionals of conjugate sites, and Gibbs sampling."""

from pyro_fmvae.infer.exact.conditionals import Block, LogJoint, find_blocks
from pyro_fmvae.infer.exact.gibbs import GibbsKernel

__all__ = ["Block", "GibbsKernel", "LogJoint", "find_blocks"]
