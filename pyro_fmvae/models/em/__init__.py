"""Expectation maximisation: E-steps, M-steps and additive statistics, and free Gaussian posteriors."""

from pyro_fmvae.infer.free_gaussian import FreeGaussian, GaussianTable
from pyro_fmvae.models.em import binary_mean_field
from pyro_fmvae.models.em.binary_em import BinaryEM, BinaryParameters, enumerate_states
from pyro_fmvae.models.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum
from pyro_fmvae.models.em.spike_and_slab_em import SpikeAndSlabEM
from pyro_fmvae.models.em.spike_and_slab_gibbs import SpikeAndSlabParameters
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule, Rule
from pyro_fmvae.models.em.statistics import Statistics

__all__ = [
    "BinaryEM",
    "BinaryParameters",
    "Expectation",
    "ExpectationMaximization",
    "FreeGaussian",
    "GaussianTable",
    "LinearRule",
    "MaxRule",
    "Maximum",
    "Rule",
    "SpikeAndSlabEM",
    "SpikeAndSlabParameters",
    "Statistics",
    "binary_mean_field",
    "enumerate_states",
]
