"""The custom ELBO: recognition of a program's structure, and the terms of the bound."""

from pyro_fmvae.infer.elbo.structure import Role, Term, sum_terms
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import (
    NotFiniteError,
    TraceConjugate_ELBO,
    loss_per_point,
    propagate_back,
)

__all__ = [
    "NotFiniteError",
    "Role",
    "Term",
    "TraceConjugate_ELBO",
    "loss_per_point",
    "propagate_back",
    "sum_terms",
]
