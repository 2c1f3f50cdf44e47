"""Inference: the ELBO that integrates what it can, and what goes with it."""

from pyro_fmvae.infer.autoguide import AutoConjugate
from pyro_fmvae.infer.capture import CaptureError
from pyro_fmvae.infer.captured_svi import CapturedSVI
from pyro_fmvae.infer.enumeration import with_assignments
from pyro_fmvae.infer.mixture_terms import Role, Term
from pyro_fmvae.infer.svi import ConjugateSVI
from pyro_fmvae.infer.trace_conjugate_elbo import TraceConjugate_ELBO

__all__ = [
    "AutoConjugate",
    "CaptureError",
    "CapturedSVI",
    "ConjugateSVI",
    "Role",
    "Term",
    "TraceConjugate_ELBO",
    "with_assignments",
]
