"""Exact posteriors: complete conditionals of conjugate sites, Gibbs sampling, and sites integrated out."""

from pyro_fmvae.infer.exact.collapse import collapse, log_evidence
from pyro_fmvae.infer.exact.conditionals import Block, LogJoint, find_blocks
from pyro_fmvae.infer.exact.gibbs import GibbsKernel

__all__ = ["Block", "GibbsKernel", "LogJoint", "collapse", "find_blocks", "log_evidence"]
