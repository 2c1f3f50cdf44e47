"""Learning: phases with budgets, and the loop that runs them."""

from pyro_fmvae.learn.fitting import Progress, Record, fit
from pyro_fmvae.learn.fmvae_phases import Joint, Pretraining, PriorFitting, encode_some
from pyro_fmvae.learn.gradient_em import GradientEM
from pyro_fmvae.learn.options import BSCOptions, FMVAEOptions, VAEOptions, VSCOptions
from pyro_fmvae.learn.phase import Budget, GradientPhase, Phase, endless
from pyro_fmvae.learn.stepwise_em import StepwiseEM
from pyro_fmvae.learn.vae_phases import FreeEM, HybridEM, VAEJoint
from pyro_fmvae.learn.vsc_phases import SparsePhase

__all__ = [
    "BSCOptions",
    "Budget",
    "FMVAEOptions",
    "FreeEM",
    "GradientEM",
    "GradientPhase",
    "HybridEM",
    "Joint",
    "Phase",
    "Pretraining",
    "PriorFitting",
    "Progress",
    "Record",
    "SparsePhase",
    "StepwiseEM",
    "VAEJoint",
    "VAEOptions",
    "VSCOptions",
    "encode_some",
    "endless",
    "fit",
]
