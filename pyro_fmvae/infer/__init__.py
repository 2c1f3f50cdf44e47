"""Inference: the ELBO that integrates in closed form, its autoguide, and steps of SVI."""

from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer import seeding
from pyro_fmvae.infer.autoguide import AutoConjugate
from pyro_fmvae.infer.elbo import Role, Term, TraceConjugate_ELBO
from pyro_fmvae.infer.enumeration import with_assignments
from pyro_fmvae.infer.exact.collapse import CollapsedModel, collapse, log_evidence
from pyro_fmvae.infer.importance import log_weights
from pyro_fmvae.infer.natural_gradient import NaturalGradient, RobbinsMonro
from pyro_fmvae.infer.posteriors import NaturalPosterior, param_statements, to_natural, to_standard
from pyro_fmvae.infer.streams import posterior_as_prior
from pyro_fmvae.infer.svi import ConjugateSVI
from pyro_fmvae.infer.trust import Calibration, align_labels, khat, to_arviz, vsbc

__all__ = [
    "AutoConjugate",
    "Calibration",
    "CollapsedModel",
    "ConjugateSVI",
    "NaturalGradient",
    "NaturalPosterior",
    "RobbinsMonro",
    "Role",
    "Term",
    "TraceConjugate_ELBO",
    "align_labels",
    "collapse",
    "khat",
    "log_evidence",
    "log_weights",
    "natural_prior",
    "param_statements",
    "posterior_as_prior",
    "seeding",
    "to_arviz",
    "to_natural",
    "to_standard",
    "vsbc",
    "with_assignments",
]
