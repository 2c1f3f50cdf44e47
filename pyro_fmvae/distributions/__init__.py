"""Densities and conjugate algebra: exponential families, mixture components, and expectations in closed form."""

from pyro_fmvae.distributions.dirichlet import DIRICHLET, DirichletFamily, NaturalDirichlet
from pyro_fmvae.distributions.expected_log_prob import expected_log_prob, register_expected_log_prob
from pyro_fmvae.distributions.exponential_family import ExponentialFamily, NaturalParameter
from pyro_fmvae.distributions.factorial_mixture import FactorialMixture
from pyro_fmvae.distributions.mixture import Assignment, Component, Label
from pyro_fmvae.distributions.normal_gamma import NORMAL_GAMMA, NaturalNormalGamma, NormalGamma, NormalGammaFamily

__all__ = [
    "DIRICHLET",
    "NORMAL_GAMMA",
    "Assignment",
    "Component",
    "DirichletFamily",
    "ExponentialFamily",
    "FactorialMixture",
    "Label",
    "NaturalDirichlet",
    "NaturalNormalGamma",
    "NaturalParameter",
    "NormalGamma",
    "NormalGammaFamily",
    "expected_log_prob",
    "register_expected_log_prob",
]
