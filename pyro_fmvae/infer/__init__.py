"""Inference: the ELBO that integrates in closed form, its autoguide, and steps of SVI."""

from pyro_fmvae.infer.autoguide import AutoConjugate
from pyro_fmvae.infer.elbo.mixture_terms import Role, Term
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.enumeration import with_assignments
from pyro_fmvae.infer.svi import ConjugateSVI

__all__ = [
    "AutoConjugate",
    "ConjugateSVI",
    "Role",
    "Term",
    "TraceConjugate_ELBO",
    "with_assignments",
]
